"""The program starts at once: what a user waits for before anything is read."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtriage.api.traces import sample_path

# the budgets hold on a laptop; half as much again is for a busy shared machine
MACHINE = 1.5
IMPORT_S, HELP_S = 0.150, 0.300


def seconds(*args: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *args], check=True, capture_output=True)
    return time.perf_counter() - begun


def best(*args: str) -> float:
    """Return the least of up to seven runs: what the program takes when nothing else disturbs."""
    seconds(*args)  # compiles the byte code
    return min(seconds(*args) for _ in range(7))


@pytest.mark.timing
def test_import_takes_less_than_its_budget() -> None:
    assert best("-c", "import torchtriage") < MACHINE * IMPORT_S


@pytest.mark.timing
def test_help_takes_less_than_its_budget() -> None:
    assert best("-m", "torchtriage", "--help") < MACHINE * HELP_S


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import torchtriage", "numpy rich click msgspec isal tomllib json logging"),
        ("import torchtriage.cli.main", "numpy rich msgspec isal"),
        ("from torchtriage.cli.main import cli; cli(['analyze', '--help'], standalone_mode=False)", "numpy rich"),
        # reading and judging draw nothing
        ("import torchtriage; torchtriage.analyze", "rich click torch"),
    ],
)
def test_nothing_is_imported_before_it_is_needed(code: str, absent: str) -> None:
    script = f"import sys; {code}; print([m for m in {absent.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.endswith("[]\n")


def test_an_analysis_as_json_draws_nothing_and_starts_nothing(tmp_path: Path) -> None:
    absent = ["rich", "tomllib", "html", "zipfile", "tempfile", "hashlib", "subprocess", "torch"]
    words = ["analyze", str(sample_path()), "--json", "--output", str(tmp_path / "result.json")]
    script = (
        f"import sys; from torchtriage.cli.main import cli; cli({words!r}, standalone_mode=False);"
        f" print([m for m in {absent!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[]\n"
