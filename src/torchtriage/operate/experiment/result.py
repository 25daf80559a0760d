"""What an experiment says: the dataclasses are the JSON document ``torchtriage-experiment/1``.

Ratios are candidate over control. Infinite ends of intervals are None: nothing is excluded there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchtriage.core.finding import Note
from torchtriage.core.version import __version__

EXPERIMENT_SCHEMA = "torchtriage-experiment/1"

Verdict = Literal["worse", "better", "undecided", "no data"]
Decision = Literal["worse", "better", "undecided", "broken"]


@dataclass(frozen=True)
class Arm:
    """One version. ``share`` is the planned one; ``n_replicas`` None where nobody named them."""

    name: str
    share: float
    n_requests: int
    n_replicas: int | None = None


@dataclass(frozen=True)
class ExperimentRow:
    """One metric, compared.

    ``kind`` : ``typical`` compares geometric means, ``tail`` how often values pass the quantile ``p``, where the
    candidate's may be ``worse_than`` times as large, ``rate`` how often the event happens. ``worse_than`` : the ratio
    that is still allowed, of values or, for ``rate``, of how often. ``alpha`` : chance that this row is ever wrongly
    called worse (or, of the metric, decided at all). ``n_missing`` : requests without this metric or with NaN.
    ``block`` : requests that make one independent observation; 5 and above for means, 1 for events that are all
    counted. ``explained`` : share of the variance that the covariate took away. ``decided_at`` : requests of both arms
    when the verdict was reached.
    """

    name: str
    metric: str
    kind: Literal["typical", "tail", "rate"]
    role: Literal["metric", "guardrail"]
    verdict: Verdict
    better: Literal["lower", "higher"]
    worse_than: float
    alpha: float
    ratio: float | None
    low: float | None
    high: float | None
    n: tuple[int, int]
    n_missing: tuple[int, int]
    n_events: tuple[int, int] | None = None
    block: int = 1
    explained: float | None = None
    decided_at: int | None = None
    sentence: str = ""


@dataclass(frozen=True)
class ExperimentResult:
    """What is known now. ``control`` and ``candidate`` in this order in every pair of a row.

    ``decision`` : ``worse`` and ``better`` mean that it may be stopped, ``broken`` that requests do
    not arrive in the planned shares, so that nothing can be concluded. It never becomes
    ``undecided`` again, but of ``better`` a guardrail may make ``worse``.
    """

    name: str
    decision: Decision
    verdict: tuple[str, ...]
    control: Arm
    candidate: Arm
    rows: tuple[ExperimentRow, ...]
    unit: str = "request"
    notes: tuple[Note, ...] = ()
    version: str = __version__
    schema: str = field(default=EXPERIMENT_SCHEMA, kw_only=True)
