"""The plan of a rollout, its state and how it moves: plain functions over frozen values.

The rules, each of them a test:

- The share is that of the stage, never more, and zero once it is rolled back.
- A stage is left upwards by one step alone, on evidence of this stage that is new, fresh and whole:
  enough requests of both versions, every metric there, none of them worse, watched long enough.
- Evidence that the candidate is worse rolls back at once, from whichever stage it is.
- Whatever is missing, late, repeated or no number holds the stage, and the state says why.
- No clock is trusted further than the next look: the time a stage was watched is a sum of the
  spans between looks, each cut to a few seconds, so no jump of a clock promotes anything.
"""

from __future__ import annotations

import math
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Literal

from torchtriage.core.errors import UsageError
from torchtriage.core.units import format_count
from torchtriage.operate.experiment.metrics import Metric, Rate, Tail, Typical, check_metrics

STEPS = (0.01, 0.05, 0.2, 0.5, 1.0)
Status = Literal["running", "done", "rolled back"]

LONGEST_LOOK_S = 5.0  # between looks; what is longer was not watched


@dataclass(frozen=True)
class RolloutPlan:
    """What a rollout is to do.

    ``name`` : also the salt of the split: the same requests are the first ones at every step.
    ``steps`` : shares of requests that go to the candidate, growing, 1.0 at the end.
    ``metric``, ``guardrails`` : what must not get worse at any step (see :mod:`torchtriage.operate.experiment`).
    ``least_requests`` : requests of the candidate that a step needs, and as many of the control.
    ``least_s`` : how long a step is watched, seconds; time in which nobody watches does not count.
    ``fresh_s`` : evidence that is older counts as missing.
    ``most_missing`` : share of the candidate's requests without a metric above which that metric is missing.
    ``alpha`` : chance that a candidate as good as the control is ever rolled back for a guardrail, over all steps
    together; and again as much for the metric. What all processes recorded is judged together.
    ``control``, ``candidate`` : how people call the versions.
    Raises ``UsageError``: a plan that cannot be carried out.
    """

    name: str
    steps: tuple[float, ...] = STEPS
    metric: Typical = field(default_factory=lambda: Typical("latency_s", worse_than=1.05))
    guardrails: tuple[Metric, ...] = (Tail("latency_s"), Rate("error"))
    least_requests: int = 500
    least_s: float = 300.0
    fresh_s: float = 30.0
    most_missing: float = 0.02
    alpha: float = 0.05
    control: str = "control"
    candidate: str = "candidate"

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be carried out."""
        name: object = self.name
        if not isinstance(name, str) or not name or "\0" in name:
            raise UsageError(f"expected a name of the rollout, found {name!r}")
        # what is stored comes back as tuples of Python's numbers, and is compared with this: sets need an order
        given: Any = self.steps
        steps = [_number(step, "each step", self.name) for step in _items(given, "steps", self.name)]
        object.__setattr__(self, "steps", tuple(sorted(steps) if isinstance(given, Set) else steps))
        given = self.guardrails
        guardrails = _items(given, "guardrails", self.name)
        in_order = tuple(sorted(guardrails, key=repr)) if isinstance(given, Set) else guardrails
        object.__setattr__(self, "guardrails", in_order)
        for what in ("control", "candidate"):
            if not isinstance(getattr(self, what), str):
                raise UsageError(f"expected text as {what}, found {getattr(self, what)!r}", where=self.name)
        for what in ("least_requests", "least_s", "fresh_s", "most_missing", "alpha"):
            object.__setattr__(self, what, _number(getattr(self, what), what, self.name))
        check_metrics(self.metric, self.guardrails, self.name)
        if not self.steps or not all(a < b for a, b in pairwise((0.0, *self.steps))) or self.steps[-1] != 1.0:
            raise UsageError(f"expected steps that grow and end at 1.0, found {self.steps}", where=self.name)
        if self.control == self.candidate:
            raise UsageError(f"expected two names of versions, found {self.control!r} twice", where=self.name)
        for what, value in (("least_requests", self.least_requests), ("fresh_s", self.fresh_s)):
            if not 0 < value < math.inf:
                raise UsageError(f"expected {what} above zero, found {value}", where=self.name)
        if not 0 <= self.least_s < math.inf:
            raise UsageError(f"expected least_s of 0 or more, found {self.least_s}")
        for what, share in (("most_missing", self.most_missing), ("alpha", self.alpha)):
            if not 0 < share < 0.5:
                raise UsageError(f"expected {what} of 0 to 0.5, found {share}", where=self.name)


def _items(given: Any, what: str, where: str) -> tuple[Any, ...]:
    # some have the method and cannot be iterated, such as an array of no dimension
    with suppress(TypeError):
        if not isinstance(given, str):
            return tuple(given)
    raise UsageError(f"expected {what} as a list or tuple, found {given!r}", where=where)


def _number(value: Any, what: str, where: str) -> int | float:
    # also NumPy's, which cannot be stored
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise UsageError(f"expected a number as {what}, found {value!r}", where=where)
    return int(value) if isinstance(value, Integral) else float(value)


@dataclass(frozen=True)
class StageEvidence:
    """What is known of a stage.

    ``epoch`` : of the state it is about. ``number`` : grows from one to the next within an epoch.
    ``age_s`` : how long ago the newest request of it was; None or NaN where nobody knows.
    ``n_control``, ``n_candidate`` : requests of this stage. ``missing`` : what is not there, in
    words; anything here holds the stage. ``worse`` : why it must go back, empty where nothing is.
    """

    epoch: int
    number: int
    age_s: float | None
    n_control: float
    n_candidate: float
    missing: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()


@dataclass(frozen=True)
class RolloutState:
    """Where a rollout stands.

    ``epoch`` grows with every change of stage or status. ``watched_s`` and ``last_number`` are of
    this stage. ``waiting`` : why it has not moved on.
    """

    plan: RolloutPlan
    status: Status = "running"
    stage: int = 0
    epoch: int = 1
    watched_s: float = 0.0
    last_number: int = -1
    waiting: str = "nothing seen yet"

    def __post_init__(self) -> None:
        """Refuse a stage that the plan does not have."""
        if not 0 <= self.stage < len(self.plan.steps):
            raise ValueError(f"stage {self.stage} of {len(self.plan.steps)}")

    @property
    def share(self) -> float:
        """Share of requests that go to the candidate."""
        return 0.0 if self.status == "rolled back" else self.plan.steps[self.stage]


def advance(state: RolloutState, evidence: StageEvidence | None, elapsed_s: float) -> RolloutState:
    """Return the state after one look.

    ``elapsed_s`` : since the look before, by a clock that may be wrong.
    """
    if state.status != "running":
        return state
    # a clock that went back, or that nobody looked at for long, has watched nothing
    span_s = elapsed_s if 0 <= elapsed_s <= LONGEST_LOOK_S else 0.0
    seen = replace(state, watched_s=state.watched_s + span_s)
    if evidence is None:
        return replace(seen, waiting="no evidence")
    if evidence.worse:
        return roll_back(seen, "; ".join(evidence.worse))
    if evidence.epoch != state.epoch:
        return replace(seen, waiting="the evidence is from another step")
    if evidence.number <= state.last_number:
        return replace(seen, waiting=_stale(state.plan, evidence) or "nothing new since the last poll")
    seen = replace(seen, last_number=evidence.number)
    held = _held(seen, evidence)
    return replace(seen, waiting=held) if held else climb(seen)


def climb(state: RolloutState) -> RolloutState:
    """Return the state one step up, or done after the last."""
    if state.stage == len(state.plan.steps) - 1:
        return _moved(state, status="done", waiting="")
    return _moved(state, stage=state.stage + 1, waiting="nothing seen yet")


def roll_back(state: RolloutState, reason: str) -> RolloutState:
    """Return the state that sends nothing to the candidate any more."""
    if state.status == "rolled back":
        return state
    return _moved(state, status="rolled back", waiting=reason)


def _moved(state: RolloutState, **changes: Any) -> RolloutState:
    return replace(state, epoch=state.epoch + 1, watched_s=0.0, last_number=-1, **changes)


def _held(state: RolloutState, evidence: StageEvidence) -> str:
    # why the stage is not left yet; empty where it is
    plan = state.plan
    if not all(0 <= n < math.inf for n in (evidence.n_control, evidence.n_candidate)):
        return "the request counts are not numbers"
    if stale := _stale(plan, evidence):
        return stale
    if evidence.missing:
        return "; ".join(evidence.missing)
    # with all requests at the candidate there is no control left
    wanted = [(plan.candidate, evidence.n_candidate)]
    if state.share < 1:
        wanted.append((plan.control, evidence.n_control))
    for name, n in wanted:
        if n < plan.least_requests:
            return f"{format_count(n)} of {format_count(plan.least_requests, 'request')} of {name}"
    if state.watched_s < plan.least_s:
        return f"watched for {state.watched_s:.0f} of {plan.least_s:g} s"
    return ""


def _stale(plan: RolloutPlan, evidence: StageEvidence) -> str:
    age_s = evidence.age_s
    known = age_s is not None and 0 <= age_s <= plan.fresh_s
    return "" if known else f"no request was seen in the last {plan.fresh_s:g} s"
