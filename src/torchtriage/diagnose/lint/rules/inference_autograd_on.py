"""Inference records a graph that is never used.

Looks like: a function called evaluate, validate, predict, infer or test that calls a model in a loop outside
    ``no_grad`` and ``inference_mode``; a function that answers requests (``@app.post``) and calls one; a loop of steps
    that calls one, itself or through functions of the file, where no caller takes gradients of what it returns; in
    training, a teacher, a target network, or a part of a model (``self.backbone(x)``) whose parameters no optimizer
    has.
Slow because: every operator is recorded for a backward pass that never comes, and all activations stay in memory until
    the result is released.
Fix: ``@torch.inference_mode()`` on the function, or ``with torch.inference_mode():``.
Quiet when: gradients are used in the function, in what it calls or in the model itself, or go through the model
    to something trained, its callers switch autograd off, or a framework does (Lightning's ``validation_step``).
Source: PyTorch documentation, "Inference mode".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Assign, Fix, Hit, Module, Rule, SourceCall, SourceFunction, names_in, text_of
from torchtriage.diagnose.lint.rules._trained import GRADIENTS, takes_gradients, trained_modules
from torchtriage.diagnose.lint.syntax import given_names, is_self
from torchtriage.diagnose.lint.torch_names import INFERENCE, words

RULE = Rule(
    "CFG043", "inference-autograd-on", "config", "Inference records an autograd graph that nothing uses", "medium"
)

FIX = Fix(
    text="Switch autograd off around the loop.",
    code="with torch.inference_mode():\n    outputs = model(inputs)",
    link="https://docs.pytorch.org/docs/stable/notes/autograd.html#inference-mode",
)

_ASKED = re.compile(
    r"(^|[._])(teacher|target|frozen|reference|ref|ema|old|momentum)(_\w+)?$|_(teacher|target|frozen|ref|ema)$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield the first call of a model in each function that only infers and records a graph."""
    for hit in (*_frozen(module), *_detached(module), *_targets(module)):
        if not takes_gradients(module, hit.node):
            yield hit
    done: set[SourceFunction | None] = set()
    for call in module.calls:
        function = call.context.function
        if (
            function in done
            or call.context.no_grad
            or call.context.rare
            or not (call.context.step_loop is not None or call.context.hot or (function and function.serves))
            or not call.runs_module
            or call.receiver.of.endswith("Loss")
            or call.attr == "generate"
            or _repeats(call)
        ):
            continue
        if function is None and GRADIENTS.search(module.text):
            continue
        if function is not None and not (_infers(module, function) or _is_never_trained(module, function)):
            continue
        done.add(function)
        yield Hit(call.node, "this inference records a graph that no backward pass uses", "forward")


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
            not call.runs_module
            or call.context.no_grad
            or not call.context.hot
            or (call.user is not None and call.user.attr == "detach" and module.is_program)
            or (function is not None and function.called_without_grad)
            or _is_trained(module, path)
            or _is_detached(module, call)
        ):
            continue
        if trained is not None and trained.leaves_out(call):
            yield Hit(call.node, f"no optimizer holds the weights of {path}, yet it records a graph", "forward")
        elif (
            _ASKED.search(path)
            and not any(item.grad for item in call.arguments)  # gradients go through it to its input
            and (function is None or function.name != "forward")
        ):
            yield Hit(call.node, f"{path} is only evaluated, yet it records a graph: {text_of(call.node)}", "forward")


def _detached(module: Module) -> Iterator[Hit]:
    """Yield models of a training program whose result is detached, or only says which is the largest."""
    if not module.trains or not module.is_program:
        return
    for call in module.calls:
        function = call.context.function
        if not call.runs_module or call.context.no_grad or call.context.rare:
            continue
        if _is_layer(call) or call.attr == "generate":
            continue
        if function is not None and (function.called_without_grad or function.name == "forward" or function.sets_up):
            continue
        path = module.name_of(call.node.func)
        if _is_frozen(module, path) or not _runs_often(module, call):
            continue
        uses = module.uses(call.node)
        if uses and all(_drops(module, use) for use in uses):
            message = f"a graph is recorded and dropped: {text_of(call.node)}"
            yield Hit(call.node, message, "forward", severity="low")


def _is_layer(call: SourceCall) -> bool:
    """Return whether a layer or a loss is run in the code of a module, which its callers switch off."""
    return call.receiver.of.endswith("Loss") or (call.context.in_module and call.receiver.of.startswith("torch."))


def _targets(module: Module) -> Iterator[Hit]:
    """Yield values that a step computes through models, with a graph, and only ever detaches."""
    if not module.trains or not module.is_program or ".detach()" not in module.text:
        return
    for assign in module.assigns:
        function = assign.context.function
        if assign.how != "=" or assign.context.no_grad or assign.context.rare or function is None:
            continue
        if not function.has_backward or not isinstance(assign.expression, ast.BinOp | ast.Call):
            continue
        uses = module.uses(assign.expression)
        detached = all(getattr(module.parents.get(use), "attr", "") == "detach" for use in uses)
        if uses == [assign.expression] or not uses or not detached:
            continue
        made: list[ast.expr] = [assign.expression]
        names = names_in(assign.expression)
        made += [
            item.expression
            for item in module.assigns
            if item.target in names and item.context.function is function and not item.context.no_grad
        ]
        runs = {node for part in made for node in ast.walk(part)}
        for call in module.calls:
            if call.node in runs and _runs_model(call, function):
                message = f"a graph is recorded and dropped: {text_of(call.node)}"
                yield Hit(call.node, message, "forward", severity="low")
                break


def _runs_model(call: SourceCall, function: SourceFunction) -> bool:
    """Return whether a call runs a model: a module, or an attribute that is called and is no method."""
    if call.receiver.kind == "module":
        return not (call.receiver.of.startswith("torch.") or call.receiver.of.endswith("Loss"))
    own = call.owner is not None and is_self(call.owner)
    return own and function.owner is not None and function.owner.method(call.attr) is None


def _runs_often(module: Module, call: SourceCall) -> bool:
    """Return whether a call runs in steps, or in a method that others call: an agent's, a trainer's."""
    function = call.context.function
    if call.context.hot or module.repeats(call.context):
        return True
    called = any(callee is function for _, callee in module.edges)
    return function is not None and function.owner is not None and not called


_KEEPS_GRAPH = words("""
    max min mean sum squeeze view reshape softmax log_softmax float unsqueeze gather
""")
_DROPS = frozenset(["detach", "argmax", "item", "tolist", "argmin"])


def _drops(module: Module, node: ast.AST) -> bool:
    """Return whether a result is detached, or becomes an index or a number, before anything else uses it."""
    for _ in range(6):
        around = module.parents.get(node)
        if isinstance(around, ast.Attribute) and around.value is node:
            if around.attr in _DROPS or around.attr == "indices":
                return True
            if around.attr not in _KEEPS_GRAPH and around.attr not in ("logits", "values"):
                return False
            node = around
        elif isinstance(around, ast.Call):
            if around.func is not node:
                return module.name_of(around.func) in ("torch.argmax", "torch.argmin") and around.args[:1] == [node]
            node = around
        elif isinstance(around, ast.Subscript) and around.value is node:
            node = around
        else:
            return False
    return False


def _is_frozen(module: Module, path: str) -> bool:
    """Return whether the weights of a model are said to need no gradients."""
    last = re.escape(path.rpartition(".")[2])
    frozen = rf"\b{last}(\.requires_grad_\(False|\.(named_)?parameters\(\)\s*:\s+\w+\.requires_grad)"
    made = rf"\b{last}\s*=[^\n]*requires_grad_\(False"
    return re.search(f"{frozen}|{made}", module.text) is not None


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
    return any(detach.owner is not None and module.name_of(detach.owner) in names for detach in module.sent("detach"))


def _repeats(call: SourceCall) -> bool:
    """Return whether a loop only repeats a call with the same inputs: it measures, and uses nothing."""
    loop = call.context.statement_loop
    if loop is None or isinstance(loop.node, ast.While):
        return False
    names = given_names(call.node)
    return not any(name in loop.targets or name in loop.assigned for name in names)


def _is_never_trained(module: Module, function: SourceFunction) -> bool:
    """Return whether a program calls a function, and no caller can take gradients of what it gives."""
    if not module.is_program or function.called_without_grad or function.compiled or function.in_module:
        return False
    if takes_gradients(module, function.node):
        return False
    seen: set[SourceFunction | None] = {function}
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if current.has_backward or GRADIENTS.search(module.text_of(current)):
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


def _infers(module: Module, function: SourceFunction) -> bool:
    if INFERENCE.match(function.name) is None and not function.serves:
        return False
    text = module.text_of(function)
    if "no_grad" in text or "inference_mode" in text or function.called_without_grad or function.compiled:
        return False
    if takes_gradients(module, function.node):
        return False
    owner = function.owner
    if owner is not None and (
        (function.in_module and not _gives_host_values(function))
        or function.name.startswith("_")  # its public callers switch autograd off, or not
        or any(base.endswith("Pipeline") for base in owner.bases)
    ):
        return False
    outer = function.outer
    while outer is not None and not outer.no_grad:
        outer = outer.outer
    return outer is None


def _gives_host_values(function: SourceFunction) -> bool:
    """Return whether a module's method gives text or numbers: nobody can take gradients of these."""
    return bool(function.returns) and all(value.kind == "host" for _, value in function.returns)
