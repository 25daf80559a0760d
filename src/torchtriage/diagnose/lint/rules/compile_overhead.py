"""``torch.compile`` is called in every step.

Looks like: ``torch.compile(...)`` in a loop of steps, or in ``forward``.
Slow because: each call makes a new compiled function with an empty cache: it compiles, or looks up its guards, over and
    over.
Fix: compile once, before the loop or in ``__init__``.
Quiet when: the result is kept in a module (``layer = torch.compile(layer)`` over layers), or the
    loop is over the settings of ``torch.compile``.
Source: PyTorch documentation of ``torch.compile``.
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Context, Fix, Hit, Module, Rule, SourceCall, is_step
from torchtriage.diagnose.lint.syntax import given_names

RULE = Rule("CMP032", "compile-overhead", "compile", "Guards and wrappers dominate small compiled graphs", "high")

FIX = Fix(
    text="Compile once, outside the loop.",
    code="""@torch.compile          # here, once
def body(x): ...

for batch in loader:
    body(batch)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield compilations in each step."""
    for call in module.called("torch.compile"):
        if _each_step(call.context) and not _over_settings(call) and not call.target.startswith("self."):
            yield Hit(call.node, "torch.compile is called in every step")


def _each_step(context: Context) -> bool:
    """Return whether code is hot, and not only because it may be compiled itself."""
    function = context.function
    inside = function is not None and (function.called_hot or is_step(function))
    return context.hot and (context.step_loop is not None or inside)


def _over_settings(call: SourceCall) -> bool:
    targets = {name for loop in call.context.loops() for name in loop.targets}
    return bool(given_names(call.node) & targets)
