"""Metrics for Prometheus to scrape: one text per second at most, served as bytes.

A scrape never touches the request path: the text is made from the monitor's own numbers, at most
once per ``RENDER_S`` however many scrapers ask, and models without new requests keep their lines.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.errors import MissingExtraError, UsageError
from torchtriage.monitor import runtime
from torchtriage.monitor.metrics import CONTENT_TYPE, METRICS, Exposition, Value
from torchtriage.monitor.workers import Folder, State, Worker

if TYPE_CHECKING:
    from torchtriage.monitor.monitor import Monitor
    from torchtriage.monitor.observe import Model, Row

__all__ = ["Collector", "Prometheus"]

RENDER_S = 1.0
FLUSH_S = 1.0
"""Between two writes of a worker's file: what a kill -9 can cost."""
MAX_SCRAPERS = 16
SCRAPE_TIMEOUT_S = 10.0


class Prometheus:
    """A listener at ``http://host:port/metrics``.

    It binds to this machine alone unless ``host`` says otherwise, and then asks every scraper for
    ``token`` (``Authorization: Bearer ...``). ``port=0`` takes a free one, ``.port`` says which.
    With ``folder``, several processes share one port: each writes its numbers there once a second,
    one of them serves the sums, and another takes over when that one dies.

    Raises
    ------
    UsageError
        A host beyond this machine without a token; when it starts, a port that is taken (with
        ``folder``, another worker serves then).
    """

    def __init__(
        self,
        port: int = 9464,
        *,
        host: str = "127.0.0.1",
        token: str = "",
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if not token and not _is_loopback(host):
            raise UsageError(
                f"expected a token for a listener that other machines reach, found none for {host}",
                hint='Prometheus(host=..., token=os.environ["..."]), or leave host out',
            )
        self.port = port
        self.n_failures = 0
        """Writes to ``folder`` that failed (a full disk): tried again at the next flush."""
        self._host = host
        self._token = token
        self._folder = Path(folder) if folder is not None else None
        self._begin()

    def _begin(self) -> None:
        self._exposition = Exposition()
        self._render_lock = threading.Lock()
        self._text = b""
        self._rendered_s = -RENDER_S
        self._server: _Server | None = None
        self._worker: Worker | None = None
        self._stop = threading.Event()

    def start(self, monitor: Monitor) -> None:
        """Listen; in a forked child, give up what is the parent's first."""
        inherited, worker = self._server, self._worker
        self._begin()
        if inherited is not None:
            inherited.socket.close()
        if worker is not None:
            worker.leave()
        self._monitor = monitor
        if self._folder is None:
            if inherited is None:  # a child has numbers of its own but the port is its parent's
                self._listen()
            return
        self._worker = Worker(self._folder)
        threading.Thread(target=self._share, name="torchtriage-workers", daemon=True).start()

    def offer(self, model: Model, rows: list[Row]) -> None:
        """Do nothing: the monitor's sums are what is served."""

    def close(self, deadline_s: float) -> None:
        """Stop listening, leave the last numbers in the folder."""
        self._stop.set()
        self._flush()
        if self._worker is not None:
            self._worker.leave()
            self._worker = None
        server, self._server = self._server, None
        if server is not None:
            server.end()

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them, at most a second old."""
        with self._render_lock:
            now_s = time.monotonic()
            if now_s - self._rendered_s >= RENDER_S:
                self._text = self._exposition.render(self.models(), self.values())
                self._rendered_s = time.monotonic()
            return self._text

    def models(self) -> State:
        """Return the numbers of this process, or of all in the folder."""
        if self._folder is None:
            return self._monitor.state()
        self._flush()
        return Folder(self._folder).read()

    def values(self) -> list[Value]:
        """Return what belongs to no model."""
        accounts = self._monitor.accounts()
        return [
            *runtime.read(),
            ("monitor_requests_total", {"outcome": "sent"}, accounts.sent),
            ("monitor_requests_total", {"outcome": "dropped"}, accounts.dropped),
            ("monitor_pending", {}, accounts.pending),
            ("monitor_refused_models_total", {}, self._monitor.n_refused),
        ]

    def _share(self) -> None:
        stop = self._stop
        while True:
            self._flush()
            if self._server is None and not stop.is_set():
                with contextlib.suppress(UsageError):  # another worker serves
                    self._listen()
            if stop.wait(FLUSH_S):
                return

    def _flush(self) -> None:
        worker = self._worker
        if worker is None:
            return
        try:
            worker.write(self._monitor.state())
        except OSError:
            self.n_failures += 1

    def _listen(self) -> None:
        try:
            server = _Server((self._host, self.port), self, self._token)
        except OSError as error:
            raise UsageError(
                f"cannot listen at {self._host}:{self.port}: {error.strerror}",
                hint="Prometheus(port=0) takes a free port, .port says which",
            ) from error
        self.port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.run, name="torchtriage-metrics", daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], source: Prometheus, token: str) -> None:
        self.source = source
        self.token = token
        self.room = threading.BoundedSemaphore(MAX_SCRAPERS)
        super().__init__(address, _Handler)

    def run(self) -> None:
        """Serve until the socket is closed, without the half second that shutdown() may take."""
        with contextlib.suppress(OSError):
            while True:
                self.process_request(*self.socket.accept())

    def end(self) -> None:
        """Wake the thread that waits for scrapers, and let it end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a scraper that went away is no concern of the service."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SCRAPE_TIMEOUT_S
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        wanted = f"Bearer {self.server.token}".encode()
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if self.server.token and not hmac.compare_digest(wanted, given):
            self._answer(401, b"a token is needed\n", "text/plain")
        elif self.path.split("?")[0] not in ("/metrics", "/"):
            self._answer(404, b"metrics are at /metrics\n", "text/plain")
        else:
            self._answer(200, self.server.source.text(), CONTENT_TYPE)

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to the service's stderr."""


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


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
