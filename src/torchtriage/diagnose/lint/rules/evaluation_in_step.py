"""A whole validation runs after each step of training.

Looks like: ``evaluate(model, val_loader)``, ``validate()``, ``model(X_val)`` in each turn of a loop that trains.
Slow because: a step costs one batch, and its validation a whole set: most of the time goes into numbers that nobody
    looks at one by one.
Fix: validate once in an epoch, or every few hundred steps.
Quiet when: it is behind ``step % n == 0``, or the loop goes over epochs.
Source: PyTorch Lightning documentation of ``val_check_interval``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, arguments, names_in, text_of

RULE = Rule("HST133", "evaluation-in-step", "host", "A whole validation runs after each step of training", "medium")

FIX = Fix(
    text="Validate every epoch, or every few hundred steps.",
    code="""if step % 500 == 0:
    evaluate(model, val_loader)""",
    link="https://lightning.ai/docs/pytorch/stable/common/trainer.html",
)

_EVALUATES = re.compile(r"^_?(run_)?(eval|evaluate|evaluation|validate|validation|test|compute_val|calc_val)(_|$)")
_HELD_OUT = re.compile(
    r"(^|_)(val|valid|validation|test|dev|holdout)(_|$)|_(val|valid|test|dev)$|^X_?(val|test)", re.IGNORECASE
)


def find(module: Module) -> Iterator[Hit]:
    """Yield validations in loops whose turns are steps of training over batches."""
    for call in module.calls:
        loop = call.context.step_loop
        if loop is None or loop is not call.context.loop or call.context.rare or call.context.aside:
            continue
        if not _takes_batches(loop) or not _held_out(call, loop):
            continue
        if call.value.kind == "tensor" and call.receiver.kind == "module":
            yield Hit(call.node, f"the whole set runs in every step: {text_of(call.node)}", "forward")
        elif _EVALUATES.match(call.attr) and call.attr not in ("eval", "test"):
            yield Hit(call.node, f"a validation in every step: {text_of(call.node)}", call.attr)


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
