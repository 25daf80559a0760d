"""An operator computes more than what is read of its result.

Looks like: ``self.lm_head(hidden)[:, -1]``, a projection of all positions of which only the last is read; ``u, s, v =
    torch.svd(x)`` for ``s`` only, ``torch.linalg.eigh`` for its values; ``torch.inverse(a) @ b``.
Slow because: the projection to a vocabulary, the vectors of a decomposition and an inverse are the costly part.
Fix: take the position first; ``torch.linalg.svdvals``, ``eigvalsh``; ``torch.linalg.solve(a, b)``.
Quiet when: the rest is read somewhere; an inverse is used again and again, or is that of a camera or a pose.
Source: PyTorch documentation of ``torch.linalg``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, literal, names_in, text_of
from torchtriage.diagnose.lint.syntax import indices, whole_number

RULE = Rule("KRN104", "unused-results", "kernel", "Results are computed that nothing reads", "low")

FIX = Fix(
    text="Select first, and ask for what is needed.",
    code="""logits = lm_head(hidden[:, -1])    # lm_head(hidden)[:, -1]
s = torch.linalg.svdvals(x)        # u, s, v = torch.svd(x)
y = torch.linalg.solve(a, b)       # torch.inverse(a) @ b""",
    link="https://docs.pytorch.org/docs/stable/linalg.html",
)

_HEAD = re.compile(r"head|vocab|classif|decoder|generator|^fc|_fc|^out$|output|out_proj|proj_out|predict|to_logits")
_DECOMPOSES = {"svd": (1, "svdvals"), "eigh": (0, "eigvalsh"), "eig": (0, "eigvals")}
_INVERSE = frozenset(["torch.inverse", "torch.linalg.inv"])
_PRODUCTS = frozenset(["matmul", "mm", "bmm", "mv"])
_SMALL = re.compile(
    r"intrin|extrin|pose|c2w|w2c|cam|rot|homo|affin|theta|transf|lidar|ego|proj|view|grid|world|ray|calib|matrix|pts|coord"
    r"|\bK\b|\bR\b|\bT\b|\bM\b|\bH\b|trans|img|image|basis|lattice|cell",
    re.IGNORECASE,
)


def find(module: Module) -> Iterator[Hit]:
    """Yield projections of positions, factors and inverses that nothing reads."""
    text = module.text
    if "[:, -1" in text:
        yield from _positions(module)
    if ".logits" in text and module.is_program:
        yield from _prompts(module)
    if "svd(" in text or "eig" in text:
        yield from _factors(module)
    if "inverse(" in text or ".inv(" in text:
        yield from _inverses(module)


def _positions(module: Module) -> Iterator[Hit]:
    for call in module.calls:
        if call.receiver.kind != "module" or not isinstance(call.node.func, ast.Attribute) or len(call.node.args) != 1:
            continue
        if not call.receiver.of.endswith("nn.Linear") or not _HEAD.search(call.node.func.attr):
            continue
        uses = module.uses(call.node)
        if uses and all(_takes_last(module.parents.get(use), use) for use in uses):
            message = f"all positions are projected, but only the last is read: {text_of(call.node)}"
            yield Hit(call.node, message, "forward")


def _prompts(module: Module) -> Iterator[Hit]:
    """Yield runs of language models whose logits of the prompt are worked through and cut off at the end."""
    for call in module.calls:
        around = module.parents.get(call.node)
        if call.receiver.kind != "module" or not isinstance(around, ast.Attribute) or around.attr != "logits":
            continue
        function = call.context.function
        if function is None or "logits_to_keep" in module.text_of(function):
            continue
        made = module.around(call.node, ast.Assign)
        if made is None or _cut(made.value):
            continue
        names = {item for target in made.targets for item in names_in(target)}
        for assign in module.assigns:
            if assign.context.function is function and assign.how == "=" and names_in(assign.expression) & names:
                if _cut(assign.expression):
                    break  # cut before the work
                if assign.expression is not made.value:
                    names.add(assign.target)
        else:
            for returned, _ in function.returns:
                value = returned.value
                if value is not None and _cut(value) and names_in(value) & names and not isinstance(value, ast.Tuple):
                    yield Hit(call.node, f"logits of the prompt are computed and cut off: {text_of(value)}", "forward")


def _cut(node: ast.expr) -> bool:
    """Return whether an expression takes the positions from a place on that is no constant: ``x[:, n:]``."""
    return any(
        isinstance(part, ast.Slice) and part.lower is not None and part.upper is None and bool(names_in(part.lower))
        for item in ast.walk(node)
        if isinstance(item, ast.Subscript)
        for part in indices(item)[1:2]
    )


def _takes_last(around: ast.AST | None, node: ast.expr) -> bool:
    """Return whether a place reads ``x[:, -1]`` and no more."""
    if not isinstance(around, ast.Subscript) or around.value is not node or len(indices(around)) < 2:
        return False
    first, last = indices(around)[:2]
    whole = isinstance(first, ast.Slice) and first.lower is None and first.upper is None
    begin = last.lower if isinstance(last, ast.Slice) and last.upper is None else last
    return whole and whole_number(begin) == -1


def _factors(module: Module) -> Iterator[Hit]:
    for call in module.calls:
        known = _DECOMPOSES.get(call.attr)
        if known is None or not (call.name.startswith(("torch.", "numpy.linalg")) or call.receiver.kind == "tensor"):
            continue
        at, better = known
        around = module.parents.get(call.node)
        alone = False
        if isinstance(around, ast.Assign) and isinstance(around.targets[0], ast.Tuple):
            names = around.targets[0].elts
            scope = module.scope(call.node)
            alone = all(
                isinstance(item, ast.Name) and (index == at) == bool(module.reads(item.id, scope))
                for index, item in enumerate(names)
            )
        elif isinstance(around, ast.Subscript) and around.value is call.node:
            alone = literal(around.slice) == at
        elif isinstance(around, ast.Attribute):
            alone = around.attr in ("S", "eigenvalues")
        if alone:
            yield Hit(call.node, f"the vectors are computed but never read; {better}() leaves them out", call.attr)


def _inverses(module: Module) -> Iterator[Hit]:
    for call in module.calls:
        owner = call.owner
        if call.name in _INVERSE and call.node.args:
            given = call.node.args[0]
        elif call.attr == "inverse" and owner is not None and not call.node.args and call.receiver.kind == "tensor":
            given = owner
        else:
            continue
        uses = module.uses(call.node)
        if not uses or len(uses) > 2 or _is_small(text_of(given, 200)):
            continue
        if all(_is_left_factor(module, use) for use in uses) and not _is_small(
            " ".join(text_of(module.parents[use], 200) for use in uses)
        ):
            yield Hit(call.node, f"an inverse only for a product: {text_of(call.node)}", call.attr)


def _is_small(text: str) -> bool:
    """Return whether a matrix is that of a camera, a pose or a lattice, by its names."""
    return _SMALL.search(re.sub(r"\.(m?T|t\(\)|transpose\([^)]*\))", "", text)) is not None


def _is_left_factor(module: Module, node: ast.expr) -> bool:
    """Return whether a matrix is the left side of a product, which a solver gives by itself."""
    around = module.parents.get(node)
    if isinstance(around, ast.BinOp):
        return isinstance(around.op, ast.MatMult) and around.left is node
    if isinstance(around, ast.Call) and isinstance(around.func, ast.Attribute):
        return around.func.attr in _PRODUCTS and around.args[:1] == [node]
    call = module.parents.get(around) if isinstance(around, ast.Attribute) else None
    return isinstance(call, ast.Call) and isinstance(around, ast.Attribute) and around.attr in _PRODUCTS
