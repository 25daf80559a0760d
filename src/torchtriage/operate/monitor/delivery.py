"""Delivery of alerts: to each channel at least once, within bounds, again while they are on, and their end.

Each channel has a queue and a thread of its own: one that is slow or away is in no other's way, and in no request's.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import urllib.error
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.metrics import Value

MAX_PENDING = 1_000
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
MAX_POSTS, POSTS_S = 3, 60.0  # of one alarm to one channel, in so long: what changes meanwhile waits, the newest of it
FLUSH_S = 2.0  # what closing may take to send what waits
WRONG = (400, 413, 422)  # answers to what never will be taken; others come of proxies, tokens and servers that recover
_logger = logging.getLogger("torchtriage.monitor")

Channel = Callable[[Alert], object]
Key = tuple[str, ...]


class Delivery:
    """The queue of one channel.

    A channel that says ``retried`` is tried again after it raised, ever later, and gets no more than ``MAX_POSTS`` of
    one alarm in ``POSTS_S``; others are functions of the user's own, and are called once for each alert, in order. One
    with ``refresh_s`` holds states, not news: only the newest counts, and while an alarm is on it is sent again that
    often.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.name: str = getattr(channel, "__name__", type(channel).__name__)
        self._retried: bool = getattr(channel, "retried", False)
        self._refresh_s: float = getattr(channel, "refresh_s", 0.0)
        self._posts_s = min(POSTS_S, MAX_POSTS * self._refresh_s or POSTS_S)
        self.sent = self.dropped = self.failures = 0
        self.last_error = ""
        self._changed = threading.Condition()
        self._queues: OrderedDict[Key, deque[Alert]] = OrderedDict()  # of each alarm, in order
        self._n = 0
        self._sending: Alert | None = None
        self._on: dict[Key, Alert] = {}  # what is sent again
        self._posts: dict[Key, deque[float]] = {}
        self._retry_s = -math.inf
        self._n_tries = 0
        self._full = self._stop = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(target=self._run, name=f"torchtriage-{self.name}"[:60], daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Queue an alert; never waits."""
        with self._changed:
            if self._refresh_s:
                if alert.ended:
                    self._on.pop(alert.key, None)
                elif alert.capture and alert.key not in self._on:
                    return  # it is over: what was recorded of it would raise it again
                else:
                    self._on[alert.key] = alert
            self._append(alert)
            self._changed.notify()

    def pending(self) -> list[Alert]:
        """Return what is not delivered yet."""
        with self._changed:
            waiting = list(itertools.chain(*self._queues.values()))
            return waiting if self._sending is None else [self._sending, *waiting]

    def resume(self, alert: Alert) -> None:
        """Go on with an alarm that another process told: where the channel holds states, it is sent again."""
        if self._refresh_s:
            self.put(alert)

    def close(self, deadline_s: float, *, kept: bool = False) -> None:
        """Send what waits, each once more, until then, or for ``FLUSH_S`` where it is tried again.

        ``kept`` : the rest is stored; else it is lost.
        """
        with self._changed:
            if self._stop or self._thread is None:
                return
            self._stop = True
            self._changed.notify()
        if self._retried and self.pending():
            deadline_s = max(deadline_s, time.monotonic() + FLUSH_S)
        self._thread.join(max(deadline_s - time.monotonic(), 0))
        left = len(self.pending())
        if left and kept:
            _logger.warning("%d alerts to %s wait for the next start: %s", left, self.name, self.last_error)
        elif left:
            self.dropped += left
            why = self.last_error or "it took too long"
            _logger.warning("%d alerts to %s were not sent: %s", left, self.name, why)

    def metrics(self) -> list[Value]:
        """Return the accounts as metrics."""
        outlet = {"outlet": self.name}
        return [
            ("monitor_outlet_records_total", {**outlet, "outcome": "sent"}, self.sent),
            ("monitor_outlet_records_total", {**outlet, "outcome": "dropped"}, self.dropped),
            ("monitor_outlet_pending", outlet, len(self.pending())),
        ]

    # -- the queue, with the lock held -----------------------------------------------------

    def _append(self, alert: Alert) -> None:
        queue = self._queues.setdefault(alert.key if self._retried else (), deque())
        if queue and self._retried and (self._refresh_s or _updates(alert, queue[-1])):
            old = queue.pop()
            self._n -= 1
            alert = replace(alert, n_before=alert.n_before + old.n_before + 1)
        queue.append(alert)
        self._n += 1
        while self._n > MAX_PENDING:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key = next(iter(self._queues))
        self._queues[key].popleft()
        if not self._queues[key]:
            del self._queues[key]
        self._n -= 1
        self.dropped += 1
        if not self._full:  # said once until it has room again
            self._full = True
            _logger.warning("more than %d alerts wait for %s: the oldest are dropped", MAX_PENDING, self.name)

    def _next(self, now_s: float) -> tuple[Alert | None, float]:
        """Return what is to be sent now, or when to look again."""
        for key, alert in self._on.items() if not self._stop else ():
            posts = self._posts.get(key)
            if key not in self._queues and posts and now_s >= posts[-1] + self._refresh_s:
                self._append(alert)
        if not self._stop and now_s < self._retry_s:
            return None, self._retry_s
        known = [posts for key in self._on if (posts := self._posts.get(key))]
        look_s = min((posts[-1] + self._refresh_s for posts in known), default=math.inf)
        for key, queue in self._queues.items():
            posts = self._posts.get(key, deque())
            free_s = posts[0] + self._posts_s if len(posts) == MAX_POSTS else -math.inf
            if self._stop or now_s >= free_s:
                alert = queue.popleft()
                if not queue:
                    del self._queues[key]
                self._n -= 1
                return alert, now_s
            look_s = min(look_s, free_s)
        return None, look_s

    # -- its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                now_s = time.monotonic()
                alert, look_s = self._next(now_s)
                if alert is None:
                    if self._stop:
                        return
                    self._changed.wait(min(look_s - now_s, 3600.0))
                    continue
                self._sending, last = alert, self._stop
            error = self._call(alert)
            with self._changed:
                self._sending = None
                if error is None:
                    self._sent(alert)
                elif not self._retried or getattr(error, "code", 0) in WRONG:
                    self.dropped += self._retried
                else:
                    self._put_back(alert)
                    if last:  # one that began before has its last try still to come
                        return

    def _call(self, alert: Alert) -> Exception | None:
        try:
            self.channel(alert)
        except Exception as error:
            self.failures += 1
            self.last_error = f"{type(error).__name__}: {error}"
            if isinstance(error, urllib.error.HTTPError):
                with error:
                    self.last_error += f" {_said(error)}"
                if error.code in WRONG:
                    _logger.warning("%s refuses an alert, which is dropped: %s", self.name, self.last_error)
                    return error
            if self._n_tries == 0:  # said once until one arrives again
                _logger.warning("alerts cannot be sent to %s: %s", self.name, self.last_error)
            return error
        return None

    def _sent(self, alert: Alert) -> None:
        self.sent += 1
        self.last_error = ""
        self._n_tries, self._retry_s = 0, -math.inf
        self._full = self._full and self._n > MAX_PENDING // 2
        if not self._retried:
            return
        now_s = time.monotonic()
        if len(self._posts) > MAX_PENDING:
            on = self._on
            self._posts = {key: posts for key, posts in self._posts.items() if key in on or now_s - posts[-1] < POSTS_S}
        self._posts.setdefault(alert.key, deque(maxlen=MAX_POSTS)).append(now_s)

    def _put_back(self, alert: Alert) -> None:
        queue = self._queues.setdefault(alert.key, deque())
        if not queue or not (self._refresh_s or _updates(queue[0], alert)):
            queue.appendleft(alert)
            self._n += 1
        self._queues.move_to_end(alert.key)  # one that is never taken is in no other's way
        self._retry_s = time.monotonic() + BACKOFF_S[min(self._n_tries, len(BACKOFF_S) - 1)]
        self._n_tries += 1


class Outbox:
    """The queues of several channels."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.deliveries = [Delivery(channel) for channel in channels]

    def start(self) -> None:
        """Begin to send."""
        for delivery in self.deliveries:
            delivery.start()

    def put(self, alert: Alert) -> None:
        """Queue an alert for each channel."""
        for delivery in self.deliveries:
            delivery.put(alert)

    def pending(self) -> list[Alert]:
        """Return what some channel did not get yet, each once."""
        return list(dict.fromkeys(alert for delivery in self.deliveries for alert in delivery.pending()))

    def resume(self, alert: Alert) -> None:
        """Go on with an alarm that another process told."""
        for delivery in self.deliveries:
            delivery.resume(alert)

    def close(self, deadline_s: float, *, kept: bool = False) -> None:
        """Send what waits, all channels at once."""
        closing = [
            threading.Thread(target=partial(delivery.close, deadline_s, kept=kept)) for delivery in self.deliveries
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    @property
    def failures(self) -> int:
        """Calls of channels that raised."""
        return sum(delivery.failures for delivery in self.deliveries)

    @property
    def dropped(self) -> int:
        """Alerts that were given up."""
        return sum(delivery.dropped for delivery in self.deliveries)

    def metrics(self) -> list[Value]:
        """Return the channels' accounts."""
        return [value for delivery in self.deliveries for value in delivery.metrics()]


def _updates(new: Alert, old: Alert) -> bool:
    """Whether it says the same alarm's newer state, so that the older need not be told."""
    return new.since_s == old.since_s and not (old.ended or old.capture or new.ended or new.capture)


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(200).decode("utf-8", "replace")
    except OSError:
        return ""
