"""Processes that measure: in order, alone, ended when they should be, and each failure told."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.measure.gate.repositories import git
from tests.waiting import alive, wait_for

from torchtriage.core.errors import BenchmarkError, SampleError, UsageError
from torchtriage.core.samples import Machine
from torchtriage.measure.gate.revision import GitRevision, checked_out, find_revision
from torchtriage.measure.gate.run import (
    PEAK_MEMORY,
    RUN_TIME,
    BenchmarkProgram,
    MeasuredProcess,
    assemble,
    find_program,
    paths_of,
    run_in_turns,
    run_once,
    run_sessions,
    versions,
)

ROOT = Path(__file__).parents[3]


def python(code: str, folder: Path, **given: object) -> BenchmarkProgram:
    return BenchmarkProgram((sys.executable, "-c", code), folder, **given)  # type: ignore[arg-type]


# -- one process


def test_a_process_is_timed_as_a_whole(tmp_path: Path) -> None:
    # what is smaller than this process cannot be told
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    code = f"import time; time.sleep(0.3); x = bytearray({own} + 300_000_000)"
    before_s = time.time()
    one = run_once(python(code, tmp_path), round=4)
    by_name = {series.metric: series for series in one.series}
    (session,) = by_name[RUN_TIME].sessions
    assert (session.round, len(session.values)) == (4, 1)
    assert session.started_s is not None
    assert before_s <= session.started_s <= time.time()
    assert session.values[0] >= 0.3
    # it slept: what it computed is far less than what it took
    assert session.cpu_values is not None
    assert 0 < session.cpu_values[0] < session.values[0] - 0.25
    (peak,) = by_name[PEAK_MEMORY].sessions[0].values
    assert own + 300e6 < peak < own + 450e6


def test_cpu_time_of_children_counts(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    (session,) = run_once(python(code, tmp_path)).series[0].sessions
    assert session.cpu_values is not None
    assert session.cpu_values[0] >= 0.4


def test_a_peak_below_our_own_is_not_told(tmp_path: Path) -> None:
    """A process begins as a copy of its parent, and its peak with the parent's size."""
    ballast = bytearray(200_000_000)
    one = run_once(python("pass", tmp_path))
    assert [series.metric for series in one.series] == [RUN_TIME]
    assert len(ballast) == 200_000_000


def test_samples_are_taken_from_the_output(tmp_path: Path) -> None:
    code = (
        "print('step 1 of 2'); print('{not json'); print('{\"loss\": 1}')\n"
        'print(\'{"metric": "step", "unit": "ms", "values": [1, 2.5]}\')\n'
        'print(\'{"metric": "breaks", "unit": "1", "value": 0}\')\n'
    )
    step, breaks = run_once(python(code, tmp_path, samples=True), round=1).series
    assert (step.metric, step.unit, step.sessions[0].values) == ("step", "ms", (1.0, 2.5))
    assert breaks.sessions[0].values == (0.0,)
    assert step.sessions[0].round == 1


def test_samples_are_taken_from_the_file(tmp_path: Path) -> None:
    code = (
        'import os\nprint(\'{"metric": "other", "unit": "s", "value": 1}\')\n'
        "with open(os.environ['TORCHTRIAGE_SAMPLES'], 'a') as f:\n"
        '    f.write(\'{"metric": "step", "unit": "s", "value": 0.1}\\n\')\n'
    )
    (step,) = run_once(python(code, tmp_path, samples=True)).series
    assert step.metric == "step"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ValueError('wrong input')", "ended with exit code 1: ValueError: wrong input"),
        ("print('all I say'); raise SystemExit(7)", "ended with exit code 7: all I say"),
        ("raise SystemExit(7)", "ended with exit code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("import sys; sys.stderr.buffer.write(b'\\xff\\x00\\n'); sys.exit(1)", "exit code 1: "),
    ],
)
def test_a_failing_process_is_one_line(tmp_path: Path, code: str, told: str) -> None:
    with pytest.raises(BenchmarkError) as error:
        run_once(python(code, tmp_path))
    assert told in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('hello')", "reported no samples"),
        ("", "reported no samples"),
        ("import os; open(os.environ['TORCHTRIAGE_SAMPLES'], 'w')", "reported no samples"),
        ("import os; open(os.environ['TORCHTRIAGE_SAMPLES'], 'w').write('1.5 s')", "JSON"),
        ("""print('{"metric": "step"}')""", "output, line 1.unit: expected text, found null"),
        ("""print('{"metric": "m", "unit": "s", "values": 3}')""", "expected a list of numbers"),
    ],
)
def test_missing_samples_are_told(tmp_path: Path, code: str, told: str) -> None:
    with pytest.raises((BenchmarkError, SampleError)) as error:
        run_once(python(code, tmp_path, samples=True))
    assert told in str(error.value)


def test_nan_from_a_process_is_no_sample(tmp_path: Path) -> None:
    code = """print('{"metric": "m", "unit": "s", "values": [1, NaN]}')"""
    program = python(code, tmp_path, samples=True)
    with pytest.raises(SampleError, match="m, session 1: expected finite numbers, found nan"):
        assembled(run_sessions(program, 1, warm_up=0), program)


HANGING = (
    "import pathlib, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "pathlib.Path('pid').write_text(str(child.pid))\n"
)


def test_a_process_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    with pytest.raises(BenchmarkError, match=r"ran longer than 0\.7 s and was ended: epoch 1"):
        run_once(python(HANGING + "print('epoch 1', flush=True)\ntime.sleep(60)", tmp_path, timeout_s=0.7))
    assert time.monotonic() - begun_s < 10
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_a_process_that_will_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.measure.gate.run.GRACE_S", 0.3)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    begun_s = time.monotonic()
    with pytest.raises(BenchmarkError, match="ran longer"):
        run_once(python(code, tmp_path, timeout_s=0.7))
    assert time.monotonic() - begun_s < 10


def test_what_a_process_leaves_behind_is_ended(tmp_path: Path) -> None:
    run_once(python(HANGING, tmp_path, timeout_s=30))
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


OURS = """
import signal, sys
# whoever runs the tests in the background, or with nohup, has these ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pathlib import Path
from torchtriage.measure.gate.run import BenchmarkProgram, run_sessions
run_sessions(BenchmarkProgram((sys.executable, "-c", {code!r}), Path({folder!r})), 1, warm_up=0)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_ourselves_we_leave_nothing_running(tmp_path: Path, number: int) -> None:
    code = OURS.format(code=HANGING + "time.sleep(60)", folder=str(tmp_path))
    ours = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stderr=subprocess.DEVNULL
    )
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text())
    ours.send_signal(number)
    assert ours.wait(timeout=60) != 0
    wait_for(lambda: not alive(int(pid.read_text())))


def test_programs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchmarkError, match="cannot be started: No such file"):
        run_once(BenchmarkProgram(("no-such-program-here",), tmp_path))
    with pytest.raises(BenchmarkError, match="expected a program"):
        find_program(["no-such-program-here"])
    with pytest.raises(BenchmarkError, match="expected a script"):
        find_program(["bench.py"])
    (tmp_path / "bench.py").touch()
    assert find_program(["bench.py", "-x"]) == (sys.executable, "bench.py", "-x")
    assert find_program(["sh", "-c", "true"]) == ("sh", "-c", "true")


def test_secrets_of_a_command_are_not_stored(tmp_path: Path) -> None:
    program = BenchmarkProgram(("env", "HF_TOKEN=hf_x", "python", "b.py", "--api-key", "k1", "--size", "3"))
    assert str(program) == "env 'HF_TOKEN=***' python b.py --api-key '***' --size 3"


# -- sessions and turns


def test_sessions_come_after_a_warm_up_that_does_not_count(tmp_path: Path) -> None:
    code = (
        "import pathlib; p = pathlib.Path('n'); n = len(p.read_text()) if p.exists() else 0\n"
        "p.write_text('x' * (n + 1))\n"
        """print('{"metric": "number", "unit": "1", "value": %d}' % n)"""
    )
    told: list[int] = []
    measured = run_sessions(python(code, tmp_path, samples=True), 3, warm_up=2, progress=told.append)
    assert [one.series[0].sessions[0].values for one in measured] == [(2,), (3,), (4,)]
    assert told == [1, 2, 3, 4, 5]


def noting(folder: Path, letter: str) -> BenchmarkProgram:
    code = (
        f"open('order', 'a').write({letter!r})\n"
        """print('{"metric": "m", "unit": "s", "value": 1}')"""
    )
    return python(code, folder, samples=True)


def test_turns_are_a_b_b_a(tmp_path: Path) -> None:
    before, after = run_in_turns(noting(tmp_path, "A"), noting(tmp_path, "B"), most_rounds=4, warm_up=1)
    assert (tmp_path / "order").read_text() == "AB" + "ABBAABBA"
    for side in (before, after):
        assert [one.series[0].sessions[0].round for one in side] == [0, 1, 2, 3]
    # whoever goes second in a round started later
    started = [[one.series[0].sessions[0].started_s or 0.0 for one in side] for side in (before, after)]
    assert [a < b for a, b in zip(*started, strict=True)] == [True, False, True, False]


def test_turns_end_when_it_is_enough(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def enough(before: Sequence[MeasuredProcess], after: Sequence[MeasuredProcess]) -> bool:
        seen.append((len(before), len(after)))
        return len(before) == 2

    both = run_in_turns(noting(tmp_path, "A"), noting(tmp_path, "B"), most_rounds=9, warm_up=0, enough=enough)
    assert [len(side) for side in both] == [2, 2]
    assert seen == [(1, 1), (2, 2)]
    assert (tmp_path / "order").read_text() == "ABBA"


def test_a_process_with_other_metrics_is_told(tmp_path: Path) -> None:
    code = (
        "import pathlib; p = pathlib.Path('seen'); new = not p.exists(); p.touch()\n"
        """print('{"metric": "%s", "unit": "s", "value": 1}' % ("a" if new else "b"))"""
    )
    program = python(code, tmp_path, samples=True)
    with pytest.raises(BenchmarkError, match=r"expected a \(s\) .* found b \(s\) from process 2"):
        run_sessions(program, 3, warm_up=0)


def assembled(measured: Sequence[MeasuredProcess], program: BenchmarkProgram, **more: Any) -> Any:
    return assemble(
        measured,
        benchmark="b",
        program=program,
        revision=GitRevision("c" * 40, "main", "p" * 40, 5, uncommitted=True),
        machine=Machine((("cpu", "x"),)),
        environment={"python": "3"},
        **more,
    )


def test_sessions_become_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("AWS_SECRET", "hunter2")
    program = noting(tmp_path, "A")
    measured = run_sessions(program, 3, warm_up=0)
    run, noise = assembled(measured, program, traces=["t"])
    assert [len(one.sessions) for one in run.series] == [3]
    environment = dict(run.environment)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["uncommitted changes"] == "yes"
    assert environment["committed_at_s"] == "5"
    assert environment["host"] == str(noise)
    assert environment["command"] == str(program)
    assert "hunter2" not in repr(run)
    assert (run.commit, run.branch, run.parent, run.traces) == ("c" * 40, "main", "p" * 40, ("t",))


def test_versions_are_those_of_the_commands_python(tmp_path: Path) -> None:
    found = versions(python("pass", tmp_path))
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in found
    assert versions(BenchmarkProgram(("sh", "-c", "true"), tmp_path)) == {}
    assert versions(BenchmarkProgram(("python-that-is-not-there",), tmp_path)) == {}


# -- commits


def test_the_commit_that_is_checked_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = find_revision(repository / "benchmarks")
    assert (one.commit, one.branch) == (git(repository, "rev-parse", "HEAD"), "topic")
    assert one.parent == git(repository, "rev-parse", "main")
    assert one.root == repository.resolve()
    assert not one.uncommitted
    (repository / "result.json").touch()  # what a benchmark writes
    assert not find_revision(repository).uncommitted
    (repository / "src" / "shop" / "__init__.py").write_text("NAME = 'newer'\n")
    assert find_revision(repository).uncommitted
    git(repository, "checkout", "-q", "-f", "--detach", "main")
    assert (find_revision(repository).branch, find_revision(repository).parent) == ("", None)
    monkeypatch.setenv("GITHUB_REF_NAME", "7/merge")
    monkeypatch.setenv("GITHUB_HEAD_REF", "feature")
    assert find_revision(repository).branch == "feature"


def test_no_repository_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_revision(tmp_path) == GitRevision()
    with pytest.raises(UsageError, match="git repository"), checked_out("main", tmp_path):
        pass


def test_a_repository_that_git_refuses_is_told(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    found = find_revision(tmp_path)
    assert found.commit == ""
    assert found.problem.startswith("fatal:")


def test_a_shallow_clone_has_no_parent(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    one = find_revision(tmp_path / "shallow")
    assert one.commit == git(repository, "rev-parse", "HEAD")
    assert one.parent is None


def test_a_revision_is_checked_out_beside_and_gone_after(repository: Path) -> None:
    (repository / "src" / "shop" / "__init__.py").write_text("NAME = 'edited'\n")
    before = git(repository, "status", "--porcelain")
    with checked_out("main", repository / "benchmarks") as (folder, revision):
        assert (folder / "bench.py").is_file()
        assert (folder.parent / "src/shop/__init__.py").read_text() == "NAME = 'old'\n"
        assert revision.commit == git(repository, "rev-parse", "main")
        assert (revision.branch, revision.uncommitted) == ("main", False)
        assert revision.root == folder.parent
    assert not folder.exists()
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "status", "--porcelain") == before
    with checked_out(revision.commit[:8], repository) as (_, by_id):
        assert (by_id.commit, by_id.branch) == (revision.commit, "")


def test_a_branch_that_only_the_remote_has(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", f"file://{repository}", "clone")
    with checked_out("main", tmp_path / "clone") as (_, revision):
        assert revision.commit == git(repository, "rev-parse", "main")
        assert revision.branch == "main"


@pytest.mark.parametrize("name", ["nothing-of-this-name", "--help", "", "-b"])
def test_a_revision_that_is_not_there(repository: Path, name: str) -> None:
    with pytest.raises(UsageError, match="expected a branch, tag or commit"), checked_out(name, repository):
        pass


def test_each_side_imports_its_own_modules(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed as editable, both would import the checkout that was installed."""
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    here = BenchmarkProgram(
        (sys.executable, "benchmarks/bench.py"), repository, samples=True, paths=paths_of(repository)
    )
    with checked_out("main", repository) as (folder, revision):
        assert revision.root is not None
        there = BenchmarkProgram(here.arguments, folder, samples=True, paths=paths_of(revision.root))
        before, after = run_in_turns(there, here, most_rounds=1, warm_up=0)
    assert [one.series[0].metric for one in (*before, *after)] == ["old", "new"]
