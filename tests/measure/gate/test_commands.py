"""``gate check``, ``history`` and ``report`` as they are typed: exit codes and what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.measure.gate.repositories import git
from tests.measure.gate.sides import OTHER, run, series, timed
from tests.report import forms

from torchtriage.cli.main import cli
from torchtriage.cli.measure.gate_check import share
from torchtriage.core.samples import Run
from torchtriage.measure.gate.history import find_history
from torchtriage.measure.gate.importers import encode_runs
from torchtriage.measure.gate.store import open_store

# a program whose processes differ by 1 %, on a clock that no neighbour disturbs; Python would take
# a hundred times as long to start
BENCH = r"""
awk -v seed="$(od -An -N3 -tu4 /dev/urandom)" 'BEGIN {{
    srand(seed + 0)
    level = {ms} * (0.99 + 0.02 * rand())
    printf "{{\"metric\": \"step\", \"unit\": \"ms\", \"values\": [%f", level
    for (i = 0; i < 39; i++) printf ", %f", level * (1 + 0.05 * rand())
    print "]}}"
}}'
"""
WORK = """\
import json, time
def work():
    return sum(i * i for i in range({n}))
values = []
for _ in range(40):
    begun = time.process_time()
    work()
    values.append(time.process_time() - begun)
print(json.dumps({{"metric": "step", "unit": "s", "values": values}}))
"""


def gate(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["gate", *map(str, words)])


def written(path: Path, *runs: Run) -> Path:
    path.write_bytes(encode_runs(runs))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return written(tmp_path / "base.jsonl", run(timed(seed=1)))


@pytest.fixture
def same(tmp_path: Path) -> Path:
    return written(tmp_path / "same.jsonl", run(timed(seed=2), commit="b" * 40))


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return written(tmp_path / "slow.jsonl", run(timed(1.2, seed=2), commit="b" * 40))


# -- exit codes ----------------------------------------------------------------------------------


def test_files_of_equal_programs_exit_with_0(base: Path, same: Path) -> None:
    told = gate("check", base, same)
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("No regression against base.jsonl: 1 metric analysed")


@pytest.mark.parametrize("option", ["base", "candidate"])
def test_an_option_that_files_have_no_use_for_is_refused(base: Path, same: Path, option: str) -> None:
    told = gate("check", base, same, f"--{option}", "topic")
    assert told.exit_code == 3
    assert f"--{option} is for stored samples" in told.stderr


def test_files_of_a_slower_program_exit_with_1(base: Path, slow: Path) -> None:
    told = gate("check", base, slow)
    assert told.exit_code == 1
    assert "+20" in told.stdout
    assert gate("check", base, slow, "--max-regress", "30%").exit_code == 0
    assert gate("check", base, slow, "--max-regress", "latency=0.3").exit_code == 0


def test_too_few_sessions_exit_with_2(tmp_path: Path, base: Path) -> None:
    few = written(tmp_path / "few.jsonl", run(timed(1.2, n=2, seed=2)))
    told = gate("check", base, few)
    assert told.exit_code == 2
    assert told.stdout.startswith("Undecided")


BROKEN = {
    "garbage": b"not json",
    "empty": b"",
    "nan": b'{"metric": "step", "unit": "s", "values": [NaN, 1]}',
    "negative": b'{"metric": "step", "unit": "s", "values": [-1, 1]}',
    "zero": b'{"metric": "step", "unit": "s", "values": [0, 1]}',
    "another document": b'{"schema": "torchtriage/1", "version": "1", "results": []}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_samples_exit_with_3_and_one_line(tmp_path: Path, base: Path, name: str) -> None:
    (tmp_path / "broken.json").write_bytes(BROKEN[name])
    told = gate("check", base, tmp_path / "broken.json")
    assert told.exit_code == 3
    assert "broken.json" in told.stderr
    assert "Traceback" not in told.output
    assert told.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ["check", "a.json", "b.json", "c.json"],
        ["check", "missing.json", "missing.json"],
        ["check", "--alpha", "2"],
        ["check", "--alpha", "x"],
        ["check", "--max-regress", "fast"],
        ["check", "--max-regress", "=3%"],
        ["check", "--against", "main"],
        ["check", "--against", "main", "--before", "true", "--", "true"],
        ["check", "--after", "true"],
        ["check", "--before", "true", "--after", "true", "--", "true"],
        ["check", "--before", "true", "--after", "'"],
        ["check", "--setup", "true"],
        ["check", "--before", "true", "--after", "true", "--setup", "true"],
        ["check", "--before", "true", "--after", "true", "--trace", "t.json"],
        ["check", "--before", "true", "--after", "true", "--timeout", "inf"],
        ["check", "--before", "true", "--after", "true", "--timeout", "1e12"],
        ["check", "--before", "true", "--after", "true", "--base", "main"],
        ["check", "--pairs", "1"],
        ["check", "--no-such-option"],
        ["check", "--store", "mysql://host/db"],
        ["history", "--min-change", "x"],
        ["report", "missing.json"],
        ["no-such-command"],
        ["--no-such-option"],
        [],
        ["check", "--before", "true", "--after", "true", "--pairs", "6"],
        ["check", "--before", "true", "--after", "true", "--pairs", "9", "--alpha", "0.1%"],
    ],
)
def test_wrong_usage_exits_with_3_never_with_a_verdict(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = gate(*words)
    assert told.exit_code == 3, told.output
    assert told.stderr
    assert "Traceback" not in told.output


@pytest.mark.parametrize(
    ("text", "value"), [("3%", 0.03), ("3 %", 0.03), ("0.03", 0.03), (".5%", 0.005), ("1e-2", 0.01), ("500%", 5)]
)
def test_a_share_is_a_percentage_or_below_one(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["5", "1", "1.0", "3%foo", "3%%", "-1%", "nan", "1001%", "", "%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="expected a share such as 3%"):
        share(text)


def test_unlike_machines_exit_with_3_unless_accepted(tmp_path: Path, base: Path) -> None:
    other = written(tmp_path / "other.jsonl", run(timed(seed=2), machine=OTHER))
    told = gate("check", base, other)
    assert told.exit_code == 3
    assert "--unlike-machines" in told.stdout
    assert gate("check", base, other, "--unlike-machines").exit_code == 0


def test_a_defect_exits_with_3(base: Path, same: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("torchtriage.measure.gate.check.judge_rows", broken)
    told = gate("check", base, same)
    assert told.exit_code == 3
    assert "a bug in torchtriage" in told.stderr


def test_a_tail_that_is_asked_for_and_can_never_be_told_is_no_verdict(base: Path, same: Path) -> None:
    told = gate("check", base, same, "--statistic", "p99")
    assert told.exit_code == 3
    assert "needs 100 values in each session, found 30" in told.stdout


# -- stored samples ------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a store with six runs of main and one each of two topics, the second 20 % slower."""
    monkeypatch.chdir(tmp_path)
    place = str(tmp_path / "gate.db")
    with open_store(place) as store:
        for i in range(6):
            store.add(run(timed(seed=i, rounds=False), commit=f"{i:040x}", at_s=1000.0 + i))
        fine = run(timed(seed=50, rounds=False), commit="f" * 40, at_s=2000.0)
        slow = run(timed(1.2, seed=51, rounds=False), commit="5" * 40, at_s=2001.0)
        store.add(replace(fine, branch="fine"))
        store.add(replace(slow, branch="slow"))
    return place


@pytest.mark.parametrize(("candidate", "code"), [("fine", 0), ("slow", 1), ("5555", 1)])
def test_a_stored_candidate_is_judged_by_branch_or_commit(stored: str, candidate: str, code: int) -> None:
    told = gate("check", "--store", stored, "--base", "main", "--candidate", candidate)
    assert told.exit_code == code, told.output
    assert "6 runs" in told.stdout


def test_a_file_is_judged_against_the_store(stored: str, tmp_path: Path) -> None:
    now = run(timed(1.2, seed=77, rounds=False), commit="e" * 40, at_s=3000.0)
    file = written(tmp_path / "now.jsonl", now)
    assert gate("check", "--store", stored, file).exit_code == 1


def test_what_is_in_no_commit_is_a_baseline_only_where_little_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = written(tmp_path / "now.jsonl", run(timed(1.2, seed=77, rounds=False), commit="e" * 40, at_s=3000.0))
    edited = [
        run(timed(1.2, seed=i, rounds=False), at_s=2000.0 + i, environment=(("uncommitted changes", "yes"),))
        for i in range(6)
    ]
    with open_store("gate.db") as store:
        for found in edited:
            store.add(found)
    told = gate("check", "--store", "gate.db", now)
    assert told.exit_code == 0
    assert "6 of 6 runs of main recorded with uncommitted changes" in " ".join(told.stdout.split())
    for seeds, said, code in (
        ((1, 2), "6 of 8 runs of main recorded with uncommitted changes", 0),
        ((3,), "6 runs of main with uncommitted changes left out", 1),
    ):
        with open_store("gate.db") as store:
            for seed in seeds:
                store.add(run(timed(seed=seed, rounds=False), at_s=1000.0 + seed))
        told = gate("check", "--store", "gate.db", now)
        assert said in " ".join(told.stdout.split())
        assert told.exit_code == code


def test_two_runs_of_one_benchmark_have_one_baseline(stored: str, tmp_path: Path) -> None:
    now = [run(timed(seed=i, rounds=False), at_s=3000.0 + i, commit="e" * 40) for i in (70, 71)]
    told = gate("check", "--store", stored, written(tmp_path / "now.jsonl", *now), "--json")
    result = forms.decode(told.stdout.encode(), "gate")
    assert result.before is not None
    assert result.after is not None
    assert (result.before.n_runs, result.after.n_runs) == (6, 2)
    assert result.verdict[2].startswith("72 and 24 stored sessions")


def in_turns(factor: float = 1.2) -> list[Run]:
    mark = ("interleaving", "zz")
    return [
        run(timed(one, seed=i), environment=(mark, ("side", side)), at_s=50.0 + i, commit=f"{i}" * 40)
        for i, (side, one) in enumerate((("before", 1.0), ("after", factor)), 7)
    ]


def test_a_file_of_both_sides_is_compared_in_pairs(stored: str, tmp_path: Path) -> None:
    both = written(tmp_path / "both.jsonl", *in_turns())
    told = gate("check", both, "--store", tmp_path / "none.db", "--json")
    assert told.exit_code == 1, told.output
    result = forms.decode(told.stdout.encode(), "gate")
    assert result.design == "interleaved"
    assert result.rows[0].ratio == pytest.approx(1.2, rel=0.01)
    for words in (["--base", "main", "--store", stored, both], [tmp_path / "one.jsonl", both]):
        written(tmp_path / "one.jsonl", run(timed(seed=3, rounds=False)))
        result = forms.decode(gate("check", *words, "--json").stdout.encode(), "gate")
        # what ran before is no candidate
        assert result.after is not None
        assert result.after.n_runs == 1
        assert result.rows[0].ratio == pytest.approx(1.2, rel=0.02)


def test_a_baseline_that_was_recorded_later_is_used_and_said(stored: str, tmp_path: Path) -> None:
    early = run(timed(1.2, seed=77, rounds=False), commit="e" * 40, at_s=10.0)
    told = gate("check", "--store", stored, written(tmp_path / "now.jsonl", early))
    assert told.exit_code == 1
    assert "all runs of main were recorded later than now.jsonl" in " ".join(told.stdout.split())


def test_a_benchmark_that_the_candidate_lacks_is_no_verdict(stored: str) -> None:
    with open_store(stored) as store:
        other = timed(seed=60, rounds=False)
        store.add(run(other, commit=f"{5:040x}", at_s=1006.0, benchmark="resnet"))
        # gone for long, or of another machine: nobody waits for these
        store.add(run(other, commit=f"{1:040x}", at_s=1001.0, benchmark="removed"))
        store.add(run(other, commit=f"{5:040x}", at_s=1006.0, benchmark="elsewhere", machine=OTHER))
    words = ("check", "--store", stored, "--candidate", "fine")
    told = gate(*words)
    assert told.exit_code == 3, told.output
    said = " ".join(told.stdout.split())
    assert "recorded for main and not for fine: resnet" in said
    assert "removed" not in said
    assert "elsewhere" not in said
    assert gate(*words, "--name", "mlp").exit_code == 0


def test_a_tip_that_is_not_recorded_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    with open_store("gate.db") as store:
        for i in range(6):
            store.add(run(timed(seed=i, rounds=False), commit=f"{i:040x}", at_s=1000.0 + i))
        for name, at_s in (("mlp", 2000.0), ("old", 1999.0)):
            found = run(
                timed(seed=9, rounds=False),
                branch="topic",
                benchmark=name,
                at_s=at_s,
                commit=("c" if name == "mlp" else "b") * 40,
            )
            store.add(found)
    told = gate("check", "--store", "gate.db", "--candidate", "topic")
    assert told.exit_code == 0, told.output
    assert "is not recorded; cccccccccc is analysed instead" in " ".join(told.stdout.split())
    assert "old" not in told.stdout


def test_a_baseline_of_the_candidates_own_commit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("gate.db") as store:
        for i in range(3):
            store.add(run(timed(seed=i, rounds=False), commit="a" * 40, at_s=1000.0 + i))
    for words in (["--candidate", "main"], [written(tmp_path / "now.jsonl", run(timed(seed=9), at_s=1003.0))]):
        told = gate("check", "--store", "gate.db", *words)
        assert told.exit_code == 3
        said = " ".join(told.stdout.split())
        assert "nothing is recorded" not in said
        assert "all runs recorded on main are of the candidate's own commit, aaaaaaaaaa, and left out" in said


def test_what_is_not_stored_is_no_verdict(stored: str) -> None:
    told = gate("check", "--store", stored, "--candidate", "nobody")
    assert told.exit_code == 3
    assert "nothing is recorded for nobody" in told.stdout
    told = gate("check", "--store", stored, "--candidate", "slow", "--base", "release")
    assert told.exit_code == 3
    assert "nothing is recorded for release" in told.stdout


def test_no_store_is_no_verdict(tmp_path: Path) -> None:
    told = gate("check", "--store", tmp_path / "none.db")
    assert told.exit_code == 3
    assert "gate record" in told.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.mark.slow
def test_what_was_recorded_in_turns_is_compared_in_pairs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    for n, message in ((4000, "fast"), (12000, "slow")):
        (repository / "benchmarks" / "bench.py").write_text(WORK.format(n=n))
        git(repository, "commit", "-q", "-a", "-m", message)
    recorded = gate(
        "record",
        "-q",
        "--samples",
        "--against",
        "HEAD~1",
        "--sessions",
        "11",
        "--warm-up",
        "0",
        "--",
        "benchmarks/bench.py",
    )
    assert recorded.exit_code == 0, recorded.output
    told = gate("check")
    assert told.exit_code == 1, told.output
    assert "11 interleaved pairs" in " ".join(told.stdout.split())


# -- measured now --------------------------------------------------------------------------------


def test_twenty_percent_that_were_planted_are_found_and_nothing_else(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    bench = repository / "benchmarks" / "bench.sh"
    bench.write_text(BENCH.format(ms=10))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "benchmark")
    words = ("check", "-q", "--against", "HEAD", "--samples", "--warm-up", "0", "--", "sh", "benchmarks/bench.sh")
    told = gate(*words)
    assert told.exit_code == 0, told.output
    bench.write_text(BENCH.format(ms=12))
    told = gate("check", "--json", *words[1:])
    assert told.exit_code == 1, told.output
    result = forms.decode(told.stdout.encode(), "gate")
    assert result.design == "interleaved"
    assert result.stopping is not None
    assert result.stopping.n_rounds < result.stopping.max_rounds
    (row,) = [one for one in result.rows if one.statistic == "low"]
    assert row.low is not None
    assert row.high is not None
    assert 1.1 < row.low < row.high < 1.3
    assert {note.code for note in result.notes} >= {"uncommitted"}
    assert not (repository / ".torchtriage").exists()


def test_a_command_that_fails_is_no_verdict(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    told = gate("check", "-q", "--before", "true", "--after", "false")
    assert told.exit_code == 3
    assert "ended with exit code 1" in told.stderr
    assert gate("check", "-q", "--against", "no-such", "--", "true").exit_code == 3


@pytest.mark.parametrize("crashes", ["before", "after"])
def test_a_crash_names_its_side(crashes: str, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    bench = repository / "bench.sh"
    for side in ("before", "after"):
        bench.write_text("exit 3" if side == crashes else "true")
        git(repository, "add", ".")
        git(repository, "commit", "-q", "--allow-empty", "-m", side)
    against = gate("check", "-q", "--against", "HEAD~1", "--", "sh", "bench.sh")
    assert against.exit_code == 3
    assert f"sh bench.sh ({'HEAD~1' if crashes == 'before' else 'this work'}): ended with exit code 3" in against.stderr
    script = ["sh bench.sh", "true"] if crashes == "after" else ["true", "sh bench.sh"]
    bench.write_text("exit 3")
    commands = gate("check", "-q", "--before", script[1], "--after", script[0])
    assert f"({crashes}): ended with exit code 3" in commands.stderr


def test_a_tail_of_a_process_that_is_timed_whole_is_refused_after_the_first_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.sh").write_text("echo one >> runs")
    told = gate("check", "-q", "--warm-up", "0", "--statistic", "p99", "--before", "sh one.sh", "--after", "sh one.sh")
    assert told.exit_code == 3, told.output
    assert "needs 100 values in each session, found 1" in " ".join(told.stdout.split())
    assert (tmp_path / "runs").read_text().split() == ["one", "one"]


def test_what_cannot_be_judged_is_seen_after_the_first_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, unit in (("one", "s"), ("other", "ms")):
        text = f'echo {name} >> runs; echo \'{{"metric": "step", "unit": "{unit}", "value": 1}}\''
        (tmp_path / f"{name}.sh").write_text(text)
    told = gate("check", "-q", "--samples", "--warm-up", "0", "--before", "sh one.sh", "--after", "sh other.sh")
    assert told.exit_code == 3, told.output
    assert "unit differs: s before, ms after" in " ".join(told.stdout.split())
    assert sorted((tmp_path / "runs").read_text().split()) == ["one", "other"]


# -- what is written -----------------------------------------------------------------------------


def test_every_form_says_the_same(tmp_path: Path, base: Path, slow: Path) -> None:
    saved, page = tmp_path / "gate.json", tmp_path / "gate.html"
    told = gate("check", base, slow, "--json", "-o", saved, "--html", page, "--annotations")
    assert told.exit_code == 1
    assert told.stdout.startswith("::error title=mlp latency%2C typical is worse::10.0 ms to 1")
    result = forms.decode(saved.read_bytes(), "gate")
    jsonschema.validate(json.loads(saved.read_bytes()), forms.schema("gate"))
    assert result.exit_code == 1
    assert result.verdict[0] in page.read_text("utf-8")
    shown = gate("report", saved)
    assert shown.exit_code == 0
    assert shown.stdout == gate("check", base, slow).stdout
    assert shown.stdout == CliRunner().invoke(cli, ["show", str(saved)]).stdout
    assert "🔴 worse" in gate("report", saved, "--markdown").stdout
    assert gate("report", saved, "--annotations").stdout == told.stdout
    assert gate("report", saved, "--html", tmp_path / "again.html").exit_code == 0
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_annotations_beside_a_document_go_to_the_other_stream(base: Path, slow: Path) -> None:
    told = gate("check", base, slow, "--json", "--annotations")
    json.loads(told.stdout)
    assert told.stderr.startswith("::error")


def test_report_refuses_what_is_no_result(tmp_path: Path, base: Path) -> None:
    told = gate("report", base)
    assert told.exit_code == 3
    assert "expected a check" in told.stderr
    assert "base.jsonl" in told.stderr


# -- along commits -------------------------------------------------------------------------------


def test_history_finds_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store(str(tmp_path / "gate.db")) as store:
        for i in range(24):
            slow = 1.1 if i >= 14 else 1.0
            found = timed(slow, seed=i, n=5, rounds=False)
            breaks = series([[2 if i < 9 else 3]], "graph breaks", unit="1", kind="count")
            store.add(run(found, breaks, commit=f"{i:02x}" + "c" * 38, at_s=1000.0 + i))
    saved = tmp_path / "history.json"
    told = gate("history", "--store", "gate.db", "-q")
    assert told.exit_code == 0, told.output
    assert "at 0ecccccccc: 10.0 ms to 11.0 ms, +9.8 %" in told.stdout
    assert "at 09cccccccc: 2 to 3" in told.stdout
    assert gate("history", "--store", "gate.db", "--json", "-o", saved).exit_code == 0
    result = forms.decode(saved.read_bytes(), "gate-history")
    jsonschema.validate(json.loads(saved.read_bytes()), forms.schema("gate-history"))
    assert [len(track.changes) for track in result.tracks] == [1, 1]
    assert "| 🔴 |" in gate("report", saved, "--markdown").stdout
    assert gate("report", saved, "--annotations").exit_code == 3
    page = tmp_path / "history.html"
    assert gate("report", saved, "--html", page).exit_code == 0
    assert "Commit by commit" in page.read_text("utf-8")
    few = gate("history", "--store", "gate.db", "--last", "5", "--metric", "latency")
    assert "No history of main to analyse: 5 commits recorded." in few.stdout
    assert gate("history", "--store", "gate.db", "--branch", "none").exit_code == 3
    none = gate("history", "--store", "gate.db", "--metric", "nosuch")
    assert none.exit_code == 3
    assert "metrics of the newest run: graph breaks, latency" in none.stderr


def test_history_converts_units_and_says_what_is_left_out() -> None:
    def found(at: int, factor: float, unit: str) -> Run:
        return run(timed(factor, seed=at, n=5, rounds=False, unit=unit), commit=f"{at:040x}", at_s=1000.0 + at)

    runs = [found(i, 1.0 if i < 12 else 1.2, "ms") if i < 20 else found(i, 0.0012, "s") for i in range(24)]
    result = find_history(runs)
    (track,) = result.tracks
    assert (len(track.points), [change.index for change in track.changes], result.notes) == (24, [12], ())
    other = [found(i, 1.0, "calls/s") for i in (3, 4)]
    edited = [replace(each, environment=(("uncommitted changes", "yes"),)) for each in runs]
    said = [note.message for note in find_history([*runs, *other, *edited]).notes]
    assert said == [
        "24 runs with uncommitted changes left out",
        "2 recordings of a metric in a different unit from its newest left out: latency in calls/s",
    ]
    assert "24 runs with uncommitted changes left out" in find_history(edited, branch="main").verdict[0]


@pytest.mark.parametrize("per_commit", [1, 4])
def test_history_of_a_count_that_varies_has_no_steps(per_commit: int) -> None:
    rng = np.random.default_rng(per_commit)

    def found(at: int, level: int) -> Run:
        values = rng.integers(level - 2, level + 3, per_commit).tolist()
        one = series([[value] for value in values], "gc runs", unit="1", kind="count", rounds=False)
        return run(one, commit=f"{at:040x}", at_s=1000.0 + at)

    (track,) = find_history([found(i, 100) for i in range(24)]).tracks
    assert (track.refused, track.changes) == ("", ())
    (track,) = find_history([found(i, 100 if i < 12 else 130) for i in range(24)]).tracks
    assert [change.index for change in track.changes] == [12]
