"""A process' own time: what is its own doing counts, also where it only waits."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from torchtriage.core.record.timing import OwnTime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells who waits for a processor")


def test_sleep_counts() -> None:
    own = OwnTime()
    time.sleep(0.05)
    passed = own.passed_ns()
    assert passed is not None
    assert passed >= 0.04e9


def test_nothing_is_known_beside_children() -> None:
    own = OwnTime()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert own.passed_ns() is None
        child.communicate(b"\n")
    assert own.passed_ns() is not None


def test_nothing_is_known_of_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([(0, 0, 0), (1_000, 1_500, 100)])
    monkeypatch.setattr(OwnTime, "_clocks", staticmethod(lambda: next(clocks)))
    assert OwnTime().passed_ns() is None


def test_the_wait_for_a_processor_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([(0, 0, 0), (1_000, 600, 300)])
    monkeypatch.setattr(OwnTime, "_clocks", staticmethod(lambda: next(clocks)))
    assert OwnTime().passed_ns() == 700
