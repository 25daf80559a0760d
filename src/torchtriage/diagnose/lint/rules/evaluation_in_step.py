"""Every training step, or every few, is followed by a pass over the whole validation set.

Looks like: a loop over ``val_loader``, a call that iterates over one, ``evaluate(model, val_loader)`` or
    ``model(X_val)`` in the loop over training batches; the first two behind ``if step % 5 == 0``, too.
Slow because: for one step of training, the model runs over all other data.
Fix: evaluate once per epoch, or every few hundred steps, on a part.
Quiet when: it is behind ``if step % n`` with n above 10 or not known, after the loop, or at its end.
Source: Lightning documentation, "Speed up model training", ``val_check_interval``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceFunction, SourceLoop, text_of
from torchtriage.diagnose.lint.rules._turns import runs_every
from torchtriage.diagnose.lint.syntax import arguments, names_in

RULE = Rule("HST123", "evaluation-in-step", "host", "The validation set is evaluated in every step", "high")

FIX = Fix(
    text="Evaluate once per epoch, or every few hundred steps.",
    code="""if step % 1000 == 0:
    evaluate(model, val_loader)""",
    link="https://lightning.ai/docs/pytorch/stable/advanced/speed.html",
)

OFTEN = 10
_EVALUATES = re.compile(r"^_?(run_)?(eval|evaluate|evaluation|validate|validation|test|compute_val|calc_val)(_|$)")
_HELD_OUT = re.compile(
    r"(^|_)(val|valid|validation|test|dev|holdout)(_|$)|_(val|valid|test|dev)$|^X_?(val|test)", re.IGNORECASE
)


def find(module: Module) -> Iterator[Hit]:
    """Yield passes over another loader inside a loop that trains on one."""
    passes = {loop.function for loop in module.loops if _evaluates(loop)} - {None}
    for loop in module.loops:
        outer = loop.outer
        if _evaluates(loop) and outer is not None and _is_training(outer) and not loop.context.rare:
            yield Hit(loop.place, "every training step goes through all of this")
    for call in module.calls:
        around = call.context.step_loop
        if around is None or not _is_training(around) or not passes.intersection(call.callees):
            continue
        if not call.context.seldom:
            yield Hit(call.node, f"every training step goes through all of this: {text_of(call.node)}", call.attr)
        elif call.context.modulo and (every := next(filter(_is_often, runs_every(module, call)), 0)):
            message = f"training goes through all of this every {every} steps: {text_of(call.node)}"
            yield Hit(call.node, message, call.attr, severity="medium")
    yield from _by_name(module, passes)


def _by_name(module: Module, passes: set[SourceFunction | None]) -> Iterator[Hit]:
    """Yield calls given a held-out set, where what they do is not in this file."""
    for call in module.calls:
        loop = call.context.step_loop
        if loop is None or loop is not call.context.loop or call.context.seldom:
            continue
        if passes.intersection(call.callees) or not _takes_batches(loop) or not _held_out(call, loop):
            continue
        if call.runs_module:
            yield Hit(
                call.node, f"the whole set runs in every step: {text_of(call.node)}", "forward", severity="medium"
            )
        elif _EVALUATES.match(call.attr) and call.attr not in ("eval", "test"):
            yield Hit(call.node, f"a validation in every step: {text_of(call.node)}", call.attr, severity="medium")


def _evaluates(loop: SourceLoop) -> bool:
    """Return whether a loop goes over all batches of a loader without training."""
    if not loop.over_loader or loop.trains or not isinstance(loop.node, ast.For):
        return False
    function: SourceFunction | None = loop.function
    leaves = any(isinstance(item, ast.Break) for item in ast.walk(loop.node))
    return not leaves and (function is None or not function.has_backward or not function.steps)


def _is_training(loop: SourceLoop) -> bool:
    return loop.over_loader and (loop.backward or loop.optimizes)


def _is_often(every: object) -> bool:
    return type(every) is int and 0 < every <= OFTEN


def _takes_batches(loop: SourceLoop) -> bool:
    """Return whether each turn trains on a batch: over a loader, or a loop of that many steps."""
    if not (loop.backward or loop.optimizes) or loop.rounds or loop.wraps:
        return False
    if loop.over_loader:
        return True
    return loop.outer is not None and (loop.outer.rounds or loop.outer.wraps) and isinstance(loop.node, ast.For)


def _held_out(call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether a call is given a set that stays the same, and is held out by its name."""
    changing = loop.targets | loop.assigned.keys()
    given = [item for item in arguments(call.node) if not names_in(item) & changing]
    return any(_HELD_OUT.search(text_of(item).rpartition(".")[2]) for item in given)
