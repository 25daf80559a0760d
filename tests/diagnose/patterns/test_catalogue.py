"""What holds for every pattern's advice, whatever it looks for."""

from __future__ import annotations

import ast
import sys

import pytest

from torchtriage.core.finding import Fix
from torchtriage.diagnose.patterns import catalogue

FIXES = {
    f"{entry.pattern.code} {name}": value
    for entry in catalogue()
    for name, value in vars(sys.modules[entry.find.__module__]).items()
    if isinstance(value, Fix)
}
WIDTH = 88
"""What fits beside the margins of a terminal of 100 columns."""


def test_every_pattern_has_a_fix() -> None:
    assert {name.split()[0] for name in FIXES} == {one.pattern.code for one in catalogue()}


@pytest.mark.parametrize("name", sorted(FIXES))
def test_the_code_of_a_fix_is_python_and_fits_a_screen(name: str) -> None:
    code = FIXES[name].code
    assert ast.parse(code).body
    assert max(map(len, code.splitlines())) <= WIDTH


@pytest.mark.parametrize("name", sorted(FIXES))
def test_a_fix_is_one_or_two_sentences_and_says_where_to_read_on(name: str) -> None:
    fix = FIXES[name]
    assert fix.text.endswith(".")
    assert fix.text.count(". ") <= 1
    assert fix.link.startswith("https://docs.")
