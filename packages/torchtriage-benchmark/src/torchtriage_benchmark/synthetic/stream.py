"""Operator streams: a CPU recording's operators step by step, as they would run on a device.

What a step asks for stays as it was recorded: which operators in which order, from where, on what
shapes. What only a CPU does goes (its convolution library, its loops over lists of tensors), and
what a GPU build runs instead takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage_benchmark.synthetic.work import Work

Event = dict[str, Any]
LOADER = "enumerate(DataLoader)#"
OPTIMIZER = "Optimizer.step#"


@dataclass(eq=False)
class Op:
    """One operator or annotation of the host.

    ``begin_ns``, ``end_ns`` : when it was recorded; what was put in has a single moment and lasts
    as long as what it does. ``work`` : what it enqueues on the device when its children are done.
    """

    name: str
    begin_ns: float
    end_ns: float
    args: dict[str, Any] = field(default_factory=dict)
    annotation: bool = False
    children: list[Op] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    reads: int = 0
    """Bytes that the host waits for at its end."""
    actions: list[Any] = field(default_factory=list)
    """What else it does on the device, see ``timeline.py``."""
    host_us: float | None = None
    """Its own time on the host, where the recorded one is of no use."""
    kept: bool = False
    """It computes on the host, as recorded."""
    fault: bool = False
    frames: tuple[str, ...] = ()
    """Python frames around it that the recording does not have."""
    put_in: bool = False

    def walk(self) -> Iterator[Op]:
        """Yield it and all operators inside."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(eq=False)
class Step:
    """One recorded step. ``ops`` : its operators in order."""

    name: str
    begin_ns: int
    end_ns: int
    args: dict[str, Any]
    ops: list[Op]


@dataclass(eq=False)
class Stream:
    """What a recording did: steps, Python frames, and the rest of its document."""

    steps: list[Step]
    frames: list[Event]
    document: dict[str, Any]
    pid: int
    tid: int

    def ops(self) -> Iterator[Op]:
        """Yield every operator."""
        for step in self.steps:
            for op in step.ops:
                yield from op.walk()


def _ns(us: float) -> int:
    return round(us * 1000)


def read_stream(document: dict[str, Any]) -> Stream:
    """Return the operator stream of a recording.

    Raises UsageError: it has no steps, or more than one thread with operators.
    """
    rows = [item for item in document["traceEvents"] if item.get("ph") == "X"]
    hosts = [row for row in rows if row.get("cat") in ("cpu_op", "user_annotation")]
    marks = [host for host in hosts if str(host["name"]).startswith("ProfilerStep#")]
    lanes = {(host["pid"], host["tid"]) for host in hosts}
    if len(lanes) != 1 or not marks:
        raise UsageError(
            f"expected the steps of one thread, found {len(marks)} steps and {len(lanes)} threads with operators",
            hint="synthetic timelines are made from CPU recordings of eager programs",
        )
    ((pid, tid),) = lanes
    nested = _nested(host for host in hosts if host not in marks)
    steps = []
    for mark in sorted(marks, key=lambda mark: float(mark["ts"])):
        begin, end = _ns(mark["ts"]), _ns(mark["ts"] + mark["dur"])
        inside = [op for op in nested if begin <= op.begin_ns and op.end_ns <= end]
        steps.append(Step(mark["name"], begin, end, dict(mark["args"]), inside))
    frames = [row for row in rows if row.get("cat") == "python_function"]
    return Stream(steps, frames, document, pid, tid)


def _nested(events: Iterable[Event]) -> list[Op]:
    """Return operators as trees, in order."""
    ops = [
        Op(
            event["name"],
            _ns(event["ts"]),
            _ns(event["ts"] + event["dur"]),
            dict(event.get("args", {})),
            event["cat"] == "user_annotation",
        )
        for event in events
    ]
    ops.sort(key=lambda item: (item.begin_ns, -item.end_ns))
    top: list[Op] = []
    around: list[Op] = []
    for op in ops:
        while around and op.end_ns > around[-1].end_ns:
            around.pop()
        (around[-1].children if around else top).append(op)
        around.append(op)
    return top
