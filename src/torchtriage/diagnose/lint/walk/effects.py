"""What a call does to the loop and the function around it."""

from __future__ import annotations

import ast

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import Value
from torchtriage.diagnose.lint.facts import Assign, SourceCall
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.walk.modules import note_work
from torchtriage.diagnose.lint.walk.walker import Walker


def note_append(walker: Walker, call: SourceCall) -> None:
    """Note what is kept: ``losses.append(loss)``, ``history["loss"].append(loss)``."""
    owner = call.owner
    if isinstance(owner, ast.Subscript):
        owner = owner.value
    path = path_of(owner) if owner is not None else ""
    if path and call.node.args:
        value, given = call.arguments[0], call.node.args[0]
        _keep(walker, path, value)
        walker.module.assigns.append(Assign(call.node, call.attr, path, value, given, walker.context))


def _keep(walker: Walker, path: str, value: Value) -> None:
    """Remember what a list holds: callbacks that are added one by one, tensors, arrays."""
    root, _, name = path.rpartition(".")
    owner = walker.owner if root == "self" else walker.class_of(walker.lookup(root)) if root else None
    known = walker.lookup(path) if owner is None else owner.attribute(name)
    if known is None or known.kind != "list" or known.of or value.kind in ("unknown", "host"):
        return
    if any(item.kind == value.kind and item.of == value.of for item in known.items):
        return
    grown = known.but(items=(*known.items, value))
    if owner is not None:
        owner.attributes[name] = grown
        return
    for scope in reversed(walker.scopes):
        if path in scope:
            scope[path] = grown
            return


def note_backward(walker: Walker, call: SourceCall) -> None:
    """Note that its loop, or a function without one, takes gradients."""
    walker.event("backward", call.node)
    if walker.function is not None:
        walker.function.steps = walker.function.steps or walker.context.loop is None
        walker.function.has_backward = True
    note_work(walker)
    loop = walker.context.statement_loop
    if loop is not None:
        loop.backward = True


def note_optimizer_step(walker: Walker) -> None:
    """Note that its loop, or a function without one, updates parameters."""
    if walker.function is not None:
        walker.function.steps = walker.function.steps or walker.context.loop is None
    loop = walker.context.statement_loop
    if loop is not None:
        loop.optimizes = True


def is_optimizer_step(call: SourceCall) -> bool:
    """Return whether ``x.step()`` is an optimizer's (or a gradient scaler's)."""
    if call.receiver.kind == "optimizer":
        return True
    owner = call.owner.value if isinstance(call.owner, ast.Subscript) else call.owner
    last = path_of(owner).rpartition(".")[2] if owner is not None else ""
    return "scaler" in last or (torch_names.OPTIMIZER.match(last) is not None and "schedul" not in last)
