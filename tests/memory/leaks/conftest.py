"""The watch in a process that runs tests."""

from __future__ import annotations

import sys

import pytest

from torchtriage.memory.leaks import leak_candidates, leak_watch, object_growth


@pytest.fixture(autouse=True)
def _no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests fork; children that watch themselves are tested on their own."""
    monkeypatch.setattr(leak_watch, "watch_children", lambda: None)


@pytest.fixture(autouse=True)
def time_for_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that collected thousands of tests has more names than a program: those of the loop come first."""
    monkeypatch.setattr(leak_watch, "WALK_S", 60.0)
    monkeypatch.setattr(leak_candidates, "FIND_S", 60.0)
    monkeypatch.setattr(object_growth, "MAX_NODES", 2_000)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Tests before may have compiled; in a process that did, tensors are not followed."""
    compiled = sys.modules.get("torch._dynamo.utils")
    if compiled is not None:
        compiled.counters.clear()
