"""Which windows are worth a look: where a grave finding costs most, then what detector and rules suspect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Finding
from torchtriage.core.units import format_count
from torchtriage.diagnose.detector.detector import Judged

SURE = {"certain": 0.9, "likely": 0.7, "hint": 0.4}
"""How suspicious a window is that a rule covers."""
LEAST = 0.3
"""Windows less suspicious, and without a finding, are calm."""


@dataclass(frozen=True)
class Suspect:
    """A window, how suspicious it is, and what stands out: alike where steps are alike.

    ``finding_place`` : the highest place of a finding of high severity that costs most here; 0 for none.
    ``touched`` : a finding lies here, or is about the whole recording. The rest is what the detector says of it; see
    :class:`~torchtriage.diagnose.detector.detector.Judged`.
    """

    window_ns: tuple[int, int]
    suspicion: float
    stands_out: str
    finding_place: int = 0
    touched: bool = False
    probability: float | None = None
    types: Mapping[str, float] = field(default_factory=dict)
    unusual: bool = False
    confident: bool = False


def suspects(
    windows_ns: Ints, places: int, findings: Sequence[Finding], judged: Judged | None = None
) -> tuple[Suspect, ...]:
    """Return all windows, most suspicious first.

    ``windows_ns`` : int64[n, 2], of which a step has ``places``. ``judged`` : what the detector says of them.
    """
    length_ns = np.maximum(windows_ns[:, 1] - windows_ns[:, 0], 1)
    suspicion = np.zeros(len(windows_ns))
    finding_place, touched = np.zeros(len(windows_ns), int), np.zeros(len(windows_ns), bool)
    names = np.array([f"place {at % places + 1} of a step" for at in range(len(windows_ns))], object)
    for number, finding in enumerate(findings, 1):
        spans = intervals.union(np.array(finding.place.intervals_ns, np.int64).reshape(-1, 2))
        covered_ns = intervals.covered(windows_ns, spans)
        share = covered_ns / length_ns
        touched |= (covered_ns > 0) | (not len(spans))
        if finding.severity == "high" and len(windows_ns):
            at = _most_expensive(windows_ns, spans, covered_ns, suspicion)
            finding_place[at] = finding_place[at] or number
        by_rule = share * SURE[finding.certainty]
        names[(by_rule >= LEAST) & (by_rule > suspicion)] = f"{finding.code}, finding {number}"
        suspicion = np.maximum(suspicion, by_rule)
    if judged is not None:
        trusted = np.where(judged.unusual, 0.0, judged.probability)
        suspicion = np.maximum(suspicion, trusted)
    confident = np.zeros(len(windows_ns), bool) if judged is None else judged.confident
    order = np.argsort(-suspicion, kind="stable").tolist()
    return tuple(
        Suspect(
            (int(windows_ns[at, 0]), int(windows_ns[at, 1])),
            float(suspicion[at]),
            names[at],
            int(finding_place[at]),
            bool(touched[at]),
            None if judged is None else float(judged.probability[at]),
            {} if judged is None else judged.types[at],
            bool(judged is not None and judged.unusual[at]),
            bool(confident[at]),
        )
        for at in order
    )


def _most_expensive(windows_ns: Ints, spans: Ints, covered_ns: Ints, suspicion: NDArray[np.float64]) -> int:
    """Return the window with most of a finding; the nearest where it lies outside, the oddest where it has no place."""
    if not len(spans):
        return int(suspicion.argmax())
    if covered_ns.any():
        return int(covered_ns.argmax())
    longest = spans[(spans[:, 1] - spans[:, 0]).argmax()]
    return int(np.abs(windows_ns.mean(axis=1) - longest.mean()).argmin())


def worth_a_look(found: Sequence[Suspect], limit: int) -> tuple[list[Suspect], list[tuple[Suspect, str]]]:
    """Return the windows to review, and the suspicious ones that are not, each with the reason.

    Where a finding of high severity costs most goes first. Steps are alike: of the windows in which one finding stands
    out, or that lie at one place of their steps, the most suspicious stands for the others.
    """
    chosen: list[Suspect] = []
    left: list[tuple[Suspect, str]] = []
    for item in sorted(found, key=lambda item: item.finding_place or len(found) + 1):
        if item.suspicion < LEAST and not item.finding_place:
            if item.touched:
                left.append((item, "findings overlap it, none stands out"))
        elif not item.finding_place and any(item.stands_out == other.stands_out for other in chosen):
            left.append((item, f"another window represents {item.stands_out}"))
        elif len(chosen) < limit:
            chosen.append(item)
        else:
            left.append((item, f"less suspicious than the {format_count(limit, 'window', 'windows')} reviewed"))
    return chosen, left
