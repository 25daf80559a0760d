"""Where the shared recordings are, and what to do without them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import hypothesis
import pytest

import torchtriage as tt

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))

# how long one example takes says more about the machine than about the code
hypothesis.settings.register_profile("torchtriage", deadline=None)
hypothesis.settings.load_profile("torchtriage")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, visibly, what needs recordings that are not there."""
    if (DATA / "traces").is_dir():
        return
    skip = pytest.mark.skip(reason="the shared recordings are not here; set TORCHTRIAGE_DATA")
    for item in items:
        # a marker, not a keyword: folders named data are keywords too
        if item.get_closest_marker("data"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Return the folder of the shared profiler traces."""
    return DATA / "traces"


@pytest.fixture(scope="session")
def judge() -> Callable[[Path], tt.Report]:
    """Return a function that judges each recording once; results are small, traces are not."""
    return cache(tt.analyze)
