"""A candidate that runs beside the control, on real requests, and answers nobody."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torchtriage.errors import UsageError
from torchtriage.experiment.outputs import Agreement, agreement
from torchtriage.experiment.split import Split

__all__ = ["Shadow", "ShadowReport"]

N_EXAMPLES = 20


@dataclass(frozen=True)
class ShadowReport:
    """What the shadow has seen; offered is agree, differ, failed, dropped and waiting together.

    ``n_dropped`` : requests that came while the shadow was busy, so that it never holds up anybody.
    ``largest`` and ``relative`` : the worst of all answers. ``examples`` : the first differences.
    """

    n_offered: int
    n_agree: int
    n_differ: int
    n_failed: int
    n_dropped: int
    n_waiting: int
    n_nan: int
    largest: float | None
    relative: float | None
    candidate_ns: int
    examples: tuple[str, ...] = ()

    @property
    def agree_ratio(self) -> float | None:
        """Share of compared answers that agree; None before the first."""
        compared = self.n_agree + self.n_differ + self.n_failed
        return self.n_agree / compared if compared else None


@dataclass
class _Seen:
    n_offered: int = 0
    n_agree: int = 0
    n_differ: int = 0
    n_failed: int = 0
    n_dropped: int = 0
    n_nan: int = 0
    largest: float | None = None
    relative: float | None = None
    candidate_ns: int = 0
    examples: list[str] = field(default_factory=list)


class Shadow:
    """Runs a candidate on a share of requests, in a thread of its own, and compares its answers.

    Parameters
    ----------
    candidate : callable
        Called as the control was; it must not change its arguments or the world. What it raises is
        counted and goes no further.
    share : float
        Of requests that are shadowed, by the id that is offered.
    compare : callable, optional
        ``compare(control's answer, candidate's answer) -> Agreement``; :func:`agreement` by
        default.
    backlog : int
        Requests that may wait; each holds its arguments and its answer.
    salt : str
        Of the split.

    Raises
    ------
    UsageError
        A share out of 0 to 1, or a backlog below 1.
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
        self._seen = _Seen()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(self._backlog)
        self._thread: threading.Thread | None = None

    def offer(self, id: str | int | bytes, answer: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Hand over a request that the control answered; return whether the shadow takes it.

        Never waits. The arguments are handed over as they are: whoever changes them afterwards
        gives a copy.
        """
        if self._closed or not self._split.treats(id):
            return False
        if os.getpid() != self._pid:
            # a fork takes no threads along, and locks as they happened to be
            self._seen = _Seen()
            self._begin()
        with self._lock:
            self._seen.n_offered += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="torchtriage-shadow", daemon=True
                )
                self._thread.start()
            try:
                self._waiting.put_nowait(partial(self._one, answer, args, kwargs))
            except queue.Full:
                self._seen.n_dropped += 1
                return False
        return True

    def report(self) -> ShadowReport:
        """Return what has been compared so far."""
        with self._lock:
            seen = self._seen
            done = seen.n_agree + seen.n_differ + seen.n_failed + seen.n_dropped
            return ShadowReport(
                n_offered=seen.n_offered,
                n_agree=seen.n_agree,
                n_differ=seen.n_differ,
                n_failed=seen.n_failed,
                n_dropped=seen.n_dropped,
                n_waiting=seen.n_offered - done,
                n_nan=seen.n_nan,
                largest=seen.largest,
                relative=seen.relative,
                candidate_ns=seen.candidate_ns,
                examples=tuple(seen.examples),
            )

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
                self._seen.n_dropped += self._waiting.get_nowait() is not None
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            task()

    def _one(self, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        start_ns = time.perf_counter_ns()
        try:
            other = self._candidate(*args, **kwargs)
            took_ns = time.perf_counter_ns() - start_ns
            found = self._compare(answer, other)
            if not isinstance(found, Agreement):
                raise TypeError(f"expected an Agreement from compare, found {found!r:.60}")
        except BaseException as error:
            # nothing of the candidate's reaches the service, not even SystemExit
            with self._lock:
                self._seen.n_failed += 1
                self._example(f"{type(error).__name__}: {error}")
            return
        with self._lock:
            seen = self._seen
            seen.candidate_ns += took_ns
            seen.n_nan += found.n_nan
            seen.largest = _larger(seen.largest, found.largest)
            seen.relative = _larger(seen.relative, found.relative)
            if found.agrees:
                seen.n_agree += 1
            else:
                seen.n_differ += 1
                self._example(found.reason)

    def _example(self, text: str) -> None:
        short = text if len(text) <= 200 else f"{text[:199]}…"
        if len(self._seen.examples) < N_EXAMPLES and short not in self._seen.examples:
            self._seen.examples.append(short)


def _larger(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None and not math.isnan(value)]
    return max(known, default=None)
