"""The controller of a rollout: collects what requests show, promotes, and rolls back."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from torchtriage.core.database import undamaged
from torchtriage.core.errors import StoreError, TriageError, UsageError
from torchtriage.core.units import format_share
from torchtriage.operate.experiment.experiment import Arrived, Experiment
from torchtriage.operate.experiment.metrics import finite
from torchtriage.operate.experiment.result import ExperimentResult, ExperimentRow
from torchtriage.operate.experiment.sentences import broken
from torchtriage.operate.experiment.split import Split
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.rollout.state import (
    LONGEST_LOOK_S,
    RolloutPlan,
    RolloutState,
    StageEvidence,
    advance,
    roll_back,
)
from torchtriage.operate.rollout.store import LEASE_S, Lease, RolloutStore, boot_id, boot_seconds, open_rollouts

PUBLISH_S = 2.0  # how often a process stores what it recorded, for the owner to judge all of it together
# what an alarm may say of the machine or of the callers is not the candidate's doing: it only holds
NOT_THE_VERSION = ("host contention", "input mix")
LAG_S = PUBLISH_S + LONGEST_LOOK_S  # how much later than others a process may tell what it recorded
STALE_S = 10.0  # when nobody could look for so long, the candidate gets nothing until somebody does

Judge = Callable[[RolloutState], StageEvidence | None]
Alarm = Callable[[], str]


class _Pair(NamedTuple):
    arm: str
    epoch: int


class Ticket(_Pair):
    """What a request was given: the version's name, and the epoch its answer belongs to.

    ``id`` : by which it was given; no part of the pair, None of one made by hand.
    ``at_s`` : when, by the controller's clock; NaN of one made by hand.
    """

    id: str | int | bytes | None = None
    at_s: float = math.nan


class Rollout:
    """Carries out a plan, in any number of processes of which one owns it at a time.

    ``store`` : :func:`open_rollouts` by default.
    ``alarm`` : called at every look; any text it returns rolls back at once, with that as the reason, unless it has a
    ``version`` that is the control's, or a ``cause`` that is the machine's or the callers': then, and while it raises,
    nothing is promoted. ``Detection.alarm`` of :mod:`torchtriage.operate.monitor` fits here, with the plan's names of
    the versions.
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
        self._published_s = float("-inf")
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
        ticket = Ticket(self.plan.candidate if treated else self.plan.control, stage.epoch)
        ticket.id, ticket.at_s = id, self._clock()
        return ticket

    def _is_stale(self, stage: _StageData) -> bool:
        return stage.ends and self._clock() - self._read_s > STALE_S

    def metrics(self) -> list[Value]:
        """Return what a monitor's listener shows of it."""
        stage = self._stage
        share = 0.0 if self._is_stale(stage) else stage.split.share
        return [("rollout_candidate_ratio", {"rollout": self.plan.name}, share)]

    # -- where answers are collected -----------------------------------------------------------

    def record(
        self,
        ticket: tuple[str, int],
        /,
        *,
        id: str | int | bytes | None = None,
        replica: str | int | None = None,
        **values: Any,
    ) -> bool:
        """Take in what a request showed; False where its stage is over, ``UsageError`` where it names no version.

        ``id`` : what was assigned, where the ticket does not have it; without one it says nothing of the split.
        """
        self._check_fork()
        arm, epoch = ticket
        stage = self._stage
        if arm not in (self.plan.control, self.plan.candidate):
            raise UsageError(
                f"expected {self.plan.control} or {self.plan.candidate}, found {arm!r}", where=self.plan.name
            )
        if epoch != stage.epoch:
            return False
        id = getattr(ticket, "id", None) if id is None else id
        stage.record(arm, id, replica, values, self._clock(), getattr(ticket, "at_s", math.nan))
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
                    self._ask_alarm(self._state)
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
            why = self._ask_alarm(stored.state)
            lease: Lease | None = None
            evidence: StageEvidence | None = None
            rows: tuple[ExperimentRow, ...] = ()
            if self._unsaved is None:
                boot, at_s = self.store.clock(boot_id(), now_s)
                try:
                    if now_s - self._published_s >= PUBLISH_S:
                        self.store.publish(name, self.owner, self._stage.epoch, self._stage.data(now_s), now_s=at_s)
                        self._published_s = now_s
                    lease = self.store.lease(name, self.owner, boot=boot, now_s=at_s, ttl_s=LEASE_S, at_s=self._wall())
                except StoreError:
                    self._look_for_worse(stored.state, now_s)
                    raise
                others = self.store.published(name, self._stage.epoch) if lease is not None and not self._judge else {}
                others.pop(self.owner, None)
                if lease is not None or self._judge is not None:
                    told = [(at_s - then_s, data) for then_s, data in others.values()]
                    evidence, rows, failed = self._look_for_worse(stored.state, now_s, told)
                    why = why or failed
            if self._unsaved is not None:
                return self._roll_back(*self._unsaved[1:])
            if lease is None:
                self._looked_s = None
                return self._state
            if self._looked_s is None:
                self._stage.follow(self._state.last_number)
            elapsed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
            self._looked_s = now_s
            after = advance(self._state, None if why else evidence, elapsed_s)
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

    def _ask_alarm(self, state: RolloutState) -> str:
        """Roll back here where there is an alarm of the candidate; return why nothing may be promoted, if so."""
        if self._alarm is None:
            return ""
        try:
            alarm: object = self._alarm() or ""
        except Exception as error:
            # an alarm that cannot be asked is no silence
            return f"the alarm failed: {type(error).__name__}: {error}"
        if alarm and getattr(alarm, "version", None) == self.plan.control:
            return f"alarm of {self.plan.control}: {alarm}"
        if alarm and getattr(alarm, "cause", "") in NOT_THE_VERSION:
            return f"{alarm}"
        if alarm:
            self._stop_here(state, str(alarm), ())
        return ""

    def _look_for_worse(
        self, state: RolloutState, now_s: float, others: Sequence[tuple[float, str]] | None = None
    ) -> tuple[StageEvidence | None, tuple[ExperimentRow, ...], str]:
        """Return what is seen; where it is worse, send nothing to the candidate from now on.

        ``others`` : what other processes recorded, and how long ago they told; None where the store does not say.
        """
        evidence: StageEvidence | None = None
        rows: tuple[ExperimentRow, ...] = ()
        failed = ""
        if self._judge is None:
            evidence, rows = self._stage.evidence(now_s, others)
        else:
            try:
                evidence = self._judge(self._state)
            except Exception as error:
                failed = f"the evaluation failed: {type(error).__name__}: {error}"
        if evidence is not None and evidence.worse:
            self._stop_here(state, "; ".join(evidence.worse), rows)
        return evidence, rows, failed

    def _stop_here(self, state: RolloutState, reason: str, rows: tuple[ExperimentRow, ...]) -> None:
        # at once; in the store as soon as it can be written
        self._take(roll_back(state, reason))
        self._unsaved = state.epoch, reason, rows

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
        self._published_s = float("-inf")
        self._stage = _StageData(self.plan, state)


class _StageData:
    # what the requests of one stage showed, as far as this process recorded them

    def __init__(self, plan: RolloutPlan, state: RolloutState) -> None:
        self.epoch = state.epoch
        self.split = Split(plan.name, state.share)
        self.ends = state.status == "running"
        self._plan = plan
        self._experiment = self._begin_experiment() if 0 < state.share < 1 else None
        # with all requests at the candidate there is nothing to compare it with
        self._n = 0
        self._n_missing = dict.fromkeys(sorted({metric.metric for metric in (plan.metric, *plan.guardrails)}), 0)
        self._newest_s: float | None = None
        self._number = 0
        self._earlier: list[tuple[float, tuple[Arrived, Arrived]]] = []
        self._slowest_s = 0.0  # how long an answer took at most; LAG_S where that is longer or nobody knows
        self._right_s: float | None = None  # when the split was not known to be wrong
        self._lock = threading.Lock()

    def _begin_experiment(self) -> Experiment:
        plan, share = self._plan, self.split.share
        return Experiment(
            f"{plan.name} at {share:g}",
            arms={plan.control: 1 - share, plan.candidate: share},
            metric=plan.metric,
            guardrails=plan.guardrails,
            # each step may be wrong once: they share what the plan allows
            alpha=plan.alpha / len(plan.steps),
            unit="id",
        )

    def record(
        self,
        arm: str,
        id: str | int | bytes | None,
        replica: str | int | None,
        values: dict[str, Any],
        now_s: float,
        asked_s: float,
    ) -> None:
        took_s = now_s - asked_s
        with self._lock:
            self._newest_s = now_s
            # of a ticket by hand, or by another machine's clock, nobody knows
            self._slowest_s = max(self._slowest_s, took_s if 0 <= took_s < LAG_S else LAG_S)
            self._number += 1
            if self._experiment is not None:
                self._experiment.record(arm, id=id, replica=replica, **values)
            elif arm == self._plan.candidate:
                self._n += 1
                for name in self._n_missing:
                    self._n_missing[name] += finite(values.get(name)) is None

    def follow(self, number: int) -> None:
        with self._lock:
            self._number = max(self._number, number)

    def data(self, now_s: float) -> str:
        """Return all of it as text, for the process that judges."""
        with self._lock:
            state = {
                "number": self._number,
                "age_s": None if self._newest_s is None else now_s - self._newest_s,
                "slowest_s": self._slowest_s,
                "n": self._n,
                "n_missing": self._n_missing,
                "experiment": self._experiment.state() if self._experiment is not None else None,
            }
        return msgspec.json.encode(state).decode()

    def evidence(
        self, now_s: float, others: Sequence[tuple[float, str]] | None = None
    ) -> tuple[StageEvidence, tuple[ExperimentRow, ...]]:
        """Return what this process and others recorded, and the comparisons behind it."""
        plan = self._plan
        with self._lock:
            ages = [] if self._newest_s is None else [now_s - self._newest_s]
            number, n, n_missing = self._number, self._n, Counter(self._n_missing)
            lag_s = self._slowest_s
            joined = own = self._experiment
            if own is not None and others:
                joined = self._begin_experiment()
                joined.restore(own.state())
        for told_s, text in others or ():
            with undamaged(plan.name, "what another process recorded"):
                data = msgspec.json.decode(text)
                number += data["number"]
                n += data["n"]
                lag_s = max(lag_s, told_s + data["slowest_s"])
                n_missing.update(data["n_missing"])
                if data["age_s"] is not None:
                    ages.append(told_s + data["age_s"])
                if joined is not None:
                    other = self._begin_experiment()
                    other.restore(data["experiment"])
                    joined.join(other)
        age_s = min(ages, default=None)
        if joined is not None:
            evidence, rows = self._compared(joined.result(), number, age_s)
            # alone, one that answers for one version would find that the other gets nothing
            return self._check_split(evidence, joined, now_s, math.inf if others is None else min(lag_s, LAG_S)), rows
        missing = [
            _too_few(name, lost, n, plan.candidate) for name, lost in n_missing.items() if lost > plan.most_missing * n
        ]
        return StageEvidence(self.epoch, number, age_s, 0, n, tuple(missing)), ()

    def _compared(
        self, result: ExperimentResult, number: int, age_s: float | None
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
        n_control, n_candidate = result.control.n_requests, result.candidate.n_requests
        evidence = StageEvidence(self.epoch, number, age_s, n_control, n_candidate, tuple(missing), tuple(worse))
        return evidence, result.rows

    def _check_split(self, evidence: StageEvidence, joined: Experiment, now_s: float, lag_s: float) -> StageEvidence:
        # The newest of one arm may not be there yet, as answers take time and processes tell at different moments: the
        # split is wrong where it is so with either arm as it was before that, for longer than a version stands still.
        with self._lock:
            newest = joined.arrived()
        self._earlier.append((now_s, newest))
        while len(self._earlier) > 1 and now_s - self._earlier[1][0] >= LAG_S:
            del self._earlier[0]
        before = next((arrived for then_s, arrived in reversed(self._earlier) if now_s - then_s >= lag_s), None)
        ways = before and {joined.deviation(before[0], newest[1]), joined.deviation(newest[0], before[1])}
        if self._right_s is None or ways not in ({-1}, {1}):
            self._right_s = now_s
        if not joined.deviation(*newest):
            return evidence
        text = broken(self._plan.candidate, self.split.share, (newest[0].units, newest[1].units))
        if now_s - self._right_s >= LAG_S:
            return replace(evidence, worse=(*evidence.worse, text))
        return replace(evidence, missing=(*evidence.missing, f"{text}, in the answers received so far"))


def _too_few(name: str, lost: int, n: int, arm: str) -> str:
    return f"{name}: {format_share(lost / n)} of {arm}'s requests have no usable value"
