"""A recording of the requests after an alarm, and what it shows: armed until there is an alarm.

Nothing is added to the request path until then. An alarm arms the model's rings for a few seconds:
the next request that begins on one of them is recorded by the sampler, in its own thread, since the
profiler sees that thread alone. Reading and judging the recording takes seconds of a processor and
would hold this interpreter's lock, so that a process of lowest priority does it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from torchtriage.operate.monitor.aggregate import RequestRow
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.instrument import Ring

APART_S = 60.0  # least time between two recordings
A_DAY = 20
DAY_S = 86_400.0
ARMED_S = 10.0  # how long after an alarm a request is still of the bad moment
LONG_S = 60.0  # a request that is recorded for longer keeps the others from being judged no more
JUDGE_S = 180.0  # so long a recording may be judged for
N_FINDINGS = 3
MAX_TEXT = 400


class RequestRecorder(Protocol):
    """What records a request: :func:`torchtriage.sample`."""

    on_capture: Callable[[Path], object] | None

    @property
    def capturing(self) -> bool:
        """Whether this thread is being recorded."""

    def request(self) -> AbstractContextManager[None]:
        """Return a context that records a request if it is time for that."""

    def trigger(self) -> None:
        """Record the next request."""


class AlarmCapture:
    """Records a request after an alarm, judges it, and hands what it shows to ``tell``.

    ``disturbs`` : gives a context in which nothing is judged: recording holds others up, too.
    """

    def __init__(
        self,
        recorder: RequestRecorder,
        tell: Callable[[Alert, str, tuple[str, ...]], None],
        disturbs: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._recorder = recorder
        self._tell = tell
        self._disturbs = disturbs
        # alarms that armed it; requests recorded; alarms too soon after another, or beyond the day's number;
        # arms for which no request came or the recorder declined; failures
        self.n_armed = self.n_captured = self.n_skipped = self.n_missed = self.n_failures = 0
        self.last_error = ""
        self._lock = threading.Lock()
        self._alert: Alert | None = None
        self._rings: list[Ring] = []
        self._until_s = 0.0
        self._times: list[float] = []
        self._open: tuple[Ring, AbstractContextManager[None]] | None = None
        self._disturbed: AbstractContextManager[None] = nullcontext()
        self._captured: Alert | None = None
        self._files: queue.SimpleQueue[tuple[Alert, Path] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        recorder.on_capture = self._on_capture

    # -- in the monitor's thread -----------------------------------------------------------

    def arm(self, alert: Alert, rings: list[Ring], now_s: float) -> None:
        """Have the next request on one of the rings recorded, unless that is too often."""
        self._times = [at_s for at_s in self._times if now_s - at_s < DAY_S]
        soon = bool(self._times) and now_s - self._times[-1] < APART_S
        with self._if_free() as free:  # else a request is being recorded
            if soon or len(self._times) >= A_DAY or not rings or not free or self._alert is not None:
                self.n_skipped += 1
                return
            self._times.append(now_s)
            self.n_armed += 1
            self._alert, self._until_s = alert, now_s + ARMED_S
            self._rings = rings
            self._recorder.trigger()
            for ring in rings:
                _armed[id(ring)] = self
                ring.__class__ = _RecordedRing

    def look(self, now_s: float) -> None:
        """Give up where no request came in time."""
        if self._alert is None or now_s < self._until_s:
            return
        with self._if_free() as free:
            if not free:
                return
            if self._open is None:
                self.n_missed += self._alert is not None
                self._disarm()
            elif now_s > self._until_s + LONG_S:
                self._settle()
                if not self._open[0].thread.is_alive():  # the sampler has given it up
                    self.n_missed += 1
                    self._open = None
                    self._disarm()

    @contextlib.contextmanager
    def _if_free(self) -> Iterator[bool]:
        """Hold the lock if nobody does: nobody waits."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def _settle(self) -> None:
        disturbed, self._disturbed = self._disturbed, nullcontext()
        disturbed.__exit__(None, None, None)

    def _disarm(self) -> None:
        self._alert = None
        for ring in self._rings:
            ring.__class__ = Ring
            _armed.pop(id(ring), None)
        self._rings = []

    # -- in a request's thread -------------------------------------------------------------

    def begin(self, ring: Ring) -> None:
        """Begin to record, unless another request is being recorded. Never raises."""
        with self._if_free() as free:
            if not free or self._alert is None or self._open is not None:
                return
            try:
                self._disturbed = self._disturbs()
                self._disturbed.__enter__()
                context = self._recorder.request()
                context.__enter__()
                if self._recorder.capturing:
                    self._open = (ring, context)
                    self._captured = self._alert
                    return
                context.__exit__(None, None, None)
                self.n_missed += 1  # it has its own bounds: another profiler, its cap on overhead
            except Exception as error:
                self._failed(error)
            self._settle()
            self._disarm()

    def end(self, ring: Ring) -> None:
        """End what was begun on this ring. Never raises."""
        # without the lock: no thread but this one opens or ends what is recorded on its ring
        is_open = self._open
        if is_open is None or is_open[0] is not ring:
            return
        with self._lock:
            try:
                is_open[1].__exit__(None, None, None)
                self.n_captured += 1
            except Exception as error:
                self._failed(error)
            finally:
                self._open = None
                self._settle()
                self._disarm()

    def _failed(self, error: BaseException) -> None:
        self.n_failures += 1
        self.last_error = f"{type(error).__name__}: {error}"

    # -- afterwards ------------------------------------------------------------------------

    def _on_capture(self, path: Path) -> None:
        alert, self._captured = self._captured, None
        if alert is None or self._closed:
            return  # the sampler records on its own time, too
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="torchtriage-capture", daemon=True)
            self._thread.start()
        self._files.put((alert, path))

    def _work(self) -> None:
        while (item := self._files.get()) is not None:
            alert, path = item
            try:
                self._tell(alert, str(path), self._judge(path))
            except Exception as error:
                self._failed(error)

    def _judge(self, path: Path) -> tuple[str, ...]:
        command = [sys.executable, "-m", "torchtriage", "analyze", str(path.absolute())]
        command += ["--sarif", "--quiet", "--top", str(N_FINDINGS)]
        places = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        child = self._child = subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=pipe, env=env)
        try:
            if hasattr(os, "setpriority"):
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, child.pid, 19)
            output, errors = child.communicate(timeout=JUDGE_S)
        finally:
            if child.poll() is None:
                child.kill()
                child.communicate()
            self._child = None
        if child.returncode not in (0, 1):
            raise RuntimeError(errors.decode("utf-8", "replace").strip()[-MAX_TEXT:])
        findings: list[dict[str, Any]] = json.loads(output)["runs"][0]["results"]
        return tuple(f"{row['ruleId']} {row['message']['text']}"[:MAX_TEXT] for row in findings[:N_FINDINGS])

    def close(self) -> None:
        """Stop; what is being judged is given up."""
        self._closed = True
        with self._lock:
            if self._open is None:
                self._disarm()
        self._files.put(None)
        child = self._child
        if child is not None:
            child.kill()


# -- rings under watch -----------------------------------------------------------------------


class _RecordedRing(Ring):
    """A ring whose requests may be recorded; any ring becomes one, and back, as it is used.

    A request counts itself as begun before it reads the clock, and ends after it has: what is done
    here is in no duration.
    """

    __slots__ = ()

    @property
    def begun(self) -> int:
        return int(_begun.__get__(self, Ring))

    @begun.setter
    def begun(self, n: int) -> None:
        _begun.__set__(self, n)
        armed = _armed.get(id(self))
        if armed is not None:
            armed.begin(self)

    def end(self, row: RequestRow) -> None:
        armed = _armed.get(id(self))
        if armed is not None:
            armed.end(self)
        Ring.end(self, row)  # super() would ask the class, which may just have changed back


_begun: Any = vars(Ring)["begun"]
_armed: dict[int, AlarmCapture] = {}
