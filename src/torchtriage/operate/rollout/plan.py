"""What a rollout is to do: its steps, and what each of them has to show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torchtriage.core.errors import UsageError
from torchtriage.operate.experiment.metrics import Metric, Rate, Tail, Typical

__all__ = ["STEPS", "RolloutPlan"]

STEPS = (0.01, 0.05, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class RolloutPlan:
    """What a rollout is to do.

    Parameters
    ----------
    name : str
        Also the salt of the split: the same requests are the first ones at every step.
    steps : tuple of float
        Shares of requests that go to the candidate, growing, 1.0 at the end.
    metric, guardrails
        What must not get worse at any step (see :mod:`torchtriage.operate.experiment`).
    least_requests : int
        Requests of the candidate that a step needs, and as many of the control.
    least_s : float
        How long a step is watched, seconds; time in which nobody watches does not count.
    fresh_s : float
        Evidence that is older counts as missing.
    most_missing : float
        Share of the candidate's requests without a metric above which that metric is missing.
    alpha : float
        Chance that a candidate as good as the control is ever rolled back for a guardrail, over all
        steps together; and again as much for the metric. Where several processes record, each
        takes its own chance.
    control, candidate : str
        How people call the versions.

    Raises
    ------
    UsageError
        A plan that cannot be carried out.
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
        steps = self.steps
        if not self.name or "\0" in self.name:
            raise UsageError(f"expected a name of the rollout, found {self.name!r}")
        growing = all(a < b for a, b in zip((0.0, *steps), steps, strict=False))
        if not steps or not growing or steps[-1] != 1.0:
            raise UsageError(f"expected steps that grow and end at 1.0, found {steps}", where=self.name)
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
