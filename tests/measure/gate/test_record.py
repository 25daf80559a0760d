"""``torchtriage gate record``: what is stored, printed and refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.measure.gate.repositories import git

from torchtriage.cli.measure.gate_record import record
from torchtriage.core.machine import Noise
from torchtriage.core.samples import Run
from torchtriage.measure.gate import run as running
from torchtriage.measure.gate.importers import read_runs
from torchtriage.measure.gate.store import open_store

Recorded = Callable[..., Result]

BENCH = """
import sys
print("ordinary output")
print('{"metric": "step", "unit": "ms", "values": [%s]}' % ", ".join(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder without git, with a benchmark that prints what it is told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("TORCHTRIAGE_STORE", raising=False)
    (tmp_path / "bench.py").write_text(BENCH)
    return tmp_path


@pytest.fixture
def recorded(folder: Path) -> Recorded:
    """Return a function that runs the command and holds it to its exit code."""

    def run(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(record, words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return done

    return run


def stored(place: str | None = None) -> list[Run]:
    """Return all stored runs, oldest first."""
    with open_store(place, create=False) as store:
        return list(reversed(store.load(store.find())))


def test_a_script_is_run_and_stored(recorded: Recorded) -> None:
    done = recorded("--sessions", "3", "--samples", "--", "bench.py", "1", "3", "2")
    (run,) = stored()
    assert run.benchmark == "bench.py 1 3 2"
    assert [session.values for session in run.series[0].sessions] == [(1.0, 3.0, 2.0)] * 3
    assert run.machine.fingerprint != "unknown"
    assert dict(run.environment)["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (run.commit, run.branch, run.parent) == ("", "", None)
    assert done.stdout == (
        "bench.py 1 3 2 at no commit: 3 sessions, stored in .torchtriage/gate.db\n"
        "  step: 2.00 ms\n"
        "next: torchtriage gate check\n"
    )


def test_a_program_is_timed_as_a_whole(recorded: Recorded) -> None:
    recorded("--sessions", "2", "--name", "sleep", "--store", "x.db", "--", "sleep", "0.05")
    (run,) = stored("x.db")
    assert run.benchmark == "sleep"
    assert run.series[0].metric == "run time"
    assert all(0.05 <= session.values[0] < 5 for session in run.series[0].sessions)
    assert not Path(".torchtriage").exists()


def test_the_portable_file_holds_what_the_store_does(recorded: Recorded) -> None:
    recorded("--sessions", "2", "--samples", "-o", "cur.jsonl", "--", "bench.py", "1")
    assert list(read_runs("cur.jsonl").runs) == stored()
    recorded("--import", "cur.jsonl", "--store", "other.db")
    assert stored("other.db") == stored()
    done = recorded("--import", "cur.jsonl")
    assert "already in .torchtriage/gate.db" in done.stdout
    assert len(stored()) == 1


def test_one_measurement_that_names_no_time_is_stored_once(recorded: Recorded, folder: Path) -> None:
    (folder / "m.json").write_text(json.dumps({"metric": "step", "unit": "s", "value": 1}))
    os.utime("m.json", (1e9, 1e9))
    for said in ("stored in", "already in"):
        assert said in recorded("--import", "m.json").stdout
    (run,) = stored()
    assert run.recorded_at_s == 1e9


def test_a_file_beside_it_does_not_change_the_time_of_an_import(recorded: Recorded, folder: Path) -> None:
    for number, name in enumerate(("old", "new")):
        series = [{"metric": "step", "unit": "s", "sessions": [[1.0]]}]
        (folder / f"{name}.json").write_text(json.dumps({"benchmark": name, "series": series}))
        os.utime(f"{name}.json", (1e9 + number, 1e9 + number))
    recorded("--import", "old.json")
    done = recorded("--import", "old.json", "--import", "new.json")
    assert done.stdout.count("stored in") == done.stdout.count("already in") == 1
    assert {run.benchmark: run.recorded_at_s for run in stored()} == {"old": 1e9, "new": 1e9 + 1}


def test_files_are_imported_as_sessions(recorded: Recorded, folder: Path) -> None:
    for number in range(2):
        text = json.dumps({"metric": "step", "unit": "s", "value": number + 1})
        (folder / f"{number}.json").write_text(text)
    done = recorded(
        "--import",
        "0.json",
        "--import",
        "1.json",
        "--name",
        "decode",
        "--commit",
        "c0ffee",
        "--branch",
        "main",
        "--parent",
        "beef00",
    )
    (run,) = stored()
    assert (run.benchmark, run.commit, run.branch) == ("decode", "c0ffee", "main")
    assert run.parent == "beef00"
    assert [session.values for session in run.series[0].sessions] == [(1.0,), (2.0,)]
    assert "names no machine: assumed to be measured on this one" in done.stderr


def test_in_turns_with_a_revision(
    recorded: Recorded, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("ORDER", str(tmp_path / "order"))
    done = recorded(
        "--sessions",
        "2",
        "--samples",
        "--against",
        "main",
        "--name",
        "b",
        "--trace",
        "trace.json",
        "--setup",
        "echo built > built.txt",
        "-o",
        "both.jsonl",
        "--",
        "benchmarks/bench.py",
    )
    assert (tmp_path / "order").read_text() == "old new old new new old "
    before, after = sorted(stored(), key=lambda one: dict(one.environment)["side"], reverse=True)
    assert (before.commit, before.branch) == (git(repository, "rev-parse", "main"), "main")
    assert (after.commit, after.branch) == (git(repository, "rev-parse", "HEAD"), "topic")
    assert after.parent == before.commit
    assert [session.round for session in before.series[0].sessions] == [0, 1]
    marks = {dict(one.environment)["interleaving"] for one in (before, after)}
    assert len(marks) == 1
    # each side's own trace, though that of the checkout is gone with it
    assert [Path(one.traces[0]).read_text() for one in (before, after)] == ["old", "new"]
    assert not (repository / "built.txt").exists()
    assert git(repository, "worktree", "list").count("\n") == 0
    assert "b (before) at" in done.stdout
    portable = read_runs("both.jsonl").runs
    assert [one.traces for one in portable] == [(), (str(repository / "trace.json"),)]
    recorded("--sessions", "1", "--samples", "--against", "main", "--", "benchmarks/bench.py")
    again = {dict(one.environment)["interleaving"] for one in stored()}
    assert len(again) == 2


@pytest.mark.parametrize("words", [[], ["--before", "benchmarks/bench.py"]])
def test_the_checkouts_own_modules_are_found(
    recorded: Recorded, repository: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    # nothing is installed: shop is in src, the benchmark beside it
    monkeypatch.chdir(repository)
    recorded("--sessions", "1", "--samples", *words, "--", "benchmarks/bench.py")
    assert {one.series[0].metric for one in stored()} == {"new"}


def test_what_is_recorded_with_uncommitted_changes_is_said(
    recorded: Recorded, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    words = ("--sessions", "1", "--samples", "--store", "gate.db", "--", "benchmarks/bench.py")
    assert "uncommitted" not in recorded(*words).stderr
    with Path("benchmarks/bench.py").open("a") as file:
        file.write("# edited\n")
    assert "recorded with uncommitted changes" in recorded(*words).stderr


def test_in_turns_with_another_command(recorded: Recorded) -> None:
    recorded("--sessions", "2", "--samples", "--before", "bench.py 1", "--", "bench.py", "2")
    values = {dict(one.environment)["side"]: one.series[0].sessions[0].values for one in stored()}
    assert values == {"before": (1.0,), "after": (2.0,)}
    assert {one.benchmark for one in stored()} == {"bench.py 2"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "found neither"),
        (["--import", "x.json", "--", "bench.py"], "found both"),
        (["--import", "x.json", "--against", "main"], "--against needs a command"),
        (["--against", "a", "--before", "b", "--", "bench.py"], "exclude each other"),
        (["--setup", "make", "--", "bench.py"], "--setup is for"),
        (["--before", "x", "--trace", "t", "--", "bench.py"], "--trace with --before"),
        (["--sessions", "0", "--", "bench.py"], "not in the range"),
        (["--timeout", "nan", "--", "bench.py"], "expected a number"),
        (["--timeout", "inf", "--", "bench.py"], "expected a number"),
        (["--no-such-option", "--", "bench.py"], "No such option"),
        (["-o", "none/x.jsonl", "--", "bench.py"], "the folder does not exist"),
        (["--store", "mysql://h/d", "--", "bench.py"], "expected a path or a postgresql:// URL"),
        (["--import", "x.json"], "x.json: cannot be read"),
        (["--", "no-such-program"], "expected a program"),
        (["--", "no.py"], "expected a script, found no such file"),
        (["--samples", "--", "bench.py", "NaN"], "found nan as value 1 of 1"),
        (["--samples", "--", "bench.py", "nan"], "found 'nan]}' at line 1, column 45"),
        (["--samples", "--", "bench.py", "0"], "found zero"),
        (["--samples", "--", "sh", "-c", "true"], "reported no samples"),
        (["--before", "no.py", "--", "bench.py"], "expected a script"),
        (["--before", "bench.py '", "--", "bench.py"], "No closing quotation"),
        (["--before", "", "--", "bench.py"], "expected a command"),
        (["--timeout", "0.5", "--", "sleep", "30"], "ran longer than 0.5 s"),
        (["--against", "main", "--", "bench.py"], "expected a git repository"),
    ],
)
def test_what_cannot_be_recorded_ends_with_3(recorded: Recorded, words: list[str], told: str) -> None:
    done = recorded(*words, code=3)
    assert told.lower() in " ".join(done.stderr.lower().split())
    assert "Traceback" not in done.output
    assert done.stdout == ""
    if Path(".torchtriage").exists():
        assert stored() == []


def test_a_failing_setup_is_told(recorded: Recorded, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    done = recorded("--against", "main", "--setup", "echo no compiler >&2; exit 4", "--", "benchmarks/bench.py", code=3)
    assert "ended with exit code 4: no compiler" in done.stderr
    assert git(repository, "worktree", "list").count("\n") == 0


def test_a_noisy_host_is_declared_and_stored(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "judge_noise", lambda _uses: Noise("noisy", ("a", "b")))
    done = recorded("--sessions", "1", "--samples", "--", "bench.py", "1")
    assert "the host was noisy: a; b" in done.stderr
    assert dict(stored()[0].environment)["host"] == "noisy: a; b"


def test_a_trace_that_was_not_written_loses_no_samples(recorded: Recorded) -> None:
    done = recorded("--sessions", "1", "--samples", "--trace", "no.json", "--", "bench.py", "1")
    assert "no.json: no such trace was written" in done.stderr
    assert stored()[0].traces == ()


def test_many_metrics_are_summed_up(recorded: Recorded, folder: Path) -> None:
    lines = [json.dumps({"metric": f"m{i}", "unit": "B", "value": 2048}) for i in range(20)]
    (folder / "x.jsonl").write_text("\n".join(lines))
    done = recorded("--import", "x.jsonl")
    assert "m7: 2.00 KiB" in done.stdout
    assert "m8" not in done.stdout
    assert "and 12 more metrics" in done.stdout


@pytest.mark.postgres
def test_a_run_is_stored_in_postgresql(recorded: Recorded, postgres: Callable[[], str]) -> None:
    place = postgres()
    recorded("--sessions", "1", "--samples", "--store", place, "--", "bench.py", "1")
    assert stored(place)[0].benchmark == "bench.py 1"
    os.environ["TORCHTRIAGE_STORE"] = place
    try:
        recorded("--sessions", "1", "--samples", "--", "bench.py", "2")
    finally:
        del os.environ["TORCHTRIAGE_STORE"]
    assert len(stored(place)) == 2


def test_counts_are_summed_up_without_their_unit(recorded: Recorded, folder: Path) -> None:
    (folder / "bench.py").write_text("""print('{"metric": "breaks", "unit": "1", "values": [5]}')""")
    told = recorded("--samples", "--sessions", "2", "--warm-up", "0", "--", "bench.py")
    assert "  breaks: 5\n" in told.stdout
