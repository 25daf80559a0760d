"""The stream of a fleet into numbers, alarms and a log: what ``torchtriage monitor consume`` runs."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.operate.fleet.peer_detector import KINDS, MAX_CELLS, WINDOW_S, PeerAlarm, PeerDetector, PeerState
from torchtriage.operate.fleet.stream_reader import Lag, StreamEntry, StreamReader
from torchtriage.operate.monitor.aggregate import RequestNote, RequestRow
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.batch_sink import BACKOFF_S, RequestRecord
from torchtriage.operate.monitor.delivery import FLUSH_S, Channel, Outbox
from torchtriage.operate.monitor.json_log import JsonLog
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.monitor.monitor import Monitor

COMMIT_S = 1.0  # between two commits: what a crash makes come again
MAX_SOURCES = 20_000
MAX_DEVICES = 20_000  # counted and judged by themselves within a day; further ones are counted as ``other``
MAX_VERSIONS = 100  # of models on a device, likewise
OTHER = "other"
MAX_NUMBER = 10**12  # of a source's record: a thousand a second for thirty years
LAG_S = 2.0  # how often the lag is asked for
STALE_S = 2 * LAG_S  # after which it counts as grown by all the time that nothing was heard
CAUSES = {"slow-version": "version change", "failing-version": "version change"}
_logger = logging.getLogger("torchtriage.fleet")


class DeviceCounts(msgspec.Struct):
    """A version of a model on one device, since the group began or the device was forgotten."""

    requests: int = 0
    failed: int = 0
    seconds: float = 0.0  # of those that succeeded


class FleetCounts(msgspec.Struct):
    """All that is stored when entries are acknowledged; ``models`` : the aggregates of the monitor."""

    records: int = 0
    again: int = 0  # records that came twice, counted once
    lost: int = 0  # records that never came: dropped by their device, or trimmed before they were read
    unread: int = 0  # records that cannot be read, and entries that are none of ours
    next: dict[str, int] = {}  # of each source, the number of the record to come
    devices: dict[str, dict[str, DeviceCounts]] = {}
    alarms: dict[str, int] = {}
    untold: list[Alert] = []
    on: dict[str, Alert] = {}  # the last that was told of each alarm that is on
    peers: PeerState = msgspec.field(default_factory=PeerState)
    models: list[dict[str, Any]] = []


class FleetConsumer:
    """Reads a fleet's records; what they add up to survives a crash with nothing lost and nothing counted twice.

    ``monitor`` : gets every record, for the listeners and pages among its sinks. ``log`` : is written before entries
    are acknowledged, so that after a crash it may hold the last second's lines twice. ``channels`` : functions of an
    alert, called in a thread of their own; what was not told before a crash is told after it.
    """

    def __init__(
        self, reader: StreamReader, monitor: Monitor, *, channels: Sequence[Channel] = (), log: JsonLog | None = None
    ) -> None:
        self._reader, self._monitor, self._log = reader, monitor, log
        self._outbox = Outbox(channels)
        self._decode = msgspec.json.Decoder(list[RequestRecord]).decode
        self._offset_s = time.time() - time.perf_counter()
        self._stop = threading.Event()
        self._lag = Lag(0, 0, 0.0)
        self._looked_s = time.monotonic()  # when that was so
        self.n_failures = 0  # of Redis and of the log
        self.counts = FleetCounts()
        self._detector = PeerDetector()

    # -- the loop --------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until :meth:`stop`. Redis that is away is waited for.

        Raises ``StoreError``: another consumer of this name has taken over, or Redis is not there to begin with.
        """
        self.open()
        failures, committed_s, looked_s = 0, time.monotonic(), 0.0
        self._looked_s = committed_s
        while not self._stop.is_set():
            try:
                self.step()
                now_s = time.monotonic()
                if now_s - committed_s >= COMMIT_S:
                    self.commit()
                    committed_s = now_s
                if now_s - looked_s >= LAG_S:
                    self._lag, looked_s = self._reader.lag(), now_s
                    self._looked_s = now_s
                failures = 0
            except StoreError as error:  # noqa: PERF203 - Redis that is away comes back
                if not isinstance(error.__cause__, Exception):
                    raise  # no trouble on the way: it was taken over
                self.n_failures += 1
                _logger.warning("%s", error)
                self._reader.again()
                self._stop.wait(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
        self._outbox.close(time.monotonic() + FLUSH_S, kept=True)
        self.commit()

    def stop(self) -> None:
        """Let :meth:`run` commit and return."""
        self._stop.set()

    def open(self) -> None:
        """Take up what was stored last; raises ``UsageError`` where that is damaged."""
        stored = self._reader.open()
        try:
            if stored is not None:
                self.counts = msgspec.json.decode(stored, type=FleetCounts)
            self._detector = PeerDetector(self.counts.peers)
            for state in self.counts.models:
                self._monitor.include(state)
        except Exception as error:
            raise UsageError(
                f"the stored numbers are damaged: {type(error).__name__}: {error}",
                where=self._reader.state_key,
                hint=f"redis-cli DEL {shlex.quote(self._reader.state_key)} restarts all counts",
            ) from error
        self._outbox.start()
        untold = {alert.key for alert in self.counts.untold}
        for alert in self.counts.untold:
            self._outbox.put(alert)
        for alert in self.counts.on.values():
            if alert.key not in untold:
                self._outbox.resume(alert)

    def step(self) -> None:
        """Read what is there, and take it in."""
        entries = self._reader.read(time.monotonic())
        for entry in entries:
            self._take(entry)
        if not entries:  # nothing comes: only the clock says that windows end
            self._raise(self._detector.advance(self._reader.now_s() - WINDOW_S))

    def commit(self) -> None:
        """Store what was taken in, and acknowledge it."""
        counts = self.counts
        counts.peers = self._detector.snapshot()
        heard = {*counts.peers.contacts, OTHER}  # for a day: names that change with each start would pile up
        counts.devices = {device: cells for device, cells in counts.devices.items() if device in heard}
        counts.models = self._monitor.state()
        counts.untold = self._outbox.pending()
        self._reader.commit(msgspec.json.encode(counts))

    def close(self) -> None:
        """Let the channels and connections go."""
        self._outbox.close(time.monotonic(), kept=True)
        self._reader.close()
        if self._log is not None:
            self._log.release()

    # -- one entry -------------------------------------------------------------------------

    def _take(self, entry: StreamEntry) -> None:
        counts, fields = self.counts, entry.fields
        try:
            records = self._records(entry)
            device = fields.get(b"device", b"").decode() or "unknown"
            source, first = fields.get(b"source", b"").decode(), int(fields.get(b"first", b"0"))
            common = msgspec.json.decode(fields.get(b"common", b"{}"), type=dict[str, Any])
            if not 0 <= first <= MAX_NUMBER:
                raise ValueError(f"not a record's number: {first}")
            self._add(entry, device, source, first, records, common)
        except StoreError:
            raise
        except Exception as error:  # it would come again after each restart
            counts.unread += 1
            _logger.warning("entry %s cannot be read: %s: %.200s", entry.id, type(error).__name__, error)

    def _records(self, entry: StreamEntry) -> list[RequestRecord | None]:
        """Return an entry's records, None for each that cannot be read: it costs no other."""
        text = entry.fields[b"requests"]
        try:
            return list(self._decode(text))
        except msgspec.MsgspecError:
            found: list[RequestRecord | None] = []
            for raw in msgspec.json.decode(text, type=list[msgspec.Raw]):
                try:
                    found.append(msgspec.json.decode(raw, type=RequestRecord))
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # noqa: PERF203 - one costs no other
                    found.append(None)
                    why = f"{type(error).__name__}: {error}"
            _logger.warning("entry %s has %d records that cannot be read: %.200s", entry.id, found.count(None), why)
            return found

    def _add(
        self,
        entry: StreamEntry,
        device: str,
        source: str,
        first: int,
        numbered: list[RequestRecord | None],
        common: dict[str, Any],
    ) -> None:
        counts = self.counts
        if source:
            number = counts.next.pop(source, first)
            known = min(max(number - first, 0), len(numbered))
            counts.again += known
            counts.lost += max(first - number, 0)
            counts.next[source] = max(number, first + len(numbered))  # at the end: the oldest go
            if len(counts.next) > MAX_SOURCES:
                del counts.next[next(iter(counts.next))]
            numbered = numbered[known:]
        records = [record for record in numbered if record is not None]
        counts.unread += len(numbered) - len(records)
        if not records:
            return
        counts.records += len(records)
        if device in counts.devices or len(counts.devices) < MAX_DEVICES:
            self._count(device, records)
            before = self._detector.n_not_judged
            self._raise(self._detector.add(device, records, entry.at_s))
            if not before and self._detector.n_not_judged:
                _logger.warning("more than %d versions on devices: more are counted, not judged", MAX_CELLS)
        else:
            self._count(OTHER, records)
            self._raise(self._detector.advance(entry.at_s))
        if self._log is not None:
            self._write(self._log, records, {"device": device, **common})

    def _write(self, log: JsonLog, records: list[RequestRecord], common: dict[str, Any]) -> None:
        """Write lines; while the disk refuses them nothing more is read, and all waits in Redis."""
        failures = 0
        while True:
            try:
                return log.write(records, common)
            except OSError as error:  # noqa: PERF203 - a disk that is full is tried again
                self.n_failures += 1
                wait_s = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
                if self._stop.wait(wait_s):
                    raise StoreError(f"the log cannot be written; what it lacks stays in Redis: {error}") from None
                failures += 1

    def _count(self, device: str, records: Sequence[RequestRecord]) -> None:
        by_model: dict[tuple[str, str], list[RequestRow]] = {}
        offset_s = self._offset_s
        for record in records:
            start_ns = int((record.at_s - offset_s) * 1e9)
            note = None
            if record.error or record.nan or record.queued_ns is not None:
                note = RequestNote(record.error, record.queued_ns, record.nan or None)
            row = (start_ns, start_ns + record.duration_ns, record.size, note)
            by_model.setdefault((record.model, record.version), []).append(row)
        known = self.counts.devices.setdefault(device, {})
        for (model, version), rows in by_model.items():
            self._monitor.take(model, version, rows)
            key = f"{model}\n{version}"
            if key not in known and len(known) >= MAX_VERSIONS:
                key = f"{OTHER}\n"
            cell = known.setdefault(key, DeviceCounts())
            good = [row for row in rows if row[3] is None or not row[3].failed]
            cell.requests += len(rows)
            cell.failed += len(rows) - len(good)
            cell.seconds += sum(row[1] - row[0] for row in good) * 1e-9

    # -- alarms ----------------------------------------------------------------------------

    def _raise(self, alarms: Sequence[PeerAlarm]) -> None:
        on = self.counts.on
        for alarm in alarms:
            alert = _alert(alarm)
            key = "\n".join(alert.key)
            if alarm.ended:
                on.pop(key, None)
            else:
                if key not in on:
                    self.counts.alarms[alarm.kind] = self.counts.alarms.get(alarm.kind, 0) + 1
                on[key] = alert
            self._outbox.put(alert)

    # -- numbers ---------------------------------------------------------------------------

    def metrics(self) -> list[Value]:
        """Return the fleet's numbers that the monitor does not have."""
        counts, lag = self.counts, self._lag
        unknown_s = time.monotonic() - self._looked_s
        if unknown_s > STALE_S:  # Redis is away, or the log cannot be written
            lag = Lag(None, lag.pending, lag.seconds + unknown_s)
        values: list[Value] = [
            ("fleet_records_total", {"outcome": "taken"}, counts.records),
            ("fleet_records_total", {"outcome": "again"}, counts.again),
            ("fleet_records_total", {"outcome": "lost"}, counts.lost),
            ("fleet_records_total", {"outcome": "unreadable"}, counts.unread),
            ("fleet_records_total", {"outcome": "not judged"}, self._detector.n_not_judged),
            ("fleet_lag_seconds", {}, lag.seconds),
            ("fleet_pending_entries", {}, lag.pending),
            ("monitor_failures_total", {}, self.n_failures + self._outbox.failures),
            *self._outbox.metrics(),
        ]
        if lag.entries is not None:
            values.append(("fleet_lag_entries", {}, lag.entries))
        for device, cells in list(counts.devices.items()):
            for key, cell in list(cells.items()):
                model, _, version = key.partition("\n")
                labels = {"device": device, "model": model, "version": version}
                values += [
                    ("fleet_requests_total", labels, cell.requests),
                    ("fleet_failed_total", labels, cell.failed),
                    ("fleet_seconds_total", labels, cell.seconds),
                ]
        for slow in [peer for peer in list(self._detector.cells()) if peer.ratio > 1]:
            labels = {"device": slow.device, "model": slow.model, "version": slow.version}
            values.append(("fleet_slowness_ratio", labels, slow.ratio))
        values += [("fleet_alarms_total", {"kind": kind}, counts.alarms.get(kind, 0)) for kind in KINDS]
        return values


def _alert(alarm: PeerAlarm) -> Alert:
    facts = {"device": alarm.device, "ratio": alarm.ratio} | ({"against": alarm.other} if alarm.other else {})
    return Alert(
        alarm.model,
        alarm.version,
        alarm.kind,
        alarm.message,
        CAUSES.get(alarm.kind, "one device"),
        alarm.evidence,
        alarm.at_s,
        facts=facts,
        size=alarm.ratio,
        ended=alarm.ended,
        since_s=alarm.since_s or alarm.at_s,
        lasting=alarm.lasting,
    )
