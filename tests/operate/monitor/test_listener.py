"""What every listener of a service does: goes on whatever clients do, and ends at once."""

from __future__ import annotations

import base64
import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.waiting import wait_for

from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor import listener as listener_module
from torchtriage.operate.monitor.listener import MAX_GUESSES, MAX_PER_ADDRESS, Handler, Listener, is_loopback

DEADLINE_S = 60.0
LARGE = b"x" * 20_000_000  # more than sockets hold


def answer(client: Handler) -> None:
    client.answer(200, LARGE if client.path == "/large" else b"here\n", "text/plain")


@contextlib.contextmanager
def listening(token: str = "", most: int = 4, ready: Callable[[], bool] = lambda: True) -> Iterator[Listener]:
    listener = Listener(("127.0.0.1", 0), answer, token=token, most=most, what="Test", ready=ready)
    try:
        yield listener
    finally:
        listener.end()


def response(
    listener: Listener, method: str = "GET", path: str = "/", source: str = "127.0.0.1", **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=DEADLINE_S, source_address=(source, 0))
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def ask(listener: Listener, method: str = "GET", path: str = "/", source: str = "127.0.0.1", **headers: str) -> int:
    return response(listener, method, path, source, **headers).status


@contextlib.contextmanager
def connected(
    listener: Listener, n: int, data: bytes = b"", source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(n):
            one = socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S, (source, 0))
            sockets.append(stack.enter_context(one))
            one.sendall(data)
        yield sockets


def is_closed(one: socket.socket) -> bool:
    """Return whether the other end has closed."""
    if not select.select([one], [], [], 0)[0]:
        return False
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_which_hosts_are_this_machine() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "::2")))


# -- who is answered -----------------------------------------------------------------------


def test_a_token_is_a_bearers_or_a_browsers_password() -> None:
    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    with listening(token="secret:with colon") as listener:
        assert ask(listener) == 401
        for wrong in (basic("secret"), basic("secret:with colon"), "Basic \xff", "Bearer", ""):
            assert ask(listener, Authorization=wrong) == 401
        for right in (basic("me:secret:with colon"), "bearer secret:with colon"):
            assert ask(listener, Authorization=right) == 200


def test_who_guesses_at_the_token_is_heard_no_more() -> None:
    with listening(token="secret") as listener:
        for _ in range(MAX_GUESSES):
            assert ask(listener, Authorization="Bearer guess") == 401
        answer = response(listener, Authorization="Bearer secret")  # nor is it told that this one is right
        assert (answer.status, answer.headers["Retry-After"]) == (429, "6")
        assert ask(listener, Authorization="Bearer secret", source="127.0.0.2") == 200
        assert +listener.refused == {"token": MAX_GUESSES, "guesses": 1}


def test_a_guesser_is_heard_again_later_and_no_number_of_addresses_fills_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guesses = listener_module.Guesses()
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for _ in range(MAX_GUESSES):
        assert guesses.allowed("10.0.0.1")
        guesses.count("10.0.0.1")
    assert not guesses.allowed("10.0.0.1")
    now_s += listener_module.GUESS_S + 1
    assert guesses.allowed("10.0.0.1")
    guesses.count("10.0.0.1")
    assert not guesses.allowed("10.0.0.1")
    for at in range(3 * listener_module.MAX_GUESSERS):
        guesses.count(f"10.1.{at >> 8}.{at & 255}")
    assert len(guesses._until_s) == listener_module.MAX_GUESSERS
    # a network of IPv6 is one guesser, and an IPv4 address in its clothes is itself
    assert listener_module.network("2001:db8::1") == listener_module.network("2001:db8::ffff:2%eth0")
    assert listener_module.network("2001:db8::1") != listener_module.network("2001:db8:0:1::1")
    assert listener_module.network("::ffff:10.0.0.1") == "10.0.0.1"


def test_without_a_token_a_request_names_this_machine() -> None:
    with listening() as listener:
        for host in ("evil.example", f"evil.example:{listener.port}", "127.0.0.1.evil.example", "", "[::1"):
            assert ask(listener, Host=host) == 403
        for host in ("localhost", f"127.0.0.1:{listener.port}", "[::1]:80"):
            assert ask(listener, Host=host) == 200
        assert +listener.refused == {"host": 5}
    with listening(token="secret") as listener:
        assert ask(listener, Host="model.example", Authorization="Bearer secret") == 200


def test_nothing_is_posted_where_nothing_can_be() -> None:
    with listening() as listener:
        assert ask(listener, "POST") == 405
        assert ask(listener) == 200


@pytest.mark.parametrize("path", ["/", "/healthz"])
def test_head_is_the_answer_without_its_body(path: str) -> None:
    with listening() as listener:
        whole, head = response(listener, path=path), response(listener, "HEAD", path)
        assert (head.status, head.headers["Content-Length"]) == (200, whole.headers["Content-Length"])
        assert (int(whole.headers["Content-Length"]), head.read()) == (len(whole.read()), b"")


def test_strangers_are_not_told_what_runs_here() -> None:
    with listening(token="secret") as listener:
        assert response(listener).headers["Server"] == "torchtriage"


def test_health_is_told_to_whoever_asks() -> None:
    ready = False
    with listening(token="secret", ready=lambda: ready) as listener:
        assert ask(listener, path="/healthz?verbose=1", Host="10.0.0.1") == 200
        assert ask(listener, path="/readyz") == 503
        ready = True
        assert ask(listener, path="/readyz", Host="10.0.0.1") == 200
        assert ask(listener, path="/") == 401


# -- in nobody's way -----------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "secret"])
@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.0\r\nHost: localhost\r\n"])
def test_sockets_without_a_request_turn_nobody_away(token: str, data: bytes) -> None:
    with listening(token) as listener, connected(listener, MAX_PER_ADDRESS + 3, data) as slow:
        for _ in range(5):
            assert ask(listener, Authorization="Bearer secret") == 200
        # those that came first went first: an address has room for so many
        wait_for(lambda: all(map(is_closed, slow[:3])))
        assert listener.refused["slow"] >= 3


def test_an_address_takes_no_other_ones_room() -> None:
    with (
        listening() as listener,
        connected(listener, 2, source="127.0.0.2") as others,
        connected(listener, 2 * MAX_PER_ADDRESS) as many,
    ):
        wait_for(lambda: sum(map(is_closed, many)) == MAX_PER_ADDRESS)
        assert not any(map(is_closed, others))


def test_all_addresses_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_WAITING", 6)
    with listening() as listener, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connected(listener, 1, source=f"127.0.0.{n}"))[0] for n in range(2, 11)]
        wait_for(lambda: sum(map(is_closed, waiting)) >= 3)
        assert ask(listener) == 200


def test_a_request_that_comes_byte_by_byte_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "REQUEST_S", 0.3)
    with listening() as listener, connected(listener, 1, b"GET / HTTP/1.0\r\nX: ") as (slow,):

        def goes_on() -> bool:
            with contextlib.suppress(OSError):
                slow.send(b"x")
            return is_closed(slow)

        wait_for(goes_on)
        assert +listener.refused == {"slow": 1}


def test_a_request_has_a_length() -> None:
    with listening() as listener, connected(listener, 1) as (long,):
        with contextlib.suppress(OSError):
            long.sendall(b"GET / HTTP/1.0\r\n" + b"X: y\r\n" * 10_000)
        wait_for(lambda: is_closed(long))
        assert +listener.refused == {"long": 1}
        assert ask(listener) == 200


@pytest.mark.parametrize("token", ["", "secret"])
def test_who_does_not_read_makes_room_for_who_does(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setattr(Handler, "timeout", 10 * DEADLINE_S)  # they would stay
    monkeypatch.setattr(listener_module, "PATIENCE_S", 0.2)
    request = b"GET /large HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n"
    with listening(token, most=3) as listener, connected(listener, 3, request):
        wait_for(lambda: len(listener._answered) == 3)
        statuses: list[int] = []

        def answered() -> bool:
            statuses.append(ask(listener, Authorization="Bearer secret"))
            return statuses[-1] == 200

        wait_for(answered)
        assert set(statuses) <= {503, 200}
        assert listener.refused["full"] == len(statuses) - 1
        assert listener.refused["slow"] == 1


def test_a_stream_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "PATIENCE_S", 0.0)
    begun, over = threading.Event(), threading.Event()

    def stream(client: Handler) -> None:
        client.stay()
        begun.set()
        over.wait(DEADLINE_S)

    listener = Listener(("127.0.0.1", 0), stream, token="", most=1, what="Test")
    with connected(listener, 1, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n") as (one,):
        assert begun.wait(DEADLINE_S)
        assert ask(listener) == 503
        assert not is_closed(one)
    over.set()
    listener.end()


def test_clients_that_cannot_be_served_cost_themselves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as listener:
        assert ask(listener) == 200

        def no_thread(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            assert ask(listener) == 503
        assert +listener.refused == {"full": 1}
        assert ask(listener) == 200

        failed = threading.Event()

        class NoFile:
            def accept(self) -> None:
                failed.set()
                raise OSError(24, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(listener, "socket", NoFile())
            with connected(listener, 1):
                assert failed.wait(DEADLINE_S)
        assert ask(listener) == 200


def test_refusals_are_counted_by_reason() -> None:
    with listening() as listener:
        ask(listener, Host="evil.example")
        assert listener.refused.total() == 1
        told = {labels["reason"]: n for name, labels, n in listener.metrics()}
        assert told == dict.fromkeys(listener_module.REASONS, 0) | {"host": 1}


def test_a_taken_port_is_an_error_of_its_own() -> None:
    with listening() as listener, pytest.raises(UsageError, match=r"cannot listen at 127.0.0.1:\d+: .*in use") as told:
        Listener(("127.0.0.1", listener.port), answer, token="", most=1, what="Test")
    assert isinstance(told.value, listener_module.PortTakenError)
