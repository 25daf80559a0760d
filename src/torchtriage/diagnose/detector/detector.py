"""The detector: how likely a window holds an anti-pattern, which, and is it like what it learned.

Its weights are a file of arrays that ``torchtriage benchmark learn train`` writes; the card beside them says
what they were trained on and how good they are. It gives an opinion only: no finding, cost or place
ever comes from here.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats
from torchtriage.core.errors import UsageError
from torchtriage.core.trace.columns import Trace
from torchtriage.diagnose.detector.device_costs import Account, Rows, weighed
from torchtriage.diagnose.detector.families import FRAME_FAMILIES, HOST_FAMILIES, WORK_FAMILIES
from torchtriage.diagnose.detector.features import NAMES, PER_STEP, window_features
from torchtriage.diagnose.detector.forest import Forest, kept

DOMAINS = ("host", "device")
"""Recordings of a CPU alone, and those with work of a device: windows of the two have little in common."""

WEIGHTS = "weights.npz"
LEAST_SCALE = 1e-3
"""The scale of a feature that never varied."""
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy and zipfile raise when a file is not what they wrote."""
_NEW = 0.05
_NAMED = 0.01
"""A type less likely than this is not reported."""


@dataclass(frozen=True, eq=False)
class Judged:
    """What the detector finds in windows.

    ``probability`` : float[n], that an anti-pattern is in it. ``types`` : per window, how likely it
    is each type if there is one. ``unusual`` : bool[n], unlike anything it learned from, so that
    its probability means nothing. ``certain`` : how likely a window must be of its likeliest type for that to be worth
    telling.
    """

    probability: Floats
    types: tuple[dict[str, float], ...]
    unusual: NDArray[np.bool_]
    certain: float = 0.0

    @property
    def confident(self) -> NDArray[np.bool_]:
        """bool[n]: windows of which the likeliest type is certain enough, and that are not unusual."""
        likely = np.array([max(shares.values(), default=0.0) for shares in self.types])
        return (self.probability * likely >= self.certain) & ~self.unusual


@dataclass(frozen=True, eq=False)
class Likeness:
    """How far a window is from those the detector learned from.

    Features are scaled, their main directions taken, and the distance to the nearest of some
    centres is compared with ``limit``, a quantile of that distance among windows of model families
    that were not trained on. What never varied in them, such as a device where there was none, must
    be as it was, or the distance is infinite.
    """

    centre: Rows
    scale: Rows
    directions: Rows
    centres: Rows
    limit: float

    def distance(self, rows: Rows) -> Floats:
        """Return float64[n]: the distance to the nearest centre."""
        flat = self.flat(rows)
        squares = (
            (flat**2).sum(axis=1)[:, None]
            - 2 * flat @ self.centres.T
            + (self.centres.astype(np.float64) ** 2).sum(axis=1)
        )
        never = self.scale <= LEAST_SCALE
        new = (np.abs(rows[:, never] - self.centre[never]) > _NEW).any(axis=1)
        return np.where(new, np.inf, np.sqrt(np.maximum(squares.min(axis=1), 0)))

    def flat(self, rows: Rows) -> Floats:
        """Return float64[n, directions]: rows in the main directions."""
        # nothing is further out than this: one odd feature is not a hundred
        scaled = np.clip((rows - self.centre) / self.scale, -10, 10)
        return (scaled @ self.directions).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Trees:
    """What was learned. ``faulty`` has one output, ``kinds`` one for each of ``codes``.

    ``slope``, ``offset`` : turn the output into a calibrated probability.
    """

    faulty: Forest
    kinds: Forest
    codes: tuple[str, ...]
    slope: float
    offset: float

    def probability(self, rows: Rows) -> Floats:
        """Return float64[n]: how likely an anti-pattern is in each window."""
        return 1 / (1 + np.exp(-np.clip(self.odds(rows), -50, 50)))

    def odds(self, rows: Rows) -> Floats:
        """Return float64[n]: the logarithm of the odds of an anti-pattern in each window."""
        return self.slope * self.margin(rows) + self.offset

    def margin(self, rows: Rows) -> Floats:
        """Return float64[n]: how suspicious each window is, halfway to the mean of its place in all steps.

        Steps are alike; windows that do not come in whole steps stand alone.
        """
        margin: Floats = self.faulty(rows)[:, 0]
        if len(rows) % PER_STEP:
            return margin
        usual: Floats = margin.reshape(-1, PER_STEP).mean(axis=0)
        return (margin + np.tile(usual, len(rows) // PER_STEP)) / 2

    def types(self, rows: Rows) -> tuple[dict[str, float], ...]:
        """Return per window how likely it is each type, if there is one."""
        return self.named(self.shares(rows))

    def shares(self, rows: Rows) -> Floats:
        """Return float64[n, codes]: how likely each window is each type, if there is one."""
        margins = self.kinds(rows)
        if margins.shape[1] == 1:  # of two types: how much more likely the second is
            margins = np.column_stack([np.zeros(len(rows)), margins[:, 0]])
        shares = np.exp(margins - margins.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares.astype(np.float64)

    def named(self, shares: Floats) -> tuple[dict[str, float], ...]:
        """Return per window the types that are worth a mention, by their codes."""
        return tuple(
            {self.codes[at]: float(row[at]) for at in np.flatnonzero(row >= _NAMED).tolist()} for row in shares
        )


@dataclass(frozen=True, eq=False)
class Expert:
    """What was learned of one domain.

    ``enough`` : a trace that is less suspicious than this of each type is held to be healthy. ``certain`` : of windows
    that are this likely faulty and of their type, nine in ten are, on recordings that the trees did not grow on.
    """

    trees: Trees
    enough: float
    certain: float
    likeness: Likeness
    account: Account | None = None

    def judge(self, rows: Rows, *, made_up: bool = False) -> Judged:
        """Return what is found in windows with these features.

        ``made_up`` : a device was only simulated, with one fault that may cost little: its account is not asked.
        """
        unusual = self.likeness.distance(rows) > self.likeness.limit
        if self.account and not made_up:
            types = self.trees.named(weighed(self.trees.shares(rows), rows, self.trees.codes))
            probability = self.account.probability(self.trees.odds(rows), rows)
            return Judged(probability, types, unusual, self.account.certain)
        return Judged(self.trees.probability(rows), self.trees.types(rows), unusual, self.certain)

    def arrays(self, prefix: str) -> dict[str, Any]:
        """Return the arrays by name, to be kept."""
        likeness = {f"{prefix}.{name}": getattr(self.likeness, name) for name in _LIKENESS}
        return self.trees.faulty.arrays(f"{prefix}.faulty") | self.trees.kinds.arrays(f"{prefix}.kinds") | likeness

    @property
    def facts(self) -> dict[str, Any]:
        """Numbers and names, to be kept."""
        trees = self.trees
        return {
            "codes": trees.codes,
            "slope": trees.slope,
            "offset": trees.offset,
            "enough": self.enough,
            "certain": self.certain,
            "limit": self.likeness.limit,
            "account": asdict(self.account) if self.account else None,
        }

    @classmethod
    def of(cls, arrays: Mapping[str, Any], prefix: str, facts: Mapping[str, Any]) -> Expert:
        """Return the one that was kept under this name.

        Raises KeyError, ValueError: it is not there, or damaged.
        """
        centre, scale = (kept(arrays, f"{prefix}.{name}", "f", len(NAMES)) for name in _LIKENESS[:2])
        directions = kept(arrays, f"{prefix}.directions", "f", len(NAMES), -1)
        centres = kept(arrays, f"{prefix}.centres", "f", -1, directions.shape[1])
        likeness = Likeness(centre, scale, directions, centres, _number(facts["limit"]))
        trees = Trees(
            Forest.of(arrays, f"{prefix}.faulty"),
            Forest.of(arrays, f"{prefix}.kinds"),
            tuple(facts["codes"]),
            _number(facts["slope"]),
            _number(facts["offset"]),
        )
        n_outputs = 1 if len(trees.codes) == 2 else len(trees.codes)
        outputs = len(trees.faulty.base), len(trees.kinds.base)
        if len(trees.codes) < 2 or outputs != (1, n_outputs) or not len(centres):
            raise ValueError(f"{len(trees.codes)} types and {len(trees.kinds.base)} outputs, {len(centres)} centres")
        costs = facts.get("account")
        account = Account(**{name: _number(value) for name, value in costs.items()}) if costs else None
        return cls(trees, _number(facts["enough"]), _number(facts["certain"]), likeness, account)


def _number(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} for a number")
    return float(value)


_LIKENESS = ("centre", "scale", "directions", "centres")
_HAS_DEVICE = NAMES.index("has device")


def domain_of(rows: Rows) -> str:
    """Return the domain of a recording from its windows' features."""
    return DOMAINS[int((rows[:, _HAS_DEVICE] > 0).any())]


@dataclass(frozen=True, eq=False)
class Detector:
    """Trained weights. ``experts`` : by domain. ``about`` : how they were trained."""

    experts: Mapping[str, Expert]
    about: Mapping[str, Any]

    def predict(self, trace: Trace, windows_ns: NDArray[np.int64]) -> Judged:
        """Return what is found in the windows of a trace."""
        return self.judge(window_features(trace, windows_ns))

    def judge(self, rows: Rows, *, made_up: bool = False) -> Judged:
        """Return what is found in a recording's windows, by their features.

        All are unusual in a domain of which nothing was learned. ``made_up`` : see :meth:`Expert.judge`.
        """
        expert = self.experts.get(domain_of(rows))
        if expert is None:
            nothing: tuple[dict[str, float], ...] = tuple({} for _ in rows)
            return Judged(np.zeros(len(rows)), nothing, np.ones(len(rows), np.bool_))
        return expert.judge(rows, made_up=made_up)

    # -- kept ------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the weights' file: the same weights, the same bytes."""
        facts = {
            "experts": {domain: expert.facts for domain, expert in self.experts.items()},
            "features": features_digest(),
            "about": dict(self.about),
        }
        arrays: dict[str, Any] = {"told": np.frombuffer(json.dumps(facts, sort_keys=True).encode(), np.uint8)}
        for domain, expert in self.experts.items():
            arrays |= expert.arrays(domain)
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)
        return stream.getvalue()

    @classmethod
    def load(cls, path: Path | None = None) -> Detector:
        """Read weights; those that come with the package by default.

        Raises UsageError: there are none, they are damaged, or they were made for other features.
        """
        where = str(path) if path else f"the package's {WEIGHTS}"
        source = path or files(__package__).joinpath(WEIGHTS)
        again = "torchtriage benchmark learn train FOLDER --out FILE makes them"
        try:
            data = source.read_bytes()
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return cls._of({name: arrays[name] for name in arrays.files}, where)
        except _UNREADABLE as error:
            raise UsageError(f"expected a detector's weights in {where}, found {error}", hint=again) from error

    @classmethod
    def _of(cls, arrays: Mapping[str, Any], where: str) -> Detector:
        facts = json.loads(arrays["told"].tobytes())
        if facts["features"] != features_digest():
            raise UsageError(
                f"expected weights for the features of this version, found others in {where}",
                hint="torchtriage benchmark learn train FOLDER --out FILE trains them again",
            )
        experts = {domain: Expert.of(arrays, domain, told) for domain, told in facts["experts"].items()}
        return cls(experts, facts["about"])


def features_digest() -> str:
    """Return what distinguishes one set of features from another."""
    tables = (NAMES, HOST_FAMILIES, WORK_FAMILIES, FRAME_FAMILIES)
    return hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:16]
