"""An asynchronous device to run programs on where there is none, recorded as a profiler would.

Streams are FIFO workers, launches return before their kernels run, events order streams, a launch
waits while the queue is full, and some calls wait for the device: what makes the cost of a kernel
or a sync hard to read off a trace. A program runs on the device, is recorded as Kineto JSON, is
changed (a sync removed, a kernel halved) and runs again: the measured saving is the truth that
predictions are held against.

Everything that runs is a process: a generator that yields either the nanoseconds it is busy for or
a condition it waits for. Two clocks run them:

``VirtualClock``
    jumps from one event to the next; exact, and the same on every machine;
``ThreadClock``
    gives each process a thread that really sleeps, stretched so that timers are accurate. Order,
    waiting and contention are then the operating system's.

What this cannot show: kernels that slow each other down, clocks and power, host memory.
"""

from __future__ import annotations

import ctypes
import heapq
import io
import json
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torchtriage.core.trace import Trace, read_trace

Process = Generator[int | Callable[[], bool], None, None]
"""Yields the ns it is busy for, or the condition it waits for."""

COMPUTE, COMM, COPY, SIDE = 7, 20, 24, 28
"""Streams."""
MAIN, AUTOGRAD = 1, 2
"""Host threads."""
_HOST_PID = 100


# -- programs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """An operator that keeps the host busy for ``ns``; untraced Python with ``traced=False``."""

    name: str
    ns: int
    traced: bool = True


@dataclass(frozen=True)
class Launch:
    """An operator that launches one kernel of ``ns``."""

    name: str
    ns: int
    stream: int = COMPUTE


@dataclass(frozen=True)
class Graph:
    """An operator that launches many kernels, of ``each_ns``, with one call."""

    name: str
    each_ns: tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """An operator that copies; ``blocks`` as pageable memory does, to the host inside the call."""

    name: str
    ns: int
    to: Literal["device", "host"]
    blocks: bool
    stream: int = COMPUTE


@dataclass(frozen=True)
class Sync:
    """A wait of the host for the device.

    ``on`` : all of one ``stream``; the ``device``; an ``event`` recorded right before; the same
    event of the step before (``last``); or the device, to ``free`` memory.
    """

    name: str
    on: Literal["stream", "device", "event", "last", "free"]
    stream: int = COMPUTE


@dataclass(frozen=True)
class Join:
    """Stream ``then`` waits for what was enqueued on stream ``first`` so far."""

    first: int
    then: int


@dataclass(frozen=True)
class Backward:
    """Instructions that the autograd thread runs while the main thread waits for it."""

    body: tuple[Instruction, ...]


@dataclass(frozen=True)
class Fetch:
    """The next batch: made in ``ns`` here, or ahead of time by ``workers`` of their own."""

    ns: int
    workers: int = 0


Instruction = Host | Launch | Graph | Copy | Sync | Join | Backward | Fetch


@dataclass(frozen=True)
class Machine:
    """What the device and its runtime take, in ns; medians measured on NVIDIA devices."""

    launch_ns: int = 5_000
    op_ns: int = 4_000
    """Host time of an operator before its call."""
    call_ns: int = 2_000
    latency_ns: int = 8_000
    """From the call's start to the start of its kernel on an idle stream."""
    fifo_ns: int = 1_300
    cross_ns: int = 1_500
    return_ns: int = 6_000
    hand_off_ns: int = 15_000
    graph_ns: int = 12_000
    """Host time of a graph launch, and a fiftieth of that for each of its kernels."""
    free_ns: int = 30_000
    batch_ns: int = 200_000
    """Taking a batch that a worker has ready."""
    queue_limit: int = 1_022
    jitter: float = 0.02
    """Standard deviation of every duration, relative."""


@dataclass(frozen=True)
class Program:
    """One step's instructions, how often it is recorded, and how often it ran before that.

    ``stretch`` : how much slower it runs on threads; timers are good to some 20 us.
    """

    step: tuple[Instruction, ...]
    n_steps: int = 6
    n_warm: int = 0
    machine: Machine = field(default_factory=Machine)
    stretch: int = 100

    def change(self, swap: Callable[[Instruction], Sequence[Instruction]]) -> Program:
        """Return the program with each instruction, inside backward too, replaced by others."""

        def changed(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
            out: list[Instruction] = []
            for one in body:
                if isinstance(one, Backward):
                    out.append(Backward(changed(one.body)))
                else:
                    out.extend(swap(one))
            return tuple(out)

        return replace(self, step=changed(self.step))

    def instructions(self) -> list[Instruction]:
        """Return all instructions in the order they run, those of backward too."""
        out: list[Instruction] = []
        for one in self.step:
            out.extend(one.body if isinstance(one, Backward) else [one])
        return out


# -- clocks ------------------------------------------------------------------------------------


class Clock(ABC):
    """Runs processes until all have ended."""

    @abstractmethod
    def now(self) -> int:
        """Return the time in ns."""

    @abstractmethod
    def run(self, processes: Sequence[Process]) -> None:
        """Run the processes side by side until each has ended."""


class VirtualClock(Clock):
    """Jumps from event to event. Ties are resolved by who came first."""

    def __init__(self) -> None:
        self._now = 0

    def now(self) -> int:
        """Return the time in ns."""
        return self._now

    def run(self, processes: Sequence[Process]) -> None:
        """Run the processes; RuntimeError when all of them wait for each other."""
        due = [(0, order, process) for order, process in enumerate(processes)]
        waiting: list[tuple[Callable[[], bool], Process]] = []
        count = len(due)
        while due or waiting:
            ready = next((i for i, (holds, _) in enumerate(waiting) if holds()), -1)
            if ready >= 0:
                process = waiting.pop(ready)[1]
            elif due:
                self._now, _, process = heapq.heappop(due)
            else:
                raise RuntimeError(f"{len(waiting)} processes wait for each other")
            effect = next(process, None)
            if isinstance(effect, int):
                count += 1
                heapq.heappush(due, (self._now + effect, count, process))
            elif effect is not None:
                waiting.append((effect, process))


class ThreadClock(Clock):
    """Gives each process a thread and really sleeps ``stretch`` times as long.

    ``late_ns`` : how much too long each sleep took, in stretched-back ns; the machine's noise.
    """

    def __init__(self, stretch: int = 100) -> None:
        self.stretch = stretch
        self.late_ns: list[int] = []
        self._start = time.perf_counter_ns()
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[], bool], threading.Event]] = []
        self._errors: list[BaseException] = []

    def now(self) -> int:
        """Return the time in ns, stretched back."""
        return (time.perf_counter_ns() - self._start) // self.stretch

    def run(self, processes: Sequence[Process]) -> None:
        """Run the processes; what one raises is raised here."""
        if sys.platform == "linux":
            # sleeps may run 50 us over to save power unless told otherwise; threads inherit it
            ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, 1 ns
        threads = [threading.Thread(target=self._live, args=[process], daemon=True) for process in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _live(self, process: Process) -> None:
        """Run one process; only the one that holds the lock changes the device."""
        self._lock.acquire()
        try:
            for effect in process:
                if isinstance(effect, int):
                    self._wake()
                    self._lock.release()
                    self._sleep(effect)
                    self._lock.acquire()
                elif not effect():
                    self._wake()
                    woken = threading.Event()
                    self._waiting.append((effect, woken))
                    self._lock.release()
                    happened = woken.wait(timeout=60)
                    self._lock.acquire()
                    if not happened:
                        raise RuntimeError("a process waited for a minute")
            self._wake()
        except BaseException as error:  # handed to the caller of run
            self._errors.append(error)
        finally:
            self._lock.release()

    def _wake(self) -> None:
        """Wake those whose condition holds now; the lock is held."""
        still = []
        for holds, woken in self._waiting:
            if holds():
                woken.set()
            else:
                still.append((holds, woken))
        self._waiting = still

    def _sleep(self, ns: int) -> None:
        if ns <= 0:
            return
        until = time.perf_counter_ns() + ns * self.stretch
        time.sleep(ns * self.stretch / 1e9)
        self.late_ns.append((time.perf_counter_ns() - until) // self.stretch)


# -- device ------------------------------------------------------------------------------------


@dataclass
class _Mark:
    """An event: done once the stream has come to it."""

    done_ns: int = -1


@dataclass(frozen=True)
class _Work:
    name: str
    category: str
    ns: int
    enqueued_ns: int
    correlation: int


@dataclass(frozen=True)
class _Record:
    mark: _Mark


@dataclass(frozen=True)
class _Await:
    mark: _Mark


class _Stream:
    """A FIFO queue and the process that serves it."""

    def __init__(self, run: Run, number: int) -> None:
        self.run, self.number = run, number
        self.queue: deque[_Work | _Record | _Await] = deque()
        self.n_enqueued = self.n_done = self.n_pending = 0
        self.free_ns = 0
        self.jitter = run.jitter(f"stream {number}")

    def put(self, item: _Work | _Record | _Await) -> None:
        self.queue.append(item)
        self.n_enqueued += 1
        self.n_pending += isinstance(item, _Work)

    def serve(self) -> Process:
        clock, machine = self.run.clock, self.run.program.machine
        while True:
            yield lambda: bool(self.queue) or self.run.over
            if not self.queue:
                return
            item = self.queue.popleft()
            if isinstance(item, _Record):
                item.mark.done_ns = self.free_ns
            elif isinstance(item, _Await):
                yield lambda mark=item.mark: mark.done_ns >= 0
                self.free_ns = max(self.free_ns, item.mark.done_ns + machine.cross_ns - machine.fifo_ns)
            else:
                start = max(item.enqueued_ns + machine.latency_ns, self.free_ns + machine.fifo_ns)
                yield max(start - clock.now(), 0)
                self.n_pending -= 1
                began = clock.now()
                yield from self.run.hold(item.name, self.jitter(item.ns))
                self.free_ns = clock.now()
                self.run.add(
                    item.name,
                    item.category,
                    began,
                    self.free_ns,
                    pid=0,
                    tid=self.number,
                    args={
                        "device": 0,
                        "stream": self.number,
                        "correlation": item.correlation,
                        **({"bytes": item.ns * 10} if item.category == "gpu_memcpy" else {}),
                    },
                )
            self.n_done += 1


# -- host --------------------------------------------------------------------------------------


class Run:
    """One execution of a program and what a profiler recorded of it."""

    def __init__(self, program: Program, clock: Clock, *, seed: int = 0, starts: bool = True) -> None:
        self.program, self.clock, self.seed = program, clock, seed
        self.events: list[dict[str, Any]] = []
        self.over = False
        self._streams: dict[int, _Stream] = {}
        self._correlation = 0
        self._since_ns = 0
        self._batches = self._ordered = 0
        self._backward: deque[tuple[Instruction, ...]] = deque()
        self._marks: dict[str, _Mark] = {}
        self._host_jitter = self.jitter("host")
        for number in (COMPUTE, COMM, COPY, SIDE):
            self._streams[number] = _Stream(self, number)
        if starts:
            clock.run(self.processes())

    def processes(self) -> list[Process]:
        """Return what runs side by side: the host's threads, the streams, and the loader's workers."""
        n_workers = max((one.workers for one in self.program.instructions() if isinstance(one, Fetch)), default=0)
        return [
            self._main(),
            self._autograd(),
            *(stream.serve() for stream in self._streams.values()),
            *(self._worker(index, n_workers) for index in range(n_workers)),
        ]

    def hold(self, _name: str, ns: int) -> Process:
        """Run a kernel."""
        yield ns

    def jitter(self, who: str) -> Callable[[int], int]:
        """Return a function that varies durations, the same for the same seed and name."""
        draw = random.Random(f"{self.seed} {who}")
        spread = self.program.machine.jitter

        def vary(ns: int) -> int:
            return round(ns * (1 + spread * min(max(draw.gauss(0, 1), -3), 3))) if ns else 0

        return vary

    def add(
        self,
        name: str,
        category: str,
        start_ns: int,
        end_ns: int,
        *,
        pid: int = _HOST_PID,
        tid: int = MAIN,
        args: dict[str, Any] | None = None,
    ) -> None:
        """Record an event, if the profiler was on when it started."""
        if start_ns < self._since_ns:
            return
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": start_ns / 1e3,
                "dur": (end_ns - start_ns) / 1e3,
                "args": args or {},
            }
        )

    def json(self) -> bytes:
        """Return the recording as the profiler writes it."""
        device = {"id": 0, "name": "emulated", "computeMajor": 9, "computeMinor": 0, "numSms": 1}
        return json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": self.events}).encode()

    def trace(self) -> Trace:
        """Return the recording as torchtriage reads it."""
        return read_trace(io.BytesIO(self.json()))

    # processes ---------------------------------------------------------------------------------

    def _main(self) -> Process:
        program = self.program
        for index in range(program.n_warm + program.n_steps):
            start = self.clock.now()
            if index == program.n_warm:
                # only what the profiler saw begin
                self.events.clear()
                self._since_ns = start
            for one in program.step:
                yield from self._do(one, MAIN)
            self.add(f"ProfilerStep#{index}", "user_annotation", start, self.clock.now())
        # the profiler's own stop
        yield from self._call("cudaDeviceSynchronize", MAIN, wait=list(self._streams.values()))
        self.over = True

    def _autograd(self) -> Process:
        while True:
            yield lambda: bool(self._backward) or self.over
            if not self._backward:
                return
            yield self.program.machine.hand_off_ns
            for one in self._backward[0]:
                start = self.clock.now()
                yield from self._do(one, AUTOGRAD)
                name = getattr(one, "name", type(one).__name__)
                self.add(
                    f"autograd::engine::evaluate_function: {name}Backward0",
                    "cpu_op",
                    start,
                    self.clock.now(),
                    tid=AUTOGRAD,
                )
            self._backward.popleft()

    def _worker(self, index: int, n_workers: int) -> Process:
        vary = self.jitter(f"worker {index}")
        ns = next(one.ns for one in self.program.instructions() if isinstance(one, Fetch))
        while True:
            # each worker holds two batches, as by default
            yield lambda: self.over or self._ordered + self._batches < 2 * n_workers
            if self.over:
                return
            self._ordered += 1
            yield vary(ns)
            self._ordered -= 1
            self._batches += 1

    def _do(self, one: Instruction, tid: int) -> Process:
        """Run one instruction on a host thread."""
        clock, machine, vary = self.clock, self.program.machine, self._host_jitter
        start = clock.now()
        match one:
            case Host():
                yield vary(one.ns)
                if one.traced:
                    self.add(one.name, "cpu_op", start, clock.now(), tid=tid)
            case Launch():
                yield vary(machine.op_ns)
                kernel = one.name if one.stream == COMM else f"{one.name}_kernel"
                work = [(kernel, "kernel", one.ns)]
                yield from self._enqueue("cudaLaunchKernel", one.stream, work, tid)
                self.add(one.name, "cpu_op", start, clock.now(), tid=tid)
            case Graph():
                yield vary(machine.op_ns)
                work = [(f"{one.name}_kernel_{index}", "kernel", ns) for index, ns in enumerate(one.each_ns)]
                cost = machine.graph_ns + machine.graph_ns * len(work) // 50
                yield from self._enqueue("cudaGraphLaunch", COMPUTE, work, tid, call_ns=cost)
                self.add(one.name, "cpu_op", start, clock.now(), tid=tid)
            case Copy():
                yield vary(machine.op_ns)
                memory = "Pageable" if one.blocks else "Pinned"
                what = (
                    f"Memcpy HtoD ({memory} -> Device)" if one.to == "device" else f"Memcpy DtoH (Device -> {memory})"
                )
                # a pageable readback returns when it has happened, an upload leaves that to a sync
                yield from self._enqueue(
                    "cudaMemcpyAsync",
                    one.stream,
                    [(what, "gpu_memcpy", one.ns)],
                    tid,
                    until_done=one.blocks and one.to == "host",
                )
                if one.blocks:
                    stream = self._streams[one.stream]
                    yield from self._call("cudaStreamSynchronize", tid, wait=[stream])
                self.add(one.name, "cpu_op", start, clock.now(), tid=tid)
            case Sync():
                stream = self._streams[one.stream]
                everything = list(self._streams.values())
                if one.on in ("event", "last"):
                    mark = _Mark()
                    yield from self._call("cudaEventRecord", tid, then=(stream, _Record(mark)))
                    if one.on == "last":
                        self._marks[one.name], mark = mark, self._marks.get(one.name, _Mark(0))
                    yield from self._call("cudaEventSynchronize", tid, mark=mark)
                elif one.on == "stream":
                    yield from self._call("cudaStreamSynchronize", tid, wait=[stream])
                elif one.on == "free":
                    yield vary(machine.free_ns)
                    yield from self._call("cudaFree", tid, wait=everything)
                else:
                    yield from self._call("cudaDeviceSynchronize", tid, wait=everything)
                self.add(one.name, "user_annotation", start, clock.now(), tid=tid)
            case Join():
                mark = _Mark()
                first, then = self._streams[one.first], self._streams[one.then]
                yield from self._call("cudaEventRecord", tid, then=(first, _Record(mark)))
                yield from self._call("cudaStreamWaitEvent", tid, then=(then, _Await(mark)))
            case Backward():
                self._backward.append(one.body)
                yield lambda: not self._backward
                yield machine.hand_off_ns
            case Fetch():
                yield from self._fetch(one)

    def _fetch(self, one: Fetch) -> Process:
        start = self.clock.now()
        if one.workers:
            yield lambda: self._batches > 0
            self._batches -= 1
            yield self._host_jitter(self.program.machine.batch_ns)
        else:
            yield self._host_jitter(one.ns)
        kind = "MultiProcessing" if one.workers else "SingleProcess"
        name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        self.add(name, "user_annotation", start, self.clock.now())

    def _enqueue(
        self,
        call: str,
        number: int,
        work: Sequence[tuple[str, str, int]],
        tid: int,
        *,
        call_ns: int = 0,
        until_done: bool = False,
    ) -> Process:
        """Call the runtime to enqueue (name, category, ns); it waits while the queue is full."""
        clock, machine = self.clock, self.program.machine
        stream = self._streams[number]
        start = clock.now()
        limit = machine.queue_limit
        yield lambda: sum(one.n_pending for one in self._streams.values()) < limit
        self._correlation += 1
        correlation = self._correlation
        for name, category, ns in work:
            stream.put(_Work(name, category, ns, clock.now(), correlation))
        target = stream.n_enqueued
        yield self._host_jitter(call_ns or machine.launch_ns)
        if until_done and stream.n_done < target:
            yield lambda: stream.n_done >= target
            yield self._host_jitter(machine.return_ns)
        self._runtime(call, start, tid, correlation)

    def _call(
        self,
        name: str,
        tid: int,
        *,
        then: tuple[_Stream, _Record | _Await] | None = None,
        wait: Sequence[_Stream] = (),
        mark: _Mark | None = None,
    ) -> Process:
        """Call the runtime to enqueue a mark, or to wait for streams or a mark."""
        clock, machine = self.clock, self.program.machine
        start = clock.now()
        targets = [(stream, stream.n_enqueued) for stream in wait]
        if then is not None:
            then[0].put(then[1])
        yield self._host_jitter(machine.call_ns)

        def done() -> bool:
            return all(stream.n_done >= target for stream, target in targets) and (mark is None or mark.done_ns >= 0)

        if not done():
            yield done
            yield self._host_jitter(machine.return_ns)
        self._correlation += 1
        self._runtime(name, start, tid, self._correlation)

    def _runtime(self, name: str, start_ns: int, tid: int, correlation: int) -> None:
        args = {"correlation": correlation, "cbid": 1}
        self.add(name, "cuda_runtime", start_ns, self.clock.now(), tid=tid, args=args)
