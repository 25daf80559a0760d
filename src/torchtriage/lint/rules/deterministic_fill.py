"""Deterministic algorithms are demanded of every run.

Looks like: ``torch.use_deterministic_algorithms(True)`` in the program itself.
Slow because: slower kernels are chosen, and new memory is filled before use.
Fix: put it behind a flag; where only reproducibility matters,
    ``torch.utils.deterministic.fill_uninitialized_memory = False``.
Quiet when: it is behind a flag, or its function says what it is for (seeds, reproducibility).
Source: PyTorch documentation, "Reproducibility".
"""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.finding import Fix
from torchtriage.lint.base import Hit, Rule
from torchtriage.lint.facts import Module
from torchtriage.lint.syntax import literal

RULE = Rule(
    code="CFG046",
    name="deterministic-fill",
    family="config",
    title="Deterministic mode fills new tensors",
    severity="low",
)

FIX = Fix(
    text="Demand it only where it is needed, and leave new memory as it is.",
    code="""torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False""",
    link="https://docs.pytorch.org/docs/stable/notes/randomness.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield the unconditional demand for deterministic algorithms."""
    if "fill_uninitialized_memory" in module.text:
        return
    for call in module.called("torch.use_deterministic_algorithms"):
        wanted = bool(call.node.args) and literal(call.node.args[0]) is True
        if wanted and not call.context.aside and not call.context.rare:
            yield Hit(call.node, "every run is made deterministic")
