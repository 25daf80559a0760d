"""Calls: their full name, what is given to them, and what they give."""

from __future__ import annotations

import ast
import re

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import (
    AN_OPTIMIZER,
    CLOCK_READ,
    CPU,
    DEVICE,
    HOST,
    MAYBE,
    NUMPY,
    UNKNOWN,
    Value,
    element,
    placed,
)
from torchtriage.diagnose.lint.facts import Class, SourceCall
from torchtriage.diagnose.lint.syntax import arguments, path_of
from torchtriage.diagnose.lint.walk.following import callees, pass_on, returned
from torchtriage.diagnose.lint.walk.heuristics import named_callee
from torchtriage.diagnose.lint.walk.methods import method_call
from torchtriage.diagnose.lint.walk.modules import as_called, builds_parts, invoke, loss_of
from torchtriage.diagnose.lint.walk.torch_calls import torch_call
from torchtriage.diagnose.lint.walk.walker import ReadExpression, Walker

_BUILTINS = torch_names.words("""
    float int bool len isinstance print hasattr str getattr range type id repr round callable
""")


def _call(walker: Walker, node: ast.Call) -> Value:
    func = node.func
    name, attr = "", ""
    receiver = UNKNOWN
    call = SourceCall(node, "", "", UNKNOWN, (), UNKNOWN, walker.context, user=walker.user)
    saved, walker.user = walker.user, call
    if isinstance(func, ast.Attribute):
        attr = func.attr
        name = _dotted(walker, func)
        if not name:
            receiver = walker.eval(func.value)
    elif isinstance(func, ast.Name):
        attr = func.id
        known = walker.lookup(attr)
        if known is None:
            name = walker.aliases.get(attr, "")
        unnamed = known is None or known is UNKNOWN
        receiver = as_called(named_callee(attr) if unnamed and attr not in walker.by_name else known or UNKNOWN)
    else:
        receiver = walker.eval(func)
    call.arguments = tuple([walker.eval(item) for item in arguments(node)])
    walker.user = saved
    call.name, call.attr, call.receiver = name, attr, receiver
    call.context = walker.context
    call.callees = callees(walker, call)
    pass_on(walker, call)
    call.value = _result(walker, call)
    walker.module.calls.append(call)
    if name:
        walker.module.named[name].append(call)
    if isinstance(func, ast.Attribute) and not name:
        walker.module.methods[attr].append(call)
    elif isinstance(func, ast.Name) and not name:
        walker.module.named[attr].append(call)
    return call.value


def _dotted(walker: Walker, node: ast.Attribute) -> str:
    """Return the full name of a chain that starts at an import, else nothing."""
    root, _, rest = path_of(node).partition(".")
    imported = walker.aliases.get(root)
    return f"{imported}.{rest}" if imported and walker.lookup(root) is None else ""


def _result(walker: Walker, call: SourceCall) -> Value:
    """Return what a call gives, and take note of what it does to its loop and function."""
    if torch_names.BUILDER.match(call.attr) and not call.name.startswith("torch."):
        result = returned(walker, call.callees) if call.callees else UNKNOWN
        return result if result.kind == "module" else Value("module", MAYBE if walker.module.uses_device else CPU)
    if call.name:
        return _imported(walker, call)
    if isinstance(call.node.func, ast.Name):
        return _plain(walker, call)
    if isinstance(call.node.func, ast.Attribute):
        return method_call(walker, call)
    return invoke(walker, call) if call.receiver.kind in ("module", "callable") else UNKNOWN


def _imported(walker: Walker, call: SourceCall) -> Value:
    name, node, given = call.name, call.node, list(call.arguments)
    if name in torch_names.CLOCKS:
        walker.event("clock", node)
        for loop in walker.context.loops():
            loop.times = True
        return CLOCK_READ
    if name.startswith("torch."):
        return torch_call(walker, call)
    if name.startswith(("numpy.", "scipy.", "cv2.", "PIL.")):
        read = next((item.readback for item in given if item.readback is not None), None)
        return NUMPY.but(readback=read) if read is not None else NUMPY
    last = name.rpartition(".")[2]
    if torch_names.WAITS.search(last):
        walker.event("wait", node)
    if name in ("copy.deepcopy", "copy.copy") and given:
        return given[0]
    if last in torch_names.WRAPPERS and given:
        return _wrapped(last, given[0])
    if name == "functools.partial" and given and given[0].kind == "callable":
        return given[0]
    if last == "from_pretrained":
        owner = name.split(".")[-2]
        if torch_names.PRETRAINED.search(owner):
            return Value("module", CPU, evaluated=True)
        return UNKNOWN
    if "DistributedDataParallel" in last:
        return Value("module", DEVICE, ddp=True)
    if torch_names.CRITERION.match(last) or last.endswith("_loss"):
        return loss_of(walker, given)
    if last[:1].isupper() and re.search(r"Adam|(SGD|Optimizer|Lion|Adafactor)$", last):
        return AN_OPTIMIZER
    if last[:1].isupper() and torch_names.PRETRAINED.search(last):
        return Value("module", CPU)
    if last[:1].isupper() and builds_parts(walker) and "onfig" not in last:
        return Value("module", CPU, of="part")
    if name.startswith("einops."):
        device, grad = placed(given[:1])
        return Value("tensor", device, grad=grad)
    return UNKNOWN


def _plain(walker: Walker, call: SourceCall) -> Value:
    """Return what a call by a bare name gives: a builtin, a function or class of the file."""
    attr, node, given = call.attr, call.node, list(call.arguments)
    if attr in ("float", "int", "bool"):
        if given and given[0].kind == "tensor":
            walker.event("wait", node)
        return HOST
    if attr in _BUILTINS:
        return HOST
    if attr in torch_names.WRAPPERS and given:
        return _wrapped(attr, given[0])
    if attr == "zip":
        return Value("list", CPU, items=tuple(element(item) for item in given), of="zip")
    if attr in ("sum", "max", "min", "abs") and given:
        items = [item for value in given for item in (value, *value.items)]
        if any(item.kind == "tensor" for item in items):
            device, grad = placed(given)
            return Value("tensor", device, grad=grad, scalar=any(item.scalar for item in items))
        return UNKNOWN
    if attr in ("list", "tuple", "reversed", "sorted", "next", "set") and given:
        return element(given[0]) if attr == "next" else given[0]
    known = walker.module.classes.get(attr)
    if known is not None and known.is_module:
        return Value("module", CPU, of=attr)
    if known is not None:
        return _made(call, known)
    if attr[:1].isupper() and torch_names.PRETRAINED.search(attr):
        return Value("module", CPU)
    if builds_parts(walker) and attr[:1].isupper():
        return Value("module", CPU, of="part")
    if call.receiver.kind == "module" or (call.receiver.kind == "callable" and not call.receiver.calls):
        return invoke(walker, call)
    callee = call.callee
    walker.event("wait" if torch_names.WAITS.search(attr) else "call", node, attr)
    if callee is not None and callee.compiled:
        walker.event("first", node, attr)
        device, grad = placed(given)
        return Value("tensor", device, grad=grad)
    if callee is not None:
        result = returned(walker, call.callees)
        if result.kind != "unknown" or result.items:
            return result
    if torch_names.CRITERION.match(attr):
        return loss_of(walker, given)
    return UNKNOWN


def _made(call: SourceCall, made: Class) -> Value:
    """Return a new object of a class of the file; a record's fields are what it is given."""
    if "__init__" not in made.methods:
        names = [*made.fields[: len(call.node.args)], *(keyword.arg or "" for keyword in call.node.keywords)]
        for name, value in zip(names, call.arguments, strict=False):
            if value.kind != "unknown":
                made.attributes[name] = value
    return Value("object", CPU, of=made.name)


def _wrapped(name: str, first: Value) -> Value:
    if name == "enumerate":
        if first.kind == "loader":
            return first.but(items=(HOST, element(first)), of="enumerate")
        return Value("list", CPU, items=(HOST, element(first)), of="enumerate")
    return first


EXPRESSIONS: dict[type, ReadExpression] = {ast.Call: _call}
