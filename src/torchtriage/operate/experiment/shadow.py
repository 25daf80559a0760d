"""A candidate that runs beside the control, on real requests, and answers nobody."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.operate.experiment.output_agreement import Agreement, agreement
from torchtriage.operate.experiment.split import Split

N_EXAMPLES = 20


@dataclass(frozen=True)
class ShadowReport:
    """Counts of the shadow; offered is agree, differ, failed, dropped and waiting together.

    ``n_dropped`` : requests that came while the shadow was busy, so that it never holds up anybody.
    ``largest`` and ``relative`` : the worst of all answers. ``examples`` : the first differences.
    """

    n_offered: int = 0
    n_agree: int = 0
    n_differ: int = 0
    n_failed: int = 0
    n_dropped: int = 0
    n_waiting: int = 0
    n_nan: int = 0
    largest: float | None = None
    relative: float | None = None
    candidate_ns: int = 0
    examples: tuple[str, ...] = ()

    @property
    def agree_ratio(self) -> float | None:
        """Share of compared answers that agree; None before the first."""
        compared = self.n_agree + self.n_differ + self.n_failed
        return self.n_agree / compared if compared else None


class Shadow:
    """Runs a candidate on a share of requests, in a thread of its own, and compares its answers.

    ``candidate`` : called as the control was; it must not change its arguments or the world. What it raises
    is counted and goes no further.
    ``share`` : of requests that are shadowed, by the id that is offered.
    ``compare`` : called as ``compare(control's answer, candidate's answer)``.
    ``backlog`` : requests that may wait; each holds its arguments and its answer.
    Raises ``UsageError``: a share out of 0 to 1, or a backlog below 1.
    """

    def __init__(
        self,
        candidate: Callable[..., Any],
        *,
        share: float = 1.0,
        compare: Callable[[Any, Any], Agreement] = agreement,
        backlog: int = 16,
        salt: str = "shadow",
    ) -> None:
        if backlog < 1:
            raise UsageError(f"expected a backlog of 1 or more, found {backlog}")
        self._candidate = candidate
        self._compare = compare
        self._split = Split(salt, share)
        self._backlog = backlog
        self._counts = ShadowReport()
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(self._backlog)
        self._thread: threading.Thread | None = None

    def offer(self, id: str | int | bytes, answer: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Hand over a request that the control answered; return whether the shadow takes it.

        Never waits. The arguments are handed over as they are: whoever changes them afterwards gives a copy.
        """
        if self._closed or not self._split.treats(id):
            return False
        if os.getpid() != self._pid:
            # a fork takes no threads along, and locks as they happened to be
            self._counts = ShadowReport()
            self._reset()
        with self._lock:
            self._count(n_offered=1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="torchtriage-shadow", daemon=True)
                self._thread.start()
            try:
                self._waiting.put_nowait(partial(self._run, answer, args, kwargs))
            except queue.Full:
                self._count(n_dropped=1)
                return False
        return True

    def report(self) -> ShadowReport:
        """Return what has been compared so far."""
        with self._lock:
            counts = self._counts
        done = counts.n_agree + counts.n_differ + counts.n_failed + counts.n_dropped
        return replace(counts, n_waiting=counts.n_offered - done)

    def drain(self, timeout_s: float = 10.0) -> bool:
        """Wait until what was taken is compared; return whether it is."""
        end = time.monotonic() + timeout_s
        while self.report().n_waiting:
            if time.monotonic() >= end:
                return False
            time.sleep(0.002)
        return True

    def close(self) -> None:
        """Take no more; what waits is not compared."""
        self._closed = True
        with self._lock, contextlib.suppress(queue.Empty):
            while True:
                self._count(n_dropped=self._waiting.get_nowait() is not None)
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            task()

    def _run(self, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        start_ns = time.perf_counter_ns()
        try:
            other = self._candidate(*args, **kwargs)
            took_ns = time.perf_counter_ns() - start_ns
            result = self._compare(answer, other)
            if not isinstance(result, Agreement):
                raise TypeError(f"expected an Agreement from compare, found {result!r:.60}")
        except BaseException as error:
            # nothing of the candidate's reaches the service, not even SystemExit
            with self._lock:
                self._count(f"{type(error).__name__}: {error}", n_failed=1)
            return
        with self._lock:
            self._counts = replace(
                self._counts,
                largest=_larger(self._counts.largest, result.largest),
                relative=_larger(self._counts.relative, result.relative),
            )
            self._count(
                result.reason,
                n_agree=result.agrees,
                n_differ=not result.agrees,
                n_nan=result.n_nan,
                candidate_ns=took_ns,
            )

    def _count(self, example: str = "", **more: int) -> None:
        # with the lock held
        counts = self._counts
        sums: dict[str, Any] = {name: getattr(counts, name) + n for name, n in more.items()}
        short = example if len(example) <= 200 else f"{example[:199]}…"
        if short and short not in counts.examples and len(counts.examples) < N_EXAMPLES:
            sums["examples"] = (*counts.examples, short)
        self._counts = replace(counts, **sums)


def _larger(value: float | None, other: float | None) -> float | None:
    return max((number for number in (value, other) if number is not None and not math.isnan(number)), default=None)
