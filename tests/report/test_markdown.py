from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.report import forms
from tests.report.sample_result import HOSTILE, SYNC, all_results, healthy, partial, problems, refused

from torchtriage.report import markdown


def test_hostile_names_open_no_tag():
    text = forms.traces_in_markdown(all_results())
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    tags = set(re.findall(r"<[^>]*>", outside))
    link = "<https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html>"
    known = {"<b>", "</b>", "<sub>", "</sub>", link}
    assert tags - known == {"<details>", "</details>", "<summary>", "</summary>"}
    assert all(line.isprintable() for line in text.splitlines())


def test_every_row_of_the_table_has_its_five_cells():
    hostile = replace(SYNC, title=HOSTILE, place=replace(SYNC.place, frame=None, ops=(HOSTILE,)))
    piped = replace(SYNC, place=replace(SYNC.place, frame=None, ops=("a|b`c",)))
    text = forms.traces_in_markdown(
        [replace(problems(), findings=(SYNC, hostile, piped), device_time=(), bus_bandwidth=None)]
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 5
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6] * 5


def test_details_close_as_often_as_they_open():
    text = forms.traces_in_markdown(all_results())
    assert text.count("<details>") == text.count("</details>") > 0


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a*b_c", r"a\*b\_c"),
        ("[x](y)", r"\[x\](y)"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("a|b", r"a\|b"),
        ("@someone", "@&#8203;someone"),
        ("see #12", "see #&#8203;12"),
        ("https://a.b", "https:&#8203;//a.b"),
        ("- item", r"\- item"),
        ("1. item", "1&#8203;. item"),
        ("1.5 ms", "1.5 ms"),
        ("two\nlines", r"two\\nlines"),
    ],
)
def test_prose_reads_as_written(text, escaped):
    assert markdown.prose(text) == escaped


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("aten::mm", "`aten::mm`"),
        ("a`b", "``a`b``"),
        ("`a`", "`` `a` ``"),
        ("<script>", "`<script>`"),
        ("a\nb", r"`a\nb`"),
        ("", "`  `"),
    ],
)
def test_a_code_span_holds_any_name(text, span):
    assert markdown.code(text) == span


def test_a_code_block_cannot_be_closed_from_inside():
    assert markdown.code_block("```\nx = 1") == "````python\n```\nx = 1\n````"


def test_only_web_links_become_links():
    text = forms.traces_in_markdown([problems()])
    assert "[Read more](<https://pytorch.org" in text
    assert "javascript:" not in text


def test_the_verdict_the_losses_and_what_is_unknown_are_there():
    text = forms.traces_in_markdown([partial()])
    assert text.startswith("### Nothing was found in what could be read")
    assert "salvaged: 1,204 events lost" in text
    assert "**No findings.** 23 patterns checked, 4 not checked, 1 failed." in text
    assert "to check: `profile(record_shapes=True)`" in text
    assert "**HST021** IndexError" in text


def test_a_refusal_claims_no_check():
    text = forms.traces_in_markdown([refused()])
    assert "**refused** `DQ001`" in text
    assert "patterns checked" not in text


def test_top_says_what_it_left():
    text = forms.traces_in_markdown([problems()], top=1)
    assert text.count("\n| high") == 1
    assert "4 more findings not shown." in text


def test_a_healthy_recording_has_no_table():
    text = forms.traces_in_markdown([healthy()])
    assert "|" not in text
    assert "**No findings.** 28 patterns checked." in text
