"""The page of a running service: a sink of the monitor that serves what it sees, as it comes.

A browser gets one page, which asks for nothing but ``/events``, a stream of server-sent events: first everything of
the last five minutes, then each second what is new, and what happens within a tenth of one.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from torchtriage.core.errors import UsageError
from torchtriage.core.html import as_data, filled, policy, template
from torchtriage.core.process import rss_bytes
from torchtriage.core.version import __version__
from torchtriage.operate.live.events import PageEvent, Tone, cut
from torchtriage.operate.live.minute_history import HISTORY_S, MAX_MODELS, MinuteHistory
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.aggregate import RequestRow
from torchtriage.operate.monitor.instrument import Model
from torchtriage.operate.monitor.listener import Handler, Listener, PortTakenError, check_host, is_loopback
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.monitor.monitor import Monitor

if TYPE_CHECKING:
    from torchtriage.operate.ladder import Ladder
    from torchtriage.operate.live.cards import LadderCard, RolloutCard
    from torchtriage.operate.monitor.alert import Alert
    from torchtriage.operate.rollout import Rollout

HEARTBEAT_S = 10.0
LOOK_S = 0.1  # how often ladders, rollouts and alarms are looked for
POINT_S = 1.0
MAX_LISTENERS = 16  # streams at a time; further ones are refused, and counted
MAX_CONNECTIONS = 32
MAX_BEHIND = 64  # messages a listener may be behind before it has to begin again
MAX_EVENTS = 200  # things that happened, the newest of which are kept
MAX_WATCHED = 8  # ladders, and rollouts, of which the newest are shown
SEND_BUFFER = 65_536  # bytes the system may keep for a listener that does not read
_logger = logging.getLogger("torchtriage.monitor")
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LivePage:
    """A page at ``http://host:port``: latencies, traffic, errors, alarms, ladders, rollouts.

    It binds to this machine alone unless ``host`` says otherwise, and then asks for ``token``: as a browser's
    password, whatever the user's name, or ``Authorization: Bearer ...``. ``port=0`` takes a free one, ``.port`` says
    which. It shows the process that started it; a forked child goes on without.

    ``buttons`` : for demonstrations: functions that a person at this machine may call from the page, by their labels.
    Each runs in a thread of the listener.
    A port that is taken is said in the log, counted, and tried again each second.
    Raises ``UsageError``: a host beyond this machine without a token, or with buttons.
    """

    def __init__(
        self,
        port: int = 9465,
        *,
        host: str = "127.0.0.1",
        token: str = "",
        buttons: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        check_host(host, token, "LivePage")
        if buttons and not is_loopback(host):
            raise UsageError(f"expected no buttons that other machines can reach, found {host}")
        self.port = port
        self._host = host
        self._token = token
        self._buttons = dict(buttons or {})
        self._pid = 0
        self._listener: Listener | None = None
        self._ladders: dict[str, LadderCard] = {}
        self._rollouts: dict[str, RolloutCard] = {}
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # of all that is shown
        self._feed = EventFeed()
        self._history = MinuteHistory()
        self._memory: deque[dict[str, Any]] = deque(maxlen=round(HISTORY_S / POINT_S))
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._new: list[dict[str, Any]] = []  # of what happened, what was not sent yet
        self._n_events = 0
        self._in_flight: list[list[Any]] = []
        self._n_listeners = 0
        self.n_failures = 0  # looks that failed, ports that were taken
        self._room = threading.BoundedSemaphore(MAX_LISTENERS)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_s = time.monotonic()
        self._wall_s = time.time()

    # -- what is shown ---------------------------------------------------------------------

    def watch(self, *subjects: Ladder | Rollout) -> None:
        """Show ladders and rollouts; one of the same name takes the place of the one before."""
        from torchtriage.operate.ladder import Ladder
        from torchtriage.operate.live.cards import LadderCard, RolloutCard
        from torchtriage.operate.rollout import Rollout

        for subject in subjects:
            with self._lock:
                if isinstance(subject, Ladder):
                    _put(self._ladders, subject.name, LadderCard(subject))
                elif isinstance(subject, Rollout):
                    _put(self._rollouts, subject.plan.name, RolloutCard(subject))
                else:
                    raise UsageError(f"expected a Ladder or a Rollout to watch, found {subject!r}")

    def show(self, alert: Alert) -> None:
        """Show an alarm: a channel for :class:`~torchtriage.operate.monitor.Detection`."""
        subject = f"{alert.model} {alert.version}".strip()
        text = alert.title().removeprefix(f"{subject}: ")
        tone: Tone = "good" if alert.ended or alert.quicker else "bad"
        with self._lock:
            self._add(PageEvent("alarm", cut(subject), cut(alert.kind), cut(text), tone))

    @property
    def n_refused(self) -> int:
        """Listeners that were turned away for want of room."""
        listener = self._listener
        return listener.refused["full"] if listener is not None else 0

    # -- a sink of the monitor -------------------------------------------------------------

    def start(self, monitor: Monitor) -> None:
        """Listen; in a forked child, let go of what is the parent's."""
        forked = self._pid not in (0, os.getpid())
        inherited, self._listener = self._listener, None
        self._pid = os.getpid()
        self._begin()
        if inherited is not None:
            inherited.forget()
        if forked:
            return
        self._monitor = monitor
        script, style = template("live.js"), template("page.css") + template("live.css")
        self._policy = policy(style, script, connect="'self'") + "; frame-ancestors 'none'"
        self._key = secrets.token_urlsafe()
        data = {"key": self._key, "buttons": list(self._buttons), "keptS": HISTORY_S}
        parts = {"version": __version__, "style": style, "script": script, "data": as_data(data)}
        self._page = filled("live.html", parts).encode()
        self._listen(0)
        self._thread = threading.Thread(target=self._look_on, name="torchtriage-live", daemon=True)
        self._thread.start()

    def _listen(self, n_tried: int) -> None:
        try:
            self._listener = Listener(
                (self._host, self.port),
                self._get,
                post=self._post if self._buttons else None,
                token=self._token,
                most=MAX_CONNECTIONS,
                what="LivePage",
                ready=lambda: self._monitor.is_ready,
            )
            self.port = self._listener.port
        except PortTakenError as error:
            if n_tried == 0:
                self.n_failures += 1
                _logger.warning("%s; %s", error.message, error.hint)

    def offer(self, model: Model, rows: list[RequestRow]) -> None:
        """Take finished requests into the second that runs."""
        if self._thread is not None:
            with self._lock:
                self._history.add(model.name, model.version, rows)

    def close(self, deadline_s: float) -> None:
        """Let all listeners go."""
        self._stop.set()
        self._feed.end()
        if self._thread is not None:
            self._thread.join(max(deadline_s - time.monotonic(), 0))
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.end()

    def metrics(self) -> list[Value]:
        """Return what a listener of the monitor shows of it."""
        listener = self._listener
        refused = [] if listener is None else listener.metrics()
        return [("monitor_failures_total", {}, self.n_failures), *refused]

    # -- its thread ------------------------------------------------------------------------

    def _look_on(self) -> None:
        stop, next_s, n_tried = self._stop, self._now() + POINT_S, 0
        while not stop.wait(LOOK_S):
            over = self._now() >= next_s
            if over and self._listener is None:
                n_tried += 1
                self._listen(n_tried)
            try:
                self._look(over)
            except Exception:
                self.n_failures += 1  # whatever it was, the watch goes on
            while over and next_s <= self._now():
                next_s += POINT_S  # a thread that was late makes one long point, not several

    def _look(self, over: bool) -> None:
        """Look at everything once, and send what is new; ``over`` : so is the second."""
        if over:
            # the monitor's lock is taken before this page's, never while it is held
            open_ = sorted(self._monitor.in_flight().items(), key=lambda pair: -pair[1])
            in_flight = [[*key, n] for key, n in open_[:MAX_MODELS] if n]
            values = process_metrics.read()
            held = [[labels["device"], int(n)] for name, labels, n in values if name == "device_allocated_bytes"]
            memory = {"rss_bytes": rss_bytes(), "devices": held}
        with self._lock:
            at_s = self._now()
            cards: list[LadderCard | RolloutCard] = [*self._ladders.values(), *self._rollouts.values()]
            for event in (event for card in cards for event in card.look(at_s)):
                self._add(event)
            if over:
                self._memory.append(memory | {"at_s": round(at_s, 3)})
                self._in_flight = in_flight
            elif not self._new:
                return
            new = {
                "models": self._history.close_point(at_s) if over else [],
                "memory": [self._memory[-1]] if over else [],
                "events": self._new,
            }
            self._new = []
            self._feed.put(_event("new", self._standing(at_s) | new))

    def _standing(self, at_s: float) -> dict[str, Any]:
        # what is sent whole each time
        return {
            "at_s": round(at_s, 3),
            "in_flight": self._in_flight,
            "ladders": [card.state() for card in self._ladders.values()],
            "rollouts": [card.state() for card in self._rollouts.values()],
            "n_not_shown": self._history.n_not_shown,
            "n_listeners": self._n_listeners,
            "n_refused": self.n_refused,
        }

    def _all(self) -> tuple[int, bytes]:
        # everything, and the number of the message that follows
        with self._lock:
            everything = self._standing(self._now()) | {
                "wall_s": self._wall_s,
                "models": self._history.models(),
                "memory": list(self._memory),
                "events": list(self._events),
            }
            n = self._feed.n
        return n, _event("all", everything)

    def _add(self, event: PageEvent) -> None:
        self._n_events += 1
        entry = event._asdict() | {"id": self._n_events, "at_s": round(self._now(), 3)}
        self._events.append(entry)
        self._new = [*self._new, entry][-MAX_EVENTS:]

    def _now(self) -> float:
        return time.monotonic() - self._start_s

    # -- the listener's threads ------------------------------------------------------------

    def _get(self, client: Handler) -> None:
        path = urlsplit(client.path).path
        if path == "/":
            headers = HEADERS | {"Content-Security-Policy": self._policy}
            client.answer(200, self._page, "text/html; charset=utf-8", headers)
        elif path == "/events" and client.command == "HEAD":
            client.answer(200, b"", "text/event-stream", HEADERS)
        elif path == "/events":
            self._stream(client)
        else:
            self._refuse(client, 404, "the page is at /")

    def _post(self, client: Handler) -> None:
        """Press a button: only this page knows the key, and no other page may send the header."""
        key = client.headers.get("X-Torchtriage-Key", "").encode()
        name = unquote(urlsplit(client.path).path.removeprefix("/press/"))
        if not hmac.compare_digest(key, self._key.encode()):
            self._refuse(client, 403, "buttons work only from the page")
        elif name not in self._buttons:
            self._refuse(client, 404, "there is no such button")
        else:
            try:
                self._buttons[name]()
            except Exception as error:
                self._refuse(client, 500, f"{type(error).__name__}: {error}")
            else:
                client.answer(204, b"", "text/plain", HEADERS)

    def _stream(self, client: Handler) -> None:
        if not self._room.acquire(blocking=False):
            client.server.refuse("full")
            self._refuse(client, 503, f"{MAX_LISTENERS} pages listen already", {"Retry-After": "5"})
            return
        client.stay()
        with self._lock:
            self._n_listeners += 1
        try:
            client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            client.send_response(200)
            for name, value in (HEADERS | {"Content-Type": "text/event-stream"}).items():
                client.send_header(name, value)
            client.end_headers()
            n, message = self._all()
            client.wfile.write(message)
            while (messages := self._feed.after(n, HEARTBEAT_S)) is not None:
                # a comment where there is nothing: whoever has left is found out
                client.wfile.write(b"".join(messages) or b":\n\n")
                n += len(messages)
        finally:
            with self._lock:
                self._n_listeners -= 1
            self._room.release()

    def _refuse(self, client: Handler, status: int, why: str, headers: Mapping[str, str] = HEADERS) -> None:
        client.answer(status, f"{why}\n".encode(), "text/plain", {**HEADERS, **headers})


def _put(cards: dict[str, Any], name: str, card: object) -> None:
    cards.pop(name, None)
    cards[name] = card
    if len(cards) > MAX_WATCHED:
        del cards[next(iter(cards))]


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {as_data(data)}\n\n".encode()


class EventFeed:
    """Messages by number, each stored once for all listeners. Writers never wait for readers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque(maxlen=MAX_BEHIND)
        self.n = 0  # messages so far
        self.ended = False

    def put(self, message: bytes) -> None:
        """Send a message to whoever listens."""
        with self._changed:
            self._messages.append(message)
            self.n += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let all listeners go."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def after(self, n: int, timeout_s: float) -> list[bytes] | None:
        """Return the messages from number ``n`` on, waiting for the first of them.

        None once the feed has ended, or where the first is no longer kept.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.n > n or self.ended, timeout_s)
            behind = self.n - n
            if self.ended or behind > len(self._messages):
                return None
            return list(self._messages)[len(self._messages) - behind :]
