"""What sends requests' records away: a bounded queue and a thread, with exact accounts."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtriage.monitor.metrics import Value
    from torchtriage.monitor.monitor import Accounts, Monitor
    from torchtriage.monitor.observe import Model, Row

__all__ = ["MAX_PENDING", "Outlet", "Record"]

MAX_PENDING = 50_000
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Record:
    """One finished request as it leaves the process; ``at_s`` is wall-clock time."""

    model: str
    version: str
    at_s: float
    duration_ns: int
    size: int | None = None
    error: str = ""
    queued_ns: int | None = None
    nan: bool = False

    def fields(self) -> dict[str, Any]:
        """Return what is told of it; what it has not is left out."""
        told: dict[str, Any] = {
            "model": self.model,
            "version": self.version,
            "at_s": round(self.at_s, 6),
            "duration_ns": self.duration_ns,
        }
        if self.size is not None:
            told["size"] = self.size
        if self.error:
            told["error"] = self.error
        if self.queued_ns is not None:
            told["queued_ns"] = self.queued_ns
        if self.nan:
            told["nan"] = True
        return told


class Outlet:
    """Sends batches from a thread of its own; what it cannot send in time it drops and counts.

    A batch counts as pending until it is sent. When the queue is full the oldest records go: the
    newest tell what happens now. ``send`` may block, and may raise: the batch is tried again, later
    and later, up to every five seconds.
    """

    batch = 500
    """Records that go together."""
    wait_s = 0.1
    """How long the first record of a batch waits for company."""

    def __init__(self, *, max_pending: int = MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._rows: deque[tuple[Model, Row]] = deque()
        self._in_hand = 0
        self._produced = self._sent = self._dropped = 0
        self.last_error = ""
        """Why the last batch that failed did; empty once one went through again."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # perf_counter to wall clock, once: a wall clock that jumps later moves no record
        self._offset_s = time.time() - time.perf_counter()

    # -- what a kind of outlet defines -----------------------------------------------------

    def send(self, records: list[Record]) -> None:
        """Send one batch; raise if it did not arrive."""
        raise NotImplementedError

    def keeps(self, row: Row) -> bool:
        """Return whether a record is wanted: outlets that sample say no to most."""
        return True

    def release(self) -> None:
        """Let go of connections and files that a fork copied, or at the end."""

    # -- what the monitor calls ------------------------------------------------------------

    def start(self, monitor: Monitor) -> None:
        """Begin; in a forked child, with an empty queue."""
        self._begin()
        self.release()
        self._thread = threading.Thread(
            target=self._run, name=f"torchtriage-{type(self).__name__}", daemon=True
        )
        self._thread.start()

    def offer(self, model: Model, rows: list[Row]) -> None:
        """Take finished requests."""
        wanted = [(model, row) for row in rows if self.keeps(row)]
        with self._lock:
            self._produced += len(wanted)
            self._rows.extend(wanted)
            excess = len(self._rows) + self._in_hand - self._max_pending
            for _ in range(min(max(excess, 0), len(self._rows))):
                self._rows.popleft()
                self._dropped += 1

    def close(self, deadline_s: float) -> None:
        """Send what is pending until then; what is left stays counted as pending."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(max(deadline_s - time.monotonic(), 0))

    def accounts(self) -> Accounts:
        """Return where all records are: ``produced == sent + dropped + pending``."""
        from torchtriage.monitor.monitor import Accounts

        with self._lock:
            pending = len(self._rows) + self._in_hand
            return Accounts(self._produced, self._sent, self._dropped, pending)

    def metrics(self) -> list[Value]:
        """Return its accounts as metrics."""
        accounts, outlet = self.accounts(), {"outlet": type(self).__name__}
        return [
            ("monitor_outlet_records_total", {**outlet, "outcome": "sent"}, accounts.sent),
            ("monitor_outlet_records_total", {**outlet, "outcome": "dropped"}, accounts.dropped),
            ("monitor_outlet_pending", outlet, accounts.pending),
        ]

    # -- its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while True:
            stopping = self._stop.wait(self.wait_s if not failures else _backoff_s(failures))
            while batch := self._take():
                if not self._hand_over(batch):
                    failures += 1
                    break
                failures = 0
            if stopping:
                self.release()
                return

    def _hand_over(self, batch: list[tuple[Model, Row]]) -> bool:
        """Send a batch; return whether it arrived. What did not is pending again."""
        try:
            self.send([self._record(*pair) for pair in batch])
        except Exception as error:
            self.last_error = f"{type(error).__name__}: {error}"
            self._put_back(batch)
            return False
        self.last_error = ""
        with self._lock:
            self._in_hand = 0
            self._sent += len(batch)
        return True

    def _take(self) -> list[tuple[Model, Row]]:
        with self._lock:
            batch = [self._rows.popleft() for _ in range(min(self.batch, len(self._rows)))]
            self._in_hand = len(batch)
            return batch

    def _put_back(self, batch: list[tuple[Model, Row]]) -> None:
        with self._lock:
            self._in_hand = 0
            self._rows.extendleft(reversed(batch))  # there is room: it counted as pending

    def _record(self, model: Model, row: Row) -> Record:
        start_ns, end_ns, size, note = row
        record = Record(
            model.name, model.version, start_ns * 1e-9 + self._offset_s, end_ns - start_ns, size
        )
        if note is None:
            return record
        return Record(
            model.name,
            model.version,
            record.at_s,
            record.duration_ns,
            size,
            note.error,
            note.queued_ns,
            bool(note.nan),
        )


def _backoff_s(failures: int) -> float:
    return BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
