"""MSR045 profiler-overhead."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.measure.profiler_overhead import find


def loop(n: int = 5, *, first: int = 4, wall: float = 1_000, **meta: Any) -> TraceBuilder:
    builder = TraceBuilder(**meta)
    for i in range(n):
        builder.step(first + i, wall * i, wall).op("aten::mm", wall * i + 1, wall / 2 + 0.5)
    return builder


def claims(builder: TraceBuilder) -> list[Claim]:
    return list(find(builder.build()))


def test_quiet_on_a_short_schedule() -> None:
    assert not claims(loop())


@pytest.mark.parametrize("flag", ["record_shapes", "with_stack", "profile_memory"])
def test_quiet_on_one_option(flag: str) -> None:
    assert not claims(loop(**{flag: 1}))


def test_quiet_on_a_single_step_zero() -> None:
    assert not claims(loop(1, first=0))


def test_quiet_on_a_little_of_the_profilers_own_work() -> None:
    builder = loop()
    builder.event("Buffer Flush", "overhead", 1_500, 30, pid=-1, tid=0)
    assert not claims(builder)


def test_quiet_on_the_profilers_work_outside_the_judged_steps() -> None:
    builder = loop()
    builder.event("Activity Buffer Request", "overhead", 100, 800, pid=-1, tid=0)
    assert not claims(builder)


def test_it_claims_no_time_and_is_a_note() -> None:
    (claim,) = claims(loop(21))
    assert claim.time_class == "none"
    assert not len(claim.spans)
    assert claim.always
    assert claim.certainty == "certain"
    assert claim.evidence["n_recorded_steps"] == 21


def test_step_zero_means_no_warm_up() -> None:
    (claim,) = claims(loop(first=0))
    assert claim.evidence["first_recorded_step"] == 0


def test_minutes_of_recording() -> None:
    (claim,) = claims(loop(wall=13_000_000))
    assert claim.evidence["window_ms"] == 65_000


def test_all_options_at_once() -> None:
    (claim,) = claims(loop(record_shapes=1, with_stack=1, profile_memory=1))
    assert "at once" in claim.message
    assert claim.evidence["profiler_inflation"] == 2.2


def test_the_profilers_own_rows_in_judged_steps() -> None:
    builder = loop()
    builder.event("Buffer Flush", "overhead", 1_500, 200, pid=-1, tid=0)
    (claim,) = claims(builder)
    assert claim.evidence["profiler_overhead_ms_per_step"] == 0.05  # 0.2 ms over four steady steps


def test_monitoring_in_every_step() -> None:
    builder = loop()
    for i in range(5):
        builder.frame("torch/cuda/memory.py(200): memory_stats", 1_000 * i + 600, 50)
    (claim,) = claims(builder)
    assert claim.evidence["n_monitor_calls_per_step"] == 1


def test_quiet_on_monitoring_now_and_then() -> None:
    builder = loop()
    builder.frame("torch/cuda/memory.py(200): memory_stats", 3_600, 50)
    assert not claims(builder)
