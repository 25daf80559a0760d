"""An HTTP listener of a service: for this machine alone or by a token, bounded, in nobody's way.

One thread takes connections and reads until a request is whole; only then is there a thread to answer it. Where room
is short the connection that has taken longest goes, not the one that comes: a scraper needs milliseconds, and whoever
holds sockets open to keep it out loses them to it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hmac
import io
import ipaddress
import math
import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor.metrics import Value

ANSWER_S = 10.0  # how long a client may take to read an answer, or a message of a stream
PATIENCE_S = 1.0  # how long one who reads slowly is left alone while others find no room
REQUEST_S = 5.0  # for a whole request
MAX_REQUEST = 16_384  # bytes
MAX_WAITING = 128  # connections whose request is not whole yet: a socket each, no thread
MAX_PER_ADDRESS = 32  # of them
BACKLOG = 128
MAX_GUESSES = 10  # wrong tokens from one address, and then one in ``GUESS_S``
GUESS_S = 6.0
MAX_GUESSERS = 1_000  # addresses that are remembered
PAUSE_S = 0.05  # after a client could not be taken
REASONS = ("slow", "long", "full", "host", "token", "guesses")

Answer = Callable[["Handler"], None]


class PortTakenError(UsageError):
    """Another program listens there."""


def check_host(host: str, token: str, what: str) -> None:
    """Refuse a host beyond this machine without a token (``UsageError``); ``what`` : the class that was called."""
    if not token and not is_loopback(host):
        raise UsageError(
            f"expected a token for a listener that other machines can reach, found none for {host}",
            hint=f'{what}(host=..., token=os.environ["..."]), or leave host out',
        )


def is_loopback(host: str) -> bool:
    """Return whether a host, as it is written, is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def network(address: str) -> str:
    """Return whom an address belongs to: of IPv6 everybody has 2^64."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip), 64), strict=False))


class Guesses:
    """Wrong tokens by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until_s: dict[str, float] = {}  # when all is forgiven

    def allowed(self, address: str) -> bool:
        """Return whether an address may show another token."""
        return self._until_s.get(address, 0) - time.monotonic() <= (MAX_GUESSES - 1) * GUESS_S

    def count(self, address: str) -> None:
        """Count a wrong one."""
        with self._lock:
            self._until_s[address] = max(self._until_s.pop(address, 0), time.monotonic()) + GUESS_S
            if len(self._until_s) > MAX_GUESSERS:
                del self._until_s[next(iter(self._until_s))]


@dataclass(eq=False)
class _Waiting:
    """A connection whose request is not whole yet."""

    socket: socket.socket
    address: tuple[Any, ...]
    network: str
    until_s: float
    request: bytearray = field(default_factory=bytearray)


class Listener:
    """Listens at once, answers in threads of its own, of which ``most`` run at a time.

    ``/healthz`` and ``/readyz`` are answered to whoever asks, all else to who shows the token, or, where there is none,
    names this machine. ``refused`` counts connections that were turned away, by reason (``REASONS``).

    Raises ``PortTakenError``; ``UsageError``: the address is none of this machine.
    """

    def __init__(
        self,
        address: tuple[str, int],
        get: Answer,
        *,
        token: str,
        most: int,
        what: str,
        post: Answer | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.get = get
        self.post = post
        self.token = token
        self.ready = ready
        self.guesses = Guesses()
        self.refused = Counter(dict.fromkeys(REASONS, 0))
        self._most = most
        self._what = what
        self._lock = threading.Lock()  # of what follows, and the counts
        self._waiting: dict[_Waiting, None] = {}  # the oldest first
        self._answered: dict[socket.socket, float] = {}  # and since when
        self._ended = threading.Event()
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(address)
            self.socket.listen(BACKLOG)
        except OSError as error:
            self.socket.close()
            kind = PortTakenError if error.errno == errno.EADDRINUSE else UsageError
            raise kind(
                f"cannot listen at {address[0]}:{address[1]}: {error.strerror}",
                hint=f"{what}(port=0) takes a free port, .port says which",
            ) from error
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.socket, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=f"torchtriage-{what}", daemon=True)
        self._thread.start()

    # -- its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        with self._selector:
            while not self._ended.is_set():
                try:
                    # requests that are there before further clients, who might cost them their room
                    oldest = next(iter(self._waiting), None)
                    wait_s = None if oldest is None else max(oldest.until_s - time.monotonic(), 0)
                    events = self._selector.select(wait_s)
                    for key, _ in sorted(events, key=lambda event: event[0].data is None):
                        if key.data is None:
                            self._accept()
                        elif key.data in self._waiting:
                            self._read(key.data)
                    while self._waiting and next(iter(self._waiting)).until_s <= time.monotonic():
                        self._drop(next(iter(self._waiting)), "slow")
                except OSError:  # noqa: PERF203 - a client that left, or no file descriptor is free
                    self._ended.wait(PAUSE_S)
        for connection in (self.socket, *(waiting.socket for waiting in self._waiting)):
            connection.close()

    def _accept(self) -> None:
        try:
            connection, address = self.socket.accept()
        except BlockingIOError:  # it has left
            return
        connection.setblocking(False)
        waiting = _Waiting(connection, address, network(address[0]), time.monotonic() + REQUEST_S)
        of_address = [client for client in self._waiting if client.network == waiting.network]
        if len(of_address) >= MAX_PER_ADDRESS:
            self._drop(of_address[0], "slow")
        elif len(self._waiting) >= MAX_WAITING:
            self._drop(next(iter(self._waiting)), "slow")
        self._waiting[waiting] = None
        self._selector.register(connection, selectors.EVENT_READ, waiting)

    def _read(self, waiting: _Waiting) -> None:
        try:
            data = waiting.socket.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        waiting.request += data
        if not data:
            self._drop(waiting)
        elif len(waiting.request) > MAX_REQUEST:
            self._drop(waiting, "long")
        elif b"\r\n\r\n" in waiting.request or b"\n\n" in waiting.request:
            self._begin(waiting)

    def _drop(self, waiting: _Waiting, reason: str = "") -> None:
        if reason:
            self.refuse(reason)
        self._forget(waiting)
        waiting.socket.close()

    def _forget(self, waiting: _Waiting) -> None:
        del self._waiting[waiting]
        self._selector.unregister(waiting.socket)

    def _begin(self, waiting: _Waiting) -> None:
        """Answer in a thread, or turn away."""
        self._forget(waiting)
        connection = waiting.socket
        if self._has_room():
            with self._lock:
                self._answered[connection] = time.monotonic()
            try:
                threading.Thread(target=self._answer, args=(waiting,), daemon=True).start()
            except RuntimeError:  # no further thread can be had
                self._answered.pop(connection, None)
            else:
                return
        self.refuse("full")
        with contextlib.suppress(OSError):
            connection.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        connection.close()

    def _has_room(self) -> bool:
        with self._lock:
            if len(self._answered) < self._most:
                return True
            slowest, since_s = min(self._answered.items(), key=lambda pair: pair[1])
            if time.monotonic() - since_s < PATIENCE_S:
                return False
            del self._answered[slowest]
            with contextlib.suppress(OSError):
                slowest.shutdown(socket.SHUT_RDWR)  # its thread then ends
        self.refuse("slow")
        return True

    # -- threads that answer ---------------------------------------------------------------

    def _answer(self, waiting: _Waiting) -> None:
        connection = waiting.socket
        try:
            with contextlib.suppress(Exception):  # a client that went away is no concern of the service
                Handler(connection, waiting.address, self, waiting.network, bytes(waiting.request))
        finally:
            with self._lock:
                self._answered.pop(connection, None)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            connection.close()

    def stay(self, connection: socket.socket) -> None:
        """Let a client stay however long it listens."""
        with self._lock:
            if connection in self._answered:
                self._answered[connection] = math.inf

    def refuse(self, reason: str) -> None:
        """Count a connection that was turned away."""
        with self._lock:
            self.refused[reason] += 1

    # -- its owner -------------------------------------------------------------------------

    def metrics(self) -> list[Value]:
        """Return who was turned away."""
        return [
            ("monitor_refused_connections_total", {"listener": self._what, "reason": reason}, n)
            for reason, n in self.refused.copy().items()
        ]

    def end(self) -> None:
        """Let the thread that waits for clients end, and those that are answering."""
        self._ended.set()
        with self._lock:
            answered = [*self._answered]
        for connection in (self.socket, *answered):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(PAUSE_S)  # the port is then free

    def forget(self) -> None:
        """Let go of what a forked child has of its parent's sockets."""
        self._selector.close()
        for connection in (self.socket, *self._answered, *(waiting.socket for waiting in self._waiting)):
            with contextlib.suppress(OSError):
                # close() would wait for the files that the parent's threads made of it
                os.close(connection.detach())


class Handler(BaseHTTPRequestHandler):
    """Answers one request, which is here as a whole."""

    server: Listener  # type: ignore[assignment]
    timeout = ANSWER_S
    protocol_version = "HTTP/1.0"

    def version_string(self) -> str:
        """Return what the header ``Server`` says: not which Python, to whoever asks without a token."""
        return "torchtriage"

    def __init__(
        self, connection: socket.socket, address: tuple[Any, ...], listener: Listener, network: str, request: bytes
    ) -> None:
        self._network = network
        self._request = request
        super().__init__(connection, address, listener)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Read from what was read."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(self._request)

    def do_GET(self) -> None:
        """Tell anyone how it is, and all else to whom it may concern."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self.answer(200, b"ok\n", "text/plain")
        elif path == "/readyz":
            ready = self.server.ready()
            self.answer(200 if ready else 503, b"ready\n" if ready else b"not ready\n", "text/plain")
        elif self._is_allowed():
            self.server.get(self)

    do_HEAD = do_GET  # noqa: N815 - the base class' name

    def do_POST(self) -> None:
        """Answer who may ask, if there is anything to post to."""
        if self.server.post is None:
            self.answer(405, b"there is nothing to post to\n", "text/plain")
        elif self._is_allowed():
            self.server.post(self)

    def _is_allowed(self) -> bool:
        """Return whether the token was shown, or, where there is none, this machine was named.

        Another site's name may be led to this machine after a browser has loaded that site; its scripts could then
        read what is here.
        """
        server = self.server
        if not server.token:
            try:
                host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            except ValueError:
                host = ""
            if is_loopback(host):
                return True
            return self._refuse("host", 403, "without a token this answers only to localhost and 127.0.0.1")
        if not server.guesses.allowed(self._network):
            wait = {"Retry-After": f"{GUESS_S:.0f}"}
            return self._refuse("guesses", 429, "too many wrong tokens from this address", wait)
        if self._has(server.token.encode()):
            return True
        if self.headers.get("Authorization"):
            server.guesses.count(self._network)
        # a browser then asks its user: any name, and the token as the password
        challenge = {"WWW-Authenticate": 'Basic realm="torchtriage", charset="UTF-8"'}
        return self._refuse("token", 401, "a token is required", challenge)

    def _refuse(self, reason: str, status: int, why: str, headers: dict[str, str] | None = None) -> bool:
        self.server.refuse(reason)
        self.answer(status, f"{why}\n".encode(), "text/plain", headers)
        return False

    def _has(self, token: bytes) -> bool:
        kind, _, text = self.headers.get("Authorization", "").partition(" ")
        secret = text.encode("latin-1", "replace")  # as it came
        if kind.lower() == "basic":
            try:
                secret = base64.b64decode(secret).partition(b":")[2]
            except ValueError:
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(secret, token)

    def stay(self) -> None:
        """Stay connected, however long it takes."""
        self.server.stay(self.connection)

    def answer(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer, or its head."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to the service's stderr."""
