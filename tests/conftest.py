"""Where the shared recordings are, and what to do without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, visibly, what needs recordings that are not there."""
    if (DATA / "traces").is_dir():
        return
    skip = pytest.mark.skip(reason="the shared recordings are not here; set TORCHTRIAGE_DATA")
    for item in items:
        if "data" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Return the folder of the shared profiler traces."""
    return DATA / "traces"
