"""``torchtriage compare``: exit codes, forms, promises, and refusals in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from tests.diagnose.compare.runs import Script

import torchtriage as tt

Run = Callable[..., Result]
FAST = Script(loader=20, workers=4)
SLOW = replace(FAST, loader=3000, workers=0)


@pytest.fixture
def runs(folder: Path) -> Path:
    """Add two runs of one workload, and one of another, to the folder of traces."""
    scripts = {"slow_loader": SLOW, "fast_loader": FAST, "other_batch": replace(FAST, batch=64)}
    scripts["slower_machine"] = replace(FAST, slower=1.4)
    for name, script in scripts.items():
        (folder / f"{name}.json").write_bytes(script.builder().json())
    return folder


def test_a_faster_run_is_fine(run: Run, runs: Path) -> None:
    text = run("compare", "slow_loader.json", "fast_loader.json", code=0).stdout
    assert text.startswith("Faster by ")
    assert "DataLoader wait" in text
    assert "promise   DAT018" in text


@pytest.mark.parametrize(("limit", "code"), [(None, 0), ("5", 1), ("50000", 0)], ids=["no limit", "beyond", "within"])
def test_a_slower_run_fails_beyond_the_limit_only(run: Run, runs: Path, limit: str | None, code: int) -> None:
    options = ["--fail-on-slower", limit] if limit else []
    text = run("compare", "fast_loader.json", "slow_loader.json", *options, code=code).stdout
    assert text.startswith("Slower by ")


def test_a_change_within_the_noise_never_fails(run: Run, runs: Path) -> None:
    run("compare", "fast_loader.json", "fast_loader.json", "--fail-on-slower", "0", code=0)


def test_a_limit_that_the_noise_hides_is_said_to_be(run: Run, runs: Path) -> None:
    result = run("compare", "fast_loader.json", "slower_machine.json", "--fail-on-slower", "5", code=0)
    assert result.stdout.startswith("No significant change: ")
    assert "--fail-on-slower 5 cannot tell" in result.stderr


def test_unlike_runs_exit_with_two_and_the_reason(run: Run, runs: Path) -> None:
    text = run("compare", "fast_loader.json", "other_batch.json", code=2).stdout
    assert text.startswith("Not comparable: different sizes")


@pytest.mark.parametrize("bad", ["broken.json", "absent.json"])
def test_unusable_input_exits_with_two_and_one_line(run: Run, runs: Path, bad: str) -> None:
    result = run("compare", "fast_loader.json", bad, code=2)
    assert result.stdout == ""
    assert bad in result.stderr


def test_json_markdown_and_page_say_the_same(run: Run, runs: Path) -> None:
    args = ("compare", "slow_loader.json", "fast_loader.json")
    document = json.loads(run(*args, "--json", code=0).stdout)
    assert document["schema"] == "torchtriage-comparison/1"
    assert sum(one["change"]["delta_ns"] for one in document["causes"]) == (document["total"]["delta_ns"])
    first = document["verdict"][0].split(":")[0]
    assert first in run(*args, "--markdown", code=0).stdout
    run(*args, "--html", "page.html", "-o", "report.txt", code=0)
    assert first in (runs / "page.html").read_text(encoding="utf-8").replace("\xa0", " ")
    assert first in (runs / "report.txt").read_text(encoding="utf-8")


def test_a_saved_report_is_held_to_its_promise(run: Run, runs: Path) -> None:
    run("analyze", "slow_loader.json", "--json", "-o", "before.json", code=0)
    args = ("compare", "slow_loader.json", "fast_loader.json", "--promise", "before.json", "--json")
    promise = json.loads(run(*args, code=0).stdout)["promise"]
    assert promise["codes"] == ["DAT018"]
    assert promise["holds_within_noise"]


def test_the_right_result_of_several_is_taken(run: Run, runs: Path) -> None:
    run("analyze", "slow_loader.json", "fast_loader.json", "--json", "-o", "both.json", code=0)
    args = ("compare", "slow_loader.json", "fast_loader.json", "--promise", "both.json")
    run(*args, code=0)
    result = run("compare", "other_batch.json", "fast_loader.json", *args[3:], code=2)
    assert "expected one result about other_batch.json" in result.stderr


@pytest.mark.parametrize("report", ["absent.json", "broken.json"])
def test_a_promise_that_is_no_report_is_refused(run: Run, runs: Path, report: str) -> None:
    args = ("compare", "slow_loader.json", "fast_loader.json", "--promise", report)
    assert report in run(*args, code=2).stderr or "torchtriage result" in run(*args, code=2).stderr


def test_an_output_that_is_an_input_is_refused_before_any_work(run: Run, runs: Path) -> None:
    args = ("compare", "slow_loader.json", "fast_loader.json", "-o", "slow_loader.json")
    assert "found the input itself" in run(*args, code=2).stderr


def test_in_python_it_is_one_call_and_shows_itself(runs: Path) -> None:
    result = tt.compare(SLOW.build(), runs / "fast_loader.json")
    assert result.comparable
    assert str(result).startswith("Faster by ")
    assert "<iframe" in result._repr_html_()
    assert json.loads(result.to_json())["schema"] == "torchtriage-comparison/1"
    assert result.to_markdown().startswith("### Faster by ")
