"""The patch: which changes are in it, that tools take it, and that writing it harms no file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.core.finding import Cost, Finding, Fix, Frame, Place
from torchtriage.core.record.side_effects import watch_effects
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.runs.result import AccountLine, StepAccount
from torchtriage.measure.fix import fix as fixes
from torchtriage.measure.fix.candidates import Candidate, Files
from torchtriage.measure.fix.fix import FixInterrupted, Wanted, _Fixing, _Try, _written, best_of_each, judged
from torchtriage.measure.fix.model import ModelProposer, Question
from torchtriage.measure.fix.project import ProjectCopy
from torchtriage.measure.fix.race import Entrant
from torchtriage.measure.fix.result import SideEffects
from torchtriage.measure.fix.side_effects import effects_of, effects_sentences
from torchtriage.measure.verify.paired_runs import ProgramRun, trial_of

TEXTS = {
    "plain.py": b"import torch\nx = 1\ny = 2\n",
    "no_end.py": b"import torch\nx = 1",
    "crlf.py": b"import torch\r\nx = 1\r\ny = 2\r\n",
    "bom.py": b"\xef\xbb\xbfimport torch\nx = 1\n",
    "a folder/with space.py": b"import torch\nx = 1\n",
    "\u00fc.py": "# \u00fc\nx = 1\n".encode(),
    "latin.py": "# -*- coding: latin-1 -*-\n# \u00fc\n\n\n\n\nimport torch\n\n\nx = 1\n".encode("latin-1"),
}


@pytest.fixture
def fixing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Fixing:
    project = tmp_path / "project"
    for name, data in TEXTS.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(data)
    monkeypatch.chdir(project)
    copy = ProjectCopy.make(project, tmp_path / "copy", ("plain.py",))
    return _Fixing(copy, tmp_path / "out", Wanted(), lambda _: None)


def change(name: str, new: str = "x = 3", finding: Any = None, **more: Any) -> Candidate:
    text = TEXTS[name].decode("latin-1" if name == "latin.py" else "utf-8-sig")
    line = text.replace("\r\n", "\n").split("\n").index("x = 1") + 1
    return Candidate(finding, "edit", "what", {name: (SourceEdit(line, 0, line, 5, new),)}, **more)


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "--binary", "-i"]])
def test_tools_apply_the_patch_as_fix_writes_it(fixing, tool, tmp_path):
    if shutil.which(tool[0]) is None:
        pytest.skip(f"no {tool[0]}")
    changes = [change(name) for name in TEXTS]
    patch = tmp_path / "p.diff"
    patch.write_bytes(fixing.patch(changes).encode())
    subprocess.run([*tool, str(patch)], cwd=fixing.copy.project, check=True, capture_output=True)
    contents, fitting = fixing.contents(changes)
    assert fitting == changes
    for name, data in contents.items():
        assert data == TEXTS[name].replace(b"x = 1", b"x = 3")
        assert (fixing.copy.project / name).read_bytes() == data


def test_written_files_keep_their_mode_encoding_line_ends_and_mark(fixing):
    project = fixing.copy.project
    (project / "plain.py").chmod(0o755)
    contents, _ = fixing.contents([change(name) for name in TEXTS])
    before = sorted(project.rglob("*"))
    assert sorted(_written(project, contents, fixing.files)) == sorted(TEXTS)
    assert sorted(project.rglob("*")) == before
    assert (project / "plain.py").stat().st_mode & 0o777 == 0o755
    for name in TEXTS:
        assert (project / name).read_bytes() == TEXTS[name].replace(b"x = 1", b"x = 3")


@pytest.mark.parametrize("deleted", [True, False])
def test_nothing_is_written_where_one_file_was_changed_meanwhile(fixing, deleted):
    project = fixing.copy.project
    contents, _ = fixing.contents([change("plain.py"), change("crlf.py")])
    if deleted:
        (project / "crlf.py").unlink()
    else:
        (project / "crlf.py").write_bytes(b"x = 1\n# mine")
    with pytest.raises(UsageError, match="was changed while"):
        _written(project, contents, fixing.files)
    assert (project / "plain.py").read_bytes() == TEXTS["plain.py"]


def test_changes_of_the_same_lines_do_not_fit_and_the_same_change_does(fixing):
    first, other, same = change("plain.py"), change("plain.py", "x = 4"), change("plain.py")
    assert fixing.contents([first, other])[1] == [first]
    assert fixing.contents([first, same])[1] == [first, same]


def test_what_is_put_in_stands_before_what_is_replaced_there(fixing):
    added = Candidate(None, "edit", "w", {"plain.py": (SourceEdit(2, 0, 2, 0, "z = 0\n"),)})  # type: ignore[arg-type]
    for order in ([change("plain.py"), added], [added, change("plain.py")]):
        contents, fitting = fixing.contents(order)
        assert len(fitting) == 2
        assert contents["plain.py"] == b"import torch\nz = 0\nx = 3\ny = 2\n"


def verified(outcome: str = "faster", high: float = 0.5, status: str = "same") -> Any:
    return SimpleNamespace(
        outcome=outcome, ratio=high - 0.1, ratio_high=high, answers=SimpleNamespace(status=status, reason="no outputs")
    )


def test_only_what_is_surely_faster_and_compared_is_proved():
    assert judged(verified(), allow=False)[0] == "faster alone"
    assert judged(verified("slower"), allow=False)[0] == "slower"
    assert judged(verified(high=0.995), allow=False)[0] == "no difference"
    assert judged(verified(status="not compared"), allow=False) == ("not compared", "no outputs")
    assert judged(verified(status="not compared"), allow=True)[0] == "faster alone"


def tried(candidate: Candidate, high: float) -> _Try:
    row = _Try(candidate, Entrant({}), "faster alone", "")
    row.verification = verified(high=high)
    return row


def test_the_best_change_of_each_finding_is_chosen_and_the_others_say_why(fixing):
    one, two, three = object(), object(), object()
    good, worse = tried(change("plain.py", finding=one), 0.3), tried(change("crlf.py", finding=one), 0.4)
    clash = tried(change("plain.py", "x = 5", finding=two), 0.5)
    free = tried(change("bom.py", finding=three), 0.8)
    assert best_of_each([free, clash, worse, good], fixing.contents) == [good, free]
    assert worse.reason == "another change for the same finding saves more"
    assert clash.reason == "changes the same lines as one that saves more"


@pytest.mark.parametrize("whole", ["no difference", "faster"])
def test_together_the_smallest_goes_where_it_adds_nothing(fixing, monkeypatch, whole):
    rows = [tried(change("plain.py", finding=object()), 0.3), tried(change("crlf.py", finding=object()), 0.9)]
    monkeypatch.setattr(fixing, "_whole", lambda _: verified(whole, 0.25) if whole == "faster" else None)
    fixing.tries = rows
    chosen, proof = fixing.together()
    assert chosen == (rows if whole == "faster" else rows[:1])
    assert rows[1].reason == ("" if whole == "faster" else "saves nothing on top of the others")
    assert proof is not None


def test_a_file_of_the_report_is_the_one_of_the_project_that_ends_so(tmp_path):
    for name in ("a/train.py", "b/model.py", "c/model.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    files = Files(tmp_path)
    path_of = lambda name: files.path_of(SimpleNamespace(file=name))  # type: ignore[arg-type]  # noqa: E731
    assert path_of("train.py") == "a/train.py"
    assert path_of("model.py") is None
    assert path_of("rain.py") is None
    assert path_of(str(tmp_path / "b" / "model.py")) == "b/model.py"
    assert path_of(str(tmp_path / "b" / "gone.py")) is None
    assert path_of("/usr/lib/python3/os.py") is None
    assert path_of("notebook.ipynb") is None
    files = Files(tmp_path, frozenset({"b/main.py"}))
    assert path_of("model.py") == "b/model.py"  # as seen from the script
    assert path_of("c/model.py") == "c/model.py"


EFFECTS = """
import os, shutil, socket, subprocess, sys
from pathlib import Path
sys.path[:0] = [{source!r}]
from torchtriage.core.record.side_effects import watch_effects
watch_effects(Path({out!r}))
os.chdir({root!r})
open("inside.txt", "w").close()
open({outside!r}, "w").close()
open("link.txt", "w").close()
open("train.py").close()
try:
    socket.create_connection(("127.0.0.1", 9), 1)
except OSError:
    pass
os.system("true first")
subprocess.run(["true", "second"])
"""


def test_what_a_program_does_elsewhere_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")
    project, out = tmp_path / "project", tmp_path / "out"
    project.mkdir()
    out.mkdir()
    (project / "train.py").write_text("")
    (tmp_path / "linked.txt").write_text("")
    (project / "link.txt").symlink_to("../linked.txt")
    monkeypatch.chdir(project)
    copy = ProjectCopy.make(project, tmp_path / "copy", ("train.py",))
    outside = str(tmp_path / "outside.txt")
    source = str(Path(sys.modules[watch_effects.__module__].__file__ or "").parents[3])
    program = EFFECTS.format(source=source, out=str(out), root=str(copy.root), outside=outside)
    subprocess.run([sys.executable, "-c", program], check=True)
    effects = effects_of(out, copy, copy.restore())
    assert effects.written == ("inside.txt",)
    assert effects.outside == (outside, str(tmp_path / "linked.txt"))
    assert effects.connections == ("('127.0.0.1', 9)",)
    assert effects.programs == ("true first", "true")
    assert len(list(effects_sentences(effects))) == 4


@pytest.mark.parametrize(
    ("recorded", "ran", "step_ms", "run_ms", "timed"),
    [
        (30.0, 18, 12.0, 1000.0, 167),  # early steps are shorter than those recorded
        (110.0, 18, 200.0, 1000.0, 18),
        (30.0, 12, 12.0, 1000.0, 18),  # the loop has no more
        (110.0, 18, None, 1000.0, 18),
        (0.4, 18, 0.1, 1000.0, 200),
        (110.0, 18, 100.0, 20000.0, 91),  # half as long as starting up
        (0.0, 18, 12.0, 1000.0, 0),  # none was recorded
        (110.0, 18, 12.0, 1000.0, 0),  # they grow, or are of another loop
    ],
)
def test_steps_on_trial_last_long_enough(fixing, monkeypatch, recorded, ran, step_ms, run_ms, timed):
    fixing.steps, fixing.step_ms = 18, recorded
    run = SimpleNamespace(step_ms=step_ms, low_ms=step_ms, n_steps=ran, run_ms=run_ms)
    monkeypatch.setattr("torchtriage.measure.fix.fix.sample", lambda *_, **__: run)
    assert fixing.timed_steps == timed


def test_a_long_run_is_never_timed_as_a_whole(fixing, monkeypatch):
    fixing.steps, fixing.step_ms, fixing.complete = 18, 110.0, False
    run = SimpleNamespace(step_ms=12.0, low_ms=12.0, n_steps=18, run_ms=1000.0)
    monkeypatch.setattr("torchtriage.measure.fix.fix.sample", lambda *_, **__: run)
    assert fixing.timed_steps == 167


@pytest.mark.parametrize(
    ("per", "of_ms", "run_s", "whole"),
    [
        ("step", 15.0, 10.0, False),
        ("step", 30.0, 10.0, True),  # two and a half times what the steps on trial take
        ("window", 15.0, 10.0, True),
        ("window", 15.0, 200.0, False),  # there is no time for whole runs
        ("window", 15.0, 9.0, True),
    ],
)
def test_time_outside_of_the_steps_is_measured_on_whole_runs(fixing, monkeypatch, per, of_ms, run_s, whole):
    fixing.steps, fixing.step_ms, fixing.run_s = 18, 12.0, run_s
    run = SimpleNamespace(step_ms=12.0, low_ms=12.0, n_steps=18, run_ms=5000.0)
    monkeypatch.setattr("torchtriage.measure.fix.fix.sample", lambda *_, **__: run)
    cost = Cost(1.0, 2.0, per, of_ms, 0.1, 0.2, 2.0, "measured", "", "A")
    found = Finding("HST114", "", "", "", "high", "certain", "", Place(), cost, {}, Fix(""))
    assert fixing.measured(Candidate(found, "an-edit", "", {})).per_run == whole


def found(code: str) -> Finding:
    place = Place(frame=Frame("plain.py", 2, "", lines=(2,)))
    cost = Cost(5.0, 6.0, "step", 10.0, 0.5, 0.6, 6.0, "measured", "", "A")
    return Finding(code, "a", "host", "A", "high", "certain", "A.", place, cost, {}, Fix("Mend it."))


def test_known_changes_that_waited_for_a_model_are_tried_when_it_has_answered(fixing, monkeypatch):
    findings = [found(f"HST{number}") for number in range(2 * fixes.HEAT)]
    clock = [fixing.begun_s]

    def race(_copy, entrants, *_, **__):
        clock[0] += 6
        for entrant in entrants:
            entrant.error = "killed"

    monkeypatch.setattr(fixes, "race", race)
    monkeypatch.setattr(fixes.time, "monotonic", lambda: clock[0])
    fixing.wanted, fixing.spendable = Wanted(budget_s=10.0), fixes.HALF
    fixing.attempt([change("plain.py", finding=finding) for finding in findings])
    assert [row.outcome for row in fixing.tries].count("not tried") == fixes.HEAT
    fixing.spendable = 1.0
    fixing.ask(ModelProposer(lambda questions: [(None, "no")] * len(questions), redact=False), findings)
    assert {row.outcome for row in fixing.tries} == {"failed", "dropped"}


def test_of_two_small_changes_for_a_finding_one_is_tried_on_top(fixing, monkeypatch):
    def verified_as(ratio: float) -> Any:
        return SimpleNamespace(ratio=ratio, verdict=("", ""))

    def conclude(_fixing, row):
        row.outcome, row.reason, row.verification = "faster alone", "", verified_as(0.45)

    changes = [change("plain.py", new, finding=found("HST002")) for new in ("x = 3", "x = 4")]
    large = change("crlf.py", finding=found("HST001"))
    fixing.tries = [
        _Try(large, Entrant({}), "faster alone", "", verified_as(0.5)),
        *(_Try(small, Entrant({}), "no difference", "", verified_as(0.995)) for small in changes),
    ]
    monkeypatch.setattr(_Fixing, "_race", lambda *_, **__: None)
    monkeypatch.setattr(_Fixing, "_conclude", conclude)
    chosen, _ = fixing.together()
    assert len(chosen) == len(fixing.contents(row.candidate for row in chosen)[1]) == 2


def test_a_model_whose_change_is_of_no_use_is_told_so_and_asked_once_more(fixing, monkeypatch):
    asked: list[Question] = []

    def ask(questions):
        asked.extend(questions)
        new = "x = undefined" if len(asked) == 1 else "x = 3"
        return [({"what": "w", "diff": f"--- a/plain.py\n+++ b/plain.py\n@@ -2 +2 @@\n-x = 1\n+{new}\n"}, "")]

    def race(_copy, entrants, *_, **__):
        for entrant in entrants:
            entrant.error = "NameError: undefined" if b"undefined" in entrant.files["plain.py"] else "killed"

    monkeypatch.setattr(fixes, "race", race)
    fixing.ask(ModelProposer(ask, redact=False), [found("HST114")])
    assert [row.reason for row in fixing.tries] == ["NameError: undefined", "killed"]
    assert "the changed program failed: NameError: undefined." in asked[1].text
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("findings", "place", "only", "helped", "asked_about"),
    [
        (0, "plain.py", (), False, ["hot-line"]),
        (2, "/elsewhere/x.py", (), False, ["hot-line"]),
        (0, "plain.py", ("SYN001",), False, []),
        (2, "plain.py", (), False, ["HST0", "HST1"]),
        (1, "plain.py", (), True, ["hot-line"]),
    ],
)
def test_without_a_finding_a_model_is_asked_about_the_line_that_takes_most(
    fixing, findings, place, only, helped, asked_about
):
    asked: list[Question] = []
    ask = lambda questions: asked.extend(questions) or [(None, "no")] * len(questions)  # noqa: E731
    line = AccountLine("plain.py", 2, "<module>", "operators", 0.7)
    account = StepAccount("step", 20.0, 40, 300, "plain.py", 1, (), (line,))
    fixing.wanted = replace(fixing.wanted, only=only)
    given = [replace(found(f"HST{number}"), place=Place(frame=Frame(place, 2, ""))) for number in range(findings)]
    verified = SimpleNamespace(ratio=0.1, verdict=("", ""))
    fixing.tries = [
        _Try(change("plain.py", finding=finding), Entrant({}), "faster alone", "", verified)
        for finding in given
        if helped
    ]
    fixing.ask(ModelProposer(ask, redact=False), given, account)
    assert len(asked) == len(asked_about)
    assert all(about in question.text for about, question in zip(asked_about, asked, strict=True))


def test_what_is_known_when_it_is_interrupted_is_shown(fixing, monkeypatch):
    finding = Finding("HST020", "python-bound", "host", "", "high", "likely", "", Place(), None, {}, Fix(""))
    candidates = [change("plain.py", finding=finding), change("crlf.py", finding=replace(finding, code="SYN001"))]

    def interrupted(entrants: Any, **_: Any) -> None:
        runs = [ProgramRun(10.0 + number, 10.0, 100.0, 40, ()) for number in range(4)]
        entrants[0].trial = trial_of(runs, runs, ["before"] * 4)
        raise KeyboardInterrupt

    monkeypatch.setattr(fixes._Fixing, "record", lambda _: SimpleNamespace(findings=[finding], notes=()))
    monkeypatch.setattr(fixes._Fixing, "timed_steps", 40)
    monkeypatch.setattr(fixes._Fixing, "_race", lambda _self, entrants, **more: interrupted(entrants, **more))
    monkeypatch.setattr(fixes, "effects_of", lambda *_: SideEffects())
    monkeypatch.setattr(fixes, "candidates_of", lambda *_: (candidates, []))
    with pytest.raises(FixInterrupted) as ended:
        fixes.fix(fixing.copy, fixing.out, Wanted(), apply=True)
    first, second = ended.value.result.attempts
    assert (first.outcome, first.reason) == ("undecided", "interrupted after 4 rounds")
    assert first.trial is not None
    assert (second.outcome, second.reason) == ("not tried", "interrupted")
    assert ended.value.result.verdict == ("Interrupted: no patch.",)
    assert (fixing.copy.project / "plain.py").read_bytes() == TEXTS["plain.py"]


@pytest.mark.parametrize(
    ("known", "n_rounds", "printed", "outcome", "reason"),
    [
        ({"over": True, "error": "exit code 1"}, 0, "", "failed", "exit code 1"),
        ({"over": True}, 3, "loss 2.5\n", "faster alone", ""),
        ({}, 3, "loss 2.5\n", "undecided", "interrupted after 3 rounds"),
        ({}, 3, "loss 7.5\n", "results differ", ""),
        ({}, 2, "loss 7.5\n", "undecided", "interrupted after 2 rounds"),
    ],
)
def test_an_interrupted_change_keeps_what_is_known_of_it(fixing, known, n_rounds, printed, outcome, reason):
    entrant = Entrant({}, **known)
    if n_rounds:
        before, after = (
            [ProgramRun(ms + number / 100, None, 10 * ms, 40, (), text) for number in range(n_rounds)]
            for ms, text in ((10.0, "loss 2.5\n"), (5.0, printed))
        )
        entrant.trial = trial_of(before, after, ["before"] * n_rounds)
    fixing.tries = [_Try(change("plain.py"), entrant)]
    fixing.interrupt()
    assert (fixing.tries[0].outcome, fixing.tries[0].reason) == (outcome, reason)


def test_an_interrupt_is_no_reason_where_something_else_kept_a_change_from_its_trial(fixing):
    fixing.complete = False
    fixing.tries = [_Try(change("plain.py", per_run=True), Entrant({})), _Try(change("crlf.py"), Entrant({}))]
    fixing._heat(fixing.tries[:1], 0)
    fixing.begun_s -= fixing.wanted.budget_s
    fixing.interrupt()
    long, late = fixing.tries
    assert long.reason.startswith("it saves time once per run")
    assert late.reason == "time ran out"
