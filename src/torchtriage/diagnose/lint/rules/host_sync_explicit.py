"""The host waits for the device on purpose, in every step.

Looks like: ``torch.cuda.synchronize()``, ``torch.accelerator.synchronize()`` or
    ``stream.synchronize()`` in a loop of steps or in a step function.
Slow because: the queue runs dry, and the next step starts with an idle device.
Fix: delete it; to measure, record ``torch.cuda.Event(enable_timing=True)`` and read them later.
Quiet when: the loop reads a clock or an event's time: it is there to measure.
Source: PyTorch CUDA semantics, "Asynchronous execution".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule

RULE = Rule("SYN003", "host-sync-explicit", "sync", "Explicit synchronisation inside the loop", "high", device=True)

FIX = Fix(
    text="Delete the synchronize(); time with events that are read later.",
    code="""start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); step(); end.record()
...                              # many steps later, or at the end
torch.cuda.synchronize(); print(start.elapsed_time(end))""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
)

_SPACES = ("cuda", "accelerator", "xpu", "mps", "npu", "hpu")


def find(module: Module) -> Iterator[Hit]:
    """Yield synchronize() calls that run in each step."""
    named = module.called(*(f"torch.{space}.synchronize" for space in _SPACES))
    for call in [*named, *module.sent("synchronize"), *module.called("synchronize")]:
        function = call.context.function
        times = any(loop.times for loop in call.context.loops()) or (
            function is not None and any(event.kind == "clock" for event in function.events)
        )
        if call.context.hot and not times:
            yield Hit(call.node, "the host waits for the device in every step", "synchronize")
