"""A check reads the same everywhere, and nothing in a name can break out of a page."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from tests.measure.gate.sides import run, series, timed
from tests.report import forms
from tests.report.sample_result import HOSTILE

from torchtriage.core.errors import TraceFormatError
from torchtriage.measure.gate import formatting as gate_words
from torchtriage.measure.gate.check import check
from torchtriage.measure.gate.history import find_history
from torchtriage.measure.gate.result import Culprit, GateResult, HistoryResult
from torchtriage.measure.gate.row_verdict import GateLimits
from torchtriage.report.documents.gate import N_LOUD, workflow_commands

NAME = "tests/bench.py::test_step"


@cache
def regressed(name: str = NAME, n_metrics: int = 1) -> GateResult:
    sides = [
        run(
            *(timed(factor, seed=seed + i, metric=f"step {i}") for i in range(n_metrics)),
            series([[float(seed)]] * 12, "graph breaks", unit="1", kind="count"),
            benchmark=name,
        )
        for factor, seed in ((1.0, 1), (1.2, 2))
    ]
    return check(sides[:1], sides[1:], GateLimits(), labels=("main", "this work"))


@cache
def along(name: str = NAME) -> HistoryResult:
    return find_history(
        [
            run(
                timed(1.2 if i > 10 else 1.0, seed=i, n=4, rounds=False),
                benchmark=name,
                commit=f"{i:040x}",
                at_s=1000.0 + i,
            )
            for i in range(20)
        ],
        branch="main",
    )


def culprit(place: str) -> Culprit:
    return Culprit(NAME, "a.json", "b.json", "Why: DataLoader wait +5 ms.", ("wait",), (), place)


def test_both_documents_come_back() -> None:
    for result in (regressed(), along()):
        data = forms.encode(result)
        assert forms.decode(data, "gate", "gate-history") == result
        assert forms.encode(forms.decode(data, "gate", "gate-history")) == data


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": "torchtriage/1"}', b"\xff"])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(TraceFormatError, match="expected a check"):
        forms.decode(data, "gate", "gate-history")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_terminal_fits_its_width(width: int) -> None:
    for result in (regressed(), along()):
        text = forms.terminal(result, width=width).plain
        flat = " ".join(text.split())
        assert result.verdict[0] in flat
        assert max(map(len, text.split("\n"))) <= max(width, 80)


def test_the_picture_has_the_interval_right_of_the_limit() -> None:
    text = forms.terminal(regressed()).plain
    bar = next(line for line in text.split("\n") if "█" in line)
    assert bar.index("|") < bar.index(":") < bar.index("─") < bar.index("█")


def test_what_is_not_used_is_said_to_be_not_used() -> None:
    assert "not used: Welch's p < 0.001" in forms.terminal(regressed()).plain
    assert "These do not decide" in forms.markdown(regressed())
    assert "Not used for the verdict: Welch" in forms.page(regressed())


def test_the_page_has_no_script_and_asks_nobody() -> None:
    for result in (regressed(), along()):
        page = forms.page(result)
        assert "<script" not in page
        assert "default-src 'none'" in page.replace("&#x27;", "'")
        assert not re.search(r'(src|href)="(?!data:)', page)
        assert page.count("<svg") >= 1


def test_nothing_in_a_name_breaks_out() -> None:
    name = "bench " + HOSTILE.replace("\0", "") + "\n::error::x"
    for result in (regressed(name), along(name)):
        page = forms.page(result)
        assert "<img" not in page
        assert "<script" not in page
        assert "\x1b" not in forms.terminal(result).plain
        assert "<img" not in forms.markdown(result)
    lines = workflow_commands(regressed(name)).split("\n")
    assert all(line.startswith("::error ") for line in lines if line)


def test_annotations_name_the_file_of_a_test_or_the_line_of_a_culprit() -> None:
    first = workflow_commands(regressed()).split("\n")[0]
    assert first.startswith(f"::error file=tests/bench.py,title={NAME.replace(':', '%3A')} step 0")
    assert "+19.8 %25" in first
    named = replace(regressed(), culprits=(culprit("src/train.py:41"),))
    first = workflow_commands(named).split("\n")[0]
    assert first.startswith("::error file=src/train.py,line=41,title=")
    assert "DataLoader wait" in first


def test_annotations_are_as_many_as_github_shows() -> None:
    lines = workflow_commands(regressed(n_metrics=15)).split("\n")
    assert len([line for line in lines if line.startswith("::error")]) == 11
    assert "more are worse" in lines[10]


def test_what_is_fine_has_no_annotation() -> None:
    sides = [run(timed(seed=seed)) for seed in (1, 2)]
    assert workflow_commands(check(sides[:1], sides[1:], GateLimits())) == ""
    none = check([], sides, GateLimits())
    assert workflow_commands(none).startswith("::warning title=No verdict%3A")


def test_a_culprit_is_shown_everywhere() -> None:
    result = replace(regressed(), culprits=(culprit("src/train.py:41"),))
    for text in (forms.terminal(result).plain, forms.markdown(result), forms.page(result)):
        assert "DataLoader wait +5" in text.replace("\N{NO-BREAK SPACE}", " ")


def test_many_rows_stay_readable() -> None:
    result = regressed(n_metrics=60)
    text = forms.terminal(result).plain
    assert "more are in the JSON" in text
    assert text.count("worse,") <= 2 * N_LOUD + 2
    assert len(forms.page(result).encode()) < 500_000


@pytest.mark.parametrize(("ratio", "said"), [(0.99999, "0.00 %"), (1.00001, "0.00 %"), (1, "0 %"), (0.9999, "-0.01 %")])
def test_nothing_has_no_sign(ratio: float, said: str) -> None:
    assert gate_words.change(ratio) == said
