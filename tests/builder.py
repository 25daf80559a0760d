"""Build traces in tests: real trace JSON, read by the real reader. Times in microseconds."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from invariants import check_trace

from torchtriage.core.trace import Kind, Trace, read_trace
from torchtriage.diagnose.patterns.base import Claim, Claims

HOST = 100
MAIN = 1


class TraceBuilder:
    """Collects events; ``build`` reads them back as a checked trace.

    Every method that adds an event returns the builder, except ``launch`` and ``copy``, which
    return the correlation id.
    """

    def __init__(self, *, vendor: str = "cuda", device: str = "NVIDIA H100", **meta: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.meta: dict[str, Any] = {"schemaVersion": 1, **meta}
        self.rocm = vendor == "rocm"
        if vendor != "cpu":
            self.meta["deviceProperties"] = [
                {
                    "id": 0,
                    "name": device,
                    "computeMajor": 9,
                    "computeMinor": 0,
                    "numSms": 132,
                    "totalGlobalMem": 85_000_000_000,
                }
            ]
        if self.rocm:
            self.meta["roctracer_version"] = "4.1"
        self._correlation = 0
        self._python_id = 0
        self._open_frames: list[tuple[float, float, int, int]] = []

    def event(
        self,
        name: str,
        cat: str,
        start: float,
        dur: float,
        *,
        pid: Any = HOST,
        tid: Any = MAIN,
        ph: str = "X",
        **args: Any,
    ) -> TraceBuilder:
        one: dict[str, Any] = {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start}
        if ph == "X":
            one["dur"] = dur
        if args:
            one["args"] = args
        self.events.append(one)
        return self

    def step(self, index: int, start: float, dur: float, *, tid: Any = MAIN) -> TraceBuilder:
        return self.annotation(f"ProfilerStep#{index}", start, dur, tid=tid)

    def annotation(self, name: str, start: float, dur: float, *, tid: Any = MAIN) -> TraceBuilder:
        return self.event(name, "user_annotation", start, dur, tid=tid)

    def op(
        self,
        name: str,
        start: float,
        dur: float,
        *,
        tid: Any = MAIN,
        dims: Any = None,
        types: Any = None,
        concrete: Any = None,
        strides: Any = None,
        seq: int | None = None,
        fwd: int | None = None,
    ) -> TraceBuilder:
        args = {
            "Input Dims": dims,
            "Input type": types,
            "Concrete Inputs": concrete,
            "Input Strides": strides,
            "Sequence number": seq,
            "Fwd thread id": fwd,
        }
        return self.event(
            name, "cpu_op", start, dur, tid=tid, **{key: value for key, value in args.items() if value is not None}
        )

    def call(
        self, name: str, start: float, dur: float, *, tid: Any = MAIN, correlation: int | None = None, **args: Any
    ) -> TraceBuilder:
        if correlation is None:
            correlation = self._next()
        return self.event(name, "cuda_runtime", start, dur, tid=tid, correlation=correlation, **args)

    def kernel(
        self, name: str, start: float, dur: float, *, correlation: int, stream: int = 7, device: int = 0, **args: Any
    ) -> TraceBuilder:
        return self.event(
            name,
            "kernel",
            start,
            dur,
            pid=device,
            tid=stream,
            device=device,
            stream=stream,
            correlation=correlation,
            **args,
        )

    def launch(
        self,
        start: float,
        dur: float,
        kernel_start: float,
        kernel_dur: float,
        name: str = "kernel",
        *,
        tid: Any = MAIN,
        stream: int = 7,
        call: str = "",
        **args: Any,
    ) -> int:
        """Add a launch call and its kernel."""
        correlation = self._next()
        default = "hipLaunchKernel" if self.rocm else "cudaLaunchKernel"
        self.call(call or default, start, dur, tid=tid, correlation=correlation)
        self.kernel(name, kernel_start, kernel_dur, correlation=correlation, stream=stream, **args)
        return correlation

    def copy(
        self,
        start: float,
        dur: float,
        copy_start: float,
        copy_dur: float,
        *,
        kind: str = "HtoD (Pageable -> Device)",
        size: int = 4,
        tid: Any = MAIN,
        stream: int = 7,
        call: str = "",
    ) -> int:
        """Add a copy call and its transfer."""
        correlation = self._next()
        default = "hipMemcpyWithStream" if self.rocm else "cudaMemcpyAsync"
        self.call(call or default, start, dur, tid=tid, correlation=correlation)
        self.event(
            f"Memcpy {kind}",
            "gpu_memcpy",
            copy_start,
            copy_dur,
            pid=0,
            tid=stream,
            device=0,
            stream=stream,
            correlation=correlation,
            bytes=size,
        )
        return correlation

    def sync(self, start: float, dur: float, name: str = "cudaStreamSynchronize", *, tid: Any = MAIN) -> TraceBuilder:
        return self.call(name, start, dur, tid=tid)

    def profiler_stop(self, start: float, dur: float) -> TraceBuilder:
        """Add the sync that the profiler itself ends with (every real GPU trace has it)."""
        return self.sync(start, dur, "hipDeviceSynchronize" if self.rocm else "cudaDeviceSynchronize")

    def frame(self, name: str, start: float, dur: float, *, tid: Any = MAIN) -> TraceBuilder:
        """Add a Python frame; its parent is the innermost open frame added before it."""
        self._python_id += 1
        parents = [one for one in self._open_frames if one[0] <= start and start + dur <= one[1] and one[3] == tid]
        parent = parents[-1][2] if parents else None
        self._open_frames.append((start, start + dur, self._python_id, tid))
        return self.event(
            name, "python_function", start, dur, tid=tid, **{"Python id": self._python_id, "Python parent id": parent}
        )

    def memory(
        self, at: float, size: int, *, allocated: int, reserved: int, device_type: int = 1, addr: int = 1
    ) -> TraceBuilder:
        return self.event(
            "[memory]",
            "cpu_instant_event",
            at,
            0,
            ph="i",
            **{
                "Bytes": size,
                "Addr": addr,
                "Total Allocated": allocated,
                "Total Reserved": reserved,
                "Device Type": device_type,
                "Device Id": 0,
            },
        )

    def json(self) -> bytes:
        return json.dumps({**self.meta, "traceEvents": self.events}).encode()

    def build(self) -> Trace:
        trace = read_trace(io.BytesIO(self.json()))
        check_trace(trace)
        return trace

    def claims(self, find: Callable[[Trace], Claims]) -> list[Claim]:
        """All that ``find`` of a pattern yields for the built trace."""
        return list(find(self.build()))

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation


def untraced() -> TraceBuilder:
    """Return a run that waits for kernels whose launches are not recorded."""
    builder = TraceBuilder()
    for step in range(4):
        at = 1_000 + step * 1_000
        builder.step(step, at, 1_000).op("aten::mm", at + 5, 20).launch(at + 10, 5, at + 20, 100)
        builder.kernel("gemm", at + 600, 300, correlation=9_000 + step).sync(at + 40, 870)
    return builder


def syncing(builder: TraceBuilder, *, n_steps: int = 5, steps: bool = True) -> TraceBuilder:
    """Add iterations of 1 ms that wait for four scalar readbacks each: SYN001, severe; the GPU is busy 12.8 %."""
    for index in range(n_steps):
        at = index * 1000.0
        if steps:
            builder.step(index + 3, at, 1000)
        for read in range(4):
            begin = at + read * 200.5
            builder.op("aten::item", begin + 100, 80)
            builder.op("aten::_local_scalar_dense", begin + 101, 78)
            builder.launch(begin + 10, 5, begin + 20, 30, "gemm")
            builder.copy(begin + 102, 70, begin + 160, 2, kind="DtoH (Device -> Pageable)")
    return builder


def row(trace: Trace, name: str, nth: int = 0) -> int:
    """Return the row of the nth event of a name."""
    return int(np.flatnonzero(trace.named(name))[nth])


def rows(trace: Trace, kind: Kind) -> list[tuple[str, int, int]]:
    """Return name, start and duration of all events of a kind."""
    at = np.flatnonzero(trace.kind == kind).tolist()
    return [(trace.name_of(row), int(trace.start_ns[row]), int(trace.dur_ns[row])) for row in at]
