"""Where the learned detector sees more than the findings: parts of the steps, by place.

Only what is likely, of a type it is certain of, like what it learned from, covered by no finding and of no type that
was found; steps are alike, so a place counts when it is suspicious in most of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.finding import Finding
from torchtriage.core.trace import Kind, Trace
from torchtriage.diagnose.detector.detector import Detector, Judged
from torchtriage.diagnose.detector.features import PER_STEP, windows
from torchtriage.diagnose.verdict.result import Suspicion

LIKELY = 0.9
"""How probable an anti-pattern must be in a window."""
COVERED = 0.25
"""A window that findings cover this much of is explained."""
_OF_THE_RECORDING = "MSR034"
"""Start-up and first use say something of the recording, not of the program: the doctor does."""
MAX_STEPS = 32
"""Steps that are looked at, spread over the steady ones: more say the same."""


def suspicions(trace: Trace, findings: Sequence[Finding], detector: Detector | None = None) -> tuple[Suspicion, ...]:
    """Return where a detector (the package's own by default) sees more than the findings.

    Raises UsageError: the package has no weights, or they are damaged.
    """
    chosen = _steps(trace)
    windows_ns = windows(trace).reshape(-1, PER_STEP, 2)[chosen]
    if not windows_ns.size:
        return ()
    flat = windows_ns.reshape(-1, 2)
    if np.count_nonzero(trace.kind == Kind.OP) < len(flat):  # too little was recorded to say
        return ()
    detector = detector or Detector.load()
    judged = detector.predict(trace, flat)
    if judged.unusual.mean() > 0.5:  # as a whole unlike what it learned from
        return ()
    suspicious = (judged.probability >= LIKELY) & judged.confident & ~_explained(flat, findings)
    known = {_OF_THE_RECORDING, *(code for finding in findings for code in (finding.code, *finding.also_explains))}
    suspicious &= [
        max(probabilities, key=probabilities.__getitem__, default="") not in known for probabilities in judged.types
    ]
    by_step = suspicious.reshape(-1, PER_STEP)
    often = 2 * by_step.sum(axis=0) > len(by_step)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], often, [False]]).astype(np.int8)))
    return tuple(_suspicion(windows_ns, judged, by_step, first, last) for first, last in edges.reshape(-1, 2).tolist())


def _steps(trace: Trace) -> Ints:
    """Return the steps to look at; 0 for the whole window of a recording without steps."""
    steady = np.flatnonzero(trace.steps.steady) if len(trace.steps) else np.zeros(1, np.int64)
    if len(steady) <= MAX_STEPS:
        return steady
    return steady[np.linspace(0, len(steady) - 1, MAX_STEPS).round().astype(np.int64)]


def _explained(windows_ns: Ints, findings: Sequence[Finding]) -> Mask:
    spans = [finding.place.intervals_ns for finding in findings if finding.place.intervals_ns]
    cover = intervals.union(np.array([row for rows in spans for row in rows], np.int64).reshape(-1, 2))
    covered = intervals.covered(windows_ns, cover)
    return covered >= COVERED * (windows_ns[:, 1] - windows_ns[:, 0])


def _suspicion(windows_ns: Ints, judged: Judged, by_step: Mask, first: int, last: int) -> Suspicion:
    """Return the suspicion of the places ``[first, last)`` of the steps."""
    inside = by_step.copy()
    inside[:, :first] = inside[:, last:] = False
    rows = np.flatnonzero(inside.ravel())
    types: dict[str, float] = {}
    for row in rows.tolist():
        for code, likely in judged.types[row].items():
            types[code] = types.get(code, 0.0) + likely / len(rows)
    steps = np.flatnonzero(inside.any(axis=1))
    ordered = sorted(types.items(), key=lambda item: (-item[1], item[0]))
    return Suspicion(
        begins=first / PER_STEP,
        ends=last / PER_STEP,
        n_steps=len(steps),
        start_ns=int(windows_ns[steps[0], first, 0]),
        end_ns=int(windows_ns[steps[0], last - 1, 1]),
        probability=round(float(judged.probability[rows].mean()), 4),
        types={code: round(likely, 4) for code, likely in ordered if likely >= 0.05},
    )
