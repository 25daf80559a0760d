"""What a gate says: the dataclasses are the JSON documents.

``torchtriage-gate/1`` is one check of a candidate against its baseline, ``torchtriage-gate-history/1`` the change
points along commits. Values are in the unit of their series, ratios are after over before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtriage.core.finding import Note
from torchtriage.core.samples import Better, Kind

GATE_SCHEMA = "torchtriage-gate/1"
HISTORY_SCHEMA = "torchtriage-gate-history/1"

Outcome = Literal["fine", "regression", "inconclusive", "infrastructure"]
RowVerdict = Literal["regression", "improvement", "same", "inconclusive", "refused"]

EXIT_CODES: dict[Outcome, int] = {"fine": 0, "regression": 1, "inconclusive": 2, "infrastructure": 3}


@dataclass(frozen=True)
class Classic:
    """What people ask for and what never decides: tests on the sessions' values.

    None where it is not defined (fewer than two sessions, no spread).
    """

    welch_p: float | None
    mann_whitney_p: float | None
    cohen_d: float | None


@dataclass(frozen=True)
class SideAmount:
    """One side of a row.

    ``value`` : the statistic, in the middle over sessions. ``low high`` : for tails, the interval in which the
    quantile lies; None otherwise. ``sessions`` : the statistic of each session, at most 400 of them, in time order;
    where rows are paired, both sides' are pairs.
    """

    value: float
    low: float | None
    high: float | None
    n_sessions: int
    n_values: int
    sessions: tuple[float, ...]


@dataclass(frozen=True)
class MetricRow:
    """One statistic of one metric, judged.

    ``decides`` : the gate waits for an answer here; other rows fail it only by a shown regression. ``ratio low
    high`` : after over before and its interval at ``level``. ``p_value`` : of no change, two-sided; ``adjusted_p``
    : of none this way, corrected for all rows. ``max_regress`` : the smallest change that matters, as a share.
    ``floor`` : the A/A noise floor, as a share. ``pairs_needed`` : sessions per side, in all, that would tell if
    the change is as estimated; None where unknown. ``sentence`` : the answer with its numbers.
    """

    benchmark: str
    metric: str
    statistic: str
    unit: str
    better: Better
    kind: Kind
    verdict: RowVerdict
    decides: bool
    sentence: str
    max_regress: float
    before: SideAmount | None = None
    after: SideAmount | None = None
    paired: bool = False
    level: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    adjusted_p: float | None = None
    floor: float = 0.0
    pairs_needed: int | None = None
    classic: Classic | None = None


@dataclass(frozen=True)
class HostNoise:
    """Whether others disturbed a side's processes.

    ``off_cpu`` : share of the wall time that they were not on a CPU, over all values with a CPU time; None where
    none was recorded. ``slow_share`` : of the values, those at least 1.5 times the median of their session.
    ``noisy`` : as it was declared when they ran, else by these two.
    """

    off_cpu: float | None
    slow_share: float
    noisy: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """What one side was measured on.

    ``label`` : how it was named (a commit, a branch, a file, a command). ``machine`` : names and values;
    ``fingerprint`` over those that make times comparable.
    """

    label: str
    commits: tuple[str, ...]
    branch: str
    n_runs: int
    recorded_from_s: float
    recorded_to_s: float
    machine: tuple[tuple[str, str], ...]
    fingerprint: str
    host: HostNoise


@dataclass(frozen=True)
class Stopping:
    """An interleaved measurement: rounds that were run, and why no more.

    ``looks`` : how often the verdict was looked at; the interval is widened for that.
    """

    n_rounds: int
    max_rounds: int
    looks: int
    reason: str


@dataclass(frozen=True)
class Culprit:
    """What changed in the kept traces of a benchmark that regressed; ``causes`` largest first.

    ``place`` : ``file:line`` of a finding that came, empty where none names a line.
    """

    benchmark: str
    before: str
    after: str
    sentence: str
    causes: tuple[str, ...]
    came: tuple[str, ...]
    place: str


@dataclass(frozen=True)
class GateResult:
    """One check.

    ``alpha`` : how often a check of equal programs may fail, over all rows together. ``design`` : ``interleaved``
    sessions are compared in pairs, ``stored`` ones side by side. ``rows`` : regressions first.
    """

    schema: str
    version: str
    outcome: Outcome
    exit_code: int
    verdict: tuple[str, str, str]
    design: Literal["interleaved", "stored"]
    alpha: float
    correction: str
    before: Side | None
    after: Side | None
    rows: tuple[MetricRow, ...]
    culprits: tuple[Culprit, ...]
    notes: tuple[Note, ...]
    stopping: Stopping | None = None


@dataclass(frozen=True)
class Point:
    """One commit of a track: the statistic, in the middle over its sessions."""

    commit: str
    recorded_at_s: float
    value: float
    n_sessions: int
    n_runs: int


@dataclass(frozen=True)
class MetricChangePoint:
    """The level changed with the commit ``points[index]``, after ``previous``.

    ``before after`` : level of the stretch before and of the one from it on. ``ratio`` : after over before; None
    where before is zero. ``p_value`` : the chance of such a change somewhere in both stretches if nothing changed;
    None for counts, which are exact. ``worse`` : in the direction that is not better.
    """

    index: int
    commit: str
    previous: str
    before: float
    after: float
    ratio: float | None
    p_value: float | None
    worse: bool


@dataclass(frozen=True)
class Track:
    """One statistic of one metric along commits, on one machine.

    ``refused`` : why no change was looked for, empty where it was.
    """

    benchmark: str
    metric: str
    statistic: str
    unit: str
    better: Better
    kind: Kind
    fingerprint: str
    points: tuple[Point, ...]
    changes: tuple[MetricChangePoint, ...]
    refused: str = ""


@dataclass(frozen=True)
class HistoryResult:
    """Change points along the commits of a branch."""

    schema: str
    version: str
    verdict: tuple[str, str, str]
    branch: str
    min_change: float
    tracks: tuple[Track, ...]
    notes: tuple[Note, ...]
