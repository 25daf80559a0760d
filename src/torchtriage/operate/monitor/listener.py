"""An HTTP listener of a service: for this machine alone or by a token, bounded, in nobody's way."""

from __future__ import annotations

import base64
import contextlib
import hmac
import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from torchtriage.core.errors import UsageError

__all__ = ["Answer", "Handler", "Listener", "check_host", "is_loopback"]

TIMEOUT_S = 10.0  # how long a client may take to read an answer, or to ask
PAUSE_S = 0.05  # after a client could not be taken

Answer = Callable[["Handler"], None]


def check_host(host: str, token: str, what: str) -> None:
    """Refuse a host beyond this machine without a token (``UsageError``); ``what`` : the class that was called."""
    if not token and not is_loopback(host):
        raise UsageError(
            f"expected a token for a listener that other machines reach, found none for {host}",
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


class Listener(ThreadingHTTPServer):
    """Listens at once, answers in threads of its own, of which ``most`` run at a time.

    Raises ``UsageError``: the port is taken, or the address is none of this machine.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], get: Answer, *, post: Answer | None = None, token: str, most: int, what: str
    ) -> None:
        self.get = get
        self.post = post
        self.token = token
        self.n_refused = 0  # connections that found no room
        self._room = threading.BoundedSemaphore(most)
        self._open: set[Any] = set()
        self._ended = threading.Event()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, Handler)
        except OSError as error:
            raise UsageError(
                f"cannot listen at {address[0]}:{address[1]}: {error.strerror}",
                hint=f"{what}(port=0) takes a free port, .port says which",
            ) from error
        self.port: int = self.server_address[1]
        threading.Thread(target=self._run, name=f"torchtriage-{what}", daemon=True).start()

    def server_bind(self) -> None:
        """Bind, without asking a name server what this machine is called: it may be away."""
        TCPServer.server_bind(self)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.process_request(*self.socket.accept())
            except OSError:  # noqa: PERF203 - a client that left, or no file descriptor is free
                self._ended.wait(PAUSE_S)

    def end(self) -> None:
        """Let the thread that waits for clients end, and those that are answering."""
        self._ended.set()
        for connection in (self.socket, *self._open.copy()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def forget(self) -> None:
        """Let go of what a forked child has of its parent's sockets."""
        for connection in (self.socket, *self._open.copy()):
            with contextlib.suppress(OSError):
                # close() would wait for the files that the parent's threads made of it
                os.close(connection.detach())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or turn away."""
        if not self._room.acquire(blocking=False):
            self.n_refused += 1
            self.shutdown_request(request)
            return
        self._open.add(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be had
            self.n_refused += 1
            self._leave(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: Any) -> None:
        self._open.discard(request)
        self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no concern of the service."""


class Handler(BaseHTTPRequestHandler):
    """Answers one client, who has shown the token where one is asked for."""

    server: Listener
    timeout = TIMEOUT_S
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        """Answer whoever is authorized."""
        if self._authorized():
            self.server.get(self)

    def do_POST(self) -> None:
        """Answer whoever is authorized, if there is anything to post to."""
        if self.server.post is None:
            self.answer(405, b"there is nothing to post to\n", "text/plain")
        elif self._authorized():
            self.server.post(self)

    def _authorized(self) -> bool:
        if not self.server.token or self._has(self.server.token.encode()):
            return True
        # a browser then asks its user: any name, and the token as the password
        challenge = {"WWW-Authenticate": 'Basic realm="torchtriage", charset="UTF-8"'}
        self.answer(401, b"a token is needed\n", "text/plain", challenge)
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

    def answer(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to the service's stderr."""
