"""What the learned detector adds is shown beside the findings, in every form of a report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.report import forms
from tests.report.sample_result import healthy, problems

from torchtriage.diagnose.verdict.result import Suspicion
from torchtriage.report import json_report, words
from torchtriage.report.pages import trace as html_page

SEEN = Suspicion(0.1875, 0.3125, 4, 1_000, 2_000, 0.97, {"HST020": 0.8, "DAT019": 0.15})
SAID = "19-31 % of a step, in 4 steps: 97 % likely to hold an anti-pattern, most like HST020 (80 %)"


def test_a_suspicion_is_a_place_a_probability_and_a_type() -> None:
    assert words.suspicion(SEEN) == SAID
    assert words.suspicion(replace(SEEN, types={}, n_steps=1)) == (
        "19-31 % of a step, in 1 step: 97 % likely to hold an anti-pattern"
    )


@pytest.mark.parametrize("base", [healthy, problems], ids=["healthy", "problems"])
def test_every_report_shows_it_and_says_that_it_is_an_opinion(base) -> None:
    result = replace(base(), suspicions=(SEEN,))
    shown = (
        " ".join(forms.traces([result]).plain.split()),
        " ".join(forms.traces_in_markdown([result]).split()),
        html_page.render([result]),
    )
    for text in shown:
        assert words.SUSPICIOUS in text
        assert SAID in text
        assert words.OPINION in text.replace("&#x27;", "'")


def test_a_styled_title_is_bold_once_in_markdown() -> None:
    text = forms.traces_in_markdown([replace(healthy(), suspicions=(SEEN,))])
    assert f"**{words.SUSPICIOUS}**  {words.OPINION}" in text


def test_nothing_is_said_when_nothing_is_suspicious() -> None:
    for text in (forms.traces([problems()]).plain, forms.traces_in_markdown([problems()])):
        assert words.SUSPICIOUS not in text


def test_it_is_read_back_from_json() -> None:
    result = replace(problems(), suspicions=(SEEN,))
    assert json_report.read(json_report.encode([result])).results == (result,)
