"""What methods give: of tensors, and of objects that nothing is known of."""

from __future__ import annotations

import ast

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import (
    CPU,
    DEVICE,
    HOST,
    MAYBE,
    MAYBE_TENSOR,
    NUMPY,
    PARAMETERS,
    UNKNOWN,
    Value,
    placed,
)
from torchtriage.diagnose.lint.facts import SourceCall
from torchtriage.diagnose.lint.syntax import constructs, destination, is_self, moves, path_of
from torchtriage.diagnose.lint.walk.effects import is_optimizer_step, note_append, note_backward, note_optimizer_step
from torchtriage.diagnose.lint.walk.following import returned
from torchtriage.diagnose.lint.walk.heuristics import named_callee
from torchtriage.diagnose.lint.walk.modules import as_called, invoke, loss_of, module_method, note_compile, note_work
from torchtriage.diagnose.lint.walk.walker import Walker


def method_call(walker: Walker, call: SourceCall) -> Value:
    """Return what ``x.method(...)`` gives."""
    attr, node, receiver = call.attr, call.node, call.receiver
    if attr == "backward" or attr == "manual_backward":
        note_backward(walker, call)
        return HOST
    if attr == "step" and is_optimizer_step(call):
        note_optimizer_step(walker)
        return HOST
    if torch_names.WAITS.search(attr):
        walker.event("wait", node)
    if attr == "compile" and receiver.kind == "module":
        note_compile(walker, node)
    if call.callees and not (receiver.kind == "module" and attr in ("to", "cuda", "eval", "train", "forward")):
        return _own_method(walker, call)
    if receiver.kind == "tensor":
        return _tensor_method(walker, call)
    if receiver.kind == "numpy":
        return NUMPY if attr not in ("item", "tolist") else HOST
    if receiver.kind == "module":
        return module_method(walker, call)
    if receiver.kind in ("loader", "list") and attr in ("append", "extend"):
        note_append(walker, call)
        return UNKNOWN
    if receiver.kind == "list":
        if attr == "clear":
            path = path_of(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            for loop in walker.context.loops():
                loop.cleared.add(path)
        if attr == "items":
            return receiver
        return UNKNOWN
    if receiver.kind in ("unknown", "object"):
        return _unknown_method(walker, call)
    if receiver.kind == "callable":
        if receiver.of == "event" and attr in ("record", "elapsed_time"):
            for loop in walker.context.loops():
                loop.times = True
        return UNKNOWN
    if receiver.kind in ("host", "clock"):
        if attr in ("append", "extend"):
            note_append(walker, call)  # of list(range(n)) and the like
        return HOST
    return UNKNOWN


def _unknown_method(walker: Walker, call: SourceCall) -> Value:
    attr, node, given = call.attr, call.node, list(call.arguments)
    if attr in ("append", "extend"):
        note_append(walker, call)
        return UNKNOWN
    if attr in ("item", "tolist"):
        return HOST
    if attr in ("cuda", "to", "eval") and constructs(call.owner):
        # DQN(4, 2).to(device): what is built and moved in one breath is a module
        device = DEVICE if attr == "cuda" or (attr == "to" and moves(node)) else MAYBE
        return Value("module", device, evaluated=attr == "eval")
    if attr == "cpu" and not given:
        walker.event("wait", node)
        return Value("tensor", CPU, readback=node)
    if attr == "numpy":
        return NUMPY
    if attr == "cuda" or (attr == "to" and moves(node)):
        return Value("tensor", DEVICE, data=call.receiver.data)
    if attr == "detach" and not given:
        return Value("tensor", MAYBE)
    if attr == "eval" and not given:
        return Value("module", MAYBE, evaluated=True)
    if attr == "prepare":
        moved = [item.but(device=DEVICE) if item.kind == "module" else item for item in given]
        if len(moved) > 1:
            return Value("unknown", items=tuple(moved))
        return moved[0] if moved else UNKNOWN
    if attr == "scale" and given:
        return given[0]  # a gradient scaler's scale(loss)
    if attr in ("parameters", "named_parameters"):
        return PARAMETERS
    # self.model(x): a method by syntax, a module by its name
    value = as_called(_attribute_value(walker, node.func))
    if value.kind == "module" or (value.kind == "callable" and value.compiled):
        call.receiver = value
        return invoke(walker, call)
    if torch_names.CRITERION.match(attr):
        return loss_of(walker, given)
    return UNKNOWN


def _own_method(walker: Walker, call: SourceCall) -> Value:
    """Return what a method of the file gives."""
    path = path_of(call.node.func)
    if any(callee.compiled for callee in call.callees):
        walker.event("first", call.node, path)
        return MAYBE_TENSOR
    # self.model(x): a method by syntax, a module by what the attribute holds
    value = as_called(_attribute_value(walker, call.node.func))
    if value.kind == "module" or (value.kind == "callable" and value.compiled):
        call.receiver = value
        return invoke(walker, call)
    walker.event("call", call.node, path)
    result = returned(walker, call.callees)
    if result.kind == "unknown" and not result.items and torch_names.CRITERION.match(call.attr):
        return loss_of(walker, list(call.arguments))
    return result


def _attribute_value(walker: Walker, func: ast.expr) -> Value:
    """Return what ``self.model`` is when it is called."""
    if not isinstance(func, ast.Attribute):
        return UNKNOWN
    base = func.value
    known = None
    if walker.owner is not None and is_self(base):
        if walker.owner.runs(func.attr):
            return UNKNOWN
        known = walker.owner.attribute(func.attr)
    elif isinstance(base, ast.Name):
        known = walker.lookup(f"{base.id}.{func.attr}")
        owner = walker.class_of(walker.lookup(base.id))
        if known is None and owner is not None:
            if owner.runs(func.attr):
                return UNKNOWN
            known = owner.attribute(func.attr)
    return named_callee(func.attr) if known is None or known is UNKNOWN else known


def _tensor_method(walker: Walker, call: SourceCall) -> Value:
    attr, node, receiver, given = call.attr, call.node, call.receiver, list(call.arguments)
    if attr in ("item", "tolist"):
        walker.event("wait", node)
        return HOST
    if attr == "cpu" or (attr == "to" and destination(node) == "cpu"):
        if receiver.device > CPU:
            walker.event("wait", node)
            return receiver.but(device=CPU, readback=node)
        return receiver
    if attr == "numpy":
        if receiver.device > CPU:
            walker.event("wait", node)
            return NUMPY.but(readback=node)
        return NUMPY.but(readback=receiver.readback)
    if attr == "cuda" or (attr in ("to", "type_as") and _moves_to_device(call)):
        # which factory built it, or who read it back, is asked of the receiver
        return receiver.but(device=DEVICE, made_by=None, readback=None, guess=False)
    if attr in ("detach", "detach_"):
        return receiver.but(grad=False)
    if attr in torch_names.HOST_METHODS:
        return HOST
    note_work(walker)
    if attr.startswith(("get_", "to_", "from_", "is_")):
        return UNKNOWN  # no tensor has these: the annotation is wrong
    if attr == "items" and receiver.data:
        return receiver
    if attr in ("append", "extend"):
        note_append(walker, call)
        return UNKNOWN
    if attr in torch_names.REDUCTIONS and not node.args and not node.keywords:
        return receiver.but(
            scalar=True,
            guess=False,
            made_by=None,
            of="",
            grad=receiver.grad and attr not in ("any", "all", "argmax", "argmin"),
        )
    if attr in ("split", "chunk", "unbind", "tensor_split"):
        return Value("list", CPU, items=(receiver.but(made_by=None, of=""),))
    device, grad = placed([receiver, *given])
    return receiver.but(
        device=device,
        guess=receiver.guess and attr not in torch_names.REDUCTIONS,
        grad=grad
        and attr not in ("argmax", "argmin", "any", "all", "eq", "ne", "gt", "lt", "ge", "le")
        and not walker.context.no_grad,
        made_by=receiver.made_by if all(item.kind == "host" for item in given) else None,
        mask=attr == "bool" or (receiver.mask and attr in torch_names.RESHAPES),
        of="",
    )


def _moves_to_device(call: SourceCall) -> bool:
    if call.attr == "type_as":
        return bool(call.arguments) and call.arguments[0].kind == "tensor"
    if moves(call.node):
        return True
    first = call.node.args[0] if call.node.args else None
    # x.to(other): the device of another tensor
    return isinstance(first, ast.Name) and call.arguments[0].kind == "tensor" and not call.arguments[0].guess
