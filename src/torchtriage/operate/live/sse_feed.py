"""What is sent to all listeners: few messages, each kept once, whoever reads how slowly."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["EventFeed"]

KEPT = 64
"""Messages a listener may be behind before it has to begin again."""


class EventFeed:
    """Messages by number. Writers never wait for readers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque(maxlen=KEPT)
        self.n = 0
        """Messages so far."""
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
