"""A comparison reads the same everywhere, adds up, and nothing in a name can break out."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from tests.diagnose.compare.runs import Script
from tests.report import forms
from tests.report.sample_result import HOSTILE, problems

from torchtriage.core.errors import TraceFormatError
from torchtriage.diagnose.compare.result import Comparison
from torchtriage.diagnose.compare.verdict import compare, gather
from torchtriage.report.documents.comparison import LABELS, table_lines
from torchtriage.report.json_report import encode as encode_result

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema" / "torchtriage-comparison-1.json"
BASE = Script()


@cache
def faster() -> Comparison:
    after = replace(BASE, loader=20, workers=4, kernel="tensorop")
    return compare(gather(replace(BASE, loader=3000).build()), gather(after.build()))


@cache
def refused() -> Comparison:
    return compare(gather(BASE.build()), gather(replace(BASE, batch=64).build()))


@cache
def hostile() -> Comparison:
    result = faster()
    causes = tuple(
        replace(
            cause,
            label=HOSTILE,
            sentence=HOSTILE,
            what=(HOSTILE,),
            parts=tuple(replace(part, name=HOSTILE) for part in cause.parts),
        )
        for cause in result.causes
    )
    return replace(
        result,
        verdict=(HOSTILE, HOSTILE, HOSTILE),
        before=replace(result.before, path=HOSTILE, device=HOSTILE),
        after=replace(result.after, path=HOSTILE, device=HOSTILE),
        causes=causes,
        findings=tuple(replace(finding, place=HOSTILE, title=HOSTILE) for finding in result.findings),
        limits=tuple(replace(limit, message=HOSTILE, fix=HOSTILE) for limit in result.limits),
    )


ALL = [faster, refused, hostile]


# -- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 2, 50])
def test_the_rows_shown_add_up_to_the_change_however_few_are_shown(limit):
    result = faster()
    assert result.total is not None
    shown = table_lines(result, limit)
    assert sum(row.delta_ns for row in shown) == result.total.delta_ns
    assert sum(row.before_ns for row in shown) == result.total.before_ns


def test_what_is_within_the_noise_is_one_row_and_marked_so():
    shown = table_lines(faster())
    assert [row.significant for row in shown] == sorted((row.significant for row in shown), reverse=True)
    assert shown[-1].label.endswith("within the noise")


# -- json --------------------------------------------------------------------------------------


def test_the_published_schema_is_up_to_date():
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert published == forms.schema("comparison"), "run: python -m tests.report.write_schema"


@pytest.mark.parametrize("result", ALL)
def test_every_comparison_follows_the_schema_and_comes_back(result):
    schema = forms.schema("comparison")
    jsonschema.Draft202012Validator.check_schema(schema)
    data = forms.encode(result())
    jsonschema.Draft202012Validator(schema).validate(json.loads(data))
    assert forms.decode(data, "comparison") == result()
    assert data == forms.encode(result())


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": "torchtriage-comparison/2"}', b'{"schema": 1}', b"\xff\xfe"])
def test_what_is_no_comparison_is_refused(data):
    with pytest.raises(TraceFormatError):
        forms.decode(data, "comparison")


def test_a_result_of_one_trace_is_no_comparison():
    with pytest.raises(TraceFormatError, match="torchtriage-comparison/1"):
        forms.decode(encode_result([problems()]), "comparison")


# -- terminal ----------------------------------------------------------------------------------


def test_the_terminal_shows_verdict_causes_and_promise_within_its_width():
    text = forms.terminal(faster(), width=80).plain
    lines = text.splitlines()
    assert lines[0].startswith("Faster by ")
    assert "DataLoader wait" in text
    assert re.search(r"-2\.98 ms +█+ +3\.0\d +0\.0\d ms +DataLoader wait", text)
    assert re.search(r"-\d\.\d\d ms .* mean steady step, \d+ causes", text)
    assert "promise   DAT018 promised" in text
    assert max(map(len, lines)) <= 80


def test_a_refusal_shows_reasons_what_was_found_and_what_to_do():
    text = forms.terminal(refused()).plain
    assert text.startswith("Not comparable: different sizes")
    assert "multiply-adds per step" in text
    assert "try: record both runs with the same batch size" in text
    assert "causes" not in text


# -- markdown ----------------------------------------------------------------------------------


def test_the_comment_has_a_table_that_ends_in_the_sum():
    text = forms.markdown(faster())
    assert text.startswith("### Faster by ")
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert table[0] == "| change per step | before | after | cause |"
    assert any("**all " in line for line in table)
    assert "Not comparable" in forms.markdown(refused())


# -- html --------------------------------------------------------------------------------------


def test_the_page_is_whole_runs_no_script_and_asks_no_server():
    page = forms.page(faster())
    assert "script" not in page.lower().replace("description", "")
    # the icon is part of the page
    assert re.findall(r"(?:src|href)=.{,8}", page) == ['href="data:im']
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in page
    assert page.count("<rect ") == len(table_lines(faster())) + 2


def test_the_waterfall_leads_from_before_to_after():
    page = forms.page(faster())
    bars = [
        (float(x), float(width))
        for x, width in re.findall(r'<rect class="[^"]*" x="([\d.]+)" y="\d+" width="([\d.]+)"', page)
    ]
    first, *steps, last = bars
    assert first[0] == last[0] == LABELS
    # each bar begins or ends where the one before left off
    level = first[0] + first[1]
    for x, width in steps:
        assert min(abs(x - level), abs(x + width - level)) <= 2
        level = x if abs(x + width - level) <= abs(x - level) else x + width
    assert level == pytest.approx(last[0] + last[1], abs=4)


def test_what_gets_shared_shows_file_names_and_no_folders():
    result = faster()
    moved = replace(result, before=replace(result.before, path="/home/ada/secret/run.json"))
    for shared in (forms.page(moved), forms.markdown(moved)):
        assert "run.json" in shared
        assert "secret" not in shared


# -- names that mean harm ----------------------------------------------------------------------


def test_no_name_breaks_out_of_any_report():
    result = hostile()
    assert "\x1b" not in forms.terminal(result).plain
    page = forms.page(result)
    assert HOSTILE not in page
    assert "<script" not in page.lower()
    assert "<img" not in page.lower()
    assert html.unescape(page) != page
    text = forms.markdown(result)
    assert "<script" not in text.lower()
    assert "\x1b" not in text
    assert b"\x1b" not in forms.encode(result)
