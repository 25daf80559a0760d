"""A large table of embeddings gets a gradient, and an update, for all rows in every step.

Looks like: ``nn.Embedding(2_000_000, 64)`` without ``sparse=True`` in a file that trains, or an
    ``nn.Parameter`` of that size whose rows are picked by index; the count may be a setting or what is given
    to the class that builds the table.
Slow because: a step looks up a few thousand rows; the gradient is as large as the table, and is
    filled with zeros, and the optimizer goes over all rows.
Fix: ``sparse=True`` with ``SparseAdam`` (or ``SGD``) for the table.
Quiet when: fewer than a million rows (in a program for the CPU 50,000; a remark from there), its weight or a
    layer of as many outputs is used whole, it is frozen, or nothing trains here.
Source: PyTorch documentation of ``Embedding``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, text_of, unpacks
from torchtriage.diagnose.lint.syntax import argument, walk
from torchtriage.diagnose.lint.torch_names import FACTORIES

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
    tables = [*module.called("torch.nn.Embedding", "torch.nn.EmbeddingBag"), *_picked(module)]
    steps = any(loop.trains for loop in module.loops) or any(known.is_lightning for known in module.classes.values())
    if not tables or not steps:
        return
    for call in tables:
        given = _count(call)
        if given is None or keyword(call.node, "sparse") is not None or unpacks(call.node):
            continue
        rows = _rows(module, call, given)
        if rows >= LARGE and not _is_whole(module, call, given) and not _is_frozen(module, call):
            yield Hit(
                call.node,
                f"a table of {rows:,} rows gets a gradient for each of them in every step",
                severity=None if rows >= (LARGE if module.on_cpu else HUGE) else "note",
            )


def _picked(module: Module) -> Iterator[SourceCall]:
    """Yield parameters of a module whose rows are picked by index: ``self.table[ids]``."""
    made = [call for call in module.called("torch.nn.Parameter") if call.target.startswith("self.")]
    if not made:
        return
    # the whole file is gone through only where its text has one
    subscripted = any(f"{call.target}[" in module.text for call in made)
    indexed = {
        text_of(node.value)
        for node in (walk(module.tree) if subscripted else ())
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    looked_up = module.called("torch.nn.functional.embedding", "torch.nn.functional.embedding_bag")
    indexed |= {text_of(call.node.args[1]) for call in looked_up if len(call.node.args) > 1}
    yield from (call for call in made if call.target in indexed)


def _count(call: SourceCall) -> ast.expr | None:
    """Return the number of rows of a table, as it is written."""
    given = argument(call.node, "num_embeddings", 0)
    if call.attr != "Parameter":
        return given
    maker = next((item for item in ast.walk(call.node) if isinstance(item, ast.Call) and len(item.args) == 2), None)
    name = text_of(maker.func).rpartition(".")[2] if maker is not None else ""
    return maker.args[0] if maker is not None and f"torch.{name}" in FACTORIES else None


def _is_whole(module: Module, call: SourceCall, given: ast.expr) -> bool:
    """Return whether a step computes with all rows: a tied output, a softmax over as many classes."""
    size = text_of(given)
    for layer in module.called("torch.nn.Linear"):
        out = argument(layer.node, "out_features", 1)
        if out is not None and text_of(out) == size:
            return True
    last = call.target.rpartition(".")[2]
    used = re.compile(rf"\b{re.escape(last)}\.weight\b(?!\.(data|shape|size|device|dtype))") if last else None
    return used is not None and any(
        (function.steps or function.called_hot or function.in_module)
        and not (function.no_grad or function.called_without_grad or function.name == "__init__")
        and used.search(module.text_of(function))
        for function in module.functions
    )


def _is_frozen(module: Module, call: SourceCall) -> bool:
    last = call.target.rpartition(".")[2]
    return bool(last) and re.search(rf"\b{re.escape(last)}\.(weight\.)?requires_grad", module.text) is not None


def _rows(module: Module, call: SourceCall, given: ast.expr) -> int:
    """Return the number of rows; of a class that builds several tables the largest."""
    known = module.constant(given, call.context)
    function = call.context.function
    if isinstance(known, int) or not isinstance(given, ast.Name) or function is None or function.owner is None:
        return known if isinstance(known, int) else 0
    found = [0]
    for item in module.called(function.owner.name) if given.id in function.places else ():
        passed = function.given_by(item.node).get(given.id)
        said = module.constant(passed, item.context) if passed is not None else 0
        found.append(said if isinstance(said, int) else 0)
    return max(found)
