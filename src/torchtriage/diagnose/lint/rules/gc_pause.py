"""Python's garbage collector is called in every step.

Looks like: ``gc.collect()`` in a loop of steps or in a step function.
Slow because: a full collection walks every object of the process: tens of milliseconds in which
    nothing is launched.
Fix: delete it; where pauses matter, ``gc.freeze()``, ``gc.disable()`` and a collection every N
    steps on all ranks together.
Quiet when: it is behind ``if step % n`` or runs once per epoch.
Source: Python documentation of ``gc``.
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule

RULE = Rule("HST021", "gc-pause", "host", "Garbage collection stalls the step", "medium")

FIX = Fix(
    text="Collect rarely, and on all ranks in the same step.",
    code="""gc.collect(); gc.freeze(); gc.disable()  # after the warm-up
if step % 500 == 0:
    gc.collect()""",
    link="https://docs.python.org/3/library/gc.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield collections in each step."""
    for call in module.called("gc.collect"):
        if call.context.hot:
            yield Hit(call.node, "a full garbage collection in every step", "collect")
