"""A device's timeline: the host walks through a stream, the device works off what it enqueues.

The host pays for every operator, call and Python line; a launch joins its stream's queue, and a
kernel begins when its launch has arrived and the work before it on the stream is done. Waiting
calls hold the host until then. Nothing in here knows of faults.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

from torchtriage_benchmark.synthetic.accelerators import Accelerator
from torchtriage_benchmark.synthetic.stream import Op, Step, Stream
from torchtriage_benchmark.synthetic.work import Work

COMPUTE, SIDE = 7, 20
"""Streams: PyTorch's default one, and one for copies."""
QUEUE = 1022
"""Launches that may wait for the device; then a launch waits, too (measured: 1,021)."""
BESIDE_NS = 0.005
"""Python frames end before what is put in at a moment, or begin after it."""
WARM_UP = 3
"""Steps before the recorded ones: the profiler warms up, and the queue fills."""
CALL_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventSynchronize": 137,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaEventQuery": 138,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaHostAlloc": 24,
    "cudaGraphLaunch": 311,
    "cudaStreamIsCapturing": 317,
    "cudaFuncGetAttributes": 15,
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": 210,
    "cudaPointerGetAttributes": 151,
    "cudaStreamGetPriority": 203,
    "cudaDeviceGetStreamPriorityRange": 205,
}
_ASKED = {
    "gemm": (("cudaOccupancyMaxActiveBlocksPerMultiprocessor", 1.8),),
    "conv": (
        ("cudaEventRecord", 2.4),
        ("cudaStreamIsCapturing", 0.9),
        ("cudaStreamGetPriority", 0.7),
        ("cudaDeviceGetStreamPriorityRange", 0.7),
    ),
}
"""What cuBLAS and cuDNN ask before a product and how many us it takes (medians of a public recording)."""


@dataclass(frozen=True)
class Enqueue:
    """A copy, set or kernel on a stream. ``blocking`` : its stream is waited for next."""

    work: Work
    stream: int = COMPUTE
    blocking: bool = False


@dataclass(frozen=True)
class Call:
    """A call of the runtime.

    ``waits`` : for a stream's work, all work ("device"), or nothing (None).
    ``takes_us`` : its own time beside the wait. ``on`` : the stream that a wait event holds up;
    ``until`` : the stream whose last recorded event it waits for.
    """

    name: str
    waits: int | str | None = None
    takes_us: float = 1.0
    on: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Graph:
    """A launch of a captured graph: all its kernels in one call."""

    work: tuple[Work, ...]


@dataclass(frozen=True)
class Stall:
    """The host does something else. ``until_ready`` : it waits for the loader's next batch."""

    us: float = 0.0
    until_ready: bool = False


@dataclass(frozen=True)
class Machine:
    """What one pair of twins runs on: a device class, with what is drawn once.

    ``speed`` : host time over recorded host time. ``inflation`` : what the profiler makes of host
    time. ``share`` : of the peaks, by a kernel's group. ``blocking`` : every launch is waited for.
    ``asks`` : libraries ask the runtime before a product.
    ``period_us`` : between two batches of a loader that cannot keep up, else 0.
    """

    accelerator: Accelerator
    speed: float
    inflation: float
    share: Callable[[str], float]
    pageable_gbps: float
    asks: bool = False
    blocking: bool = False
    period_us: float = 0.0


@dataclass
class HostRow:
    """An operator, annotation or step of the host, ns from the run's begin."""

    name: str
    begin: float
    end: float
    op: Op | None
    thread: str
    args: dict[str, Any]
    annotation: bool
    fault: bool


@dataclass
class CallRow:
    """A runtime call. ``row`` : the host row it was made in, -1 outside."""

    name: str
    begin: float
    end: float
    correlation: int
    row: int
    thread: str
    enqueues: bool
    waits: bool
    fault: bool


@dataclass
class WorkRow:
    """Device work. ``annotation`` : the host row of the annotation it was launched in, -1."""

    work: Work
    stream: int
    begin: float
    end: float
    correlation: int
    row: int
    annotation: int
    fault: bool
    seen: bool
    """Its launch was recorded."""


@dataclass
class Run:
    """What happened. ``anchors`` : recorded moments and when they came, both in ns."""

    hosts: list[HostRow] = field(default_factory=list)
    calls: list[CallRow] = field(default_factory=list)
    works: list[WorkRow] = field(default_factory=list)
    anchors: list[tuple[float, float]] = field(default_factory=list)
    frames: list[tuple[str, float, float, float]] = field(default_factory=list)
    """Python frames that were put in: name, begin, end, and the recorded moment they stand at."""
    window: tuple[float, float] = (0.0, 0.0)
    step_ns: list[int] = field(default_factory=list)
    """How long each step took, until its last work was done."""

    def at(self, recorded_ns: float) -> float:
        """Return when a recorded moment came."""
        at = bisect_right(self.anchors, (recorded_ns, math.inf))
        if at == 0:
            return self.anchors[0][1] - (self.anchors[0][0] - recorded_ns)
        if at == len(self.anchors):
            return self.anchors[-1][1] + (recorded_ns - self.anchors[-1][0])
        (a, new_a), (b, new_b) = self.anchors[at - 1], self.anchors[at]
        return new_a + (new_b - new_a) * (recorded_ns - a) / (b - a) if b > a else new_b


def run(stream: Stream, machine: Machine, chance: Random, *, profiled: bool = True, n_steps: int = 0) -> Run:
    """Run a stream's steps; the recorded ones after ``WARM_UP`` others.

    Parameters
    ----------
    profiled : the profiler slows the host. Without it only ``step_ns`` means anything.
    n_steps : steps to run in all, over and over; those recorded once when 0.
    """
    walk = _Walk(stream, machine, chance, profiled)
    n_recorded = len(stream.steps)
    total = n_steps or n_recorded + WARM_UP
    for number in range(total):
        at = number if n_steps else number - WARM_UP
        if not n_steps and at == 0:
            walk.begin()
        last = at % n_recorded == n_recorded - 1
        walk.step(stream.steps[at % n_recorded], None if last else stream.steps[(at + 1) % n_recorded])
    return walk.finish()


class _Walk:
    """The state of a host, its device's streams, and what was seen of them."""

    def __init__(self, stream: Stream, machine: Machine, chance: Random, profiled: bool) -> None:
        self.machine, self.device, self.chance = machine, machine.accelerator, chance
        self.host_factor = machine.speed / (1.0 if profiled else machine.inflation)
        self.call_factor = 1.0 if profiled else 0.75
        self.usual = _usual_gaps(stream)
        self.now = 0.0
        self.free: dict[int, float] = {}
        self.recorded_event: dict[int, float] = {}
        self.pending: deque[float] = deque()
        self.batch_ready = 0.0
        self.correlation = 1000 + chance.randrange(200_000)
        self.found = Run()
        self.recording = False
        self.around: list[int] = []
        self.depth = self.faults = 0
        self.thread = "main"
        self.tail = 0.0

    # -- the host's time ------------------------------------------------------------------------

    def begin(self) -> None:
        self.recording = True
        self.found.window = (self.now, self.now)

    def finish(self) -> Run:
        """Stop as the profiler does: wait for the device."""
        if self.recording:
            self.around = []
            self.now += 60_000 * self.host_factor
            self._call(Call("cudaDeviceSynchronize", "device", 9.0))
            self.found.window = (self.found.window[0], self.now)
        self.found.anchors.sort()
        return self.found

    def step(self, step: Step, following: Step | None) -> None:
        """Run one step, and the time to the next."""
        begun = self.tail
        row = len(self.found.hosts)
        if self.recording:
            self.found.hosts.append(HostRow(step.name, self.now, self.now, None, "main", step.args, True, False))
            self.around.append(row)
        self._anchor(step.begin_ns)
        self._sequence(step.ops, step.begin_ns, step.end_ns, "")
        self._anchor(step.end_ns)
        if self.recording:
            self.found.hosts[row].end = self.now
            self.around.pop()
        self.tail = max(self.now, *self.free.values()) if self.free else self.now
        self.found.step_ns.append(round(self.tail - begun))
        between = following.begin_ns - step.end_ns if following else 30_000
        self.now += min(between, 200_000) * self.host_factor

    def _sequence(self, ops: list[Op], begin_ns: float, end_ns: float, parent: str) -> None:
        """Run operators one after the other, with the host's own time around them."""
        at, before = begin_ns, ""
        backward = False
        for op in ops:
            self._gap(op.begin_ns - at, (parent, before, op.name))
            engine = op.name.startswith("autograd::engine::")
            if engine != backward and not parent:
                self._hand_over(engine)
            backward = engine
            self._op(op)
            at, before = max(at, op.end_ns), op.name
        if backward and not parent:
            self._hand_over(False)
        self._gap(end_ns - at, (parent, before, ""))

    def _hand_over(self, to_engine: bool) -> None:
        self.now += (18_000 + 30_000 * self.chance.random()) * self.host_factor
        self.thread = "backward" if to_engine else "main"

    def _gap(self, recorded_ns: float, where: tuple[str, str, str]) -> None:
        """Spend host time as recorded, less what the recording machine did meanwhile."""
        usual = self.usual.get(where, recorded_ns)
        spent = min(recorded_ns, 3 * usual + 3_000)
        self.now += max(spent, 0) * self.host_factor

    def _anchor(self, recorded_ns: float) -> None:
        if self.recording:
            self.found.anchors.append((recorded_ns, self.now))

    def _op(self, op: Op) -> None:
        """Run one operator with everything inside."""
        framed_from = self.now
        if op.put_in:
            if not self.depth:
                self._anchor(op.begin_ns - BESIDE_NS)
            self.now += (1_500 + 3_000 * self.chance.random()) * self.host_factor
        row = -1
        begun = self.now
        shown = not op.name.startswith("(")
        if self.recording and shown:
            row = len(self.found.hosts)
            self.found.hosts.append(
                HostRow(op.name, begun, begun, op, self.thread, op.args, op.annotation, bool(self.faults or op.fault))
            )
            self.around.append(row)
        self.faults += op.fault
        self.depth += 1
        if not op.put_in:
            self._anchor(op.begin_ns)
        self._inside(op)
        if not op.put_in:
            self._anchor(op.end_ns)
        self.faults -= op.fault
        self.depth -= 1
        if self.recording and shown:
            self.found.hosts[row].end = self.now
            self.around.pop()
        if op.put_in and not self.depth:
            self.now += 1_000 * self.host_factor
            if self.recording:
                for frame in op.frames:
                    self.found.frames.append((frame, framed_from, self.now, op.begin_ns))
                    framed_from += 200
                self._anchor(op.begin_ns + BESIDE_NS)

    def _inside(self, op: Op) -> None:
        if op.kept:
            self._kept(op)
            return
        jitter = math.exp(0.22 * self._bell())
        own = op.host_us * 1000 * jitter * self.host_factor if op.host_us is not None else 0.0
        if op.host_us is not None:
            self.now += 0.55 * own
            for child in op.children:
                self._op(child)
        else:
            self._sequence(op.children, op.begin_ns, op.end_ns, op.name)
        for work in op.work:
            self._enqueue(Enqueue(work))
        if op.reads:
            self._read_back(op.reads)
        for action in op.actions:
            self._act(action)
        self.now += 0.45 * own

    def _kept(self, op: Op) -> None:
        """Spend the time of what computes on the host, as it was recorded."""
        for action in op.actions:
            self._act(action)
        if op.actions:
            return
        at = op.begin_ns
        for child in op.children:
            self.now += (child.begin_ns - at) * self.machine.speed
            self._op(child)
            at = child.end_ns
        self.now += max(op.end_ns - at, 0) * self.machine.speed

    # -- the device -----------------------------------------------------------------------------

    def _act(self, action: Enqueue | Call | Graph | Stall) -> None:
        if isinstance(action, Enqueue):
            self._enqueue(action)
        elif isinstance(action, Graph):
            self._graph(action)
        elif isinstance(action, Stall):
            self._stall(action)
        else:
            self._call(action)

    def _stall(self, stall: Stall) -> None:
        if stall.until_ready and self.machine.period_us:
            self.batch_ready = max(self.batch_ready, self.now - 4e3 * self.machine.period_us)
            self.batch_ready += self.machine.period_us * 1000 * (1 + 0.05 * self._bell())
            self.now = max(self.now, self.batch_ready)
        self.now += stall.us * 1000 * self.host_factor * math.exp(0.2 * self._bell())

    def _enqueue(self, asked: Enqueue) -> None:
        work = asked.work
        if self.machine.asks:
            for name, takes_us in _ASKED.get(work.group.split()[0], ()):
                self._call(Call(name, takes_us=takes_us))
        begun = self.now
        own = self.device.launch_us * 1000 * self.call_factor * math.exp(0.18 * self._bell())
        if work.kind == "gpu_memcpy":
            own *= 1.3
        self._wait_for_a_place()
        start = self._start(asked.stream, begun)
        end = start + self._takes(work)
        self.now = max(self.now, begun + own)
        if work.kind == "gpu_memcpy" and "Pageable" in work.name and work.n_bytes > 65536:
            # the driver stages the data itself: the call holds until the copy is done
            self.now = max(self.now, end + 2_000 + 3_000 * self.chance.random())
        elif work.kind == "gpu_memcpy" and "DtoH (Device -> Pageable)" in work.name:
            self.now = max(self.now, end + 2_000 + 4_000 * self.chance.random())
        elif self.machine.blocking and work.kind != "gpu_memcpy":
            self.now = max(self.now, end + 4_000 + 2_000 * self.chance.random())
        self._place(work, asked.stream, start, end, begun, work.call, enqueues=True)
        if asked.blocking:
            self.now += 1_200 * self.host_factor
            self._call(Call("cudaStreamSynchronize", asked.stream, 1.6))

    def _wait_for_a_place(self) -> None:
        while self.pending and self.pending[0] <= self.now:
            self.pending.popleft()
        if len(self.pending) >= QUEUE:
            self.now = self.pending[len(self.pending) - QUEUE]

    def _start(self, stream: int, called: float) -> float:
        """Return when work begins: arrived, and everything before it on the stream done."""
        latency = self.device.latency_us * 1000 * math.exp(0.12 * self._bell())
        turn_round = 900 + 700 * self.chance.random()
        return max(max(called, self.now) + latency, self.free.get(stream, 0.0) + turn_round)

    def _takes(self, work: Work) -> float:
        """Return how long a piece of work takes in ns."""
        device, share = self.device, self.machine.share(work.group)
        jitter = math.exp(0.025 * self._bell())
        if work.kind == "gpu_memcpy" and "DtoD" not in work.name:
            rate = self.machine.pageable_gbps if "Pageable" in work.name else device.pinned_gbps
            if "Pageable" in work.name and work.n_bytes <= 65536:
                rate = device.pinned_gbps
            return (1_300 + work.n_bytes / rate) * jitter
        filled = min(work.n_blocks / device.n_sms, 1.0) ** 0.8 if work.kind == "kernel" else 1.0
        filled = max(filled, 0.02)
        moved = work.n_bytes / (device.memory_tbps * 1000 * 0.92 * share * min(4 * filled, 1.0))
        peak = device.tflops(work.rate) or device.float_tflops
        computed = work.flop / (peak * 1000 * _GROUP_SHARE.get(work.group.split()[0], 0.6) * share * filled)
        product = work.group.startswith(("gemm", "conv"))
        took = max(moved * (1.0 if product else work.slowness), computed * work.slowness)
        return (device.floor_us * 600 + took) * jitter + 200

    def _place(
        self, work: Work, stream: int, start: float, end: float, begun: float, call: str, *, enqueues: bool
    ) -> None:
        self.free[stream] = end
        self.pending.append(end)
        row = self.around[-1] if self.around else -1
        if enqueues:
            self._seen(call, begun, self.now, row, enqueues=True)
        self.found.works.append(
            WorkRow(
                work, stream, start, end, self.correlation, row, self._annotation(), self.faults > 0, self.recording
            )
        )

    def _annotation(self) -> int:
        """Return the innermost annotation of this thread, as the profiler links device work."""
        if self.thread != "main":
            return -1
        return next((row for row in reversed(self.around) if self.found.hosts[row].annotation), -1)

    def _graph(self, graph: Graph) -> None:
        """Launch all kernels of a graph at once."""
        begun = self.now
        self._wait_for_a_place()
        self.now += (0.25 * len(graph.work) + 12) * 1000 * self.call_factor
        start = self._start(COMPUTE, self.now - 4_000)
        self._seen("cudaGraphLaunch", begun, self.now, self.around[-1] if self.around else -1, enqueues=True)
        for work in graph.work:
            end = start + self._takes(work)
            self._place(work, COMPUTE, start, end, begun, "", enqueues=False)
            start = end + 500 + 400 * self.chance.random()

    def _call(self, call: Call) -> None:
        begun = self.now
        self.now += call.takes_us * 1000 * self.call_factor * math.exp(0.2 * self._bell())
        if call.waits is not None:
            ends = self.free.values() if call.waits == "device" else [self.free.get(call.waits, 0)]  # type: ignore[arg-type]
            last = max(ends, default=0.0)
            if last > self.now:
                self.now = last + 4_000 + 4_000 * self.chance.random()
        if call.name == "cudaEventRecord" and call.on is not None:
            self.recorded_event[call.on] = self.free.get(call.on, 0.0)
        if call.until is not None:
            until = self.recorded_event.get(call.until, 0.0)
            if call.on is not None:
                self.free[call.on] = max(self.free.get(call.on, 0.0), until)
            elif until > self.now:
                self.now = until + 4_000 + 4_000 * self.chance.random()
        row = self.around[-1] if self.around else -1
        self._seen(call.name, begun, self.now, row, waits="Synchronize" in call.name)

    def _read_back(self, n_bytes: int) -> None:
        """Read a value: a copy to pinned memory, and a wait for it."""
        kind = "DtoH (Device -> Pinned)"
        work = Work("gpu_memcpy", f"Memcpy {kind}", "DtoH", n_bytes, call="cudaMemcpyAsync")
        self._enqueue(Enqueue(work, blocking=True))

    def _seen(
        self, name: str, begun: float, ended: float, row: int, *, enqueues: bool = False, waits: bool = False
    ) -> None:
        self.correlation += 1 + (self.chance.random() < 0.2) * self.chance.randrange(1, 4)
        if self.recording:
            self.found.calls.append(
                CallRow(name, begun, ended, self.correlation, row, self.thread, enqueues, waits, self.faults > 0)
            )

    def _bell(self) -> float:
        """Return a draw around 0, about a standard deviation of 1, never beyond 3."""
        return 2.0 * (sum(self.chance.random() for _ in range(3)) - 1.5)


_GROUP_SHARE = {"gemm": 0.72, "conv": 0.55, "attention": 0.50, "depthwise": 0.25, "pointwise": 0.5}
"""What well-fitting kernels of a kind reach of the arithmetic peak; the rest is drawn."""


def _usual_gaps(stream: Stream) -> dict[tuple[str, str, str], float]:
    """Return the median host time between operators of each kind."""
    seen: dict[tuple[str, str, str], list[float]] = {}

    def collect(ops: list[Op], begin_ns: float, end_ns: float, parent: str) -> None:
        at, before = begin_ns, ""
        for op in ops:
            if op.put_in:
                continue
            seen.setdefault((parent, before, op.name), []).append(op.begin_ns - at)
            collect(op.children, op.begin_ns, op.end_ns, op.name)
            at, before = op.end_ns, op.name
        seen.setdefault((parent, before, ""), []).append(end_ns - at)

    for step in stream.steps:
        collect(step.ops, step.begin_ns, step.end_ns, "")
    return {key: float(median(values)) for key, values in seen.items()}
