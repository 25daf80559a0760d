"""Suspicions: what the detector may say beside the findings, and when it keeps quiet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from builder import TraceBuilder
from numpy.typing import NDArray

from torchtriage.core.finding import Finding, Fix, Place
from torchtriage.core.trace import Trace
from torchtriage.diagnose.detector.detector import Detector, Judged
from torchtriage.diagnose.detector.features import PER_STEP
from torchtriage.diagnose.verdict.detector_hints import LIKELY, MAX_STEPS, suspicions
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.verdict import diagnose

STEPS = 5


class Says:
    """A detector that finds some places of each step suspicious."""

    def __init__(
        self, *places: int, unusual: bool = False, sure: float = 0.97, certain: float = 0.0, code: str = "HST020"
    ) -> None:
        self.places, self.unusual, self.sure, self.certain, self.code = places, unusual, sure, certain, code
        self.asked = 0

    def predict(self, trace: Trace, windows_ns: NDArray[np.int64]) -> Judged:
        self.asked = len(windows_ns)
        probability = np.full(len(windows_ns), 0.1)
        for place in self.places:
            probability[place::PER_STEP] = self.sure
        types = ({self.code: 0.8, "DAT019": 0.15, "LCH015": 0.01},) * len(windows_ns)
        return Judged(probability, types, np.full(len(windows_ns), self.unusual), self.certain)


def trace(steps: int = STEPS) -> Trace:
    builder = TraceBuilder(vendor="cpu")
    for step in range(steps):
        builder.step(step, 1600 * step, 1600)
        for at in range(0, 1600, 50):
            builder.op("aten::mm", 1600 * step + at, 49.5)
    return builder.build()


def test_a_type_that_is_not_certain_enough_is_not_told() -> None:
    assert len(suspicions(trace(), [], Says(3, certain=0.77))) == 1  # 0.97 faulty, 0.8 of them HST020
    assert not suspicions(trace(), [], Says(3, certain=0.78))


def test_start_up_is_of_the_recording_and_not_told() -> None:
    assert suspicions(trace(), (), Says(3, code="LCH014"))  # type: ignore[arg-type]
    assert not suspicions(trace(), (), Says(3, code="MSR034"))  # type: ignore[arg-type]


def test_quiet_without_anything_likely() -> None:
    assert suspicions(trace(), (), Says()) == ()  # type: ignore[arg-type]
    assert suspicions(trace(), (), Says(3, sure=LIKELY - 0.01)) == ()  # type: ignore[arg-type]


def test_quiet_where_nothing_is_like_what_it_learned_from() -> None:
    assert suspicions(trace(), (), Says(3, unusual=True)) == ()  # type: ignore[arg-type]


def test_neighbouring_places_are_one_suspicion_and_others_are_another() -> None:
    first, second = suspicions(trace(), (), Says(3, 4, 9))  # type: ignore[arg-type]
    assert (first.begins, first.ends) == (3 / 16, 5 / 16)
    assert (second.begins, second.ends) == (9 / 16, 10 / 16)
    assert first.n_steps == STEPS - 1  # the first step is not steady
    assert (first.start_ns, first.end_ns) == (1_900_000, 2_100_000)
    assert first.probability == 0.97
    assert list(first.types.items()) == [("HST020", 0.8), ("DAT019", 0.15)]


def test_what_a_finding_covers_is_explained() -> None:
    spans = tuple((1_600_000 * at + 300_000, 1_600_000 * at + 330_000) for at in range(STEPS))
    finding = Finding("XXX000", "x", "x", "x", "low", "hint", "x", Place(intervals_ns=spans), None, {}, Fix(""))
    assert suspicions(trace(), (finding,), Says(3)) == ()  # type: ignore[arg-type]
    (left,) = suspicions(trace(), (finding,), Says(3, 4))  # type: ignore[arg-type]
    assert (left.begins, left.ends) == (4 / 16, 5 / 16)


def test_a_type_that_was_found_is_no_news_elsewhere() -> None:
    finding = Finding("HST020", "x", "x", "x", "low", "hint", "x", Place(), None, {}, Fix(""))
    assert suspicions(trace(), (finding,), Says(3)) == ()  # type: ignore[arg-type]


def test_long_recordings_are_looked_at_in_some_steps() -> None:
    detector = Says(3)
    (one,) = suspicions(trace(100), (), detector)  # type: ignore[arg-type]
    assert detector.asked == MAX_STEPS * PER_STEP
    assert one.n_steps == MAX_STEPS


def test_a_suspicion_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detector, "load", lambda: Says(3))
    without, found = diagnose(trace()), diagnose(trace(), Options(detector=True))
    assert found.suspicions
    assert dataclasses.replace(found, suspicions=()) == without
