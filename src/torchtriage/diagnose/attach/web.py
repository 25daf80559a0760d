"""Questions to an HTTP server that may be slow, broken or hostile: bounded in time and bytes, led nowhere else."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from torchtriage.core.errors import AttachError
from torchtriage.core.names import mask_secrets, visible
from torchtriage.core.units import format_bytes
from torchtriage.operate.monitor.listener import is_loopback

MAX_BYTES = 1 << 20
"""Of an answer that is no trace."""
_BLOCK = 1 << 16


class Writes(Protocol):
    """Where a body goes."""

    def write(self, data: bytes, /) -> object:
        """Take a part of it."""


@dataclass(frozen=True)
class Address:
    """Where a server listens; ``token`` is sent as a bearer's."""

    host: str
    port: int
    is_https: bool = False
    path: str = ""
    token: str = ""

    def __str__(self) -> str:
        """Return it as it may be printed."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_https else ''}://{host}:{self.port}{self.path}"


@dataclass(frozen=True)
class Reply:
    """An answer; ``body`` is empty where it was written elsewhere."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """Return the first line of the body, short, as it may be printed."""
        lines = self.body[:2000].decode("utf-8", "replace").strip().splitlines()
        return visible(lines[0].strip())[:160] if lines else ""

    def json(self) -> Any:
        """Return what the body says, None where it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def parse_address(text: str, *, token: str = "") -> Address | None:
    """Return the address that a target such as ``http://host:8000``, ``host:8000`` or ``:8000`` is, if it is one.

    Raises AttachError: it can be nothing else, and is none.
    """
    is_url = text.startswith(("http://", "https://"))
    if not is_url and (":" not in text or "/" in text):
        return None
    shown = mask_secrets([text])[0]
    try:
        parts = urlsplit(text if is_url else f"http://{text}")
        host, port = parts.hostname or "localhost", parts.port
    except ValueError as error:
        raise AttachError(f"expected http://HOST:PORT or HOST:PORT, found {shown}: {error}") from error
    if parts.username is not None or parts.query or parts.fragment or (not is_url and port is None):
        raise AttachError(
            f"expected http://HOST:PORT or HOST:PORT, found {shown}", hint="a token goes into TORCHTRIAGE_TOKEN"
        )
    is_https = text.startswith("https:")
    return Address(host, port or (443 if is_https else 80), is_https, parts.path.rstrip("/"), token)


def check_reach(host: str, allow_remote: bool) -> None:
    """Refuse a host beyond this machine, unless that is wanted (AttachError)."""
    if not allow_remote and not is_loopback(host):
        raise AttachError(
            f"expected a job on this machine, found {visible(host)}",
            hint=f"ssh -L PORT:localhost:PORT {visible(host)} and attach to localhost:PORT, or --allow-remote",
        )


def ask(
    address: Address,
    method: str,
    path: str,
    *,
    json_body: Any = None,
    timeout_s: float,
    into: Writes | None = None,
    max_bytes: int = MAX_BYTES,
) -> Reply:
    """Return what a server answers, all of it within ``timeout_s``; no redirect is followed.

    ``into`` : takes the body of an answer 200.

    Raises AttachError: no whole answer, in one line.
    """
    kind = http.client.HTTPSConnection if address.is_https else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=timeout_s)
    deadline = time.monotonic() + timeout_s
    late = threading.Event()

    def hang_up() -> None:
        # headers that come byte by byte keep every single read in time
        late.set()
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, hang_up)
    timer.daemon = True
    timer.start()
    where = f"{address}{path}"
    try:
        headers = {"Connection": "close", "Accept": "*/*"}
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        body = None
        if json_body is not None:
            body = json.dumps(json_body).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, address.path + path, body, headers)
        response = connection.getresponse()
        target = into if response.status == 200 else None
        limit = max_bytes if target is not None or into is None else MAX_BYTES
        parts, size = [], 0
        while not late.is_set() and time.monotonic() < deadline:
            part = response.read1(_BLOCK)
            if not part:
                break
            size += len(part)
            if size > limit:
                raise AttachError(f"expected an answer of at most {format_bytes(limit)}, found more", where=where)
            if target is not None:
                target.write(part)
            else:
                parts.append(part)
        if late.is_set() or time.monotonic() >= deadline:
            raise TimeoutError
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return Reply(response.status, b"".join(parts))
    except TimeoutError:
        raise AttachError(f"no complete answer within {timeout_s:g} s", where=where) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if late.is_set():
            raise AttachError(f"no complete answer within {timeout_s:g} s", where=where) from None
        words = visible(str(error))[:160] or type(error).__name__
        raise AttachError(f"no HTTP answer: {words}", where=where) from error
    finally:
        timer.cancel()
        connection.close()
