"""Services behind ASGI: how they are, and what is left of their records when the server ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtriage.operate.monitor.monitor import Monitor

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Health:
    """Answers ``/healthz`` and ``/readyz`` in an application's own event loop: one that hangs does not.

    ``monitor`` : whose :meth:`Monitor.ready` is told; the process' own, unless another is given.

    >>> app.add_middleware(monitor.Health)  # doctest: +SKIP
    """

    def __init__(self, app: App, monitor: Monitor | None = None) -> None:
        from torchtriage.operate import monitor as of_process

        self._app = app
        self._monitor = monitor or of_process._default

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or let the application."""
        path = scope.get("path")
        if scope.get("method") not in ("GET", "HEAD") or path not in ("/healthz", "/readyz"):
            await self._app(scope, receive, send)
            return
        good = path == "/healthz" or self._monitor.is_ready
        body = b"ok\n" if good else b"not ready\n"
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if good else 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def at_the_end_of_uvicorn(close: Callable[[], None]) -> None:
    """Have a uvicorn that runs here call ``close`` after its last request.

    A signal that ends it comes again when it has shut down, and ends the process before Python's own end: what is to
    happen then does not.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    uvicorn = sys.modules.get("uvicorn")
    if not isinstance(server, getattr(uvicorn, "Server", ())) or "shutdown" in vars(server):
        return
    shutdown = server.shutdown  # type: ignore[union-attr]

    async def shutdown_and_close(*args: Any, **kwargs: Any) -> None:
        try:
            await shutdown(*args, **kwargs)
        finally:
            if getattr(server, "_captured_signals", True):  # else the process goes on
                close()

    server.shutdown = shutdown_and_close  # type: ignore[union-attr]
