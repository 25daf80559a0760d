"""The same thing is computed again in each turn, from inputs that do not change.

Looks like: ``graph = neighbours(points)`` in a loop that changes nothing of ``points``; a filterbank, a grid or a
    scaler made from settings in ``__getitem__`` or ``forward``; an adjacency that each layer normalises again; a search
    for neighbours of the same positions in every layer; what depends on the fold, for every learning rate.
    ``torchtriage run`` compares calls, and rows of batches: a window that moves on by one frame contains the others
    again.
Slow because: all turns after the first one compute what is already known.
Fix: compute it once, before the loop or in ``__init__``, and pass it on.
Quiet when: something random, stored or read from outside is part of it, it is cheap or behind a condition, or
    the loop measures time.
Source: PyTorch performance tuning guide.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, Severity, names_in, text_of
from torchtriage.diagnose.lint.recurrence import Repeated, repeated

RULE = Rule("LCH105", "same-work-again", "launch", "The same inputs are processed in every iteration", "low")

FIX = Fix(
    text="Compute it once and pass it on.",
    code="""edges = knn_graph(positions)      # before the loop: positions stay the same
for layer in layers:
    x = layer(x, edges)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield costly work whose inputs stay the same from turn to turn, the first of a chain."""
    targets: dict[ast.AST, str] = {assign.expression: assign.target for assign in module.assigns if assign.how == "="}
    derived: dict[object, set[str]] = defaultdict(set)
    for item in sorted(repeated(module), key=lambda item: (item.node.lineno, item.node.col_offset)):
        names = derived[item.function]
        if not names & names_in(item.node):
            called = item.node.func if isinstance(item.node, ast.Call) else None
            severity: Severity = "medium" if item.loop is None or item.loop.steps else "low"
            message = f"{_turn(item)} computes this again from the same inputs: {text_of(item.node)}"
            yield Hit(item.node, message, text_of(called).rpartition(".")[2] if called is not None else "", severity)
        if item.node in targets:
            names.add(targets[item.node])


def _turn(item: Repeated) -> str:
    """Return what computes it again, in words."""
    if item.step is not None:
        return f"every {item.step.name}()"
    assert item.loop is not None
    return f"every iteration of the loop on line {item.loop.place.lineno}"
