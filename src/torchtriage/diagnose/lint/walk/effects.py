"""What a call does to the loop and the function around it."""

from __future__ import annotations

import ast
import re

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.facts import Assign, SourceCall
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.walk.walker import Walker

__all__ = ["is_optimizer_step", "note_append", "note_backward", "note_optimizer_step"]


def note_append(walker: Walker, call: SourceCall) -> None:
    """Note what is kept: ``losses.append(loss)``, ``history["loss"].append(loss)``."""
    owner = call.owner
    if isinstance(owner, ast.Subscript):
        owner = owner.value
    path = path_of(owner) if owner is not None else ""
    if path and call.node.args:
        value, given = call.arguments[0], call.node.args[0]
        walker.module.assigns.append(Assign(call.node, call.attr, path, value, given, walker.context))


def note_backward(walker: Walker, call: SourceCall) -> None:
    """Note that its loop, or a function without one, takes gradients."""
    walker.event("backward", call.node)
    if walker.function is not None:
        walker.function.steps = walker.function.steps or walker.context.loop is None
        walker.function.has_backward = True
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
    owner = call.owner
    last = path_of(owner).rpartition(".")[2] if owner is not None else ""
    if isinstance(owner, ast.Subscript):
        last = path_of(owner.value).rpartition(".")[2]
    if re.search(r"scaler", last):
        return True
    return bool(torch_names.OPTIMIZER.match(last)) and "schedul" not in last
