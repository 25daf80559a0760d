"""The collector rests where it is told to, and no longer."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from torchtriage.api.traces import analyze, sample_path
from torchtriage.core.process import uncollected


@pytest.fixture
def looked_at() -> Iterator[list[int]]:
    """Which generations the collector has looked at, in a process that has frozen nothing."""
    gc.unfreeze()
    gc.collect()  # else what the tests before made may be all but enough to set it off
    begun: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)
    gc.freeze()


def test_the_collector_rests_and_goes_on() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_analysis_sets_off_no_collection(looked_at: list[int]) -> None:
    analyze(sample_path())
    assert gc.isenabled()
    assert not looked_at


def test_what_was_made_is_not_looked_at_afterwards(looked_at: list[int]) -> None:
    with uncollected():
        held: list[list[int]] = [[] for _ in range(10_000)]
    held.append([])
    assert not looked_at


def test_what_was_frozen_stays_frozen() -> None:
    gc.freeze()
    with uncollected():
        pass
    assert gc.get_freeze_count()  # not the number: what is frozen may still end
