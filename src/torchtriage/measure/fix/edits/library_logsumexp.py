"""The logarithm of a sum of exponentials by ``torch.logsumexp``, in place of its operators one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._meanwhile import is_seen_elsewhere
from torchtriage.measure.fix.edits._torch import operands, torch_in
from torchtriage.measure.fix.edits._turns import is_whole
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, bound, remove, source

CODES = words("KRN101 KRN102 LCH014 LCH015 LCH017 LCH105 HST020 HST114")
FORMS = words("view reshape squeeze unsqueeze expand expand_as view_as detach")
SUMS = words("dim axis keepdim")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield each ``m + log(sum(exp(x - m)))`` of the function around the line: it is the same for any ``m``."""
    for node in ast.walk(site.scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for shift, logarithm in ((node.left, node.right), (node.right, node.left)):
                edits = _edits(site.module, node, shift, logarithm)
                yield Proposal(edits, "take the logarithm of the sum with torch.logsumexp")


def _edits(module: Module, node: ast.BinOp, shift: ast.expr, logarithm: ast.expr) -> tuple[SourceEdit, ...]:
    inner = _base(logarithm)
    total = _argument(module, inner, "log")
    power = _argument(module, total, "sum")
    less = _argument(module, power, "exp")
    summed = _given(module, total)
    if not isinstance(less, ast.BinOp) or not isinstance(less.op, ast.Sub) or not summed:
        return ()
    name = path_of(_base(shift))
    if not name or path_of(_base(less.right)) != name or inner is None:
        return ()
    torch, imports = torch_in(module)
    reshaped = source(module, logarithm)[len(source(module, inner)) :]
    text = f"{torch}.logsumexp({source(module, less.left)}, {', '.join(summed)}){reshaped}"
    around = module.around(node, ast.stmt)
    gone = {*ast.walk(shift), *ast.walk(less.right)}
    unread = list(_unread(module, around, gone, name)) if isinstance(around, ast.stmt) else []
    return tuple(dict.fromkeys((*imports, replace_node(node, text), *unread)))


def _base(node: ast.expr) -> ast.expr:
    """Return what an expression gives another form: ``m`` of ``m.unsqueeze(1).expand_as(x)`` and ``m[:, None]``."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FORMS:
            node = node.func.value
        elif isinstance(node, ast.Subscript) and all(map(_is_form, indices(node))):
            node = node.value
        else:
            return node


def _is_form(node: ast.expr) -> bool:
    """Return whether a place of a subscript takes all there is, or adds a dimension."""
    return is_whole(node) or (isinstance(node, ast.Constant) and literal(node) in (None, ...))


def _argument(module: Module, node: ast.expr | None, name: str) -> ast.expr | None:
    """Return what a function or method of tensors, ``torch.log(x)`` or ``x.log()``, is given."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != name:
        return None
    if any(item.arg == "out" for item in node.keywords):
        return None
    full = module.name_of(node.func)
    return next(iter(operands(module, node)), None) if full in ("", f"torch.{name}") else None


def _given(module: Module, node: ast.expr | None) -> list[str]:
    """Return the dimension, and whether it is kept, that a sum is given; none where there may be more."""
    if not isinstance(node, ast.Call):
        return []
    rest = operands(module, node)[1:]
    named = [item for item in node.keywords if item.arg in SUMS]
    if len(named) != len(node.keywords) or (not rest and not any(item.arg in ("dim", "axis") for item in named)):
        return []
    texts = [f"{'dim' if item.arg == 'axis' else item.arg}={source(module, item.value)}" for item in named]
    return [*(source(module, item) for item in rest), *texts]


def _unread(module: Module, at: ast.stmt, gone: set[ast.AST], name: str) -> Iterator[SourceEdit]:
    """Yield the edits that take out what made a variable that nothing reads any more, and what only that needed."""
    named = module.names(name, module.scope(at))
    stores = [item for item in named if isinstance(item.ctx, ast.Store)]
    made: ast.AST | None = module.parents[stores[0]] if len(stores) == 1 and name.isidentifier() else None
    made = module.parents[made] if isinstance(made, ast.Tuple) else made
    if not isinstance(made, ast.Assign) or made not in (body_of(module, at) or []):
        return
    if any(is_seen_elsewhere(module, target, module.scope(at)) for target in bound([made])):
        return
    others = [node for target in bound([made]) for node in module.names(target, module.scope(at))]
    own = {part for target in made.targets for part in ast.walk(target)}
    if any(node not in gone and node not in own for node in others) or not flow_of(module).repeats(made.value):
        return
    edit = remove(module, made)
    if edit is not None:
        yield edit
        for read in names_in(made.value):
            yield from _unread(module, at, {*gone, *ast.walk(made)}, read)
