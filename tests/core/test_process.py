"""The collector rests where it is told to, and no longer."""

import gc

import pytest

from torchtriage.api.traces import analyze, sample_path
from torchtriage.core.process import uncollected


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


def test_an_analysis_sets_off_no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(gc, "callbacks", [lambda phase, _: begun.append(phase)])
    analyze(sample_path())
    assert gc.isenabled()
    assert len(begun) <= 2
