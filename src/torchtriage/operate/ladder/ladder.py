"""The ladder of one model in one worker: answers every call, and moves when it has to."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Any

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.core.units import format_share
from torchtriage.operate.ladder.policy import N_NEWEST, LadderState, Policy, decide, trouble
from torchtriage.operate.ladder.result import Check, LadderEntry, LadderStatus, ModeStatus
from torchtriage.operate.ladder.store import DRY, LadderStore, LocalStore, Shared
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.metrics import Value

N_LOG = 1000
N_GIVEN_UP = 4  # calls that hang at the same time before no more are started in that mode
N_WARM = 5  # calls of a mode in this worker that may be late, and those begun before so many have ended
N_BY_HAND = 5  # times a person's word is tried, where workers switch at the same moment
QUICK_AGAIN = 10  # a mode that is left again within so many dwells was come back to too early


@dataclass(frozen=True)
class Mode:
    """One rung.

    ``call`` : anything that answers. ``check`` : called once, in the background, before the mode is
    ever used; returns why it may not be used, or nothing (see :func:`answers_agree`).
    """

    name: str
    call: Callable[..., Any]
    check: Callable[[], str] | None = None


@dataclass
class _Rung:
    mode: Mode
    check: Check
    why_not: str = ""
    n_calls: int = 0
    n_late: int = 0
    n_failed: int = 0
    n_hanging: int = 0
    n_answered: int = 0

    @property
    def usable(self) -> bool:
        return self.check in ("none", "passed")


class Ladder:
    """Answers calls by the current mode, goes down when it must and comes back when it can.

    ``name`` : of the model; workers with the same name and store share the level, dry runs one of their own; a
    hold is for all of them.
    ``modes`` : from the full one to the cheapest, two or more.
    ``fallback`` : the answer when every mode fails, or a function of the call's arguments that gives it.
    ``alarm`` : looked at many times a second; any text it returns is a reason to go down. Detectors of
    :mod:`torchtriage.operate.monitor` fit here; :meth:`raise_alarm` pushes one instead.
    ``dry_run`` : write to the log what would be done and change nothing; the default, for a first week.
    ``log`` : called with each :class:`LadderEntry`.
    ``clock``, ``wall`` : monotonic seconds, and seconds since the epoch for the log.

    A call adds two clock reads and an append to what the mode takes; nothing on its way waits for a
    store. What a mode raises is answered by the next one below, and by ``fallback`` at the end.
    Counts of calls are for people: threads that count at the same moment may lose one.

    Raises ``UsageError``: fewer than two modes, two of one name, or one that is no function or an async one.
    """

    def __init__(
        self,
        name: str,
        modes: Sequence[Mode],
        policy: Policy | None = None,
        *,
        fallback: Any = None,
        alarm: Callable[[], str] | None = None,
        store: LadderStore | None = None,
        dry_run: bool = True,
        log: Callable[[LadderEntry], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if not name:
            raise UsageError("expected a name of the ladder, found none")
        if len(modes) < 2 or len({mode.name for mode in modes}) < len(modes):
            raise UsageError(
                f"expected two modes or more, each with a name of its own, found {[mode.name for mode in modes]}",
                where=name,
            )
        for mode in modes:
            # an async one would never be late and never fail: what it returns is not its answer
            call: object = mode.call
            if not callable(call) or iscoroutinefunction(call) or iscoroutinefunction(type(call).__call__):
                raise UsageError(
                    f"expected a function that answers, found {call!r}",
                    where=f"{name}, mode {mode.name}",
                    hint="pass a plain function that waits for the async one",
                )
        self.name = name
        self.modes = tuple(modes)
        self.policy = policy or Policy()
        self.dry_run = dry_run
        self._fallback = fallback
        self._alarm = alarm
        self._pushed = ""
        self._store: LadderStore = store if store is not None else LocalStore(clock)
        self._on_entry = log
        self._clock, self._wall = clock, wall
        self._pid = os.getpid()
        self._actor = f"worker {self._pid}"
        self._shared = Shared()
        self._level = 0
        self._connected = True
        self._rungs = [_Rung(mode, "none" if mode.check is None else "not checked") for mode in modes]
        self._n_fallback = 0
        self._hanging_lock = threading.Lock()
        self._newest = self._none_seen()
        self._probes = self._none_seen()
        self._better = -1  # the mode on trial
        self._turn = 0.0
        self._well_since_s = clock()
        self._entries: deque[LadderEntry] = deque(maxlen=N_LOG)
        self._newest_once = ""
        self._look_lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        process_metrics.register(self)

    # -- on the way of a request ---------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer: by the current mode, else by the next one that can, else by the fallback."""
        level, better = self._level, self._better
        if better >= 0:
            self._turn += self._shared.share
            if self._turn >= 1:
                self._turn %= 1
                done, answer = self._try(better, self._probes, args, kwargs)
                if done:
                    return answer
        for lower in range(level, len(self.modes)):
            if lower == self._level or self._rungs[lower].usable:
                done, answer = self._try(lower, self._newest if lower == self._level else None, args, kwargs)
                if done:
                    return answer
        self._n_fallback += 1
        if not callable(self._fallback):
            return self._fallback
        try:
            return self._fallback(*args, **kwargs)
        except Exception:
            return None

    def _try(
        self, level: int, seen: deque[bool] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        """Call one mode; return whether it answered, and the answer."""
        rung = self._rungs[level]
        deadline_s, timeout_s = self.policy.deadline_s, self.policy.timeout_s
        rung.n_calls += 1
        warm = rung.n_answered >= N_WARM  # what compiles and fills caches is late, and says nothing of the mode
        start_ns = time.perf_counter_ns()
        answer, done = None, True
        try:
            if timeout_s is None:
                answer = rung.mode.call(*args, **kwargs)
            else:
                done, answer = self._timed(rung, timeout_s, args, kwargs)
        except Exception:
            done = False
        late = not done
        if done and deadline_s is not None:
            late = time.perf_counter_ns() - start_ns > deadline_s * 1e9
            rung.n_late += late
        rung.n_failed += not done
        rung.n_answered += done
        if seen is not None and (warm or not done):
            seen.append(late)
        return done, answer

    def _timed(self, rung: _Rung, timeout_s: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        if rung.n_hanging >= N_GIVEN_UP:
            return False, None
        box: list[Any] = []
        ended = threading.Event()
        given_up = False

        def work() -> None:
            try:
                box.append(rung.mode.call(*args, **kwargs))
            except Exception:
                box.clear()
            finally:
                with self._hanging_lock:
                    ended.set()
                    rung.n_hanging -= given_up

        threading.Thread(target=work, name="torchtriage-call", daemon=True).start()
        if not ended.wait(timeout_s):
            with self._hanging_lock:
                # it may have ended just now, when nobody waited any more
                given_up = not ended.is_set()
                rung.n_hanging += given_up
            return False, None
        return (True, box[0]) if box else (False, None)

    # -- beside the requests -------------------------------------------------------------------

    def start(self, every_s: float = 0.05) -> None:
        """Check the modes and look ``1 / every_s`` times a second, in a thread of its own.

        Each worker calls it, after a fork if there is one.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        if os.getpid() != self._pid:
            # locks are as the fork happened to find them
            self._pid = os.getpid()
            self._actor = f"worker {self._pid}"
            self._look_lock, self._hanging_lock = threading.Lock(), threading.Lock()
            for rung in self._rungs:
                rung.n_hanging = 0
            self._wake, self._stop = threading.Event(), threading.Event()
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, args=(every_s,), name="torchtriage-ladder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking; calls are answered by the mode that is current."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2)

    def raise_alarm(self, why: str) -> None:
        """Go down as soon as the dwell lets it, and stay there until :meth:`clear_alarm`."""
        self._pushed = why or "alarm"
        self._wake.set()

    def clear_alarm(self) -> None:
        """Let recovery begin."""
        self._pushed = ""

    def hold(self, mode: str, why: str, actor: str = "a person") -> None:
        """Put the ladder on a mode and keep it there, in all workers, also in a dry run.

        Raises ``UsageError``: no mode is called so, or it failed its check;
        ``StoreError``: the store does not answer.
        """
        names = [rung.mode.name for rung in self._rungs]
        if mode not in names:
            raise UsageError(f"expected a mode of {', '.join(names)}, found {mode!r}")
        level = names.index(mode)
        if self._rungs[level].check == "failed":
            raise UsageError(f"{mode} failed its check: {self._rungs[level].why_not}", where=self.name)
        self._by_hand(level, why, actor, "hold")

    def release(self, why: str = "", actor: str = "a person") -> None:
        """Let the ladder move again from where it is held, if it is; ``StoreError`` as :meth:`hold`."""
        self._by_hand(None, why, actor, "release")

    def check_modes(self) -> None:
        """Run the checks that have not been run; what a check raises is its failure."""
        for rung in self._rungs:
            if rung.check != "not checked" or rung.mode.check is None:
                continue
            try:
                said: object = rung.mode.check()
                if not isinstance(said, str | None):  # a bool may mean either: the mode stays out
                    raise TypeError(f"expected text (why it may not be used) or nothing, found {said!r}")
                rung.why_not = said or ""
            except Exception as error:
                rung.why_not = f"{type(error).__name__}: {error}"
            rung.check = "failed" if rung.why_not else "passed"
            self._log("check", rung.mode.name, rung.check, rung.why_not)

    def look(self) -> None:
        """Look once: read the shared level, then go down, try a better mode, or come back."""
        with self._look_lock:
            try:
                self._look()
            except StoreError as error:
                if self._connected:
                    self._connected = False
                    self._better = -1
                    self._log("lost", self._mode, self._mode, f"{error.message}: keeping the mode")

    def status(self) -> LadderStatus:
        """Return where it stands."""
        return LadderStatus(
            name=self.name,
            level=self._shared.level,
            mode=self._mode,
            why=self._shared.why,
            held=self._shared.held,
            dry_run=self.dry_run,
            connected=self._connected,
            share=self._shared.share,
            n_given_up=sum(rung.n_hanging for rung in self._rungs),
            n_fallback=self._n_fallback,
            modes=tuple(
                ModeStatus(rung.mode.name, rung.check, rung.why_not, rung.n_calls, rung.n_late, rung.n_failed)
                for rung in self._rungs
            ),
        )

    def metrics(self) -> list[Value]:
        """Return what a monitor's listener shows of it."""
        values: list[Value] = [
            ("ladder_level", {"ladder": self.name}, self._level),
            ("ladder_fallbacks_total", {"ladder": self.name}, self._n_fallback),
        ]
        for rung in self._rungs:
            mode = {"ladder": self.name, "mode": rung.mode.name}
            outcomes = {"answered": rung.n_calls - rung.n_failed, "late": rung.n_late, "failed": rung.n_failed}
            values += [("ladder_calls_total", mode | {"outcome": outcome}, n) for outcome, n in outcomes.items()]
        return values

    @property
    def entries(self) -> tuple[LadderEntry, ...]:
        """The newest thousand entries of this worker's log, oldest first."""
        return tuple(self._entries)

    def _work(self, every_s: float) -> None:
        self.check_modes()
        while not self._stop.is_set():
            try:
                self.look()
            except Exception as error:
                # whatever it was, the watch must go on
                self._once("failed", self._mode, f"polling: {type(error).__name__}: {error}")
            self._wake.wait(every_s)
            self._wake.clear()

    def _look(self) -> None:
        shared = self._read()
        if not self._connected:
            self._connected = True
            self._log("found", self._mode, self._mode, "the store answers again")
        self._take(shared)
        shared, now_s = self._shared, self._clock()
        newest = list(self._newest)
        # in a dry run the first mode answers every call: the newest ones are the trial
        probes = newest if self.dry_run else list(self._probes)
        alarm = self._pushed or self._asked()
        view = LadderState(
            level=shared.level,
            alarm=alarm,
            relative=getattr(alarm, "relative", False),
            n_calls=len(newest),
            n_late=sum(newest),
            well_s=now_s - self._well_since_s,
            wait_s=shared.wait_s or self.policy.recover_s,
            share=shared.share,
            step_s=shared.since_s,
            n_probes=len(probes),
            n_probes_late=sum(probes),
        )
        troubled = bool(trouble(self.policy, view))
        if troubled or shared.trouble:
            self._well_since_s = now_s
            view = view._replace(well_s=0.0)
        if shared.held:
            return
        if troubled and shared.level > 0:
            # nobody tries a better mode meanwhile
            self._store.mark(self._key)
        move = decide(self.policy, view)
        if shared.share and move.do != "down" and shared.trouble:
            self._give_up("another worker is in trouble")
        elif move.do == "down":
            lower = range(shared.level + 1, len(self.modes))
            self._go(next((level for level in lower if self._rungs[level].usable), None), move.why)
            if self._shared.share:
                self._give_up(move.why)
        elif move.do == "up":
            self._go(self._above(), move.why)
        elif move.do == "probe":
            self._ramp(move.share, shared.wait_s, "probe", f"{format_share(move.share)} of calls: {move.why}")
        elif move.do == "give up":
            self._give_up(move.why)

    def _read(self) -> Shared:
        shared = self._store.read(self.name)
        return self._store.read(self._key) if self.dry_run and not shared.held else shared

    def _take(self, shared: Shared) -> None:
        if shared.level >= len(self.modes):
            # of a worker with a longer ladder
            shared = replace(shared, level=len(self.modes) - 1)
        before, self._shared = self._shared, shared
        # nobody is sent to a mode that has not passed its check here
        self._level = 0 if self.dry_run and not shared.held else self._usable(shared.level)
        if shared.level != before.level:
            self._newest = self._none_seen()
            self._well_since_s = self._clock()
        if (shared.level, shared.share) != (before.level, before.share):
            self._probes = self._none_seen()
            self._well_since_s = self._clock()
        trial = shared.share and not shared.held and not self.dry_run
        self._better = self._above() if trial else -1

    def _asked(self) -> str:
        if self._alarm is None:
            return ""
        try:
            alarm: object = self._alarm() or ""
            return alarm if isinstance(alarm, str) else str(alarm)
        except Exception as error:
            # someone else's code: deadlines are watched without it
            self._once("failed", self._mode, f"the alarm function: {type(error).__name__}: {error}")
            return ""

    def _above(self) -> int:
        return self._usable(self._shared.level - 1)

    def _usable(self, lowest: int) -> int:
        return next((level for level in range(lowest, 0, -1) if self._rungs[level].usable), 0)

    def _none_seen(self) -> deque[bool]:
        return deque(maxlen=max(N_NEWEST, self.policy.least_calls, self.policy.probe_calls))

    def _give_up(self, why: str) -> None:
        self._ramp(0.0, self._longer(2), "give up", why)

    def _ramp(self, share: float, wait_s: float, kind: str, why: str) -> None:
        # another share of calls for the better mode, in all workers
        shared = self._shared
        after = Shared(shared.level, why=shared.why, actor=self._actor, share=share, wait_s=wait_s)
        switched = self._store.switch(self._key, shared, after, dwell_s=0, budget=None)
        self._take(switched.state)
        # where another worker was quicker it is in that one's log
        if not switched.refused:
            self._log(kind, self._mode, self.modes[self._above()].name, why)

    def _longer(self, times: float) -> float:
        return min(times * (self._shared.wait_s or self.policy.recover_s), self.policy.longest_s)

    def _go(self, level: int | None, why: str) -> None:
        if level is None:
            self._once("refused", self._mode, f"{why}; no lower mode may be used")
            return
        shared, policy = self._shared, self.policy
        rises = level < shared.level
        # a return that did not last says more than a trial that failed
        fallen_s = self._longer(4) if shared.rose_s < QUICK_AGAIN * policy.dwell_s else 0.0
        wait_s = shared.wait_s if rises else fallen_s
        before, after = self._mode, Shared(level, why=why, actor=self._actor, wait_s=wait_s)
        budget = None if rises or self.dry_run else policy.budget
        switched = self._store.switch(self._key, shared, after, dwell_s=policy.dwell_s, budget=budget)
        self._take(switched.state)
        if switched.refused:
            self._once("refused", self.modes[level].name, f"{why}; {switched.refused}")
            return
        self._newest_once = ""
        self._log("would switch" if self.dry_run else "switch", before, self._mode, why)

    def _by_hand(self, level: int | None, why: str, actor: str, kind: str) -> None:
        # hold a level, or let go where none is given
        with self._look_lock:
            mode = self._mode
            for _ in range(N_BY_HAND):
                before = self._store.read(self.name)
                if level is None and not before.held:
                    return
                # a hold that dry runs alone had leaves no level behind
                free = before.back if before.held else before.level
                if level is None:
                    after = Shared(free if self.dry_run else before.level, wait_s=before.wait_s)
                else:
                    back = free if self.dry_run else level
                    after = Shared(level, held=True, wait_s=before.wait_s, back=back)
                after = replace(after, why=why, actor=actor)
                switched = self._store.switch(self.name, replace(before, held=True), after, dwell_s=0, budget=None)
                self._take(self._read())
                if not switched.refused:
                    self._log(kind, mode, self._mode, why, actor)
                    return
            raise StoreError(switched.refused, where=self.name, hint="try again")

    @property
    def _key(self) -> str:
        # what a dry run would do must not move those that do it; what a person says is for all
        return f"{self.name}{DRY}" if self.dry_run else self.name

    @property
    def _mode(self) -> str:
        return self.modes[self._shared.level].name

    def _once(self, kind: str, after: str, why: str) -> None:
        text = f"{kind} {after} {why.rpartition('; ')[2]}"
        if text != self._newest_once:
            self._newest_once = text
            self._log(kind, self._mode, after, why)

    def _log(self, kind: str, before: str, after: str, why: str, actor: str = "") -> None:
        entry = LadderEntry(self._wall(), self.name, kind, before, after, why, actor or self._actor)
        self._entries.append(entry)
        if self._on_entry is not None:
            try:
                self._on_entry(entry)
            except Exception:
                # a log that fails must not stop what it is a log of
                self._on_entry = None
