"""Parts of a run: each has the time that is its own."""

from __future__ import annotations

import time

import pytest

from torchtriage.core import timing
from torchtriage.core.timing import measured, part, part_times


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until its one value is changed."""
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def test_a_part_does_not_count_what_runs_inside_as_another(clock: list[float]) -> None:
    with measured() as seconds:
        clock[0] += 8  # of no part
        with part("doctor"):
            clock[0] += 1
            with part("steps"):
                clock[0] += 4
            clock[0] += 2
        with part("steps"):
            clock[0] += 1
    assert seconds == {"doctor": 3.0, "steps": 5.0}


def test_a_part_that_fails_counts_all_the_same(clock: list[float]) -> None:
    def fail() -> None:
        with part("doctor"):
            clock[0] += 1
            raise KeyError

    with measured() as seconds:
        with pytest.raises(KeyError):
            fail()
        with part("summary"):
            clock[0] += 2
    assert seconds == {"doctor": 1.0, "summary": 2.0}


def test_nobody_measures_unless_asked() -> None:
    with part("doctor"):
        pass
    with measured() as seconds:
        pass
    with part("summary"):
        time.sleep(0)
    assert seconds == {}


def test_the_longest_part_comes_first_and_shares_add_up() -> None:
    found = part_times({"doctor": 1.0, "read": 3.0})
    assert [(time.name, time.seconds, time.share) for time in found] == [("read", 3.0, 0.75), ("doctor", 1.0, 0.25)]
    assert part_times({}) == ()
