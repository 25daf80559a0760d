"""Python itself is traced while the program works.

Looks like: ``tracemalloc.start()``, ``cProfile.Profile().enable()``, ``sys.settrace``,
    ``sys.setprofile`` or ``torch.cuda.memory._record_memory_history()`` in a program with a loop of
    steps.
Slow because: each call, line or allocation of Python runs code of the tracer: host work takes from
    1.3 to 10 times as long.
Fix: start it from outside (``python -m cProfile``), or for a few steps.
Quiet when: it is behind a debug or profile switch, or stopped before the loop.
Source: Python documentation of ``tracemalloc`` and ``profile``.
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, text_of

RULE = Rule("MSR101", "tracer-left-on", "measure", "A Python tracer runs during the whole run", "medium")

FIX = Fix(
    text="Trace a few steps, or start the tracer from outside.",
    code="python -m cProfile -o run.prof train.py   # instead of a profiler in the program",
    link="https://docs.python.org/3/library/tracemalloc.html",
)

_STARTS = {
    "tracemalloc.start": "tracemalloc.stop",
    "sys.settrace": "",
    "sys.setprofile": "",
    "threading.settrace": "",
    "threading.setprofile": "",
    "torch.cuda.memory._record_memory_history": "",
    "cProfile.run": "",
    "cProfile.Profile": "",
    "profile.Profile": "",
}


def find(module: Module) -> Iterator[Hit]:
    """Yield tracers that are switched on beside a loop of steps."""
    if not any(loop.steps for loop in module.loops):
        return
    for name, end in _STARTS.items():
        for call in module.called(name):
            if call.context.seldom or _switches_off(call):
                continue
            if not (end and _stopped(module, call, end)):
                yield Hit(call.node, f"all Python code runs under a tracer: {text_of(call.node)}", call.attr)


def _switches_off(call: SourceCall) -> bool:
    """Return whether it is stopped: ``sys.settrace(None)``."""
    return bool(call.node.args) and text_of(call.node.args[0]) in ("None", "False")


def _stopped(module: Module, call: SourceCall, end: str) -> bool:
    """Return whether it is stopped before any loop of steps begins."""
    stops = [stop.node.lineno for stop in module.called(end) if stop.context.function is call.context.function]
    first = min(stops, default=0)
    return (
        bool(stops)
        and not any(loop.steps and call.node.lineno < loop.place.lineno < first for loop in module.loops)
        and not any(
            call.node.lineno < other.node.lineno < first
            and other.callees
            and other.context.function is call.context.function
            for other in module.calls
        )
    )
