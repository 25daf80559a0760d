"""Every run is forced to use deterministic algorithms.

Looks like: ``torch.use_deterministic_algorithms(True)`` in the program itself.
Slow because: slower kernels are chosen, and new memory is filled before use.
Fix: put it behind a flag; where only reproducibility matters,
    ``torch.utils.deterministic.fill_uninitialized_memory = False``.
Quiet when: it is behind a flag, or its function says what it is for (seeds, reproducibility).
Source: PyTorch documentation, "Reproducibility".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, literal

RULE = Rule("CFG046", "deterministic-fill", "config", "Deterministic mode fills new tensors", "low")

FIX = Fix(
    text="Require it only where it is needed, and leave new memory unfilled.",
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
        if wanted and not call.context.seldom:
            yield Hit(call.node, "every run is made deterministic")
