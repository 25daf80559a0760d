"""What a worker asks for each request: control or candidate. Never waits for the store."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from torchtriage.core.errors import TriageError
from torchtriage.operate.experiment.split import Split
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.rollout.state import RolloutState
from torchtriage.operate.rollout.store import RolloutStore

_logger = logging.getLogger("torchtriage.rollout")


class Router:
    """Sends the share of the current stage to the candidate, in a process of its own or any.

    ``store`` : opens the store; called in the thread that reads, again after a fork or a failure.
    ``every_s`` : how often the store is read, in a thread of its own: a rollback is known so soon.
    ``stale_s`` : when the store could not be read for so long, the candidate gets no more requests, unless
    the rollout was done.
    """

    def __init__(
        self,
        store: Callable[[], RolloutStore],
        name: str,
        *,
        every_s: float = 0.25,
        stale_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = store
        self.name = name
        self.every_s, self.stale_s = every_s, stale_s
        self._clock = clock
        # one value, so that no request sees the share of one stage and the epoch of another
        self._now: tuple[Split, RolloutState] | None = None
        self._read_s = -1e18
        self.last_error = ""  # why the store could not be read last time; empty where it could
        self._pid = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        process_metrics.register(self)

    def treats(self, id: str | int | bytes) -> tuple[bool, int]:
        """Return whether a request goes to the candidate, and the epoch to record it under."""
        if os.getpid() != self._pid:
            self._begin()
        now = self._now
        if now is None:
            return False, 0
        split, state = now
        return not self._is_stale(state) and split.treats(id), state.epoch

    @property
    def share(self) -> float:
        """Share of requests that go to the candidate now."""
        if self._now is None or self._is_stale(self._now[1]):
            return 0.0
        return self._now[1].share

    def metrics(self) -> list[Value]:
        """Return what a monitor's listener shows of it; nothing before it has read the store."""
        if self._now is None:
            return []
        return [("rollout_candidate_ratio", {"rollout": self.name}, self.share)]

    def _is_stale(self, state: RolloutState) -> bool:
        return state.status != "done" and self._clock() - self._read_s > self.stale_s

    def refresh(self, store: RolloutStore) -> None:
        """Read the store once; what fails is kept in ``last_error``."""
        try:
            state = store.read(self.name).state
        except TriageError as error:
            self.last_error = str(error)
            return
        self.last_error = ""
        self._read_s = self._clock()
        if self._now is None or self._now[1] != state:
            self._now = Split(self.name, state.share), state

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(2 * self.every_s + 1)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(self._stop,), name="torchtriage-rollout", daemon=True)
        self._thread.start()

    def _work(self, stop: threading.Event) -> None:
        store: RolloutStore | None = None
        warned = ""
        while not stop.is_set():
            try:
                store = store or self._open()
                self.refresh(store)
            except Exception as error:
                # whatever the store does, the service goes on; the share goes to zero in time
                self.last_error = str(error)
            if self.last_error and not warned:  # a name mistyped would never be noticed
                _logger.warning("rollout %s cannot be followed: %s", self.name, self.last_error)
            warned = self.last_error
            if self.last_error and store is not None:
                store.close()
                store = None
            stop.wait(self.every_s)
        if store is not None:
            store.close()
