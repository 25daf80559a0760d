"""Real processes are attached to: those with a sampler, and the debug server of two gloo ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from diagnose.attach.jobs import debugged, sampled, trained

import torchtriage as tt
from torchtriage.core.errors import TriageError
from torchtriage.diagnose.attach.attach import Wish, attach
from torchtriage.diagnose.attach.captured import Captured
from torchtriage.diagnose.attach.processes import ranks_of
from torchtriage.diagnose.attach.result import HangResult

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_ranks_below_a_launcher_record_as_many_steps_as_asked(tmp_path: Path) -> None:
    with sampled(tmp_path, ranks=2) as launcher:
        captured = attach(str(launcher.pid), Wish(steps=4))
        assert isinstance(captured, Captured)
        assert [len(tt.load(path).steps.names) for path in captured.files] == [4, 4]
        assert captured.cost.startswith("4 steps of ranks 0-1, recorded in ")
        assert captured.still == ""
        (path,) = attach(str(launcher.pid), Wish(ranks=frozenset((1,)))).files
        assert f"-{next(one.pid for one in ranks_of(launcher.pid) if one.rank == 1)}-" in path.name
        with pytest.raises(TriageError, match="it has rank 0, rank 1"):
            attach(str(launcher.pid), Wish(ranks=frozenset((7,))))


def test_a_process_that_no_longer_steps_shows_where_it_is(tmp_path: Path) -> None:
    with sampled(tmp_path, stops_at=5) as launcher:
        time.sleep(1)
        result = attach(str(launcher.pid), Wish(timeout_s=1))
        assert isinstance(result, HangResult)
        assert result.verdict == ("Rank 0 is at <string>:13 in <module>.",)
        assert "no step or request ended within 1 s in rank 0" in [note.message for note in result.notes]


def test_ranks_that_train_together_are_recorded_together(tmp_path: Path) -> None:
    with trained(tmp_path) as launcher:
        done = subprocess.run(
            [sys.executable, "-m", "torchtriage", "attach", str(launcher.pid), "--steps", "6"],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks of one job" in done.stdout
    assert "6 steps of ranks 0-1, recorded in " in done.stderr


def test_ranks_that_hang_tell_who_is_missing_and_where_it_is(tmp_path: Path) -> None:
    with trained(tmp_path, stops_at=30) as launcher:
        time.sleep(1)
        result = attach(str(launcher.pid), Wish(timeout_s=2))
    assert isinstance(result, HangResult)
    assert result.verdict == (
        "Rank 1 never entered all_reduce number 31 of default_pg, in which rank 0 waits."
        " Rank 1 is at train.py:12 in <module>. Rank 0 is at train.py:13 in <module>, inside all_reduce.",
    )
    assert [note.code for note in result.notes] == ["nothing-moves"]


def test_a_stopped_process_does_not_hold_us_up(tmp_path: Path) -> None:
    with sampled(tmp_path) as launcher:
        os.kill(ranks_of(launcher.pid)[0].pid, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            result = attach(str(launcher.pid), Wish(timeout_s=1))
        except TriageError as error:  # no py-spy here
            assert "py-spy" in str(error)  # noqa: PT017
        else:
            assert "rank 0" in result.stacks[0].names
        assert time.monotonic() - begun < 45


def test_an_interrupt_takes_the_capture_back(tmp_path: Path) -> None:
    with sampled(tmp_path) as launcher:
        command = [sys.executable, "-m", "torchtriage", "attach", str(launcher.pid), "--steps", "1000"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(5)  # half of what so many steps take at least
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=20)
        assert (child.returncode, out, errors) == (130, b"", b"torchtriage: interrupted\n")
        time.sleep(1)  # the step in which it notices
        assert len(attach(str(launcher.pid), Wish(steps=1)).files) == 1
    assert len(list((tmp_path / "samples").iterdir())) == 1


def test_the_command_says_the_cost_and_judges(tmp_path: Path) -> None:
    with sampled(tmp_path) as launcher:
        done = subprocess.run(
            [sys.executable, "-m", "torchtriage", "attach", str(launcher.pid)], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU only" in done.stdout
    assert "captured: 3 steps of rank 0, recorded in " in done.stderr
    assert "of a process' time" in done.stderr


def test_the_debug_server_records_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("tabulate")
    with debugged(tmp_path) as port:
        captured = attach(f"localhost:{port}", Wish(seconds=0.5))
        assert isinstance(captured, Captured)
        assert [path.name for path in captured.files] == ["rank0.json", "rank1.json"]
        for path in captured.files:
            tt.load(path)  # it can be read
            assert b'"aten::mm"' in path.read_bytes()
        stacks = attach(f"localhost:{port}", Wish(only_stacks=True))
        assert isinstance(stacks, HangResult)
        assert {name for group in stacks.stacks for name in group.names} == {"rank 0", "rank 1"}


def test_the_debug_server_of_a_hung_job_names_the_rank_that_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("tabulate")
    with debugged(tmp_path, stops_at=30) as port:
        time.sleep(1)
        result = attach(f"http://localhost:{port}", Wish(seconds=0.5))
    assert isinstance(result, HangResult)
    (verdict,) = result.verdict
    assert verdict.startswith(
        "Rank 1 never entered all_reduce number 31 of default_pg, in which rank 0 waits."
        " Rank 1 is at <string>:13 in <module>. Rank 0 is at distributed_c10d.py:"
    )
    assert not list(tmp_path.glob("torchtriage-attach-*"))


def test_a_rank_that_does_not_answer_is_told(tmp_path: Path) -> None:
    pytest.importorskip("tabulate")
    with debugged(tmp_path, fetch_s=10) as port:
        for path in Path("/proc").glob("[0-9]*/environ"):
            if _is_rank(path, 1, tmp_path):
                os.kill(int(path.parent.name), signal.SIGSTOP)
        captured = attach(f"localhost:{port}", Wish(seconds=0.5))
    # rank 0 waits for it, and has run nothing either
    assert isinstance(captured, HangResult)
    assert captured.verdict[0].endswith(" No record tells about rank 1.")
    assert "is not finished: rank 0 waits." in captured.verdict[0]
    assert any(note.message.startswith("rank 1 does not answer: HTTP 408") for note in captured.notes)


def _is_rank(path: Path, rank: int, folder: Path) -> bool:
    try:
        return f"RANK={rank}\0".encode() in path.read_bytes() and str(folder).encode() in (
            path.with_name("cmdline").read_bytes()
        )
    except OSError:
        return False
