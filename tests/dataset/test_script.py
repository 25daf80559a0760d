"""Every script of the benchmark is a program, and its faulty lines are those its twin has not."""

from __future__ import annotations

import ast
import difflib
import re

import pytest

from torchtriage.dataset.plan import SPLITS, plan
from torchtriage.dataset.script import LOOP, MODES, Fault, faults, programs, write
from torchtriage.patterns import lookup

EVERY = [
    (program.family, mode, loader)
    for program in programs().values()
    for mode in MODES
    for loader in (False, True)
]


@pytest.mark.parametrize(("family", "mode", "loader"), EVERY)
def test_a_faulty_script_differs_from_its_twin_in_the_lines_it_tells(
    family: str, mode: str, loader: bool
) -> None:
    program = programs()[family]
    clean = write(program, mode, loader=loader)
    ast.parse(clean.text)
    assert not clean.fault_lines
    assert not clean.effect_lines
    fitting = [one for one in faults().values() if one.fits(program, mode, loader)]
    assert len(fitting) >= 5
    for fault in fitting:
        for severity in fault.severities[:1] or (0,):
            faulty = write(program, mode, fault, severity=severity, loader=loader)
            tree = ast.parse(faulty.text)
            lines = faulty.text.splitlines()
            changed = _changed(clean.text.splitlines(), lines)
            assert changed <= set(faulty.fault_lines), fault.code
            assert {lines[at - 1] for at in faulty.fault_lines} - {
                lines[at - 1] for at in changed
            } <= {""} | set(clean.text.splitlines()), fault.code
            statements = _loop(tree, lines)
            assert set(faulty.effect_lines) <= statements, fault.code
            assert faulty.effect_lines or faulty.effect_modules, fault.code


def _changed(clean: list[str], faulty: list[str]) -> set[int]:
    matcher = difflib.SequenceMatcher(None, clean, faulty, autojunk=False)
    return {
        line + 1
        for tag, _, _, begin, end in matcher.get_opcodes()
        if tag != "equal"
        for line in range(begin, end)
    }


def _loop(tree: ast.Module, lines: list[str]) -> set[int]:
    (loop,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and lines[node.lineno - 1].strip() == LOOP
    )
    return {statement.lineno for statement in loop.body}


@pytest.mark.parametrize("fault", faults().values(), ids=lambda one: one.code)
def test_a_fault_is_a_pattern_that_is_known_and_fits_some_program(fault: Fault) -> None:
    assert lookup(fault.code)
    assert any(fault.fits(programs()[family], mode, loader) for family, mode, loader in EVERY)
    assert list(fault.severities) == sorted(set(fault.severities))


def test_nothing_in_a_script_names_its_fault() -> None:
    for item in plan(200, 3):
        text = item.script().text
        assert "inject" not in text
        assert not re.search(r"\bfault", text)
        assert item.code == "" or item.code not in text


def test_a_plan_is_told_by_its_seed_and_a_longer_one_goes_on() -> None:
    items = plan(600, 0)
    assert items[:90] == plan(90, 0)
    assert items != plan(600, 1)
    assert len({one.id for one in items}) == 600
    assert [int(one.id) for one in items] == list(range(600))


def test_every_fault_and_family_is_taken_and_no_family_is_in_two_splits() -> None:
    items = plan(600, 0)
    counts = {code: sum(one.code == code for one in items) for code in faults()}
    assert min(counts.values()) >= 15
    assert {one.family for one in items} == set(programs())
    assert {one.split for one in items} == set(SPLITS)
    splits = {family: {one.split for one in items if one.family == family} for family in programs()}
    assert all(len(one) == 1 for one in splits.values())
    # each split sees each fault
    for split in SPLITS:
        assert {one.code for one in items if one.split == split} >= set(faults())


def test_a_faulty_item_has_a_clean_twin_of_the_same_program() -> None:
    items = {one.id: one for one in plan(600, 0)}
    for item in items.values():
        twin = items[item.twin]
        assert twin.code == ""
        same = ("family", "mode", "loader", "batch", "seed", "stacks")
        assert all(getattr(item, name) == getattr(twin, name) for name in same)
