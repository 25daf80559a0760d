"""What every listener of a service does: goes on whatever clients do, and ends at once."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from torchtriage.operate.monitor.listener import Handler, Listener, is_loopback


def answer(client: Handler) -> None:
    client.answer(200, b"here\n", "text/plain")


@contextlib.contextmanager
def listening(token: str = "", most: int = 4) -> Iterator[Listener]:
    listener = Listener(("127.0.0.1", 0), answer, token=token, most=most, what="Test")
    try:
        yield listener
    finally:
        listener.end()


def ask(listener: Listener, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=60)
    connection.request(method, "/", headers=headers)
    return connection.getresponse().status


def test_which_hosts_are_this_machine() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "::2")))


def test_a_token_is_a_bearers_or_a_browsers_password() -> None:
    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    with listening(token="secret:with colon") as listener:
        assert ask(listener) == 401
        for wrong in (basic("secret"), basic("secret:with colon"), "Basic \xff", "Bearer", ""):
            assert ask(listener, Authorization=wrong) == 401
        for right in (basic("me:secret:with colon"), "bearer secret:with colon"):
            assert ask(listener, Authorization=right) == 200


def test_nothing_is_posted_where_nothing_can_be() -> None:
    with listening() as listener:
        assert ask(listener, "POST") == 405
        assert ask(listener) == 200


def test_clients_that_cannot_be_served_cost_themselves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(most=1) as listener:
        assert ask(listener) == 200
        end_s = time.monotonic() + 60
        while listener._open:  # until there is room again
            assert time.monotonic() < end_s

        def no_thread(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(listener)
        monkeypatch.undo()
        assert listener.n_refused == 1
        assert ask(listener) == 200

        failed = threading.Event()

        def no_file(request: socket.socket, address: object) -> None:
            monkeypatch.undo()
            failed.set()
            request.close()
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(listener, "process_request", no_file)
        while not failed.is_set():  # it had the method at hand before it waited
            with contextlib.suppress(http.client.HTTPException, OSError):
                ask(listener)
            assert time.monotonic() < end_s
        while True:  # the client before may still be on its way out
            with contextlib.suppress(http.client.HTTPException, OSError):
                if ask(listener) == 200:
                    break
            assert time.monotonic() < end_s
