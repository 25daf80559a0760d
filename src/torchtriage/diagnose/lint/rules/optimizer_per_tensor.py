"""Parameters are updated one by one.

Looks like: an optimizer with ``foreach=False``; a loop over ``parameters()`` that updates each in
    place (``p.data.mul_(...)``, an average of weights) in each step; a penalty that is summed up parameter by
    parameter.
Slow because: several launches per parameter, each a few microseconds of host time, for kernels that
    take less.
Fix: ``AdamW(..., fused=True)``; ``torch._foreach_lerp_`` or ``AveragedModel`` for averages.
Quiet when: ``fused=True`` is given, or the loop runs once (freezing, initial values).
Source: PyTorch performance tuning guide, "Fuse operations"; documentation of ``torch.optim``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.core import fixes
from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, keyword, literal, names_in
from torchtriage.diagnose.lint.syntax import attributes_in, holds, path_of, root_of

RULE = Rule("LCH016", "optimizer-per-tensor", "launch", "Parameters are updated one by one", "medium", over=("OPT040",))

FIX = fixes.FUSE_OPTIMIZER

PENALTY = Fix(
    text="Use the optimizer's weight_decay, or compute all norms with one call.",
    code="""optimizer = AdamW(model.parameters(), weight_decay=1e-4)
penalty = sum(n.square() for n in torch._foreach_norm(list(model.parameters())))""",
    link="https://docs.pytorch.org/docs/stable/optim.html",
)

_FUSED = frozenset(["SGD", "Adam", "AdamW", "Adagrad"])
_UPDATES = re.compile(r"(mul|add|sub|copy|lerp|addcmul|addcdiv|div)_$")
_STEPPING = re.compile(r"ema|average|momentum|(^|_)update|(^|_)step($|_)|polyak|soft_update")


def find(module: Module) -> Iterator[Hit]:
    """Yield per-tensor optimizers and loops that update parameters in each step."""
    for call in module.calls:
        if call.name.startswith("torch.optim.") and call.attr[:1].isupper():
            yield from _optimizer(call)
    for loop in module.loops:
        if _updates(module, loop):
            yield Hit(
                loop.place,
                "parameters are updated one by one in every step",
                fix=FIX if "grad" in attributes_in(loop.node) else fixes.AVERAGE_AT_ONCE,
                span=loop.node,
            )
        elif (term := _penalty(module, loop)) is not None:
            yield Hit(
                term,
                "a penalty on the weights is computed parameter by parameter in every step",
                fix=PENALTY,
                severity="low",
            )


def _penalty(module: Module, loop: SourceLoop) -> ast.expr | ast.stmt | None:
    """Return where a loss gets a term of each parameter, which the graph then holds."""
    if loop.iterates.kind != "params" or not loop.context.hot or isinstance(loop.node, ast.While):
        return None
    if isinstance(loop.node, ast.comprehension):
        element = module.elements.get(loop.node)
        summed = any(holds(call.node, element) for call in module.called("sum"))
        return element if element is not None and summed and _reduces(element, loop) else None
    for node in ast.walk(loop.node):
        adds = isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)
        )
        if adds and isinstance(node, ast.AugAssign | ast.Assign) and _reduces(node.value, loop):
            return loop.place
    return None


_DETACHED = ("grad", "data", "detach", "item", "numel", "size", "shape", "nelement")


def _reduces(node: ast.expr, loop: SourceLoop) -> bool:
    """Return whether an expression makes one number of a parameter, with its graph."""
    attrs = attributes_in(node)
    return bool(attrs & {"norm", "sum", "abs"}) and not attrs & set(_DETACHED) and bool(names_in(node) & loop.targets)


def _optimizer(call: SourceCall) -> Iterator[Hit]:
    foreach, fused = keyword(call.node, "foreach"), keyword(call.node, "fused")
    if any(literal(item) is True for item in (fused, keyword(call.node, "differentiable"))):
        return
    if foreach is not None and literal(foreach) is False:
        yield Hit(call.node, f"{call.attr} with foreach=False updates one parameter at a time")
    elif foreach is None and fused is None and call.attr in _FUSED:
        yield Hit(call.node, f"{call.attr} without fused=True: one kernel could update all parameters", severity="note")


def _updates(module: Module, loop: SourceLoop) -> bool:
    if not isinstance(loop.node, ast.For) or not _over_params(module, loop):
        return False
    function = loop.function
    stepping = function is not None and (_STEPPING.search(function.name) is not None or function.called_hot)
    if not (loop.context.hot or stepping) or loop.context.rare:
        return False
    if function is not None and "_foreach_" in module.text_of(function):
        return False  # the way out for what the fast path cannot do
    for node in ast.walk(loop.node):
        if isinstance(node, ast.AugAssign) and path_of(root_of(node.target)) in loop.targets:
            if "grad" not in attributes_in(node.target):
                return True
        elif (isinstance(node, ast.Assign) and _averages(node, loop)) or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _UPDATES.search(node.func.attr)
            and path_of(root_of(node.func.value)) in loop.targets
            and "grad" not in attributes_in(node.func.value)
        ):
            return True
    return False


def _averages(node: ast.Assign, loop: SourceLoop) -> bool:
    """Return whether ``kept[name] = decay * kept[name] + ...`` mixes an entry with the loop's own value."""
    target = node.targets[0]
    if not isinstance(target, ast.Subscript) or not isinstance(node.value, ast.BinOp):
        return False
    changed = ast.dump(target.value)
    mixed = any(isinstance(item, ast.Subscript) and ast.dump(item.value) == changed for item in ast.walk(node.value))
    return mixed and bool(names_in(target.slice) & loop.targets) and bool(names_in(node.value) & loop.targets)


def _over_params(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop goes over parameters, alone or in pairs, or over a state_dict()."""
    node = loop.node.iter  # type: ignore[union-attr]
    if loop.iterates.kind == "params" or "state_dict" in attributes_in(node):
        return True
    function = loop.function
    if function is not None and any(
        assign.how == "=" and assign.context.function is function and "state_dict" in attributes_in(assign.expression)
        for name in names_in(node)
        for assign in module.assigns_to(name)
    ):
        return True
    if isinstance(node, ast.Call) and module.name_of(node.func) == "zip":
        return any(module.value(arg).kind == "params" for arg in node.args)
    if isinstance(node, ast.Subscript):
        return literal(node.slice) == "params"
    return False
