"""Sending requests' records in batches: a bounded queue and a thread, with exact accounts."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import count, repeat
from typing import Annotated, Any

import msgspec

from torchtriage.operate.monitor.aggregate import RequestRow
from torchtriage.operate.monitor.instrument import Model
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.monitor.monitor import Accounts, Monitor

MAX_PENDING = 50_000
STEP_S = 0.15  # a sink that is closed has as long again after each batch that it sent
CLOSE_S = 5.0  # but not longer
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


# bounds hold where records are read: what came from elsewhere must not overflow what counts it
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**60), le=2**60)]  # 36 years


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished request as it leaves the process; ``at_s`` is wall-clock time, ``fields`` are the caller's own."""

    model: str
    version: str
    at_s: Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]
    duration_ns: Nanoseconds
    size: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None = None
    error: str = ""
    queued_ns: Nanoseconds | None = None
    nan: bool = False
    fields: dict[str, Any] = {}


class BatchSink:
    """Sends batches from its own thread; drops, and counts, what it cannot send in time.

    A batch counts as pending until it is sent. When the queue is full the oldest records go: the
    newest say what happens now. ``send`` may block, and may raise: the batch is tried again, later
    and later, up to every five seconds.
    """

    batch = 500  # records that go together
    wait_s = 0.1  # how long the first record of a batch waits for company

    def __init__(self, *, max_pending: int = MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._rows: deque[tuple[int, Model, RequestRow]] = deque()  # numbered from 0 as they were taken
        self.first = 0  # number of the first record of the batch that is sent
        self._n_sending = 0
        self._produced = self._sent = self._dropped = 0
        self.last_error = ""  # why the last batch that failed did; empty once one went through again
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # perf_counter to wall clock, once: a wall clock that jumps later moves no record
        self._offset_s = time.time() - time.perf_counter()

    # -- what a subclass defines -----------------------------------------------------------

    def send(self, records: list[RequestRecord]) -> None:
        """Send a batch; raise if it did not arrive."""
        raise NotImplementedError

    def keeps(self, row: RequestRow) -> bool:
        """Return whether a record is wanted."""
        return True

    def release(self) -> None:
        """Close connections and files: those that a fork copied, or all at the end."""

    # -- what the monitor calls ------------------------------------------------------------

    def start(self, monitor: Monitor) -> None:
        """Begin; in a forked child, with an empty queue."""
        self._reset()
        self.release()
        self._thread = threading.Thread(target=self._run, name=f"torchtriage-{type(self).__name__}", daemon=True)
        self._thread.start()

    def offer(self, model: Model, rows: list[RequestRow]) -> None:
        """Take finished requests."""
        wanted = [row for row in rows if self.keeps(row)]
        with self._lock:
            self._rows.extend(zip(count(self._produced), repeat(model), wanted))
            self._produced += len(wanted)
            excess = len(self._rows) + self._n_sending - self._max_pending
            for _ in range(min(max(excess, 0), len(self._rows))):
                self._rows.popleft()
                self._dropped += 1

    def send_rest(self) -> None:
        """Begin to send what is pending, for the last time."""
        self._stop.set()

    def close(self, deadline_s: float) -> None:
        """Send what is pending until then, and on while batches go out; the rest stays counted as pending."""
        self.send_rest()
        end_s = time.monotonic() + CLOSE_S
        before = self._sent
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(max(deadline_s - time.monotonic(), 0))
            if self._sent == before or time.monotonic() > end_s:
                return
            before, deadline_s = self._sent, time.monotonic() + STEP_S

    def accounts(self) -> Accounts:
        """Return where all records are: ``produced == sent + dropped + pending``."""
        with self._lock:
            return Accounts(self._produced, self._sent, self._dropped, len(self._rows) + self._n_sending)

    def metrics(self) -> list[Value]:
        """Return the accounts as metrics."""
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
            backoff_s = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
            stopping = self._stop.wait(backoff_s if failures else self.wait_s)
            while batch := self._next_batch():
                if not self._send(batch):
                    failures += 1
                    break
                failures = 0
            if stopping:
                self.release()
                return

    def _next_batch(self) -> list[tuple[int, Model, RequestRow]]:
        with self._lock:
            rows, batch = self._rows, [self._rows.popleft()] if self._rows else []
            # without a gap, so that the first number gives all
            while rows and len(batch) < self.batch and rows[0][0] == batch[-1][0] + 1:
                batch.append(rows.popleft())
            self._n_sending = len(batch)
            return batch

    def _send(self, batch: list[tuple[int, Model, RequestRow]]) -> bool:
        """Send a batch, or put it back; return whether it arrived."""
        records = []
        for _, model, (start_ns, end_ns, size, note) in batch:
            at_s = round(start_ns * 1e-9 + self._offset_s, 6)
            extra = () if note is None else (note.error, note.queued_ns, bool(note.nan), note.fields or {})
            records.append(RequestRecord(model.name, model.version, at_s, end_ns - start_ns, size, *extra))
        self.first = batch[0][0]
        error_text = ""
        try:
            self.send(records)
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"
        self.last_error = error_text
        with self._lock:
            self._n_sending = 0
            if error_text:
                self._rows.extendleft(reversed(batch))  # there is room: it counted as pending
            else:
                self._sent += len(batch)
        return not error_text
