"""What calling a module gives, and what its methods make of it."""

from __future__ import annotations

import ast

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import CPU, DEVICE, MAYBE, OUTPUT, PARAMETERS, UNKNOWN, Value, placed
from torchtriage.diagnose.lint.facts import SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import is_self, literal, moves, path_of
from torchtriage.diagnose.lint.walk.walker import Walker


def builds_parts(walker: Walker) -> bool:
    """Return whether this is a module's constructor: what it builds are its parts."""
    return walker.context.in_module and walker.function is not None and walker.function.name == "__init__"


def as_called(value: Value) -> Value:
    """Return what something is, given that it is called: what was moved is a module then."""
    if value.kind == "tensor" and not (value.guess or value.data):
        return Value("module", value.device)
    return value


def loss_of(walker: Walker, given: list[Value]) -> Value:
    """Return what a criterion gives."""
    tensors = [item for item in given if item.kind == "tensor"]
    device, grad = placed(tensors) if tensors else (MAYBE, True)
    return Value("tensor", device, grad=grad and not walker.context.no_grad, scalar=True)


def invoke(walker: Walker, call: SourceCall) -> Value:
    """Return what calling a module or a compiled function gives."""
    receiver, given = call.receiver, list(call.arguments)
    path = path_of(call.node.func) if isinstance(call.node.func, ast.Name | ast.Attribute) else ""
    if receiver.of == "event":
        return UNKNOWN
    if receiver.kind == "callable" and not receiver.compiled:
        return UNKNOWN
    walker.event("first" if receiver.compiled else "work", call.node, path)
    # inside a module a loop over chunks or layers is part of one step
    note_work(walker)
    if not walker.context.rare and not walker.context.in_module:
        loop = walker.context.statement_loop
        if loop is not None:
            loop.runs_module = True
        if walker.function is not None and (loop is None or loop.short):
            walker.function.runs_module = True
    device, grad = placed(given)
    grad = grad or receiver.kind == "module"  # a function has no parameters of its own
    device = max(receiver.device, device if given else CPU)
    last = receiver.of.rpartition(".")[2]
    if last.endswith("Loss") or last == "criterion":
        return loss_of(walker, given)
    return Value("tensor", device, grad=grad and not walker.context.no_grad, of=OUTPUT)


def note_work(walker: Walker) -> None:
    """Note that the loop and the function here compute with tensors."""
    if walker.context.rare:
        return
    loop = walker.context.statement_loop
    if loop is not None:
        loop.works = True
    if walker.function is not None:
        walker.function.works = True


def module_method(walker: Walker, call: SourceCall) -> Value:
    """Return what a method of a module gives."""
    attr, node, receiver = call.attr, call.node, call.receiver
    if attr in ("to", "cuda"):
        if attr == "cuda" or moves(node):
            moved = receiver.but(device=DEVICE)
            _rebind(walker, call, moved)
            return moved
        return receiver
    if attr in ("eval", "train"):
        on = attr == "train" and literal(node.args[0] if node.args else None) is not False
        changed = receiver.but(evaluated=not on)
        _rebind(walker, call, changed)
        return changed
    if attr in ("parameters", "named_parameters", "buffers"):
        return PARAMETERS
    if attr in ("forward", "generate", "sample", "encode", "decode", "predict"):
        result = invoke(walker, call)
        return result if attr == "forward" else result.but(grad=False)
    if attr in ("half", "float", "bfloat16", "double", "compile", "requires_grad_", "cpu", "xpu"):
        return receiver
    return invoke(walker, call) if torch_names.MODULE.match(attr) else UNKNOWN


def _rebind(walker: Walker, call: SourceCall, value: Value) -> None:
    """``model.cuda()`` as a statement changes the model itself."""
    owner = call.owner
    if isinstance(owner, ast.Name):
        for scope in reversed(walker.scopes):
            if owner.id in scope:
                scope[owner.id] = value
                return
        walker.scopes[-1][owner.id] = value
    elif owner is not None:
        walker.set_attribute(path_of(owner), value)


def note_compile(walker: Walker, node: ast.Call) -> None:
    """Remember the function of the file that is compiled."""
    if not node.args:
        if isinstance(node.func, ast.Attribute):
            _mark_compiled(walker, walker.module.value(node.func.value).of)
        return
    target = node.args[0]
    if isinstance(target, ast.Name):
        _mark_compiled(walker, walker.module.value(target).of or target.id)
    elif isinstance(target, ast.Call):
        _mark_compiled(walker, walker.module.value(target).of)
    elif isinstance(target, ast.Attribute):
        value = walker.module.value(target)
        if walker.owner is not None and is_self(target.value) and target.attr in walker.owner.methods:
            _compile(walker, walker.owner.methods[target.attr])
        elif value.kind == "callable":
            for function in value.calls:
                _compile(walker, function)
        else:
            _mark_compiled(walker, value.of)


def _mark_compiled(walker: Walker, name: str) -> None:
    known = walker.module.classes.get(name)
    if known is not None and "forward" in known.methods:
        _compile(walker, known.methods["forward"])
    elif name in walker.by_name:
        _compile(walker, walker.by_name[name])


def _compile(walker: Walker, function: SourceFunction) -> None:
    """Note that a function is compiled, and that rules have something to say of it."""
    function.compiled = True
    walker.speaking.add(function)
