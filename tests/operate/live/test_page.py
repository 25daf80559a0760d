"""The live page: what it tells, to whom, and that nobody who listens is in anyone's way."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.waiting import wait_for

from torchtriage.core.errors import UsageError
from torchtriage.operate.ladder import Ladder, Mode, Policy
from torchtriage.operate.live import LivePage
from torchtriage.operate.live import page as live_page
from torchtriage.operate.live.events import LONGEST
from torchtriage.operate.live.minute_history import HISTORY_S, MAX_MODELS, MinuteHistory
from torchtriage.operate.live.page import MAX_BEHIND, MAX_LISTENERS, MAX_WATCHED, EventFeed
from torchtriage.operate.monitor import Alert, Monitor
from torchtriage.operate.monitor import listener as listening
from torchtriage.operate.monitor.aggregate import RequestNote, RequestRow
from torchtriage.operate.monitor.listener import Handler
from torchtriage.operate.rollout import Rollout, RolloutPlan, StageEvidence, open_rollouts

DEADLINE_S = 60.0


def get(port: int, path: str = "/", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def post(port: int, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request("POST", path, headers=headers)
    return connection.getresponse().status


class Listener:
    """A browser's end of the stream."""

    def __init__(self, port: int, **headers: str) -> None:
        self.answer = get(port, "/events", **headers)
        assert self.answer.status == 200

    def next(self) -> tuple[str, dict[str, Any]]:
        name = self.answer.readline().decode()
        while name == ":\n":
            assert self.answer.readline() == b"\n"
            name = self.answer.readline().decode()
        data = self.answer.readline().decode()
        assert self.answer.readline() == b"\n"
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        refuse: Any = lambda text: pytest.fail(f"{text} is no JSON")  # noqa: E731
        return name[7:-1], json.loads(data[6:], parse_constant=refuse)

    def find(self, what: Callable[[dict[str, Any]], Any]) -> Any:
        """Read until a message has what is looked for, and return it."""
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            if found := what(self.next()[1]):
                return found
        pytest.fail("it did not come")

    def close(self) -> None:
        self.answer.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "POINT_S", 0.2)


@pytest.fixture
def page() -> LivePage:
    return LivePage(port=0)


@pytest.fixture
def monitor(page: LivePage) -> Iterator[Monitor]:
    with Monitor(page) as monitor:
        yield monitor


def row(ms: float = 1.0, note: RequestNote | None = None) -> RequestRow:
    return (0, round(ms * 1e6), None, note)


def alert(**fields: Any) -> Alert:
    usual = {
        "model": "detector",
        "version": "2",
        "kind": "shift",
        "message": "requests are slower",
        "cause": "",
        "evidence": 1.0,
        "at_s": 0.0,
    }
    return Alert(**(usual | fields))


# -- what is kept --------------------------------------------------------------------------


def test_a_point_tells_quantiles_failures_and_its_length() -> None:
    history = MinuteHistory()
    history.close_point(10.0)
    history.add("m", "1", [row(ms) for ms in range(1, 101)])
    history.add("m", "1", [row(5, RequestNote("ValueError")), row(5, RequestNote(nan=True))])
    ((told),) = history.close_point(12.0)
    (point,) = told["points"]
    assert (point["at_s"], point["span_s"], point["n"]) == (12.0, 2.0, 102)
    assert (point["errors"], point["nan"]) == ({"ValueError": 1}, 1)
    for name, ms in (("p50_s", 50), ("p90_s", 90), ("p99_s", 99)):
        assert point[name] == pytest.approx(ms * 1e-3, rel=0.03)
    assert history.close_point(13.0) == []


def test_a_point_of_failures_alone_has_no_latency() -> None:
    history = MinuteHistory()
    history.add("m", "", [row(1, RequestNote("ValueError"))])
    (told,) = history.close_point(1.0)
    assert told["points"][0]["p50_s"] is None


def test_history_is_bounded_in_time_and_in_models() -> None:
    history = MinuteHistory()
    for at_s in range(1000):
        history.add("steady", "", [row()])
        if at_s < 3:
            history.add("gone", "", [row()])
        history.close_point(float(at_s))
    (told,) = history.models()
    assert told["model"] == "steady"
    assert len(told["points"]) == HISTORY_S + 1
    for n in range(2 * MAX_MODELS):
        history.add(f"other {n:02}", "", [row()] * 2)
    assert len(history.close_point(1000.0)) == MAX_MODELS - 1
    assert history.n_not_shown == 2 * (MAX_MODELS + 1)


def test_a_feed_lets_go_of_who_is_too_far_behind() -> None:
    feed = EventFeed()
    for n in range(MAX_BEHIND):
        feed.put(b"%d" % n)
    assert len(feed.after(0, 0) or ()) == MAX_BEHIND
    assert feed.after(MAX_BEHIND - 1, 0) == [b"%d" % (MAX_BEHIND - 1)]
    assert feed.after(MAX_BEHIND, 0) == []
    feed.put(b"one more")
    assert feed.after(0, 0) is None
    feed.end()
    assert feed.after(MAX_BEHIND + 1, DEADLINE_S) is None


# -- what is told --------------------------------------------------------------------------


def test_a_listener_gets_everything_and_then_what_is_new(monitor: Monitor, page: LivePage) -> None:
    detect = monitor.observe("detector", version="2")
    with detect.request(), contextlib.suppress(ValueError):
        pass
    wait_for(lambda: page._history.models())
    listener = Listener(page.port)
    name, everything = listener.next()
    assert name == "all"
    ((model),) = everything["models"]
    assert (model["model"], model["version"]) == ("detector", "2")
    assert sum(point["n"] for point in model["points"]) == 1
    with detect.request():
        name, _ = listener.next()
        assert name == "new"
        assert listener.find(lambda data: data["in_flight"]) == [["detector", "2", 1]]
    (model,) = listener.find(lambda data: data["models"])
    assert len(model["points"]) == 1
    assert listener.find(lambda data: data["memory"])[0]["rss_bytes"] > 1e6


def test_alarms_come_at_once_and_whoever_comes_later_has_them_too(monitor: Monitor, page: LivePage) -> None:
    listener = Listener(page.port)
    page.show(alert(cause="model"))
    (told,) = listener.find(lambda data: data["events"])
    assert (told["source"], told["word"], told["subject"]) == ("alarm", "shift", "detector 2")
    assert (told["text"], told["tone"]) == ("requests are slower (model)", "bad")
    assert Listener(page.port).next()[1]["events"] == [told]


@pytest.mark.parametrize("fields", [{"ended": True}, {"kind": "faster"}])
def test_what_is_over_or_quicker_is_no_trouble(monitor: Monitor, page: LivePage, fields: dict[str, Any]) -> None:
    listener = Listener(page.port)
    page.show(alert(**fields))
    (told,) = listener.find(lambda data: data["events"])
    assert told["tone"] == "good"


def test_text_from_anywhere_stays_text(monitor: Monitor, page: LivePage) -> None:
    name = "</script>\n\0\u202e\udcff"
    with monitor.observe(name, version="\r\n").request() as request:
        request.error = "</script>"
    page.show(alert(model=name, message="x" * 100_000))
    listener = Listener(page.port)
    told = listener.find(lambda data: data["events"])
    assert len(told[0]["text"]) == LONGEST
    (model,) = listener.find(lambda data: data["models"])
    assert model["points"][0]["errors"] == {"</script>": 1}
    for _, data in (listener.next(),):
        assert "</script>" not in data


def test_a_ladder_and_a_rollout_are_told_as_they_move(monitor: Monitor, page: LivePage) -> None:
    ladder = Ladder("detector", [Mode("full", lambda: 1), Mode("lite", lambda: 2)], Policy(dwell_s=1e-6), dry_run=False)
    worse = ["", "errors: worse"]
    seen = iter(range(100))

    def judge(state: Any) -> StageEvidence:
        worse_now = (worse[1],) if state.stage else ()
        return StageEvidence(state.epoch, next(seen), 0.1, 1000, 1000, worse=worse_now)

    plan = RolloutPlan("detector 2", steps=(0.05, 1.0), least_s=0, candidate="2")
    rollout = Rollout(plan, open_rollouts(":memory:"), judge=judge)
    page.watch(ladder, rollout)
    listener = Listener(page.port)
    everything = listener.next()[1]
    assert everything["ladders"][0]["mode"] == "full"
    assert everything["rollouts"][0]["share"] == 0.05
    ladder.raise_alarm("too slow")
    ladder.look()
    told = listener.find(lambda data: [event for event in data["events"] if event["source"] == "ladder"])
    assert (told[0]["word"], told[0]["text"], told[0]["tone"]) == ("switch", "full → lite: too slow", "bad")
    for word, tone, share in (("promoted", "good", 1.0), ("rolled back", "bad", 0.0)):
        wait_for(lambda share=share: rollout.tick().share == share)

        def moved(data: dict[str, Any], word: str = word) -> Any:
            return [(event, data) for event in data["events"] if event["word"] == word]

        ((one, data),) = listener.find(moved)
        assert one["tone"] == tone
        assert data["rollouts"][0]["share"] == share
        assert data["ladders"][0]["mode"] == "lite"
    assert one["text"] == "errors: worse"
    told = [event for event in Listener(page.port).next()[1]["events"] if event["source"] == "ladder"]
    assert len(told) == len(ladder.entries)
    assert [share for _, share in data["rollouts"][0]["changes"]] == [0.05, 1.0, 0.0]


def test_what_can_be_watched_is_said_and_bounded(page: LivePage) -> None:
    with pytest.raises(UsageError, match="expected a Ladder or a Rollout"):
        page.watch("ladder")  # type: ignore[arg-type]
    modes = [Mode("full", abs), Mode("lite", abs)]
    for n in range(MAX_WATCHED + 2):
        page.watch(Ladder(f"ladder {n}", modes), Ladder("again", modes))
    assert len(page._ladders) == MAX_WATCHED
    assert list(page._ladders)[-2:] == [f"ladder {MAX_WATCHED + 1}", "again"]


def test_a_look_that_fails_is_counted_and_the_next_one_comes(
    monitor: Monitor, page: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page.process_metrics, "read", lambda: 1 / 0)
    wait_for(lambda: page.n_failures)
    monkeypatch.undo()
    Listener(page.port).find(lambda data: data["memory"])


# -- to whom -------------------------------------------------------------------------------


def test_the_page_runs_its_own_script_alone(monitor: Monitor, page: LivePage) -> None:
    answer = get(page.port)
    text = answer.read().decode()
    policy = answer.headers["Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for source, directive in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "connect-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    asked = [one for one in re.findall(r"https?://[^\s\"')]+", text) if "www.w3.org" not in one]
    assert asked == []
    assert get(page.port, "/other").status == 404
    assert post(page.port, "/press/anything") == 405


def test_a_host_beyond_this_machine_needs_a_token_and_has_no_buttons() -> None:
    with pytest.raises(UsageError, match=r"expected a token.*0\.0\.0\.0"):
        LivePage(host="0.0.0.0")
    with pytest.raises(UsageError, match="expected no buttons"):
        LivePage(host="0.0.0.0", token="secret", buttons={"Slow": int})
    LivePage(host="localhost", buttons={"Slow": int})


def test_a_token_is_shown_as_a_browser_does_or_as_a_program_does() -> None:
    page = LivePage(port=0, token="secret")
    with Monitor(page):
        for path in ("/", "/events"):
            answer = get(page.port, path)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Basic")
        for wrong in ("Bearer other", "Basic c2VjcmV0", "Basic ???", "secret", "Bearer s\xe9cret"):
            assert get(page.port, Authorization=wrong).status == 401
        password = base64.b64encode(b"anyone:secret").decode()
        for right in (f"Basic {password}", "Bearer secret"):
            assert get(page.port, Authorization=right).status == 200
            # its name may be any: a browser shows a password to the name it was given for alone
            assert get(page.port, Authorization=right, Host="model.example").status == 200
            assert Listener(page.port, Authorization=right).next()[0] == "all"


def test_another_name_that_was_led_here_is_refused(monitor: Monitor, page: LivePage) -> None:
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1.evil.example", "", "[::1"):
        assert get(page.port, Host=host).status == 403
        assert get(page.port, "/events", Host=host).status == 403
    for host in ("localhost", f"127.0.0.1:{page.port}", "[::1]:80"):
        assert get(page.port, Host=host).status == 200


def test_a_button_is_pressed_from_the_page_alone() -> None:
    pressed: list[int] = []
    page = LivePage(port=0, buttons={"Slow down": lambda: pressed.append(1), "Fail": lambda: 1 / 0})
    with Monitor(page):
        (data,) = re.findall(r'id="data">(.*?)</script>', get(page.port).read().decode())
        key = {"X-Torchtriage-Key": json.loads(data)["key"]}
        assert post(page.port, "/press/Slow%20down") == 403
        assert post(page.port, "/press/Slow%20down", **{"X-Torchtriage-Key": "other"}) == 403
        assert post(page.port, "/press/Slow%20down", **key, Host="evil.example") == 403
        assert get(page.port, "/press/Slow%20down", **key).status == 404
        assert post(page.port, "/press/Other", **key) == 404
        assert not pressed
        assert post(page.port, "/press/Slow%20down", **key) == 204
        assert pressed == [1]
        assert post(page.port, "/press/Fail", **key) == 500
        assert Listener(page.port).next()[0] == "all"


# -- in nobody's way -----------------------------------------------------------------------


def hung(port: int) -> socket.socket:
    """Return a listener that never reads."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", port))
    one.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
    return one


def test_a_listener_that_never_reads_holds_nobody_up(
    monitor: Monitor, page: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "timeout", 1.0)
    lazy = hung(page.port)
    wait_for(lambda: page._n_listeners == 1)
    listener = Listener(page.port)
    listener.next()
    large = live_page._event("new", {"events": [], "text": "x" * 100_000})
    n, end_s = 0, time.monotonic() + DEADLINE_S
    # the system takes some of it for the lazy one; then its thread alone waits, and gives up
    while page._n_listeners == 2:
        page._feed.put(large)
        while "text" not in listener.next()[1]:
            pass
        n += 1
        assert time.monotonic() < end_s
    with monitor.observe("detector").request():
        pass
    assert listener.find(lambda data: data["models"])
    assert len(page._feed._messages) <= MAX_BEHIND
    assert page._n_listeners == 1
    assert n > 0
    lazy.close()


def test_a_listener_that_has_left_is_found_out_where_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "POINT_S", 10 * DEADLINE_S)
    monkeypatch.setattr(live_page, "HEARTBEAT_S", 0.02)
    page = LivePage(port=0)
    with Monitor(page):
        listener = Listener(page.port)
        listener.next()
        assert listener.answer.readline() == b":\n"
        listener.close()
        wait_for(lambda: page._n_listeners == 0)


def test_sockets_without_a_request_turn_nobody_away(monitor: Monitor, page: LivePage) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * live_page.MAX_CONNECTIONS):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", page.port)))
            one.sendall(b"GET /events HTTP/1.0\r\n")
        for _ in range(3):
            assert get(page.port).status == 200
        assert Listener(page.port).next()[0] == "all"
    told = {labels["reason"]: n for name, labels, n in page.metrics() if name == "monitor_refused_connections_total"}
    assert told["slow"] > 0


def test_a_listener_is_let_stay_whoever_else_comes(
    monitor: Monitor, page: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "PATIENCE_S", 0.0)
    listeners = [Listener(page.port) for _ in range(MAX_LISTENERS)]
    for _ in range(2 * live_page.MAX_CONNECTIONS):
        assert get(page.port).status == 200
    assert page._n_listeners == MAX_LISTENERS
    for listener in listeners:
        listener.close()


def test_the_head_of_the_stream_ends(monitor: Monitor, page: LivePage) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=DEADLINE_S)
    connection.request("HEAD", "/events")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"], answer.read()) == (200, "text/event-stream", b"")


def test_further_listeners_are_refused_and_counted(monitor: Monitor, page: LivePage) -> None:
    listeners = [Listener(page.port) for _ in range(MAX_LISTENERS)]
    for _ in range(3):
        answer = get(page.port, "/events")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert page.n_refused == 3
    assert get(page.port).status == 200
    told = listeners[-1].find(lambda data: data["n_refused"] == 3 and data)
    assert (told["n_listeners"], told["n_refused"]) == (MAX_LISTENERS, 3)
    for listener in listeners:
        listener.close()
    wait_for(lambda: page._n_listeners == 0)
    assert Listener(page.port).next()[0] == "all"


@pytest.mark.parametrize("reading", [True, False])
def test_after_closing_no_thread_and_no_port_is_left(monkeypatch: pytest.MonkeyPatch, reading: bool) -> None:
    monkeypatch.setattr(live_page, "HEARTBEAT_S", 10 * DEADLINE_S)
    monkeypatch.setattr(live_page, "POINT_S", 10 * DEADLINE_S)
    monkeypatch.setattr(Handler, "timeout", 10 * DEADLINE_S)
    before = set(threading.enumerate())
    page = LivePage(port=0)
    monitor = Monitor(page)
    monitor.observe("detector")(abs)(1)
    listeners = [Listener(page.port) for _ in range(4)]
    for listener in listeners:
        listener.next()
    if not reading:
        page._feed.put(live_page._event("new", {"text": "x" * 10_000_000}))
        time.sleep(0.5)  # all of them are being written to
    monitor.close()
    wait_for(lambda: not set(threading.enumerate()) - before)
    for listener in listeners:
        listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", page.port), 5)


@pytest.mark.timing
def test_closing_takes_no_time_whoever_listens() -> None:
    took_s = []
    for _ in range(5):
        page = LivePage(port=0)
        monitor = Monitor(page)
        monitor.observe("detector")(abs)(1)
        listeners = [Listener(page.port) for _ in range(4)]
        lazy = hung(page.port)
        wait_for(lambda page=page: page._n_listeners == 5)
        page._feed.put(live_page._event("new", {"text": "x" * 10_000_000}))
        start_s = time.monotonic()
        monitor.close()
        took_s.append(time.monotonic() - start_s)
        lazy.close()
        for listener in listeners:
            listener.close()
    assert min(took_s) < 0.2


def test_a_taken_port_is_told_counted_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        page = LivePage(port=taken.getsockname()[1])
        with Monitor(page):
            wait_for(lambda: page.n_failures)
            taken.close()
            wait_for(lambda: page._listener)
            assert get(page.port).status == 200
            assert page.n_failures == 1
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.match(r"cannot listen at 127.0.0.1:\d+: .*in use; LivePage\(port=0\) takes a free port", told)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_goes_on_without_the_page(monitor: Monitor, page: LivePage) -> None:
    detect = monitor.observe("detector")
    listener = Listener(page.port)
    listener.next()
    server = page._listener
    assert server is not None
    said = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with detect.request():
                pass
            monitor.drain()
            mine = [one.name for one in threading.enumerate() if one.name.startswith("torchtriage")]
            sockets = [server.socket.fileno(), *(one.fileno() for one in server._answered)]
            told = [page._listener is None, page._history.models(), mine, sockets]
            os.write(said[1], json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(said[1])
    told = json.loads(os.read(said[0], 10_000))
    os.close(said[0])
    os.waitpid(pid, 0)
    gone, models, threads, sockets = told
    assert (gone, models, sockets) == (True, [], [-1, -1])
    # monitors that other tests left open go on in the child, too
    assert "torchtriage-monitor" in threads
    assert "torchtriage-live" not in threads
    with detect.request():
        pass
    (model,) = listener.find(lambda data: data["models"])
    assert model["points"][0]["n"] == 1
