"""What holds for every pattern's advice, whatever it looks for."""

from __future__ import annotations

import ast
import sys

from torchtriage.core.finding import Fix
from torchtriage.diagnose import patterns
from torchtriage.diagnose.patterns import catalogue

FIXES = {
    f"{entry.pattern.code} {name}": value
    for entry in catalogue()
    for name, value in vars(
        sys.modules[f"{patterns.__name__}.{entry.pattern.family}.{entry.pattern.name.replace('-', '_')}"]
    ).items()
    if isinstance(value, Fix)
}
WIDTH = 88
"""What fits beside the margins of a terminal of 100 columns."""


def test_every_pattern_has_a_fix() -> None:
    assert {name.split()[0] for name in FIXES} == {one.pattern.code for one in catalogue()}


def test_the_code_of_every_fix_is_python_and_fits_a_screen() -> None:
    for name, fix in FIXES.items():
        assert ast.parse(fix.code).body, name
        assert max(map(len, fix.code.splitlines())) <= WIDTH, name


def test_every_fix_is_one_or_two_sentences_and_says_where_to_read_on() -> None:
    for name, fix in FIXES.items():
        assert fix.text.endswith("."), name
        assert fix.text.count(". ") <= 1, name
        assert fix.link.startswith("https://docs."), name
