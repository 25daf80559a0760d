"""In the script's process: where every thread is, some hundred times a second, from torch's import to the end.

A thread of its own looks at ``sys._current_frames``. Each look is worth the time since the one before, so what
a thread spends inside one call that holds the interpreter's lock counts in full. The interpreter hands its lock
over every 5 ms only; while the sampler runs it does so ``SWITCH_S`` after it is asked, or short Python between two
operators would all be seen at the next operator. An operator that returns sooner than this thread wakes up begins
that time anew: where no other thread runs Python, which would be asked as often, it is ``ALONE_S``.

Standard library only. Memory is bounded: at most ``MOST_LOOKS`` looks are kept, the rate halves whenever they are half
used, and no more than ``MOST_STACKS`` different stacks of ``DEEPEST`` frames.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import dis
import gc
import json
import os
import re
import sys
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from itertools import islice, starmap
from pathlib import Path
from types import CodeType
from typing import Any

with contextlib.suppress(ImportError):
    import resource  # where there is /proc, there it is

from torchtriage.core.record.main_thread import BACKWARD
from torchtriage.core.record.stacks import current_frames, is_library, positions
from torchtriage.core.whole_files import replacing

RESUME = dis.opmap.get("RESUME", 255)
"""The instruction that a function begins with, but for what sets up its frame; none has that number before 3.11."""
_QUICK = re.compile(
    r"LOAD_|STORE_(?!SUBSCR)|DELETE_|PUSH_NULL|POP_TOP|COPY$|SWAP|NOP|PRECALL|KW_NAMES|EXTENDED_ARG|UNPACK_|BUILD_"
    r"|MAKE_FUNCTION|GET_ITER|IMPORT_|IS_OP|UNARY_NOT|FORMAT_"
)
_BRANCH = re.compile(r".*JUMP|RESUME|RETURN|YIELD")
SAMPLES = "samples-{}.json"
SWITCH_S, ALONE_S = 0.0005, 2e-5
PR_SET_TIMERSLACK = 29
PERIOD_S, LONGEST_PERIOD_S = 0.004, 0.064
QUICK_LOOKS = 500
"""So many looks are made a period apart; then the time between them doubles: two seconds want more than twenty."""
SHARE = 0.01
"""Of the time, that looking may take: where stacks are deep or threads many, looks are made less often."""
MOST_LOOKS = 200_000
MOST_STACKS, MOST_THREADS, DEEPEST = 20_000, 64, 200
RECENT, STIRS, SPINS = 16, 0.1, 0.4
"""Looks that a thread is judged by, and what part of them find it elsewhere where it runs Python at all, and where it
spins."""
WRITE_S = 5.0
RSS_S = 0.02
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class StackSampler:
    """Looks at all threads of this process until :meth:`stop`; writes into ``folder`` now and then, and at the end."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.path = folder / SAMPLES.format(self.pid)
        self.started_ns = time.perf_counter_ns()
        self.process_started_ns = self.started_ns - _age_ns()
        self.over = False
        self.own_ns = 0
        self.n_looks = 0
        self.main_thread = threading.main_thread().ident
        self._looks = array("q")  # time, thread, stack; of one look all threads
        self._stacks: dict[tuple[tuple[CodeType, int], ...], int] = {}
        self._collections: list[tuple[int, int, int]] = []
        self._collecting_ns = 0
        self._moves: dict[int, tuple[tuple[CodeType, int], float]] = {}
        self._rss = array("q")  # time, bytes, system time so far, page faults so far
        self._marks = array("q")  # begin and end of what a step boundary does
        self._states: list[tuple[int, str]] = []
        self.paused = False
        self.problem = ""
        self._switch_s = self._asked_s = self._set_s = sys.getswitchinterval()
        self._lock = threading.Lock()
        self.guards: list[Callable[[int], None]] = []
        """Called with the resident bytes every ``RSS_S``."""

    def start(self) -> None:
        """Begin to look."""
        self._switch(SWITCH_S)
        gc.callbacks.append(self._collected)
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """End, and write what was seen."""
        if self.over:
            return
        self.over = True
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collected)
        self._switch(self._switch_s)
        self.write()

    def forked(self) -> None:
        """Forget everything: a forked child has no sampling thread."""
        self.over = True
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collected)
        self._switch(self._switch_s)

    def pause(self, paused: bool) -> None:
        """Look no more while stacks are recorded, or again.

        The profiler records what this thread does, too. And it switches between the threads' states: a callback of the
        collector would let another thread run in the middle of that.
        """
        if paused == self.paused or self.over:
            return
        self.paused = paused
        if paused:
            with contextlib.suppress(ValueError):
                gc.callbacks.remove(self._collected)
        else:
            gc.callbacks.append(self._collected)

    def mark(self, begun_ns: int, state: str) -> None:
        """Note a step boundary that began at ``begun_ns`` and ends now; ``state`` is the recorder's from now on."""
        if len(self._marks) < MOST_LOOKS:
            self._marks.extend((begun_ns, time.perf_counter_ns(), _thread.get_ident()))
        if not self._states or self._states[-1][1] != state:
            self._states.append((begun_ns, state))

    def forget_marks(self) -> None:
        """Drop the boundaries, and count looks from here on: another loop was chosen."""
        self.n_looks = 0
        del self._marks[:]
        self._states.clear()

    @property
    def others_spin(self) -> bool:
        """Whether a thread beside the main one has lately been at another instruction at most looks.

        The profiler records the Python of every thread, so that one that spins fills the memory. In backward passes
        nothing is noted.
        """
        return self._others_move(SPINS)

    # -- parts ---------------------------------------------------------------------------------

    def _run(self) -> None:
        period_s, written, rss_at, looks, skipped = PERIOD_S, time.monotonic(), 0.0, 0, False
        statm = _statm()
        if sys.platform == "linux":  # it adds 50 us to every wait
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        try:
            while not self.over:
                time.sleep(period_s)
                begun, cpu = time.perf_counter_ns(), time.thread_time_ns()
                if not self.paused:
                    self._look(begun)
                    self.n_looks += 1
                looks += 1
                skipped = skipped or self._hide_from_compiler()
                now = time.monotonic()
                if statm is not None and now >= rss_at:
                    rss_at = now + RSS_S
                    resident = int(os.pread(statm, 128, 0).split()[1]) * PAGE
                    self._rss.extend((begun, resident, *_in_the_kernel()))
                    for guard in tuple(self.guards):
                        guard(resident)
                took = time.thread_time_ns() - cpu
                self.own_ns += took
                steady = PERIOD_S if looks < QUICK_LOOKS else 2 * PERIOD_S
                period_s = min(max(steady, took / 1e9 / SHARE, period_s * (0.9 if looks % 50 else 1)), LONGEST_PERIOD_S)
                if len(self._looks) > MOST_LOOKS * 3:
                    self._thin()
                if now - written > WRITE_S + 20 * self.own_ns / 1e9:
                    self.write()
                    written = time.monotonic()
        except Exception as error:  # nothing here may reach the script
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            if statm is not None:
                os.close(statm)

    def _switch(self, after_s: float) -> None:
        """Have the lock handed over that long after it is asked for, unless the script has set its own time."""
        after_s = min(after_s, self._switch_s)
        if after_s != self._asked_s and sys.getswitchinterval() == self._set_s:
            sys.setswitchinterval(after_s)
            self._asked_s, self._set_s = after_s, sys.getswitchinterval()

    def _hide_from_compiler(self) -> bool:
        """Have torch.compile pass our callback by, where a collection falls into a compiled call; return whether."""
        skip_code = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
        if skip_code is not None:
            skip_code(StackSampler._collected.__code__)
        return skip_code is not None

    def _look(self, now: int) -> None:
        frames = current_frames()
        # what a backward pass runs in a thread of autograd's is the loop's own
        main = frames.get(self.main_thread or 0)
        in_backward = main is not None and main.f_code.co_filename.endswith(BACKWARD)
        if len(self._moves) > len(frames):
            self._moves = {thread: move for thread, move in self._moves.items() if thread in frames}
        for thread, innermost in islice(frames.items(), MOST_THREADS):
            key = positions(innermost, DEEPEST)
            if not in_backward:
                was, share = self._moves.get(thread, (key[0], 0.0))
                self._moves[thread] = (key[0], share + ((was != key[0]) - share) / RECENT)
            stack = self._stacks.get(key)
            if stack is None:
                if len(self._stacks) >= MOST_STACKS:
                    key = key[-3:]  # the outermost frames are few
                stack = self._stacks.setdefault(key, len(self._stacks))
            self._looks.extend((now, thread, stack))
        if not self.over:
            self._switch(SWITCH_S if self._others_move(STIRS) else ALONE_S)

    def _others_move(self, least: float) -> bool:
        return any(share > least for thread, (_, share) in tuple(self._moves.items()) if thread != self.main_thread)

    def _thin(self) -> None:
        """Keep every other look; what stays stands for the time since the one kept before it."""
        stored = array("q")
        times = sorted({self._looks[at] for at in range(0, len(self._looks), 3)})
        drop = set(times[::2])
        for at in range(0, len(self._looks), 3):
            if self._looks[at] not in drop:
                stored.extend(self._looks[at : at + 3])
        self._looks = stored

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_ns = time.perf_counter_ns()
        elif self._collecting_ns and len(self._collections) < MOST_LOOKS:
            took = time.perf_counter_ns() - self._collecting_ns
            if took > 20_000:
                self._collections.append((self._collecting_ns, took, info.get("generation", 0)))

    def write(self) -> None:
        """Write everything seen so far, at once or not at all."""
        if os.getpid() != self.pid or not self._lock.acquire(blocking=False):
            return
        begun = time.perf_counter_ns()
        try:
            text = json.dumps(self.facts(), separators=(",", ":"))
            with replacing(self.path) as part:
                part.write_text(text, encoding="utf-8", errors="surrogateescape")
        except Exception as error:  # a folder that the script has removed, or a full disk
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.own_ns += time.perf_counter_ns() - begun
            self._lock.release()

    def facts(self) -> dict[str, Any]:
        """Return what the file holds: stacks are lists of frame numbers, innermost first; times in ns."""
        frames: dict[tuple[CodeType, int, bool], int] = {}
        looks = self._looks[: len(self._looks) // 3 * 3]  # before the stacks: looks go on meanwhile
        stacks = [[frames.setdefault(frame, len(frames)) for frame in _frames(stack)] for stack in list(self._stacks)]
        return {
            "schema": "torchtriage-samples/1",
            "pid": self.pid,
            "main_thread": self.main_thread,
            "started_ns": self.started_ns,
            "process_started_ns": self.process_started_ns,
            "ended_ns": time.perf_counter_ns(),
            "own_ns": self.own_ns,
            "frames": list(starmap(_frame, frames)),
            "stacks": stacks,
            "looks": [looks[0::3].tolist(), looks[1::3].tolist(), looks[2::3].tolist()],
            "collections": list(self._collections),
            "rss": [self._rss[at::4].tolist() for at in range(4)],
            "marks": [self._marks[0::3].tolist(), self._marks[1::3].tolist(), self._marks[2::3].tolist()],
            "states": list(self._states),
            "threads": {thread.ident: thread.name for thread in threading.enumerate() if thread.ident},
            "torch": _torch_facts(),
            "problem": self.problem,
        }


def samples_of(folder: Path, pid: int) -> Path:
    """Return the file that the sampler of a process writes."""
    return folder / SAMPLES.format(pid)


def _frames(stack: tuple[tuple[CodeType, int], ...]) -> list[tuple[CodeType, int, bool]]:
    """Return code and instruction of each frame, and whether it is only about to execute it.

    Where a function of the user's begins, the lock is handed over: the time before it was its caller's, since indexing,
    arithmetic and the return of a function let nobody look.
    """
    code, at = stack[0]
    frames = [(*frame, False) for frame in stack]
    if len(stack) > 1 and not is_library(code.co_filename) and _begins(code, at):
        caller, call = stack[1]
        before = _last_work(caller, call, code.co_name)
        frames[:2] = [(caller, call, True) if before is None else (caller, before, False)]
    return frames


def _begins(code: CodeType, at: int) -> bool:
    return at // 2 <= code.co_code[::2].find(RESUME)  # without any, -1: what has not begun is there


@cache
def _last_work(code: CodeType, call: int, name: str) -> int | None:
    """Return the last instruction before a call of this function that may take long, if it is known.

    It is not where C or a decorator makes the call, and where what stands before may have been jumped over.
    """
    steps = _instructions(code)[: bisect_right(_offsets(code), call)]
    loads = (step for step in steps if name in (step.argval, getattr(step.argval, "co_name", None)))
    if not any(step.opname.startswith("LOAD_") and _start(step) == _start(steps[-1]) for step in loads):
        return None
    for later, step, before in zip(steps[::-1], steps[-2::-1], steps[-3::-1], strict=False):
        if later.is_jump_target or _BRANCH.match(step.opname):
            return None
        counts = step.opname == "BINARY_OP" and isinstance(before.argval, int | float)
        if not counts and not _QUICK.match(step.opname):
            return step.offset
    return None


@cache
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


@cache
def _offsets(code: CodeType) -> list[int]:
    return [step.offset for step in _instructions(code)]


def _start(step: dis.Instruction) -> tuple[int | None, int | None]:
    """Return line and column of the expression that an instruction belongs to, as far as Python tells them."""
    place = getattr(step, "positions", None)
    return (place.lineno, place.col_offset) if place is not None else (None, None)


def _frame(code: CodeType, at: int, before: bool) -> list[Any]:
    """Return file, function, its first line, and the position of the instruction that a frame is at.

    Of one that it is only about to execute, where that begins.
    """
    where: tuple[int | None, ...] = (code.co_firstlineno, None, None, None)
    if hasattr(code, "co_positions"):
        # the jump back of a loop may have no place: it belongs to what is before it
        for place in islice(code.co_positions(), at // 2 + 1):
            where = place if place[0] is not None else where
    elif at >= 0:
        for first, last, number in code.co_lines():
            if first <= at < last and number:
                where = (number, None, None, None)
    if before:
        where = (where[0], where[0], where[2], where[2])
    name = getattr(code, "co_qualname", code.co_name)
    return [code.co_filename, name, code.co_firstlineno, *where]


def _statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None


def _in_the_kernel() -> tuple[int, int]:
    """Return the system time in ns and the page faults of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round(used.ru_stime * 1e9), used.ru_minflt


def _age_ns() -> int:
    """Return how long this process has lived; 0 where it cannot be known."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        return int((up_s - ticks / os.sysconf("SC_CLK_TCK")) * 1e9)
    except (OSError, ValueError, IndexError):
        return 0


def _torch_facts() -> dict[str, Any]:
    torch: Any = sys.modules.get("torch")
    facts: dict[str, Any] = {"cores": os.cpu_count()}
    with contextlib.suppress(Exception):
        facts["cores"] = len(os.sched_getaffinity(0))
    with contextlib.suppress(Exception):
        facts["memory"] = os.sysconf("SC_PHYS_PAGES") * PAGE
    with contextlib.suppress(Exception):
        facts["device"] = bool(torch.cuda.is_initialized())
    with contextlib.suppress(Exception):
        facts["threads"] = torch.get_num_threads()
    with contextlib.suppress(Exception):
        counters = sys.modules["torch._dynamo.utils"].counters
        facts["counters"] = {
            str(name): {str(key): int(n) for key, n in group.items()} for name, group in counters.items() if group
        }
    return facts
