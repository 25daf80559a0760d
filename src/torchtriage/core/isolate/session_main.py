"""One session: a fresh process that builds the target, compiles it and runs steps on request.

Started by ``session_client.py`` as ``python -m torchtriage.core.isolate.session_main``. Commands come as JSON lines on
standard input, answers go out the same way; what the target prints goes to standard error.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchtriage.core.process import peak_rss_bytes

STARTED_NS = time.perf_counter_ns()

CLEAR_PEAK = "5"
"""Written to ``/proc/self/clear_refs``: the peak of resident memory begins anew."""


def main(session: ModelSession | None = None) -> None:
    """Answer commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the target's own output must not mix with answers
    end_with_parent()
    session = session or ModelSession()
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        try:
            answer = {"ok": getattr(session, name)(**command)}
        except BaseException as error:
            answer = {"error": _described(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    answers.close()
    # worker processes and threads of a compiler must not keep a finished session
    os._exit(0)


def _described(error: BaseException) -> dict[str, str]:
    from torchtriage.core.isolate.target import TargetError, describe_error

    if isinstance(error, TargetError):
        return {"kind": "target", "message": error.message, "hint": error.hint}
    return {"kind": "error", "message": describe_error(error), "hint": ""}


def end_with_parent() -> None:
    """Have the system end this process when its parent is gone, wherever it hangs (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes
    import signal

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def import_torch(threads: int | None) -> Any:
    """Return torch, limited to so many processors and threads.

    Raises TargetError: it is not installed.
    """
    if threads is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    try:
        import torch
    except ModuleNotFoundError as error:
        from torchtriage.core.isolate.target import TargetError

        raise TargetError("torch is not installed in this Python", sys.executable) from error
    if threads is not None:
        torch.set_num_threads(threads)
    return torch


class ModelSession:
    """The model of this process and what has been measured so far."""

    def __init__(self) -> None:
        self.case: Any = None
        self.model: Any = None
        self.way: dict[str, Any] = {}
        self.train = False
        self.batch_size: int | None = None
        self.target = ""
        self.function: Callable[..., Any] = lambda: None
        self.dtype = self.device = ""
        self.run: Callable[[], Any] = lambda: None
        self.wait: Callable[[], None] | None = None

    def open(
        self,
        target: str,
        way: dict[str, Any],
        train: bool,
        device: str,
        threads: int | None,
        batch_size: int | None,
        dtype: str,
    ) -> dict[str, Any]:
        """Import torch, build the target, and say what it is."""
        torch = import_torch(threads)
        imported_ns = time.perf_counter_ns()
        from torchtriage.core.isolate import target as targets

        torch.set_grad_enabled(train)
        self.target, self.function = target, targets.load(target)
        self.dtype, self.device, self.batch_size = dtype, device, batch_size
        self.case = targets.build(self.function, batch_size=batch_size, dtype=dtype, device=device, train=train)
        self.train, self.way = train, way
        place = self.case.device
        if place.type == "cuda":
            self.wait = torch.cuda.synchronize
        self.model = self._compiled()
        self.run = self._step(self.model)
        built_ns = time.perf_counter_ns()
        return {
            "import_s": (imported_ns - STARTED_NS) / 1e9,
            "build_s": (built_ns - imported_ns) / 1e9,
            "dtype": self.case.dtype,
            "device": str(place),
            "takes": self.case.takes,
            "device_total_bytes": int(torch.cuda.mem_get_info(place)[1]) if place.type == "cuda" else None,
            "facts": facts_of(place),
        }

    def sources(self) -> dict[str, str]:
        """Return a hash of each file of the target's that was imported by now."""
        from torchtriage.core.isolate import target as targets

        return targets.sources(self.target, self.function)

    def check_backends(self, names: list[str]) -> None:
        """Refuse backends that neither torch nor the target's module knows."""
        if not names:
            return
        import torch

        from torchtriage.core.isolate.target import TargetError

        known = torch._dynamo.list_backends(exclude_tags=())
        for name in names:
            if name not in known:
                ordinary = ", ".join(torch._dynamo.list_backends())
                raise TargetError(f"there is no backend {name!r}", f"this torch knows {ordinary}")

    def first(self) -> dict[str, Any]:
        """Make the first call, which compiles."""
        (first_ns,) = self._timed(1)
        return {"ns": first_ns, "compiling": self._compiling()}

    def warm_up(self, seconds: float) -> list[int]:
        """Run steps for so long, three at least; return the time of each in nanoseconds."""
        out: list[int] = []
        until = time.perf_counter_ns() + int(seconds * 1e9)
        while len(out) < 3 or time.perf_counter_ns() < until:
            out += self._timed(1)
        return out

    def clear_peak(self) -> None:
        """Let the peak of resident memory begin here, where the system can (Linux)."""
        gc.collect()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)

    def block(self, n: int, untimed: bool, most_s: float = math.inf) -> dict[str, Any]:
        """Run ``n`` timed steps, or as many as begin in ``most_s``.

        ``untimed`` runs one before: others have had the caches.
        """
        if untimed:
            self._timed(1)
        begun, cpu = time.perf_counter_ns(), time.process_time_ns()
        times = self._timed(n, most_s)
        wall_ns, cpu_ns = time.perf_counter_ns() - begun, time.process_time_ns() - cpu
        out: dict[str, Any] = {"ns": times, "wall_ns": wall_ns, "cpu_ns": cpu_ns}
        if self.wait is not None:
            out |= self._device_block(len(times))
        return out

    def other_size(self, batch_size: int) -> dict[str, Any]:
        """Call the compiled model with another batch size: what a request of that size waits."""
        from torchtriage.core.isolate import dynamo_counters
        from torchtriage.core.isolate import target as targets

        before = dynamo_counters.gather()["recompiles"]
        mine = self.case.args, self.case.kwargs
        other = targets.build(
            self.function, batch_size=batch_size, dtype=self.dtype, device=self.device, train=self.train
        )
        try:
            self.case.args, self.case.kwargs = other.args, other.kwargs
            self.run = self._step(self.model)
            (first_ns,) = self._timed(1)
        finally:
            self.case.args, self.case.kwargs = mine
            self.run = self._step(self.model)
        recompiles = dynamo_counters.gather()["recompiles"] - before
        return {"batch_size": batch_size, "ns": first_ns, "recompiles": recompiles}

    def finish(self) -> dict[str, Any]:
        """Return what the compiler did in all, and memory."""
        import torch

        memory: dict[str, Any] = {"host_now_peak_bytes": peak_rss_bytes() or None}
        if self.case.device.type == "cuda":
            memory["device_peak_bytes"] = torch.cuda.max_memory_allocated()
            memory["device_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return {"compiling": self._compiling(), "memory": memory}

    def peak(self) -> int | None:
        """Return the highest resident memory since the process began, or since ``clear_peak``."""
        return peak_rss_bytes() or None

    def numerics(self, standard: str = "") -> dict[str, Any]:
        """Hold the answers against eager's in float64; ``standard`` : a more precise dtype."""
        from torchtriage.core.isolate import target as targets
        from torchtriage.core.isolate.numerics import check as answers

        finer = None
        if standard:
            finer = targets.build(
                self.function, batch_size=self.batch_size, dtype=standard, device=self.device, train=self.train
            )
        return answers.compare(self.case, self.model, self._compiled, train=self.train, finer=finer)

    def _compiled(self) -> Any:
        import torch

        if not self.way["backend"]:
            return self.case.model
        from torchtriage.core.isolate import dynamo_counters

        dynamo_counters.keep_all()
        options: dict[str, Any] = {"dynamic": self.way["dynamic"], "backend": self.way["backend"]}
        if self.way["mode"] not in ("", "default"):
            options["mode"] = self.way["mode"]
        return torch.compile(self.case.model, **options)

    def _step(self, model: Any) -> Callable[[], Any]:
        import torch

        case, args, kwargs = self.case, self.case.args, self.case.kwargs
        # modes with CUDA graphs reuse their output: a step must say that it begins
        marks = self.way["backend"] and case.device.type == "cuda"
        begin = torch.compiler.cudagraph_mark_step_begin if marks else None
        if not self.train:
            if begin is None:
                return lambda: model(*args, **kwargs)

            def call() -> Any:
                begin()
                return model(*args, **kwargs)

            return call

        from torchtriage.core.isolate.numerics.check import loss_of

        def step() -> None:
            if begin is not None:
                begin()
            case.model.zero_grad(set_to_none=True)
            loss_of(case, model(*args, **kwargs)).backward()

        return step

    def _timed(self, n: int, most_s: float = math.inf) -> list[int]:
        """Return wall times of ``n`` steps at most, each ended by the device, less the clock's own time."""
        run, wait, clock = self.run, self.wait, time.perf_counter_ns
        times: list[int] = []
        if wait is not None:
            wait()
        ended = clock()
        until = ended + most_s * 1e9
        while len(times) < n and (ended < until or not times):
            begun = clock()
            run()
            if wait is not None:
                wait()
            ended = clock()
            times.append(ended - begun)
        return [max(time_ns - CLOCK_NS, 1) for time_ns in times]

    def _device_block(self, n: int) -> dict[str, Any]:
        """Run ``n`` steps one behind the other, as a busy server does; events tell device time."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        begin.record()
        for _ in range(n):
            self.run()
        end.record()
        torch.cuda.synchronize()
        queued_ns = time.perf_counter_ns() - begun
        return {"queued_ns": queued_ns, "device_ns": begin.elapsed_time(end) * 1e6}

    def _compiling(self) -> dict[str, Any] | None:
        if not self.way["backend"]:
            return None
        from torchtriage.core.isolate import dynamo_counters

        return dynamo_counters.gather()


CLOCK_NS = sorted(-time.perf_counter_ns() + time.perf_counter_ns() for _ in range(2001))[1000]
"""What two looks at the clock take."""


def facts_of(place: Any) -> dict[str, str]:
    """Return what the times of this process depend on, besides the machine."""
    import platform

    import torch

    facts = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }
    if hasattr(os, "sched_getaffinity"):
        facts["processors allowed"] = str(len(os.sched_getaffinity(0)))
    if place.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(place)
        facts["cuda"] = str(torch.version.cuda or torch.version.hip)
        facts["float32 matmul"] = torch.get_float32_matmul_precision()
    return facts


if __name__ == "__main__":
    main()
