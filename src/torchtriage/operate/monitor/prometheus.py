"""Metrics for Prometheus to scrape: one text per second at most, served as bytes.

A scrape never touches the request path: the text is made from the monitor's own numbers, at most
once per ``RENDER_S`` however many scrapers ask, and models without new requests keep their lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from torchtriage.core.errors import MissingExtraError
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.aggregate import RequestRow
from torchtriage.operate.monitor.instrument import Model
from torchtriage.operate.monitor.listener import Handler, Listener, PortTakenError, check_host
from torchtriage.operate.monitor.metrics import CONTENT_TYPE, METRICS, Exposition, Value, combined
from torchtriage.operate.monitor.monitor import Monitor
from torchtriage.operate.monitor.workers import WorkerFile, read_folder

RENDER_S = 1.0
FLUSH_S = 1.0  # between two writes of a worker's file: what a kill -9 can cost
MAX_SCRAPERS = 16
FOLDER_HINT = "several workers share a port, and add up their numbers, with Prometheus(folder=...)"
_logger = logging.getLogger("torchtriage.monitor")


class Prometheus:
    """A listener at ``http://host:port/metrics``.

    It binds to this machine alone unless ``host`` says otherwise, and then asks every scraper for
    ``token`` (``Authorization: Bearer ...``). ``port=0`` takes a free one, ``.port`` says which.
    With ``folder``, several processes share one port: each writes its numbers there once a second,
    one of them serves the sums, and another takes over when that one dies. A port that is taken, or a folder that
    cannot be written, is said in the log, counted, and tried again each second.

    ``/healthz`` answers as long as the process does, ``/readyz`` while :meth:`Monitor.ready` says so (of any of the
    workers); neither asks for the token.

    Raises ``UsageError``: a host beyond this machine without a token; when it starts, an address of no use.
    """

    def __init__(
        self,
        port: int = 9464,
        *,
        host: str = "127.0.0.1",
        token: str = "",
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        check_host(host, token, "Prometheus")
        self.port = port
        self.n_failures = 0  # ports that were taken, writes to ``folder`` that failed: tried again at the next flush
        self._host = host
        self._token = token
        self._folder = Path(folder) if folder is not None else None
        self._pid = 0
        self._reset()

    def _reset(self) -> None:
        self._exposition = Exposition()
        self._render_lock = threading.Lock()
        self._text = b""
        self._rendered_s = -RENDER_S
        self._any_ready = True
        self._told: dict[str, int] = {}  # what goes wrong, and how often at a stretch
        self._idle = False
        self._server: Listener | None = None
        self._worker: WorkerFile | None = None
        self._stop = threading.Event()

    def start(self, monitor: Monitor) -> None:
        """Listen; in a forked child, close what is the parent's first."""
        for inherited in (self._server, self._worker):
            if inherited is not None:
                inherited.forget()
        self._reset()
        self._monitor = monitor
        forked = self._pid not in (0, os.getpid())
        self._pid = os.getpid()
        # the port is the parent's: that matters, and is told, once the child has numbers of its own
        self._idle = forked and self._folder is None
        if not self._idle:
            self._begin()

    def offer(self, model: Model, rows: list[RequestRow]) -> None:
        """Begin to listen in a forked child; what is served are the monitor's sums."""
        if self._idle:
            self._idle = False
            self._begin()

    def close(self, deadline_s: float) -> None:
        """Stop listening, leave the last numbers in the folder."""
        self._stop.set()
        self._flush()
        if self._worker is not None:
            self._worker.leave()
            self._worker = None
        self._end()

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end()

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them, at most a second old."""
        with self._render_lock:
            now_s = time.monotonic()
            if now_s - self._rendered_s >= RENDER_S:
                if self._folder is None:
                    models, values = self._monitor.state(), self._values()
                else:
                    self._flush()
                    merged = read_folder(self._folder)
                    models, values = merged.models(), merged.values()
                    self._any_ready = merged.is_ready
                self._text = self._exposition.render(models, values)
                self._rendered_s = time.monotonic()
            return self._text

    def _values(self) -> list[Value]:
        # of this process, and of no model
        monitor = self._monitor
        accounts = monitor.accounts()
        values: list[Value] = [
            *process_metrics.read(),
            ("monitor_requests_total", {"outcome": "sent"}, accounts.sent),
            ("monitor_requests_total", {"outcome": "dropped"}, accounts.dropped),
            ("monitor_pending", {}, accounts.pending),
            ("monitor_refused_models_total", {}, monitor.n_refused),
            ("monitor_failures_total", {}, monitor.n_sink_failures + self.n_failures),
            ("monitor_start_time_seconds", {}, monitor.started_s),
        ]
        server = self._server
        if server is not None:
            values += server.metrics()
        for sink in monitor.sinks:
            if hasattr(sink, "metrics"):
                values += sink.metrics()
        return combined(values)

    def _begin(self) -> None:
        self._open()
        if self._folder is not None or self._server is None:
            threading.Thread(target=self._go_on, name="torchtriage-workers", daemon=True).start()

    def _go_on(self) -> None:
        stop = self._stop
        while not stop.wait(FLUSH_S):
            self._flush()
            self._open()
            if self._folder is None and self._server is not None:
                break
        if stop.is_set():
            self._end()  # it was closed meanwhile

    def _open(self) -> None:
        """Have a file in the folder, and listen if no other worker does."""
        if self._folder is not None and self._worker is None:
            try:
                self._worker = WorkerFile(self._folder)
            except OSError as error:
                self._tell("folder", f"cannot write to {self._folder}: {error.strerror}")
                return
            self._flush()
        if self._server is None and (self._worker is None or self._worker.may_listen()):
            self._listen()

    def _listen(self) -> None:
        try:
            self._server = Listener(
                (self._host, self.port),
                self._answer,
                token=self._token,
                most=MAX_SCRAPERS,
                what="Prometheus",
                ready=self._is_ready,
            )
        except PortTakenError as error:
            hint = FOLDER_HINT if self._folder is None else error.hint
            self._tell("port", f"{error.message}; {hint}")
        else:
            self.port = self._server.port
            self._told.pop("port", None)

    def _tell(self, what: str, text: str) -> None:
        self._told[what] = self._told.get(what, 0) + 1
        # once; between workers, not at the moment in which one of them ends
        if self._told[what] == (1 if self._folder is None else 2):
            self.n_failures += 1
            _logger.warning("%s", text)

    def _flush(self) -> None:
        worker = self._worker
        if worker is not None:
            try:
                worker.write(self._monitor.state(), self._values(), self._monitor.is_ready)
            except OSError:
                self.n_failures += 1

    def _is_ready(self) -> bool:
        if self._folder is not None:
            with contextlib.suppress(OSError):  # a full disk is no reason to send requests elsewhere
                self.text()
                return self._any_ready
        return self._monitor.is_ready

    def _answer(self, client: Handler) -> None:
        if client.path.split("?")[0] not in ("/metrics", "/"):
            client.answer(404, b"metrics are at /metrics\n", "text/plain")
        else:
            client.answer(200, self.text(), CONTENT_TYPE)


class Collector:
    """The same metrics for a registry of ``prometheus_client`` that a service already serves.

    >>> prometheus_client.REGISTRY.register(Collector(monitor))  # doctest: +SKIP
    """

    def __init__(self, monitor: Monitor) -> None:
        try:
            self._core: Any = import_module("prometheus_client.core")
        except ImportError as error:
            raise MissingExtraError(
                "a collector for prometheus_client needs prometheus_client, which is not installed",
                hint="pip install 'torchtriage[monitor]'",
            ) from error
        self._source = Prometheus()
        self._source._monitor = monitor

    def collect(self) -> Iterator[Any]:
        """Yield the metric families."""
        parser = import_module("prometheus_client.parser")
        yield from parser.text_string_to_metric_families(self._source.text().decode())

    def describe(self) -> Iterator[Any]:
        """Yield the names alone: registering asks for them before there is a request."""
        for metric in METRICS.values():
            yield self._core.Metric(metric.name.removesuffix("_total"), metric.help, metric.kind)
