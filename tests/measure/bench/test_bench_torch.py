"""Whole benchmarks in child processes: failures are rows, a killed one goes on, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

MODELS = Path(__file__).with_name("models.py")
QUICK = ("--seconds", "0.2", "--warm-up", "0.3", "--rounds", "1", "--max-rounds", "1", "--threads", "1")


def command(folder: Path, target: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "torchtriage", "bench", target, *QUICK, *options, "--out", str(folder), "--json"]


def bench(folder: Path, target: str, *options: str) -> Any:
    done = subprocess.run(command(folder, target, *options), capture_output=True, check=True)
    return json.loads(done.stdout)


def test_modes_that_crash_hang_or_fail_are_rows(tmp_path: Path) -> None:
    backends = "test_crash,test_hang,test_refuse"
    found = bench(tmp_path / "b", f"{MODELS}:linear", "--modes", "eager", "--backends", backends, "--timeout", "20")
    eager, crash, hang, refuse = found["rows"]
    assert eager["failure"] is None
    assert eager["n_steps"] >= 20
    assert (crash["failure"]["kind"], crash["failure"]["stage"]) == ("crash", "compile")
    assert "SIGSEGV: about to end" in crash["failure"]["message"]
    assert (hang["failure"]["kind"], hang["failure"]["stage"]) == ("timeout", "compile")
    assert 19 < hang["failure"]["after_s"] < 40
    assert refuse["failure"]["kind"] == "error"
    assert "this graph cannot be compiled" in refuse["failure"]["message"]
    assert {one["setting"] for one in found["advice"]} == {"eager"}


def test_a_killed_benchmark_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    words = command(folder, f"{MODELS}:linear", "--modes", "eager")
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 300
    while not list(folder.glob("cold/*.json")) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("cold/*.json")}
    assert before
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert [row["n_sessions"] for row in found["rows"]] == [1]
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    measured = {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json")}
    again = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert again["rows"] == found["rows"]
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json")} == measured


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["{models}:raises"], "failed: RuntimeError: no weights here"),
        (["{models}:linear", "--backends", "nothing"], "there is no backend 'nothing'"),
    ],
)
def test_an_unusable_target_is_one_clear_line(tmp_path: Path, options: list[str], said: str) -> None:
    words = [option.format(models=MODELS) for option in options]
    done = subprocess.run(command(tmp_path / "b", *words), capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "the target's own words" not in done.stderr
