"""Every rule has the shape of a rule, and is the source side of its pattern."""

from __future__ import annotations

import re

import pytest

from torchtriage.core import fixes
from torchtriage.core.docpages import section
from torchtriage.core.errors import UsageError
from torchtriage.diagnose import patterns
from torchtriage.diagnose.lint import catalogue, lint_text, lookup
from torchtriage.diagnose.lint.base import SECTIONS, RuleEntry
from torchtriage.diagnose.runs.catalogue import catalogue as causes


@pytest.fixture(params=catalogue(), ids=lambda one: one.rule.code)
def entry(request: pytest.FixtureRequest) -> RuleEntry:
    return request.param


def test_pages_have_all_sections(entry: RuleEntry) -> None:
    assert all(section(entry.page, title) for title in SECTIONS)


def test_names_are_those_of_the_pattern(entry: RuleEntry) -> None:
    known = {one.pattern.code: one.pattern for one in patterns.catalogue()}
    pattern = known.get(entry.rule.code)
    if pattern is None:
        run_alone = {cause.code for cause in causes() if int(cause.code[3:]) < 101}
        assert int(entry.rule.code[3:]) >= 101 or entry.rule.code in run_alone, "codes of rules alone start at 101"
    else:
        assert (entry.rule.name, entry.rule.family) == (pattern.name, pattern.family)


def test_a_code_has_one_name() -> None:
    named = {(one.rule.code, one.rule.name) for one in catalogue()} | {(cause.code, cause.name) for cause in causes()}
    assert len(named) == len({code for code, _ in named})


def test_fixes_have_a_sentence_code_and_a_link(entry: RuleEntry) -> None:
    assert entry.fix.text.endswith(".")
    assert entry.fix.code
    assert entry.fix.link.startswith("https://")


def test_precedence_names_rules_that_exist(entry: RuleEntry) -> None:
    codes = {one.rule.code for one in catalogue()}
    assert set(entry.rule.over) <= codes - {entry.rule.code}


def test_lookup_by_code_and_by_name() -> None:
    assert lookup("syn001") is lookup("host-sync-scalar")
    with pytest.raises(UsageError, match="did you mean") as caught:
        lookup("SYN00")
    assert re.search("syn00", str(caught.value), re.IGNORECASE)


@pytest.mark.parametrize(
    ("update", "fix"),
    [("p.data.add_(p.grad, alpha=-0.1)", fixes.FUSE_OPTIMIZER), ("p.data.mul_(0.999)", fixes.AVERAGE_AT_ONCE)],
)
def test_a_loop_over_parameters_is_an_optimizer_where_it_uses_gradients(update: str, fix: fixes.Fix) -> None:
    text = f"""import torch
model = torch.nn.Linear(3, 3)
for batch in train_loader:
    model(batch).mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            {update}
"""
    (finding,) = [one for one in lint_text(text, "train.py").findings if one.code == "LCH016"]
    assert finding.fix is not None
    assert finding.fix.text == fix.text


def test_differences_of_all_pairs_are_at_every_line_that_works_on_them() -> None:
    for value, lines in (("(diff ** 2).sum(-1)", (3, 4)), ("model(x) + (diff ** 2).sum(-1)", (3,))):
        (finding,) = lint_text(
            f"import torch\nfor x in loader:\n    diff = x[:, None] - c[None]\n    d = {value}\n"
            "    d.mean().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
        ).findings
        frame = finding.place.frame
        assert frame is not None
        assert (finding.code, frame.line, frame.lines) == ("KRN102", 3, lines)
