"""The monitor: takes finished requests off the request path and hands them on."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torchtriage.operate.monitor.aggregate import MAX_NUMBER, Aggregate, RequestRow, plain, well_formed
from torchtriage.operate.monitor.asgi import at_the_end_of_uvicorn
from torchtriage.operate.monitor.instrument import Model, Ring

MAX_MODELS = 2_000  # pairs of model and version kept apart; further ones are counted together as ``other``
# How long a finished request waits for the monitor's thread at most, while that thread runs. It
# costs about 50 µs of a processor to wake: more often would be more than what requests cost.
DRAIN_S = 0.1
CLOSE_S = 0.15  # what closing may take, whatever the sinks do
OTHER = "other"
_logger = logging.getLogger("torchtriage.monitor")


class Sink(Protocol):
    """Where finished requests go. Nothing in it may block the monitor's thread.

    It may have ``send_rest()``, which begins what ``close`` waits for, ``accounts()`` and ``metrics()``.
    """

    def start(self, monitor: Monitor) -> None:
        """Begin; called once, and again in a forked child."""

    def offer(self, model: Model, rows: list[RequestRow]) -> None:
        """Take finished requests, or drop them and count."""

    def close(self, deadline_s: float) -> None:
        """Hand over what is pending until then, on the clock of ``time.monotonic``."""


@dataclass(frozen=True)
class Accounts:
    """Where every finished request is. ``produced == sent + dropped + pending``, always.

    ``sent`` : aggregated and offered to the sinks. ``dropped`` : for want of room in a thread's
    queue. ``pending`` : in the threads' queues.
    """

    produced: int
    sent: int
    dropped: int
    pending: int


@dataclass(frozen=True)
class MonitorSnapshot:
    """One model's numbers at one moment. Times in seconds, NaN of no requests.

    ``nan_outputs`` : None where no caller says whether an output held NaN. ``sizes`` : distinct ones, up to a bound.
    """

    model: str
    version: str
    finished: int
    in_flight: int
    errors: dict[str, int]
    nan_outputs: int | None
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    sizes: int


class Monitor(AbstractContextManager["Monitor"]):
    """Observes models and hands finished requests to ``sinks``, off the request path.

    Everything slow happens in one daemon thread, which starts with the first request's model and, after a fork, anew
    in the child. ``max_models`` bounds how many pairs of name and version are kept apart.
    """

    def __init__(self, *sinks: Sink, max_models: int = MAX_MODELS) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self._drain_s = DRAIN_S
        self._max_models = max_models
        self._models: dict[tuple[str, str], Model] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._is_ready = True
        self._rings: list[tuple[Model, Ring]] = []
        self._reset()
        _monitors.add(self)
        self.add(*sinks)

    def _reset(self) -> None:
        # what a fork may have left half-done: locks, rings, thread
        self.n_sink_failures = 0  # errors that sinks raised when started or offered requests
        self.n_refused = 0  # requests for a further model, counted as ``other``
        self.started_s = time.time()  # when it began to count: seconds since the epoch
        # rings, models and aggregates; the collector may run a finalizer that observes while the
        # lock is held, hence reentrant, and hence a queue for new rings
        self._lock = threading.RLock()
        self._new_rings: deque[tuple[Model, Ring]] = deque()
        self._wake = threading.Event()
        self._thread = None

    def add(self, *sinks: Sink) -> None:
        """Start sinks, and hand them all requests from now on."""
        for sink in sinks:
            sink.start(self)
            with self._lock:
                self.sinks = (*self.sinks, sink)
                self._drain_s = min(self._drain_s, getattr(sink, "drain_s", DRAIN_S))
        at_the_end_of_uvicorn(_at_exit)

    def ready(self, is_ready: bool = True) -> None:
        """Say whether requests may come, which ``/readyz`` tells: False while the model is loaded or warmed up."""
        self._is_ready = is_ready

    @property
    def is_ready(self) -> bool:
        """Whether requests may come: what was said last, until it is closed."""
        return self._is_ready and not self._closed

    # -- request path ----------------------------------------------------------------------

    def observe(self, name: str, *, version: str = "", size: Callable[..., int] | None = None) -> Model:
        """Return the model to decorate a function with, or to open requests of.

        ``size`` : for decorated functions, gives a call's size from its arguments.
        """
        # version=2.1 is easily written, and is text wherever it is reported
        name, version = str(name), str(version)
        model = self._models.get((name, version))
        if model is None:
            model = self._new_model(name, version)
        return model.sized(size)

    def _new_model(self, name: str, version: str) -> Model:
        name, version = well_formed(name), well_formed(version)
        with self._lock:
            if (name, version) not in self._models and len(self._models) >= self._max_models:
                self.n_refused += 1
                name, version = OTHER, ""
            if (name, version) in self._models:
                return self._models[name, version]
            model = self._models[name, version] = Model(
                name, version, lambda *pair: self._new_rings.append(pair), Aggregate()
            )
        self._start()
        return model

    def rings(self, model: Model) -> list[Ring]:
        """Return the queues of the threads that serve a model."""
        with self._lock:
            return [ring for owner, ring in self._all_rings() if owner is model]

    # -- the monitor's thread --------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._closed:
                return
            self._thread = threading.Thread(target=self._run, name="torchtriage-monitor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wake = self._wake
        while not wake.wait(self._drain_s):
            self.drain()
            at_the_end_of_uvicorn(_at_exit)  # the server may have come later than the monitor

    def drain(self) -> None:
        """Take all finished requests off their threads' queues."""
        with self._lock:
            self._rings = [pair for pair in self._all_rings() if not self._take(*pair)]

    def _all_rings(self) -> list[tuple[Model, Ring]]:
        while self._new_rings:
            self._rings.append(self._new_rings.popleft())
        return self._rings

    def _take(self, model: Model, ring: Ring) -> bool:
        # whether the ring's thread has ended and nothing is left
        ended = not ring.thread.is_alive()
        rows, pending = [], ring.rows
        for _ in range(len(pending)):
            row = pending.popleft()
            size, note = row[2], row[3]
            usual = note is None and (size is None or (size.__class__ is int and -MAX_NUMBER < size < MAX_NUMBER))
            rows.append(row if usual else plain(row))
        if rows:
            self._hand_on(model, rows)
        if ended:
            model.aggregate.dropped += ring.dropped
            model.aggregate.begun_by_ended += ring.begun
        return ended

    def _hand_on(self, model: Model, rows: list[RequestRow]) -> None:
        before = model.aggregate.finished
        try:
            model.aggregate.add(rows)
        except Exception:  # the thread serves the other models, too
            self.n_sink_failures += 1
            model.aggregate.finished = before + len(rows)
        for sink in self.sinks:
            try:
                sink.offer(model, rows)
            except Exception:  # noqa: PERF203 - one sink's defect is not the others'
                self.n_sink_failures += 1

    # -- requests that another process observed --------------------------------------------

    def take(self, name: str, version: str, rows: list[RequestRow]) -> None:
        """Count requests as this process' own are, and hand them to the sinks."""
        model = self.observe(name, version=version)
        with self._lock:
            model.aggregate.begun_by_ended += len(rows)
            self._hand_on(model, rows)

    def include(self, state: dict[str, Any]) -> None:
        """Count one of the models that :meth:`state` gave, of an earlier process."""
        model = self.observe(state["model"], version=state["version"])
        with self._lock:
            model.aggregate.include(state)
            model.aggregate.begun_by_ended += state["finished"] + state["dropped"]

    def accounts(self) -> Accounts:
        """Return where all finished requests are."""
        with self._lock:
            # a ring is read once: what its thread appends meanwhile belongs to the next reading
            rings, models = self._all_rings(), list(self._models.values())
            pending = sum(len(ring.rows) for _, ring in rings)
            dropped = sum(ring.dropped for _, ring in rings)
            dropped += sum(model.aggregate.dropped for model in models)
            sent = sum(model.aggregate.finished for model in models)
        return Accounts(sent + dropped + pending, sent, dropped, pending)

    def in_flight(self) -> dict[tuple[str, str], int]:
        """Return how many requests of each model and version have begun and not ended."""
        open_: dict[tuple[str, str], int] = {}
        with self._lock:
            for key, model in list(self._models.items()):
                aggregate = model.aggregate
                open_[key] = aggregate.begun_by_ended - aggregate.finished - aggregate.dropped
            for model, ring in self._all_rings():
                # begun last: read first, one that ends meanwhile would leave less than nothing open
                ended = len(ring.rows) + ring.dropped
                open_[model.name, model.version] += ring.begun - ended
        return {key: max(n, 0) for key, n in open_.items()}

    def state(self) -> list[dict[str, Any]]:
        """Return every model's numbers as JSON's types, with what is in flight."""
        with self._lock:
            return [
                {"model": key[0], "version": key[1], "in_flight": in_flight} | self._models[key].aggregate.state()
                for key, in_flight in self.in_flight().items()
            ]

    def snapshot(self) -> tuple[MonitorSnapshot, ...]:
        """Return every model's numbers up to this moment."""
        self.drain()
        numbers = []
        with self._lock:
            for (name, version), in_flight in self.in_flight().items():
                aggregate = self._models[name, version].aggregate
                durations = aggregate.durations
                numbers.append(
                    MonitorSnapshot(
                        model=name,
                        version=version,
                        finished=aggregate.finished,
                        in_flight=in_flight,
                        errors=dict(aggregate.errors),
                        nan_outputs=aggregate.n_nan,
                        mean_s=durations.sum_ns * 1e-9 / durations.count if durations.count else float("nan"),
                        p50_s=durations.quantile_s(0.5),
                        p90_s=durations.quantile_s(0.9),
                        p99_s=durations.quantile_s(0.99),
                        sizes=len(aggregate.sizes),
                    )
                )
        return tuple(numbers)

    def close(self) -> None:
        """Hand over what is pending and stop; at most 0.2 s, and 5 s more while records go out.

        What could not be sent is said in the log.
        """
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        deadline_s = time.monotonic() + CLOSE_S
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(max(deadline_s - time.monotonic(), 0))
        if self._lock.acquire(timeout=max(deadline_s - time.monotonic(), 0)):
            self._lock.release()
            self.drain()
        else:
            _logger.warning("the monitor's thread was blocked: the last finished requests were not sent on")
        # outlets send at the same time; those without accounts come last, for they tell of the others
        sinks = sorted(self.sinks, key=lambda sink: not hasattr(sink, "accounts"))
        for sink in sinks:
            if hasattr(sink, "send_rest"):
                sink.send_rest()
        for sink in sinks:
            try:
                sink.close(deadline_s)
            except Exception:  # noqa: PERF203 - one sink's defect is not the others'
                self.n_sink_failures += 1
        for sink in sinks:
            left = sink.accounts().pending if hasattr(sink, "accounts") else 0
            if left:
                why = getattr(sink, "last_error", "") or "it took too long"
                _logger.warning("%d records of %s were not sent: %s", left, type(sink).__name__, why)

    def reset_after_fork(self) -> None:
        """Forget what was counted and start again; for a forked child."""
        own, here = self._rings + list(self._new_rings), threading.current_thread()
        self._reset()
        self._rings = [(model, ring) for model, ring in own if ring.thread is here]
        for _, ring in self._rings:
            ring.rows.clear()
            ring.begun = ring.dropped = 0
        for model in self._models.values():
            model.aggregate.clear()
        if self._closed:
            return
        for sink in self.sinks:
            try:
                sink.start(self)
            except Exception:  # noqa: PERF203 - one sink's defect is not the others'
                self.n_sink_failures += 1
        if self._models:
            self._start()

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


def _after_fork() -> None:
    for monitor in list(_monitors):
        monitor.reset_after_fork()


def _at_exit() -> None:
    for monitor in list(_monitors):
        monitor.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
