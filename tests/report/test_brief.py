"""The report that a command prints by default: one screen, what to do first, each qualifier once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from tests.conftest import DATA
from tests.report import forms
from tests.report.sample_result import SERVING, all_results, healthy, partial, problems, refused, unmarked

import torchtriage as tt
from torchtriage.cli.main import cli
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.finding import Crash
from torchtriage.diagnose.runs.result import (
    AccountLine,
    AccountPart,
    RecordedRun,
    RunAccount,
    StepAccount,
    WatchedMemory,
)
from torchtriage.diagnose.verdict.result import Result
from torchtriage.report import terminal
from torchtriage.report.documents import trace
from torchtriage.report.documents.brief import _clause
from torchtriage.report.json_report import JsonReport

WIDTH, LINES = 100, 40


def brief(result: Result, width: int = WIDTH, **options: Any) -> str:
    return forms.traces([result], width=width, short=True, **options).plain


def test_the_first_lines_say_where_the_time_goes_and_what_saves_most() -> None:
    lines = brief(problems()).splitlines()
    assert lines[0] == problems().verdict[0]
    assert "Largest savings; together 12.3-27.8 ms per step (26-58 %)" in lines
    at = lines.index("1. The host waits for the GPU to read a scalar (SYN001)")
    assert lines[at + 1 : at + 6] == [
        "   HIGH      saves 9.10-11.9 ms per step (19-25 %), certain",
        "   where     train.py in train_step (from line 31)",
        "   why       2 reads of a GPU scalar per step stop the host 21.4 ms; the GPU then runs dry 11.9 ms",
        "   fix       Keep the loss on the GPU and read it every N steps.",
        "",
    ]


def test_a_saving_together_says_that_findings_which_are_not_shown_are_in_it() -> None:
    assert re.search(
        r"^Largest saving; all \d together 12\.3-27\.8 ms per step", brief(problems(), top=1), re.MULTILINE
    )


@pytest.mark.data
def test_what_was_asked_for_of_a_job_is_that_of_its_first_rank() -> None:
    result = CliRunner().invoke(cli, ["analyze", str(DATA / "traces/distributed/dlrm_v100_8ranks"), "--by", "kernel"])
    assert "only rank 0:" in result.output
    assert "ncclKernel_AllRedu" in result.output


@pytest.mark.data
def test_operators_without_a_device_are_of_the_window_whose_length_is_given() -> None:
    result = CliRunner().invoke(cli, ["analyze", str(DATA / "programs/traces/depth_layout_bad.json.gz")])
    assert "11.3 ms (self time in 82.5 ms)" in result.output


def test_no_word_of_another_scale_stands_beside_severity_saving_and_confidence() -> None:
    for result in all_results():
        assert not re.search(r"grade [ABC]|modelled|bounded|\bmeasured,", brief(result))


def test_the_name_of_a_finding_comes_before_its_code_and_opens_its_page() -> None:
    text = forms.traces([problems()], short=True)
    first = problems().findings[0]
    at = text.plain.index(f"{first.title} ({first.code})")
    assert f"link {first.fix.link}" in " ".join(str(span.style) for span in text.spans if span.start == at)


def test_a_source_line_stands_beside_its_place() -> None:
    result = problems()
    exact = replace(result.findings[0].place.frame, exact=True)
    found = replace(result.findings[0], place=replace(result.findings[0].place, frame=exact))
    text = brief(replace(result, findings=(found,)), quote=lambda *_: "loss.item()")
    assert "   where     train.py:31  loss.item()\n" in text


def test_what_is_not_in_full_is_a_line_each_and_counted() -> None:
    result = problems()
    many = replace(result, findings=(*result.findings, *result.findings))
    lines = brief(many).splitlines()
    assert [line[:2] for line in lines if re.match(r"\d\. ", line)] == ["1.", "2.", "3.", "4.", "5."]
    assert f"{len(many.findings) - 5} more findings with -v" in lines
    assert "8 more findings not shown." in brief(many, top=2)


def test_what_was_not_checked_is_said_once_and_names_what_is_missing() -> None:
    text = brief(partial())
    assert text.count("Not checked") == 1
    assert "Not checked: 4 of 28 patterns (missing: " in text
    assert "Checked: all 28 patterns." in brief(healthy())
    assert "Checked: no pattern, as nothing was recorded." in brief(replace(healthy(), checked=()))
    crashed = replace(healthy(), crashes=(Crash("HST021", "IndexError: odd"),))
    assert "Failed, a bug in torchtriage: HST021 IndexError: odd" in brief(crashed)


def test_limits_take_the_line_of_trust() -> None:
    limited = replace(problems(), verdict=(*problems().verdict[:2], "Limited trust: half of it is missing."))
    trust = [line for line in brief(limited).splitlines() if "rust:" in line]
    assert trust == ["Limited trust: half of it is missing."]


def test_a_refusal_says_why_and_what_to_do() -> None:
    lines = brief(refused()).splitlines()
    assert lines[0] == refused().verdict[0]
    assert refused().verdict[1] in lines
    assert not any(line.startswith("1. ") for line in lines)


def test_of_a_file_that_was_cut_the_end_is_named() -> None:
    losses = ("the last event is cut short (1.00 MiB into the text)", "the text ends early, after 1.00 MiB of text")
    cut = replace(problems(), trace=replace(problems().trace, tier="salvaged", n_lost=1, loss=losses))
    said = " ".join(brief(cut).split())
    assert "Salvaged: 1 event lost; the text ends early, after 1.00 MiB of text." in said


def test_the_steps_of_an_engine_and_what_was_asked_for_are_there() -> None:
    text = brief(replace(problems(), serving=SERVING))
    assert "  prefill" in text
    assert "  category" not in text
    assert "  operator" in text  # of --by operator


def test_a_run_says_where_its_step_goes_how_long_it_takes_and_what_was_asked_for() -> None:
    parts = (AccountPart("Python", 14.0, 0.88), AccountPart("operators", 1.9, 0.12))
    lines = (AccountLine("/srv/train.py", 36, "clean", "Python", 0.71),)
    body = (AccountLine("/srv/train.py", 40, "main", "Python", 0.8),)
    gradients = (AccountLine("/srv/net.py", 9, "forward", "gradients", 0.1),)
    run = RecordedRun(
        *("train.py", 0, "one step of SGD", "train.py", 41, "main", 40, 15.9, 39, True, 16.0, 24.9),
        memory=WatchedMemory("no leak", 300, 20, (), 0, 0, 0, None, None, "", 0.0, ()),
        account=StepAccount("step", 15.9, 39, 400, "train.py", 41, parts, lines, gradients=gradients, body=body),
    )
    text = brief(replace(problems(), recorded=run))
    bar, *rows = text[text.index("  step ") : text.index("  GPU 0")].splitlines()
    assert bar == f"  step      {'▓' * 35}{'█' * 5}  Python 88 %, operators 12 %"
    assert rows == [
        "  body      train.py:40 80 %",
        "  lines     train.py:36 71 %",
        "  gradients net.py:9 10 %",
        "  loop      one step of SGD, train.py:41 in main; 40 steps seen",
        "  time      15.9 ms without the profiler (mean of 39 steps)",
        "  memory    no leak in 300 steps; resident 0 B at first, 0 B at last, 0 B at most",
    ]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            {"the loop": 0.3, "other imports": 0.1, "start and import of torch": 0.6},
            "1.00 s, 70 % of it outside the loop: start and import of torch 60 %",
        ),
        ({"the loop": 0.7, "after the loop": 0.1, "before the loop": 0.2}, "30 % of it outside the loop: before the"),
        ({"the loop": 0.8, "before the loop": 0.2}, ""),
    ],
)
def test_what_is_outside_the_loop_is_named_by_its_largest_part(parts: dict[str, float], says: str) -> None:
    whole = RunAccount(1000.0, tuple(AccountPart(kind, 1000 * share, share) for kind, share in parts.items()))
    one = (AccountPart("Python", 15.9, 1.0),)
    account = StepAccount("step", 15.9, 39, 400, "train.py", 41, one, ())
    run = replace(recorded_by("train.py"), account=account, run_account=whole)
    text = " ".join(brief(replace(problems(), recorded=run)).split())
    assert says in text
    assert ("outside the loop" in text) == bool(says)


def test_a_reason_does_not_repeat_the_step_that_the_saving_names() -> None:
    first = problems().findings[0]
    found = replace(first, message="Python takes 2.80 ms of 48.2 ms per step")
    assert "why       Python takes 2.80 ms per step\n" in brief(replace(problems(), findings=(found,)))


def recorded_by(command: str, exit_code: int = 0) -> RecordedRun:
    return RecordedRun(*(command, exit_code, "one step of SGD", "train.py", 41, "main", 40, 15.9, 39, True, 16.0, 24.9))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train.py --lr 1", "Next: torchtriage fix train.py --lr 1, or torchtriage verify train.py train_changed.py"),
        (
            "'my train.py'",
            "Next: torchtriage fix 'my train.py', or torchtriage verify 'my train.py' 'my train_changed.py'",
        ),
        ("-m package.train", "Next: torchtriage fix -m package.train"),
        (f"train.py {'x' * 40}", f"Next: torchtriage fix train.py {'x' * 40}"),
        (f"train.py {'x' * 90}", "Next: torchtriage fix train.py …, or torchtriage verify train.py train_changed.py"),
    ],
)
def test_a_run_names_the_next_step_with_its_script(command: str, says: str) -> None:
    text = brief(replace(problems(), recorded=recorded_by(command)))
    assert says in text.splitlines()
    assert len(text.splitlines()) <= LINES


def test_there_is_no_next_step_without_a_saving_or_a_script() -> None:
    for result, run in (
        (healthy(), recorded_by("train.py")),
        (problems(), recorded_by("")),
        (problems(), recorded_by("train.py", 1)),
    ):
        assert "Next:" not in brief(replace(result, recorded=run))


def test_without_steps_savings_are_of_the_window() -> None:
    assert "saves 90.0-120 ms in the window (19-25 %)" in brief(unmarked())


def test_a_long_path_keeps_its_end_and_is_not_broken() -> None:
    result = problems()
    frame = replace(
        result.findings[0].place.frame, file="/opt/venv/lib/python3.12/site-packages/company/models/vision/train.py"
    )
    found = replace(result.findings[0], place=replace(result.findings[0].place, frame=frame))
    text = brief(replace(result, findings=(found,)), 80)
    assert "   where     …/site-packages/company/models/vision/train.py in train_step" in text


@pytest.mark.parametrize("width", [40, 80, 100, 120])
@pytest.mark.parametrize("result", all_results(), ids=lambda result: result.trace.path[:8])
def test_no_line_is_wider_than_the_terminal(result: Result, width: int) -> None:
    # code is shown where it fits 80 columns
    assert all(cell_len(line) <= width for line in brief(result, width).splitlines())


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        ("short", 10, "short"),
        ("a first clause, and a second", 20, "a first clause …"),
        ("one sentence here. Another one", 25, "one sentence here."),
        ("products over [256, 64, 8] and [1, 2]", 32, "products over [256, 64, 8] …"),
        ("takes 6.24 ms of 53.5 ms", 18, "takes 6.24 ms …"),
        ("x" * 30, 10, "xxxxxxxxx…"),
    ],
)
def test_a_long_text_ends_with_a_clause(text: str, room: int, shown: str) -> None:
    assert _clause(text, room) == shown


# -- recordings --------------------------------------------------------------------


def recorded() -> Iterator[Path]:
    """Yield each trace, and the folder of each job."""
    yield from sorted(one for one in (DATA / "traces").rglob("*.json*") if "8ranks" not in str(one))
    yield from sorted((DATA / "traces" / "distributed").glob("*ranks"))
    yield from sorted((DATA / "gpu2" / "traces").glob("*.json.gz"))
    yield from sorted((DATA / "gpu2" / "jobs").glob("*"))


@pytest.mark.data
def test_the_page_about_reports_shows_a_real_one(recordings: Path, judge: Callable[[Path], tt.Report]) -> None:
    result = judge(recordings / "cv" / "resnet50_v100_train_workers0.json.gz")
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == brief(replace(result, trace=replace(result.trace, path=Path(result.trace.path).name)))


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("path", list(recorded()), ids=lambda path: path.name[:60])
def test_a_report_fits_a_screen_and_in_full_it_holds_everything(path: Path, judge: Callable[[Path], tt.Report]) -> None:
    try:
        ranks = path.is_dir() or judge(path).holds_ranks
    except TraceFormatError:
        return  # one message is all that is printed
    found = tt.analyze_ranks([path]) if ranks else None
    report = JsonReport.of(found.results, found.jobs) if found else JsonReport.of([judge(path)])
    lines = terminal.render(trace.document(report.results, report.jobs, short=True), width=WIDTH).plain.splitlines()
    assert len(lines) <= LINES, "\n".join(lines)
    assert max(map(cell_len, lines)) <= WIDTH
    full = " ".join(terminal.render(trace.document(report.results, report.jobs), width=WIDTH).plain.split())
    for subject in report.jobs or report.results:
        assert all(full.count(finding.code) for finding in subject.findings)
        assert all(" ".join(finding.message.split()) in full for finding in subject.findings)
        assert f"{len(subject.checked)} patterns checked" in full or subject.refused
        hidden = {entry.code for entry in subject.not_checked if entry.code not in full}
        assert not hidden or "GPU patterns: need GPU rows" in full
