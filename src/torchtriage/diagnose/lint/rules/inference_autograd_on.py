"""Inference records a graph that nobody uses.

Looks like: a function called evaluate, validate, predict, infer or test that calls a model in a
    loop outside ``no_grad`` and ``inference_mode``; a function that answers requests
    (``@app.post``) and calls one; a loop of steps that calls one, itself or through functions of
    the file, where no caller takes gradients of what it gives; in training, a teacher, a target
    network, or a part of a model (``self.backbone(x)``) whose parameters no optimizer has.
Slow because: every operator is noted for a backward pass that never comes, and all activations stay
    in memory until the result is let go.
Fix: ``@torch.inference_mode()`` on the function, or ``with torch.inference_mode():``.
Quiet when: gradients are used in the function, or go through the model to something trained, its callers
    switch autograd off, or a framework does (Lightning's ``validation_step``).
Source: PyTorch documentation, "Inference mode".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import (
    Assign,
    Autofix,
    Fix,
    Hit,
    Module,
    Rule,
    SourceCall,
    SourceFunction,
    arguments,
    decorate,
    names_in,
    text_of,
)
from torchtriage.diagnose.lint.rules._trained import trained_modules
from torchtriage.diagnose.lint.torch_names import INFERENCE

RULE = Rule(
    "CFG043", "inference-autograd-on", "config", "Inference records an autograd graph that nothing uses", "medium"
)

FIX = Fix(
    text="Switch autograd off around the loop.",
    code="with torch.inference_mode():\n    outputs = model(inputs)",
    link="https://docs.pytorch.org/docs/stable/notes/autograd.html#inference-mode",
)

SAFE = "the function takes no gradients, and returns no tensor that later code could train with"

_ASKED = re.compile(
    r"(^|[._])(teacher|target|frozen|reference|ref|ema|old|momentum)(_\w+)?$|_(teacher|target|frozen|ref|ema)$"
)
_USES_GRAD = re.compile(r"backward|autograd\.grad|requires_grad|enable_grad|\.grad\b|set_grad_enabled|jacobian|vjp")


def find(module: Module) -> Iterator[Hit]:
    """Yield the first call of a model in each function that only infers and records a graph."""
    yield from _frozen(module)
    done: set[SourceFunction | None] = set()
    for call in module.calls:
        function = call.context.function
        if (
            function in done
            or call.context.no_grad
            or call.context.rare
            or not (call.context.step_loop is not None or call.context.hot or (function and function.serves))
            or call.receiver.kind != "module"
            or call.value.kind != "tensor"
            or call.receiver.of.endswith("Loss")
            or call.attr == "generate"
            or _repeats(call)
        ):
            continue
        if function is None and not _script(module):
            continue
        if function is not None and not (_infers(module, call, function) or _is_never_trained(module, function)):
            continue
        done.add(function)
        yield Hit(
            call.node,
            "this inference records a graph that no backward pass uses",
            "forward",
            autofix=_mend(module, function),
        )


def _frozen(module: Module) -> Iterator[Hit]:
    """Yield calls of a model that a training step only asks: a teacher, a target network, a frozen encoder."""
    trains = module.trains or any(known.is_lightning for known in module.classes.values())
    if not trains:
        return
    trained = trained_modules(module) if module.is_program else None
    for call in module.calls:
        path = module.name_of(call.node.func)
        function = call.context.function
        if (
            call.receiver.kind != "module"
            or call.value.kind != "tensor"
            or call.context.no_grad
            or not call.context.hot
            or (call.user is not None and call.user.attr == "detach")
            or (function is not None and function.called_without_grad)
            or _is_trained(module, path)
            or _is_detached(module, call)
        ):
            continue
        if trained is not None and trained.leaves_out(call):
            yield Hit(call.node, f"no optimizer has the weights of {path}, and it records a graph", "forward")
        elif (
            _ASKED.search(path)
            and not any(item.grad for item in call.arguments)  # gradients go through it to its input
            and (function is None or function.name != "forward")
        ):
            yield Hit(call.node, f"{path} is only asked, and records a graph: {text_of(call.node)}", "forward")


def _is_trained(module: Module, path: str) -> bool:
    """Return whether an optimizer gets a model's parameters, or they need no gradients."""
    last = path.rpartition(".")[2]
    return re.search(rf"\b{re.escape(last)}\.(parameters|named_parameters|requires_grad_)\(", module.text) is not None


def _is_detached(module: Module, call: SourceCall) -> bool:
    """Return whether only ``out.detach()`` of the result is used."""
    names = {assign.target for assign in module.assigns if assign.expression is call.node}
    function = call.context.function
    if function is not None and any(call.node is returned.value for returned, _ in function.returns):
        callers = [caller for caller in module.calls if function in caller.callees]
        names |= {caller.target for caller in callers if caller.target}
        if any(caller.user is not None and caller.user.attr == "detach" for caller in callers):
            return True
    return any(one.owner is not None and module.name_of(one.owner) in names for one in module.sent("detach"))


def _repeats(call: SourceCall) -> bool:
    """Return whether a loop only repeats a call with the same inputs: it measures, and uses nothing."""
    loop = call.context.statement_loop
    if loop is None or isinstance(loop.node, ast.While):
        return False
    names = {name for item in arguments(call.node) for name in names_in(item)}
    return not any(name in loop.targets or name in loop.assigned for name in names)


def _script(module: Module) -> bool:
    """Return whether the file's own lines run inference: nothing is trained."""
    return not _USES_GRAD.search(module.text) and "set_grad" not in module.text


def _is_never_trained(module: Module, function: SourceFunction) -> bool:
    """Return whether a program calls a function, and no caller can take gradients of what it gives."""
    if not module.is_program or function.called_without_grad or function.compiled or _in_module(function):
        return False
    seen: set[SourceFunction | None] = {function}
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if current.has_backward or _USES_GRAD.search(module.text_of(current)):
            return False
        stores = any(
            assign.context.function is current and _outlives(assign) and assign.value.kind in ("tensor", "unknown")
            for assign in module.assigns
        )
        gives = current.is_generator or any(value.kind != "host" for _, value in current.returns)
        if not gives and not (stores and module.trains):
            continue
        callers = {context.function for context, callee in module.edges if callee is current}
        if not callers and module.trains:
            return False
        if None in callers and any(event.kind == "backward" for event in module.module_events):
            return False
        waiting += [caller for caller in callers if caller is not None and caller not in seen]
        seen |= callers
    return True


def _outlives(assign: Assign) -> bool:
    """Return whether a value is kept beyond the call: in an attribute, in a list that others made."""
    return "." in assign.target or (assign.how == "append" and assign.value.kind != "host")


def _in_module(function: SourceFunction) -> bool:
    """Return whether a function is part of a module's own code, whose callers decide."""
    owner = function.owner
    return owner is not None and (owner.is_lightning or owner.is_module)


def _infers(module: Module, call: SourceCall, function: SourceFunction) -> bool:
    if INFERENCE.match(function.name) is None and not function.serves:
        return False
    text = module.text_of(function)
    if _USES_GRAD.search(text) or "no_grad" in text or "inference_mode" in text:
        return False
    if function.called_without_grad or function.compiled:
        return False
    owner = function.owner
    if owner is not None and (
        _in_module(function)
        or function.name.startswith("_")  # its public callers switch autograd off, or not
        or any(base.endswith("Pipeline") for base in owner.bases)
    ):
        return False
    outer = function.outer
    while outer is not None:
        if outer.no_grad:
            return False
        outer = outer.outer
    return True


def _mend(module: Module, function: SourceFunction | None) -> Autofix | None:
    if function is None or function.is_generator:
        return None
    if isinstance(function.node, ast.AsyncFunctionDef):
        return None
    torch = next((name for name, full in module.aliases.items() if full == "torch"), "")
    keeps = any(
        isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function.node)
    )
    host = all(value.kind == "host" for _, value in function.returns)
    trains = _USES_GRAD.search(module.text) is not None
    if not torch or keeps or (trains and not host):
        return None
    return Autofix((decorate(module.text, function.node, f"{torch}.inference_mode()"),), SAFE)
