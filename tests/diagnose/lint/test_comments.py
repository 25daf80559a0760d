"""Comments allow findings, and say so when they are not needed."""

from __future__ import annotations

import pytest

from torchtriage.diagnose.lint import lint_text

LOOP = """import torch
{file}
{above_def}
def train(model, loader, optimizer):{on_def}
    for batch in loader:
        loss = model(batch.cuda(non_blocking=True)).mean()
        loss.backward()
        optimizer.step()
        {above}
        total += loss.item({inside}){on}
        torch.cuda.empty_cache()
"""


def look(**places: str) -> tuple[list[str], int, list[tuple[int, str]]]:
    names = ("file", "above_def", "on_def", "above", "inside", "on")
    filled = {name: places.get(name, "") for name in names}
    result = lint_text(LOOP.format(**filled))
    assert result.odd == ()
    return (
        [finding.code for finding in result.findings],
        result.n_suppressed,
        [(one.line, one.message) for one in result.unused],
    )


ALLOW = "# torchtriage: allow SYN001"


@pytest.mark.parametrize("place", ["above", "on"])
def test_a_line(place: str) -> None:
    assert look(**{place: f"  {ALLOW}" if place == "on" else ALLOW}) == (["MEM028"], 1, [])


@pytest.mark.parametrize("place", ["above_def", "on_def"])
def test_a_function(place: str) -> None:
    both = f"  {ALLOW}, empty-cache-in-loop"
    assert look(**{place: both.strip() if place == "above_def" else both}) == ([], 2, [])


def test_a_file() -> None:
    result = lint_text(
        f"{ALLOW}, MEM028\n"
        + LOOP.format(**dict.fromkeys(("file", "above_def", "on_def", "above", "inside", "on"), ""))
    )
    assert (result.findings, result.n_suppressed) == ((), 2)


def test_a_statement_over_several_lines() -> None:
    assert look(on=f"  {ALLOW}", inside="\n        ")[0] == ["MEM028"]


def test_a_reason_may_follow() -> None:
    assert look(on=f"  {ALLOW} - the value decides")[0] == ["MEM028"]


def test_comments_that_are_not_needed_are_told() -> None:
    codes, suppressed, unused = look(on="  # torchtriage: allow CPY013")
    assert (codes, suppressed) == (["SYN001", "MEM028"], 0)
    assert unused == [(10, "allows CPY013, which is not found here")]


def test_unknown_and_missing_codes_are_told() -> None:
    assert look(on="  # torchtriage: allow ABC999")[2] == [(10, "no rule is called ABC999")]
    assert look(on="  # torchtriage: allow")[2] == [(10, "expected codes after 'allow', found none")]


def test_text_that_only_looks_like_a_comment() -> None:
    assert look(above='note = "# torchtriage: allow SYN001"')[0] == ["SYN001", "MEM028"]
