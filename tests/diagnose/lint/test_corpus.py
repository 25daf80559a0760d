"""Planted faults are found at their lines, and their look-alikes are left alone."""

from __future__ import annotations

import pytest
from diagnose.lint.corpus_reader import Snippet, snippets

from torchtriage.diagnose.lint import catalogue, lint_text

SNIPPETS = list(snippets())


def found(snippet: Snippet) -> set[tuple[int, str]]:
    result = lint_text(snippet.text, "snippet.py")
    assert result.odd == ()
    return {(finding.place.frame.line, finding.code) for finding in result.findings if finding.place.frame is not None}


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_found_where_planted_and_nowhere_else(snippet: Snippet) -> None:
    assert found(snippet) == set(snippet.wanted)


@pytest.mark.parametrize("snippet", [one for one in SNIPPETS if one.remarks], ids=lambda one: one.name)
def test_remarks_are_made_where_planted(snippet: Snippet) -> None:
    made = lint_text(snippet.text, "snippet.py", notes=True).findings
    notes = {(one.place.frame.line, one.code) for one in made if one.place.frame is not None and one.severity == "note"}
    assert snippet.remarks <= notes


def test_the_corpus_is_large_and_half_of_it_is_clean() -> None:
    faulty = [snippet for snippet in SNIPPETS if snippet.wanted]
    assert len(SNIPPETS) >= 80
    assert len(SNIPPETS) - len(faulty) >= 35
    assert sum(len(snippet.wanted) for snippet in SNIPPETS) >= 90


def test_recall_and_precision_over_the_corpus() -> None:
    pairs = [(found(snippet), snippet.wanted) for snippet in SNIPPETS]
    hits = sum(len(got & wanted) for got, wanted in pairs)
    assert hits / sum(len(wanted) for _, wanted in pairs) >= 0.9
    assert hits / sum(len(got) for got, _ in pairs) >= 0.95


def test_every_rule_has_a_planted_fault() -> None:
    planted = {code for snippet in SNIPPETS for _, code in snippet.wanted}
    remarks = {entry.rule.code for entry in catalogue() if entry.rule.severity == "note"}
    assert {entry.rule.code for entry in catalogue()} - remarks == planted


def test_remarks_are_counted_and_shown_on_request() -> None:
    text = """
import torch
model = torch.nn.Linear(3, 3).cuda()
opt = torch.optim.AdamW(model.parameters())
for batch in train_loader:
    loss = model(batch.cuda(non_blocking=True)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    quiet, loud = lint_text(text), lint_text(text, notes=True)
    assert (len(quiet.findings), quiet.n_notes) == (0, 2)
    assert [finding.code for finding in loud.findings] == ["LCH016", "KRN022"]
    assert {finding.severity for finding in loud.findings} == {"note"}


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_line_ends_tabs_and_indentation_change_nothing(snippet: Snippet) -> None:
    crlf = lint_text(snippet.text.replace("\n", "\r\n"))
    tabs = lint_text(snippet.text.replace("    ", "\t"))
    for other in (crlf, tabs):
        assert {
            (finding.place.frame.line, finding.code) for finding in other.findings if finding.place.frame is not None
        } == set(snippet.wanted)
