"""The controller of a rollout: collects what requests show, promotes, and rolls back."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torchtriage.core.errors import StoreError, TriageError, UsageError
from torchtriage.core.units import format_share
from torchtriage.operate.experiment.experiment import Experiment
from torchtriage.operate.experiment.metrics import finite
from torchtriage.operate.experiment.result import ExperimentResult, ExperimentRow
from torchtriage.operate.experiment.split import Split
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.rollout.state import RolloutPlan, RolloutState, StageEvidence, advance, roll_back
from torchtriage.operate.rollout.store import LEASE_S, RolloutStore, boot_id, boot_seconds, open_rollouts

__all__ = ["Rollout", "Ticket"]

STALE_S = 10.0  # when nobody could look for so long, the candidate gets nothing until somebody does

Judge = Callable[[RolloutState], StageEvidence | None]
Alarm = Callable[[], str]


class Ticket(NamedTuple):
    """What a request was given: the version's name, and the epoch its answer belongs to."""

    arm: str
    epoch: int


class Rollout:
    """Carries out a plan, in any number of processes of which one owns it at a time.

    ``store`` : :func:`open_rollouts` by default.
    ``alarm`` : called at every look; any text it returns rolls back at once, with that as the reason. While it
    raises, nothing is promoted. Detectors of :mod:`torchtriage.operate.monitor` fit here.
    ``judge`` : gives the evidence about a state instead of what is recorded here, for services whose numbers are
    somewhere else.
    ``owner`` : name of this controller, unique among all; a fork adds its process.
    ``clock``, ``wall`` : seconds since the machine's start, and since the epoch; the latter is only written down.
    Raises ``UsageError``: a running rollout of this name has another plan; ``StoreError``: the store cannot be read
    or written.
    """

    def __init__(
        self,
        plan: RolloutPlan,
        store: RolloutStore | None = None,
        *,
        alarm: Alarm | None = None,
        judge: Judge | None = None,
        owner: str | None = None,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.plan = plan
        self.store = store if store is not None else open_rollouts()
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._alarm = alarm
        self._judge = judge
        self._clock = clock or boot_seconds
        self._wall = wall
        self._lock = threading.RLock()
        self._looked_s: float | None = None
        self._read_s = self._clock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error = ""
        self._unsaved: tuple[int, str, tuple[ExperimentRow, ...]] | None = None
        self._pid = os.getpid()
        self._state: RolloutState
        self._take(self.store.start(plan, actor=self.owner, at_s=wall()))
        process_metrics.register(self)

    # -- on the way of a request: no store, no lock -------------------------------------------

    def assign(self, id: str | int | bytes) -> Ticket:
        """Return which version answers a request; the share is the stage's."""
        stage = self._stage
        if self._is_stale(stage):
            return Ticket(self.plan.control, 0)
        treated = stage.split.treats(id)
        return Ticket(self.plan.candidate if treated else self.plan.control, stage.epoch)

    def _is_stale(self, stage: _StageData) -> bool:
        return stage.ends and self._clock() - self._read_s > STALE_S

    def metrics(self) -> list[Value]:
        """Return what a monitor's listener shows of it."""
        stage = self._stage
        share = 0.0 if self._is_stale(stage) else stage.split.share
        return [("rollout_candidate_ratio", {"rollout": self.plan.name}, share)]

    # -- where answers are collected -----------------------------------------------------------

    def record(self, ticket: Ticket, /, *, replica: str | int | None = None, **values: Any) -> bool:
        """Take in what a request showed; False where its stage is over, ``UsageError`` where it names no version."""
        self._check_fork()
        arm, epoch = ticket
        stage = self._stage
        if arm not in (self.plan.control, self.plan.candidate):
            raise UsageError(
                f"expected {self.plan.control} or {self.plan.candidate}, found {arm!r}", where=self.plan.name
            )
        if epoch != stage.epoch:
            return False
        stage.record(arm, replica, values, self._clock())
        return True

    # -- once a second -------------------------------------------------------------------------

    @property
    def state(self) -> RolloutState:
        """Where it stands, as far as this process knows."""
        return self._state

    def tick(self) -> RolloutState:
        """Look once: roll back, promote, or wait. At least every 5 s: a later look watched nothing.

        ``StoreError`` where the store cannot be read or written.
        """
        self._check_fork()
        with self._lock:
            now_s = self._clock()
            name = self.plan.name
            try:
                stored = self.store.read(name)
            except StoreError:
                if self._state.status == "running":
                    self._look_for_worse(self._state, now_s)
                raise
            if stored.state.plan != self.plan:
                raise UsageError("expected the plan of this controller, found another", where=name)
            self._read_s = now_s
            if self._unsaved is not None:
                if stored.state.epoch == self._unsaved[0]:
                    return self._roll_back(*self._unsaved[1:])
                self._unsaved = None
                self._take(stored.state)
            elif stored.state.epoch != self._state.epoch:
                self._take(stored.state)
            else:
                self._state = stored.state
            if stored.state.status != "running":
                return self._state
            evidence, rows, why = self._look_for_worse(stored.state, now_s)
            if self._unsaved is not None:
                return self._roll_back(*self._unsaved[1:])
            lease = self.store.lease(name, self.owner, boot=boot_id(), now_s=now_s, ttl_s=LEASE_S, at_s=self._wall())
            if lease is None:
                self._looked_s = None
                return self._state
            if self._looked_s is None:
                self._stage.follow(self._state.last_number)
            elapsed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
            self._looked_s = now_s
            after = advance(self._state, evidence, elapsed_s)
            if why:
                after = replace(after, waiting=why)
            if self.store.move(name, lease, self._state, after, rows, at_s=self._wall()):
                if after.epoch != self._state.epoch:
                    self._take(after)
                else:
                    self._state = after
            return self._state

    def run(self, every_s: float = 0.5) -> None:
        """Look again and again in a thread of its own, until :meth:`close`.

        What a look raises is kept in ``error``; the share stays as it is meanwhile.
        """
        self._check_fork()
        if self._thread is not None and self._thread.is_alive():
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, args=(every_s,), name="torchtriage-rollout", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking, and let another one own it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        try:
            self.store.release(self.plan.name, self.owner)
        except TriageError as error:
            self.error = str(error)

    def _work(self, every_s: float) -> None:
        while not self._stop.wait(every_s):
            try:
                self.tick()
                self.error = ""
            except Exception as error:  # noqa: PERF203 - the store may be gone for a while: the watch must go on
                self.error = f"{type(error).__name__}: {error}"

    def _look_for_worse(
        self, state: RolloutState, now_s: float
    ) -> tuple[StageEvidence | None, tuple[ExperimentRow, ...], str]:
        """Return what is seen; where it is worse, send nothing to the candidate from now on.

        Whoever sees it may act on it, owner or not.
        """
        evidence: StageEvidence | None = None
        rows: tuple[ExperimentRow, ...] = ()
        why = alarm = ""
        if self._judge is None:
            evidence, rows = self._stage.evidence(now_s)
        else:
            try:
                evidence = self._judge(self._state)
            except Exception as error:
                why = f"the evaluation failed: {type(error).__name__}: {error}"
        if self._alarm is not None:
            try:
                alarm = str(self._alarm() or "")
            except Exception as error:
                # an alarm that cannot be asked is no silence
                why = f"the alarm failed: {type(error).__name__}: {error}"
        reason = alarm or ("; ".join(evidence.worse) if evidence else "")
        if reason:
            # here at once; in the store as soon as it can be written
            self._take(roll_back(state, reason))
            self._unsaved = state.epoch, reason, rows
        return None if why else evidence, rows, why

    def _roll_back(self, reason: str, rows: tuple[ExperimentRow, ...]) -> RolloutState:
        self._take(self.store.roll_back(self.plan.name, reason, actor=self.owner, at_s=self._wall(), rows=rows))
        self._unsaved = None
        return self._state

    def _check_fork(self) -> None:
        if os.getpid() == self._pid:
            return
        self._pid = os.getpid()
        self.owner = f"{self.owner.rpartition(' in ')[0] or self.owner} in {self._pid}"
        self._lock = threading.RLock()
        self._stop, self._thread = threading.Event(), None
        self._take(self._state)

    def _take(self, state: RolloutState) -> None:
        self._state = state
        self._looked_s = None
        self._stage = _StageData(self.plan, state)


class _StageData:
    # what the requests of one stage showed, as far as this process recorded them

    def __init__(self, plan: RolloutPlan, state: RolloutState) -> None:
        self.epoch = state.epoch
        self.split = Split(plan.name, state.share)
        self.ends = state.status == "running"
        self._plan = plan
        self._experiment: Experiment | None = None
        if 0 < state.share < 1:
            self._experiment = Experiment(
                f"{plan.name} at {state.share:g}",
                arms={plan.control: 1 - state.share, plan.candidate: state.share},
                metric=plan.metric,
                guardrails=plan.guardrails,
                # each step may be wrong once: they share what the plan allows
                alpha=plan.alpha / len(plan.steps),
            )
        # with all requests at the candidate there is nothing to compare it with
        self._n = 0
        self._n_missing = dict.fromkeys(sorted({metric.metric for metric in (plan.metric, *plan.guardrails)}), 0)
        self._newest_s: float | None = None
        self._number = 0
        self._lock = threading.Lock()

    def record(self, arm: str, replica: str | int | None, values: dict[str, Any], now_s: float) -> None:
        with self._lock:
            self._newest_s = now_s
            self._number += 1
            if self._experiment is not None:
                self._experiment.record(arm, replica=replica, **values)
            elif arm == self._plan.candidate:
                self._n += 1
                for name in self._n_missing:
                    self._n_missing[name] += finite(values.get(name)) is None

    def follow(self, number: int) -> None:
        with self._lock:
            self._number = max(self._number, number)

    def evidence(self, now_s: float) -> tuple[StageEvidence, tuple[ExperimentRow, ...]]:
        # and the comparisons behind it
        plan = self._plan
        with self._lock:
            age_s = None if self._newest_s is None else now_s - self._newest_s
            if self._experiment is not None:
                return self._compared(self._experiment.result(), age_s)
            missing = [
                _too_few(name, lost, self._n, plan.candidate)
                for name, lost in self._n_missing.items()
                if lost > plan.most_missing * self._n
            ]
            return StageEvidence(self.epoch, self._number, age_s, 0, self._n, tuple(missing)), ()

    def _compared(
        self, result: ExperimentResult, age_s: float | None
    ) -> tuple[StageEvidence, tuple[ExperimentRow, ...]]:
        # A metric without which a regression could not be seen is missing: without data, with too few
        # values to compare, or of which too many are NaN.
        missing = []
        for row in result.rows:
            if row.verdict == "no data" or row.low is None:
                missing.append(f"{row.name}: {row.sentence}")
                continue
            for arm, n, lost in zip((self._plan.control, self._plan.candidate), row.n, row.n_missing, strict=True):
                if lost > self._plan.most_missing * (n + lost):
                    missing.append(_too_few(row.name, lost, n + lost, arm))
        worse = [f"{row.name}: {row.sentence}" for row in result.rows if row.verdict == "worse"]
        if result.decision == "broken":
            worse.append(result.verdict[0])
        n_control, n_candidate = result.control.n_requests, result.candidate.n_requests
        evidence = StageEvidence(self.epoch, self._number, age_s, n_control, n_candidate, tuple(missing), tuple(worse))
        return evidence, result.rows


def _too_few(name: str, lost: int, n: int, arm: str) -> str:
    return f"{name}: {format_share(lost / n)} of {arm}'s requests have no usable value"
