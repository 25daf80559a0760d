"""The page of lint says what lint does, and the examples are judged as they should be."""

from __future__ import annotations

import re
from pathlib import Path

from torchtriage.cli.diagnose.lint import CONFIG
from torchtriage.diagnose.lint import catalogue, lint

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
RULES = (ROOT / "docs" / "lint-rules.md").read_text(encoding="utf-8")


def test_every_rule_is_on_the_page_and_no_other() -> None:
    listed = re.findall(r"^\| ([A-Z]{3}\d{3}) \| ", RULES, re.MULTILINE)
    codes = {entry.rule.code for entry in catalogue()}
    assert set(listed) == codes


def test_every_key_of_the_configuration_is_on_the_page() -> None:
    assert all(re.search(rf"^{key} = |--{key}", PAGE, re.MULTILINE) for key in CONFIG)


def test_rules_with_edits_are_marked_on_the_page() -> None:
    marked = {line[2:8] for line in RULES.splitlines() if "(**fix**" in line}
    assert marked == {"CPY007", "CPY008"}


def test_fixed_examples_are_silent() -> None:
    result = lint(sorted(map(str, (ROOT / "examples").glob("*_fixed.py"))))
    assert [(finding.code, finding.place.frame) for finding in result.findings] == []
    assert result.odd == ()


def test_the_product_itself_is_silent() -> None:
    # the bundled recording's program is slow on purpose
    assert lint([str(ROOT / "src")], exclude=["record_sample.py"]).findings == ()
