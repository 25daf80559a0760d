"""One run of PyTorch's profiler: light for cost, heavy for location.

torch is looked up when a capture starts, never when this module is imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchtriage.core.whole_files import replacing

BUSY = "the script profiles itself"
THREAD_ENDED = "the thread that stepped has ended"
LEFTOVER = "after the last step"
"""The name of what the profiler calls one more step where the loop ended inside a capture."""
_COMPRESS_BYTES = 1 << 20
capture_ended = threading.Event()
"""Set where a capture ends, for whoever knows when the ranges that are open there have ended, too, to clear: a
``record_function`` that began under one profiler and ends under the next writes into the freed memory of the first."""
GIVE_WAY_S = 5.0
"""So long a profiler that the script starts in another thread waits for our step to end."""
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"  # above Kineto's highest level; before 2.10 anything above 4 is silent, too


class ProfilerBusyError(Exception):
    """Another profiler of the process runs, and Kineto allows one."""


def profiler_running() -> bool:
    """Whether a profiler that is not ours runs in this process."""
    import torch

    return bool(torch.autograd._profiler_enabled() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def devices() -> list[str]:
    """Return the kinds of accelerator this process already uses: ``cuda``, ``xpu``, ...

    A device that is there but not initialised is left alone: asking for its activities would
    create a context that the script never wanted.
    """
    import torch

    found = []
    for name in ("cuda", "xpu", "mtia", "hpu"):
        module = getattr(torch, name, None)
        in_use = getattr(module, "is_initialized", None) or getattr(module, "is_available", None)
        if in_use is not None and in_use():
            found.append(name)
    return found


class Capture:
    """A run of the profiler that records whole steps, the first of which only warms it up.

    Start, step and stop it from one thread: the profiler sees the thread that started it and the
    autograd threads that work for it.

    Parameters
    ----------
    heavy : bool
        Shapes, Python stacks and modules as well: for location, not for cost.
    first_step : int, optional
        The number of the step that begins; without it, no steps are marked and nothing is
        warmed up: one window from start to stop.
    warms_up : bool
        The first step only warms the profiler up; else it is recorded.
    on_lost : callable, optional
        Called with why when the capture ends by itself and cannot be exported: the script started
        a profiler of its own, or the thread ended.
    """

    def __init__(
        self,
        *,
        heavy: bool = False,
        first_step: int | None = None,
        warms_up: bool = True,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self.heavy = heavy
        self.warms_up = warms_up
        self.active_steps = 0  # completed ones
        self._first_step = first_step
        self._on_lost = on_lost
        self._profiler: Any = None
        self._running = False
        self._leftover: int | None = None  # number of the step that was open at the stop
        self._guard: _Guard | None = None
        self._thread = 0
        self._at_thread_end = threading.local()

    @property
    def holds_something(self) -> bool:
        """Whether there is a whole step, or a window, to export."""
        return self._first_step is None or self.active_steps > 0

    def start(self) -> None:
        """Start the profiler.

        Raises ProfilerBusyError: another one runs.
        """
        import torch

        global _used
        if profiler_running():
            raise ProfilerBusyError("another profiler runs in this process")
        first = self._first_step
        actions = torch.profiler.ProfilerAction
        options: dict[str, Any] = {}
        if first is not None:  # step 0 is asked about when the profiler is made
            quiet_until = first if self.warms_up else -1
            options["schedule"] = lambda step: actions.WARMUP if step <= quiet_until else actions.RECORD
        if self.heavy:
            options.update(record_shapes=True, with_stack=True, with_modules=True)
        _used = True
        with _quiet(), _without_inductor():
            in_use = devices()
            self._profiler = torch.profiler.profile(
                activities=_activities(in_use), experimental_config=_extras(self.heavy, "cuda" in in_use), **options
            )
            if first is not None:
                self._profiler.step_num = first
            self._profiler.start()
        self._running, self._thread = True, threading.get_ident()
        self._guard = _Guard(self._give_way)
        if threading.current_thread() is not threading.main_thread():
            # a profiler that outlives its thread crashes the process when that exits
            self._at_thread_end.call = _Finally(lambda: self._give_way(THREAD_ENDED))

    def step(self) -> None:
        """End a step and begin the next."""
        if self._guard is not None and self._guard.wanted:
            self._give_way()
            return
        with self._ours():
            with _quiet():
                self._profiler.step()
            first = self._first_step
            assert first is not None
            self.active_steps = max(0, self._profiler.step_num - first - self.warms_up)

    def stop(self, *, inside_step: bool = False) -> None:
        """Stop; what was recorded can be exported then.

        ``inside_step``: this is no step boundary, so what is open is no step.

        Raises RuntimeError: this is not the thread that started it, or another profiler has ended it.
        """
        if threading.get_ident() != self._thread:  # stopped here, it would go on there
            raise RuntimeError("the profiler was started by another thread, which has to stop it")
        if self._guard is not None and self._guard.overrun:  # stopping would crash the process
            self._running = False
            self._remove_guard()
            raise RuntimeError("a profiler in another thread took over")
        if self._first_step is not None:
            if inside_step:
                self._leftover = self._profiler.step_num
            else:
                self.active_steps = max(0, self._profiler.step_num - self._first_step + 1 - self.warms_up)
        with self._ours(), _quiet():
            self._running = False
            capture_ended.set()
            self._profiler.stop()
        self._remove_guard()  # not before: another thread may wait for it
        results = self._profiler.profiler.kineto_results
        began = getattr(results, "trace_start_ns", None) or results.trace_start_us  # before 2.2
        if not began():  # exporting what is not there crashes
            raise RuntimeError("the profiler was ended by another one")

    def abandon(self) -> None:
        """Stop without anything to export; never raises. It goes on where this is not the thread that started it."""
        with contextlib.suppress(Exception):
            if self._running:
                if threading.get_ident() != self._thread:
                    return
                self.stop()
        self._running = False
        self._remove_guard()
        self._profiler = None

    def export(self, path: Path) -> int:
        """Write the recording to ``path`` (``.json.gz``), at once or not at all; return its bytes.

        Raises OSError: it cannot be written.
        """
        raw = path.with_name(f".{path.name}.{os.getpid()}.json")
        try:
            with _quiet():
                self._profiler.export_chrome_trace(str(raw))
            if not raw.exists():  # Kineto only logs that it could not write
                raise OSError(f"the profiler did not write {raw}")
            self._profiler = None  # its events take more memory than the file
            with replacing(path) as packed:
                _compress(raw, packed, self._leftover)
                return packed.stat().st_size
        finally:
            # Kineto writes into a file of its own first
            for left in (raw, raw.with_name(f"{raw.name}.tmp")):
                left.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        guard = self._guard
        if guard is None:
            yield
            return
        guard.ours = True
        try:
            yield
        finally:
            guard.ours = False

    def _give_way(self, reason: str = BUSY) -> None:
        if self._running:
            self.abandon()
            if self._on_lost is not None:
                self._on_lost(reason)

    def _remove_guard(self) -> None:
        if self._guard is not None:
            self._guard.remove()
            self._guard = None


class _Finally:
    """Calls something when it is dropped: as a thread's local value, when that thread ends."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._call()


class _Guard:
    """Lets the script's own profiler start: ours stops just before, where it would raise.

    Every profiler of PyTorch goes through two functions of ``torch.autograd.profiler``; these are
    replaced while a capture runs, and only then. In another thread, a profiler waits until ours
    has stopped at the end of its step: with both at work PyTorch crashes when the first one stops.

    ``wanted`` : another thread waits. ``overrun`` : it has waited in vain, and started.
    """

    NAMES = ("_prepare_profiler", "_enable_profiler")

    def __init__(self, give_way: Callable[[], None]) -> None:
        import torch.autograd.profiler as module

        self.ours = False
        self.wanted = False
        self.overrun = False
        self._give_way = give_way
        self._gone = threading.Event()
        self._thread = threading.get_ident()
        self._module = module
        self._originals = {name: getattr(module, name) for name in self.NAMES if hasattr(module, name)}
        self._wrapped = {name: self._wrap(call) for name, call in self._originals.items()}
        for name, call in self._wrapped.items():
            setattr(module, name, call)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                self.wanted = True
                self.overrun |= not self._gone.wait(GIVE_WAY_S)
            elif not self.ours:
                self._give_way()
            return original(*args, **kwargs)

        return call

    def remove(self) -> None:
        for name, original in self._originals.items():
            if getattr(self._module, name, None) is self._wrapped[name]:
                setattr(self._module, name, original)
        if not self.overrun:
            self._gone.set()


def _activities(in_use: list[str]) -> list[Any]:
    import torch

    activity = torch.profiler.ProfilerActivity
    found = [activity.CPU]
    possible = torch.profiler.supported_activities()
    for name in in_use:
        device_activity = getattr(activity, name.upper(), None)
        if device_activity in possible:
            found.append(device_activity)
    return found


def _extras(heavy: bool, cuda: bool) -> Any:
    """Return the experimental options that this version of PyTorch knows, out of those we want."""
    try:
        from torch._C._profiler import _ExperimentalConfig
    except ImportError:
        return None
    wanted = {"record_python_gc_info": True}
    if cuda:
        wanted["enable_cuda_sync_events"] = True
    if not heavy:
        wanted["trace_only"] = True  # no Python objects for events that nobody asks for
    known = {}
    for name, value in wanted.items():
        with contextlib.suppress(TypeError):
            _ExperimentalConfig(**{name: value})
            known[name] = value
    return _ExperimentalConfig(**known)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Kineto's log lines out of the script's output; it reads the variable at each call."""
    # no warnings.catch_warnings: it makes Python forget which warnings the script has shown
    before = os.environ.get(_LOG_LEVEL)
    if before is None:
        os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)


class _Hiding(set[str]):
    """The names that torch imports when asked for them, without one in the thread that made it."""

    def __init__(self, names: set[str], hidden: str) -> None:
        super().__init__(names)
        self._hidden, self._thread = hidden, threading.get_ident()

    def __contains__(self, name: object) -> bool:
        if name == self._hidden and threading.get_ident() == self._thread:
            return False
        return super().__contains__(name)


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """Keep the profiler from importing the compiler only to look at a setting of it.

    In torch 2.13 that takes seconds and leaves 120,000 objects in 800 modules, which every garbage
    collection of the script would walk from then on, and every process it forks would inherit.
    """
    import torch

    names = getattr(torch, "_lazy_modules", None)
    if not isinstance(names, set) or "torch._inductor" in sys.modules:
        yield
        return
    torch._lazy_modules = _Hiding(names, "_inductor")
    try:
        yield
    finally:
        torch._lazy_modules = names


def _compress(raw: Path, packed: Path, leftover: int | None) -> None:
    """Gzip ``raw``; the annotation of the step number ``leftover`` gets another name."""
    try:
        from isal import igzip
    except ImportError:  # the script's interpreter need not have what we are installed with
        import gzip as igzip  # type: ignore[no-redef]

    gzipped: Any = igzip.open
    name = f'"ProfilerStep#{leftover}"'.encode()
    with raw.open("rb") as source, gzipped(packed, "wb", compresslevel=1) as target:
        if leftover is None:
            while block := source.read(_COMPRESS_BYTES):
                target.write(block)
        else:
            for line in source:
                target.write(line.replace(name, f'"{LEFTOVER}"'.encode()))


_used = False


def _leave_quickly() -> None:
    """Let a forked child exit at all: Kineto's clean-up waits for a thread that is the parent's.

    Seen with PyTorch 2.13 and glibc, with every use of its profiler before a fork. The child's
    ``exit`` ends right before the clean-up of what its parent had loaded, with streams flushed and
    its own status; where there is no ``on_exit`` nothing waits, either.
    """
    if not _used:
        return
    with contextlib.suppress(Exception):
        import ctypes

        libc = ctypes.CDLL(None)
        # called last in, first out, with the exit status; one takes it and the other ignores it
        for name in ("_exit", "fcloseall"):
            libc.on_exit(ctypes.cast(getattr(libc, name), ctypes.c_void_p), None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_quickly)
