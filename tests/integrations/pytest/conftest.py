"""Runs of pytest with the plugin, in this process: what it prints is what a user sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchtriage.core.machine import Noise
from torchtriage.integrations.pytest import measure

Run = Callable[..., pytest.RunResult]
PLUGIN = "torchtriage.integrations.pytest"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a test file's text, with the plugin alone, whatever is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("TORCHTRIAGE_STORE", raising=False)
    monkeypatch.setattr(measure, "WARM_UP_S", 0.01)
    monkeypatch.setattr(measure, "TIMED_S", 0.05)

    def go(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=text)
        return pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", "-q", "-W", "default", *options)

    return go


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what says whether the host is noisy: this one is whatever it is."""

    def said(status: str) -> None:
        reasons = ("other processes used 1.8 of 2 cores meanwhile",) if status == "noisy" else ()
        monkeypatch.setattr(measure, "judge_noise", lambda _: Noise(status, reasons))  # type: ignore[arg-type]

    return said
