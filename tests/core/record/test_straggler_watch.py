"""The watch in real jobs of two ranks, and alone."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import torchtriage as tt
from torchtriage.api import straggler_watch
from torchtriage.core.errors import UsageError
from torchtriage.core.record.phase_clock import FORWARD
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.metrics import METRICS
from torchtriage.operate.stragglers.job import JobWatch

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("watched_job.py")


def run(what: str, folder: Path) -> list[tuple[int, str]]:
    """Run the job on two ranks; return exit code and errors of each."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, str(SCRIPT), what, str(folder)]
        with (folder / f"errors{rank}").open("w") as errors:
            ranks.append(subprocess.Popen(words, env=environment, stderr=errors))
    return [(process.wait(300), (folder / f"errors{rank}").read_text()) for rank, process in enumerate(ranks)]


def told(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "watch.json").read_text())["told"])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["forward", "backward"])
def test_the_late_rank_and_its_phase(what: str, tmp_path: Path) -> None:
    assert [code for code, _ in run(what, tmp_path)] == [0, 0]
    late = told(tmp_path)[0]
    assert (late["kind"], late["rank"], next(iter(late["phases"]))) == ("late", 1, what)
    assert late["late_ms"] > 25
    # on_late raises in this job: that is said, and nothing else happens
    assert (tmp_path / "heard.txt").read_text().startswith("Late rank 1 is late by")


@pytest.mark.slow
def test_a_late_rank_and_a_usual_one_are_recorded(tmp_path: Path) -> None:
    done = run("loader", tmp_path)
    assert [code for code, _ in done] == [0, 0]
    (folder,) = (tmp_path / "recorded").iterdir()
    assert f"torchtriage analyze {folder}" in done[0][1]
    assert f"rank 1 is recorded: {folder}" in done[1][1]
    steps = []
    for rank in range(2):
        facts = json.loads((folder / f"rank{rank}" / "recording.json").read_text())
        steps.append(facts["steps_seen"])
        assert facts["rank"] == rank
        assert facts["light"]["steps"] == 6
        assert (folder / f"rank{rank}" / "light.json.gz").exists()
    assert steps[0] == steps[1]
    assert [one["rank"] for one in told(tmp_path) if one["what"] == "late"] == [1]


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_as_it_does_without_a_watch(tmp_path: Path) -> None:
    (code, error), (died, _) = run("dies", tmp_path)
    assert (code, died) == (1, 3)
    assert "Connection" in error
    assert json.loads((tmp_path / "watch.json").read_text())["steps"] >= 20


@pytest.mark.slow
def test_a_store_that_goes_away_holds_nobody_up(tmp_path: Path) -> None:
    done = run("store", tmp_path)
    assert [code for code, _ in done] == [0, 0]
    assert "its store is gone" in done[1][1]
    assert json.loads((tmp_path / "done1").read_text())["steps"] == 140


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    assert [code for code, _ in run("hangs", tmp_path)] == [0, 0]
    hung = [one for one in told(tmp_path) if one["what"] == "hung"]
    assert [list(one["at"]) for one in hung] == [["1"]]
    assert hung[0]["at"]["1"][0] == "between"


@pytest.mark.slow
def test_ranks_of_unequal_length(tmp_path: Path) -> None:
    assert [code for code, _ in run("uneven", tmp_path)] == [0, 0]
    assert not [one for one in told(tmp_path) if one["what"] != "late"]
    assert json.loads((tmp_path / "done1").read_text())["steps"] == 140


# -- alone ---------------------------------------------------------------------------------------


def test_without_a_job_it_says_so_and_does_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING), tt.StragglerWatch(out=tmp_path / "a" / "watch.json") as watch:
        for _ in watch.batches(range(30)):
            with watch.phase("forward"):
                pass
            watch.step()
    assert [record.message for record in caplog.records] == [
        "torch.distributed is not initialised: a straggler watch compares ranks, and does nothing here"
    ]
    assert watch.late == []
    assert json.loads((tmp_path / "a" / "watch.json").read_text())["windows"] == 0


def test_without_steps_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), tt.StragglerWatch():
        pass
    assert [record.message for record in caplog.records] == [
        "no step was seen: give the watch the optimizer, or call its step()"
    ]


def test_what_cannot_be_meant() -> None:
    for every in (2, 40.0, True, "40"):
        with pytest.raises(UsageError, match="expected every as a whole number from 5"):
            tt.StragglerWatch(every=every)  # type: ignore[arg-type]
    watch = tt.StragglerWatch()
    with pytest.raises(UsageError, match="loader"):
        watch.phase("load")
    with watch, pytest.raises(UsageError, match="has begun"):
        watch.start()


def test_a_phase_in_a_thread_of_the_users_own_is_none_of_the_loop() -> None:
    watch = tt.StragglerWatch()
    seen = []

    def fetch() -> None:
        with watch.phase("loader"):
            seen.append(watch._clock.phase)

    with watch.phase("forward"):
        thread = threading.Thread(target=fetch)
        thread.start()
        thread.join()
        seen.append(watch._clock.phase)
    assert seen == [FORWARD, FORWARD]


def test_a_rank_that_cannot_be_recorded_is_compared_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    watch = tt.StragglerWatch(every=5)
    watch._thread = threading.current_thread()
    watch._asked = {"ranks": [0], "step": 1, "folder": str(tmp_path / "file" / "step1")}
    for _ in range(20):
        watch.step()
    watch._take_windows(ended=True)
    assert list(watch._windows) == [1, 2, 3]
    (record,) = caplog.records
    assert record.message.startswith("the recording of rank 0 failed: ")


def test_a_failure_of_its_thread_is_said_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = tt.StragglerWatch()
    monkeypatch.setattr(straggler_watch, "JobStore", lambda _name: 1 // 0)
    watch._run()
    assert [record.message for record in caplog.records] == [
        "the straggler watch failed: ZeroDivisionError: integer division or modulo by zero"
    ]


def test_a_watch_that_has_ended_has_no_metrics() -> None:
    watch = tt.StragglerWatch()
    watch._job = JobWatch(2, 40)
    process_metrics.register(watch)
    watch._stop.set()
    watch._run()
    assert "straggler_windows_total" not in {name for name, _, _ in process_metrics.read()}


def test_its_metrics_are_known() -> None:
    watch = tt.StragglerWatch()
    process_metrics.register(watch)
    names = [name for name, _, _ in watch.metrics()]
    assert names == ["straggler_windows_total"]
    assert set(names) <= {name for name, _, _ in process_metrics.read()} & set(METRICS)
