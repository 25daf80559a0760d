"""A large table of embeddings gets a gradient, and an update, for all rows in every step.

Looks like: ``nn.Embedding(2_000_000, 64)`` without ``sparse=True`` in a file that trains; the count
    may be a constant of the file or what it gives to the class that builds the table.
Slow because: a step looks up a few thousand rows; the gradient is as large as the table, and is
    filled with zeros, and the optimizer goes over all rows.
Fix: ``sparse=True`` with ``SparseAdam`` (or ``SGD``) for the table.
Quiet when: fewer than a million rows (a remark from 50,000), or nothing trains here.
Source: PyTorch documentation of ``Embedding``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, literal, unpacks

RULE = Rule("OPT047", "dense-embedding-grad", "optim", "Dense gradients of a large embedding table", "low")

FIX = Fix(
    text="Make the table's gradients sparse, with an optimizer of its own.",
    code="""table = torch.nn.Embedding(rows, dim, sparse=True)
optimizer = torch.optim.SparseAdam(table.parameters())""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
)

LARGE, HUGE = 50_000, 1_000_000  # vocabularies of language models end at about 260,000 rows


def find(module: Module) -> Iterator[Hit]:
    """Yield large tables that train with dense gradients."""
    tables = module.called("torch.nn.Embedding", "torch.nn.EmbeddingBag")
    if not tables or not any(loop.optimizes or loop.backward for loop in module.loops):
        return
    for call in tables:
        if keyword(call.node, "sparse") is not None or unpacks(call.node):
            continue
        given = call.node.args[0] if call.node.args else keyword(call.node, "num_embeddings")
        rows = _rows(module, call, given) if given is not None else 0
        if rows >= LARGE:
            yield Hit(
                call.node,
                f"a table of {rows:,} rows gets a gradient for each of them in every step",
                severity=None if rows >= HUGE else "note",
            )


def _rows(module: Module, call: SourceCall, given: ast.expr) -> int:
    known = _number(module, given)
    function = call.context.function
    if known or not isinstance(given, ast.Name) or function is None or function.owner is None:
        return known
    places = [arg.arg for arg in function.node.args.args][1:]
    if given.id not in places:
        return 0
    at = places.index(given.id)
    found = [0]
    for item in module.called(function.owner.name):
        passed = keyword(item.node, given.id)
        if passed is None and at < len(item.node.args):
            passed = item.node.args[at]
        if passed is not None:
            found.append(_number(module, passed))
    return max(found)


def _number(module: Module, node: ast.expr) -> int:
    """Return what a number or a constant of the file says, 0 when that is not known."""
    value = literal(node)
    if isinstance(node, ast.Name):
        value = next(
            (
                literal(assign.expression)
                for assign in module.assigns
                if assign.target == node.id and assign.how == "=" and assign.context.function is None
            ),
            0,
        )
    return value if isinstance(value, int) else 0
