"""What a hung job's report says, in every form; and which processes are its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from diagnose.attach.nccl_dumps import dump, entry
from report import forms
from tests.waiting import wait_for

from torchtriage.cli.main import cli
from torchtriage.core.errors import TriageError
from torchtriage.diagnose.attach import processes
from torchtriage.diagnose.attach.attach import Wish, attach
from torchtriage.diagnose.attach.flight_recorder import parse
from torchtriage.diagnose.attach.hang import judge
from torchtriage.diagnose.attach.processes import Thread, dump_stacks, grouped, ranks_of
from torchtriage.diagnose.attach.result import Call, ranks_words

WAITS = (
    Call("/env/site-packages/torch/distributed/distributed_c10d.py", 2900, "all_reduce"),
    Call("/job/a.py", 5, "f"),
)
READS = (Call("/job/data.py", 18, "read"), Call("/job/a.py", 4, "f"))


def main(*calls: Call) -> list[Thread]:
    return [Thread("MainThread", calls), Thread("pool-1", (Call("/job/pool.py", 1, "idle"),))]


def hung(world: int = 4, odd: int = 2):
    groups = {"0": list(range(world))}
    rows = [entry(1), entry(2, state="started", line=72)]
    dumps = {rank: parse(dump(rows[:1] if rank == odd else rows, groups), "") for rank in range(world)}
    stacks = {f"rank {rank}": main(*(READS if rank == odd else WAITS)) for rank in range(world)}
    return judge("4711", dumps, stacks)


def test_the_missing_rank_and_where_it_is_come_first():
    result = hung()
    assert result.verdict == (
        "Rank 2 never entered all_reduce number 2 of default_pg, in which ranks 0-1, 3 wait at train.py:72."
        " Rank 2 is at data.py:18 in read.",
    )
    assert [(group.names, group.thread) for group in result.stacks] == [
        (("rank 2",), "MainThread"),
        (("rank 0", "rank 1", "rank 3"), "MainThread"),
        (("rank 0", "rank 1", "rank 2", "rank 3"), "pool"),
    ]


def test_a_thousand_ranks_are_a_short_report():
    text = forms.terminal(hung(1000, 7), width=100).plain
    assert "ranks 0-6, 8-999 wait" in text
    assert len(text.splitlines()) < 40


def test_every_form_shows_it_and_reads_it_again(tmp_path: Path):
    result = hung()
    assert forms.decode(forms.encode(result)) == result
    for text in (forms.terminal(result).plain, forms.markdown(result), forms.page(result)):
        words = " ".join(text.split()).replace("\\_", "_")
        assert "Rank 2 never entered all_reduce number 2" in words
        assert "distributed_c10d.py:2900" in words
    (tmp_path / "hang.json").write_bytes(forms.encode(result))
    assert "Rank 2 never entered" in CliRunner().invoke(cli, ["show", str(tmp_path / "hang.json")]).stdout


def test_names_of_a_hostile_process_stay_text():
    evil = Call("/job/\x1b[31m<script>.py", 1, "</pre><script>alert(1)</script>")
    result = judge("\x1b[2J", {}, {"rank 0": main(evil)})
    assert "<script>alert" not in forms.page(result)
    assert "\x1b" not in forms.terminal(result).plain + forms.markdown(result) + forms.page(result)


def test_without_flight_recorders_the_places_are_said():
    result = judge("job", {}, {"rank 0": main(*WAITS), "rank 1": main(*WAITS), "rank 2": main(*READS)})
    assert result.verdict == (
        "Rank 2 is at data.py:18 in read.",
        "Rank 0, rank 1 are at a.py:5 in f, inside all_reduce.",
    )
    assert [note.code for note in result.notes] == ["no-flight-recorder"]


def test_equal_stacks_are_shown_once_whatever_a_pool_calls_its_threads():
    pool = [Thread(f"worker-{n}", READS) for n in range(20)]
    assert [group.names for group in grouped({"rank 0": pool, "rank 1": pool})] == [("rank 0", "rank 1")]


def test_many_ranks_take_few_words():
    assert ranks_words([3]) == "rank 3"
    assert ranks_words([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7-8"


@pytest.mark.parametrize("odd", [None, 1])
def test_dumps_alone_are_a_target(tmp_path: Path, odd: int | None):
    rows = [entry(1), entry(2, state="started")]
    for rank in range(2):
        mine = rows[:1] if odd is None or rank == odd else rows
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump(mine, {"0": [0, 1]}))
    for target in (tmp_path, tmp_path / "nccl_trace_rank_"):
        done = CliRunner().invoke(cli, ["attach", str(target), "--json"])
        assert done.exit_code == (0 if odd is None else 1)
        assert json.loads(done.stdout)["schema"] == "torchtriage-hang/1"


# -- processes -----------------------------------------------------------------------------------


def test_workers_of_a_rank_are_no_ranks(tmp_path: Path):
    sleep = "import time; time.sleep(60)"
    rank = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    start = 'for r in 0 1; do RANK=$r "$0" -c "$1" & done; wait'
    launcher = subprocess.Popen(["sh", "-c", start, sys.executable, rank], start_new_session=True)
    try:
        wait_for(lambda: len(list(_tree(launcher.pid))) >= 5)
        found = ranks_of(launcher.pid)
        assert sorted(process.name for process in found) == ["rank 0", "rank 1"]
        # a rank itself may be named, too
        assert [process.name for process in ranks_of(found[0].pid)] == [found[0].name]
    finally:
        os.killpg(launcher.pid, 9)
        launcher.wait()


def _tree(pid: int):
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _tree(int(child))


@pytest.mark.parametrize("target", ["0", "999999999", "9" * 30, "9" * 5000])
def test_a_pid_of_nobody_is_told(target: str):
    with pytest.raises(TriageError, match="found none"):
        attach(target, Wish())


def test_a_rank_without_end_is_none():
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep, env={**os.environ, "RANK": "1" * 5000}) as child:
        try:
            assert [process.rank for process in ranks_of(child.pid)] == [None]
        finally:
            child.kill()


def test_a_process_that_offers_nothing_says_what_was_tried():
    with pytest.raises(TriageError, match=r"tried: the socket of a tt.sample\(...\) \(none\), dynolog") as caught:
        attach(str(os.getpid()), Wish())
    assert "--stacks" in caught.value.hint


def test_a_process_that_has_exited_is_told():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TriageError, match="has exited"):
            attach(str(child.pid), Wish())


def test_what_cannot_be_read_of_a_process_is_not_called_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes.Path, "read_bytes", lambda path: (_ for _ in ()).throw(PermissionError))
    with pytest.raises(TriageError, match=f"not readable: pid {os.getpid()}, owned by uid {os.geteuid()}") as caught:
        attach(str(os.getpid()), Wish())
    assert "SYS_PTRACE" in caught.value.hint


def test_without_py_spy_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(processes.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TriageError, match="need py-spy") as caught:
        dump_stacks(os.getpid())
    assert "torchtriage[attach]" in caught.value.hint
    with pytest.raises(TriageError, match="no process says") as caught:
        attach(str(os.getpid()), Wish(only_stacks=True))
    assert "torchtriage[attach]" in caught.value.hint


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("echo 'Error: Permission Denied: ptrace' >&2; exit 1", "finds no stacks: Error: Permission Denied"),
        ("echo '[{\"frames\": 3}]'", "finds no stacks"),
        ("echo '{}'; exit 0", ""),
        ("sleep 60", "has not answered within"),
    ],
)
def test_what_py_spy_cannot_do_is_one_sentence(script: str, word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(processes, "DUMP_S", 0.5)
    if not word:
        assert dump_stacks(1) == []
        return
    with pytest.raises(TriageError, match=word) as caught:
        dump_stacks(1)
    assert ("SYS_PTRACE" in caught.value.hint) == ("ptrace" in script)
