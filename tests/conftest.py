"""Where the shared recordings are, and what to do without them or without torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

import torchtriage as tt

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))

# how long one example takes says more about the machine than about the code
hypothesis.settings.register_profile("torchtriage", deadline=None)
hypothesis.settings.load_profile("torchtriage")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, visibly, what needs recordings or a library that are not there."""
    missing = {}
    if not (DATA / "traces").is_dir():
        missing["data"] = "the shared recordings are not here; set TORCHTRIAGE_DATA"
    if find_spec("torch") is None:
        missing["torch"] = "torch is not installed here; make test-torch runs it"
    for item in items:
        for marker, reason in missing.items():
            # a marker, not a keyword: folders named data are keywords too
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Return the folder of the shared profiler traces."""
    return DATA / "traces"


@pytest.fixture(scope="session")
def judge() -> Callable[[Path], tt.Report]:
    """Return a function that judges each recording once; results are small, traces are not."""
    return cache(tt.analyze)
