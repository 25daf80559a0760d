"""Every script of the benchmark is a program, and its faulty lines are those its twin has not."""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter

import pytest

from torchtriage.diagnose.patterns import lookup
from torchtriage.learn.dataset.score import SPLITS
from torchtriage_benchmark.recording.plan import PREFIX, RANKS, Item, plan, whole
from torchtriage_benchmark.recording.program_generator import (
    LOOP,
    MODES,
    PARTS,
    Fault,
    faults,
    lookalikes,
    programs,
    write,
)
from torchtriage_benchmark.recording.record import orders

EVERY = [
    (part, program.family, mode, loader)
    for part in PARTS
    for program in programs(part).values()
    for mode in (("train",) if part == "ranks" else MODES)
    for loader in (False, True)
]


@pytest.mark.parametrize(("part", "family", "mode", "loader"), EVERY)
def test_a_faulty_script_differs_from_its_twin_in_the_lines_it_tells(
    part: str, family: str, mode: str, loader: bool
) -> None:
    program = programs(part)[family]
    clean = write(program, mode, loader=loader, part=part)
    ast.parse(clean.text)
    assert not clean.fault_lines
    assert not clean.effect_lines
    fitting = [one for one in faults(part).values() if one.fits(program, mode, loader)]
    assert len(fitting) >= 5 or part == "lookalikes"
    for fault in fitting:
        for severity in fault.severities[:1] or (0,):
            faulty = write(program, mode, fault, severity=severity, loader=loader, part=part)
            tree = ast.parse(faulty.text)
            lines = faulty.text.splitlines()
            changed = _changed(clean.text.splitlines(), lines)
            assert changed <= set(faulty.fault_lines), fault.name
            assert {lines[at - 1] for at in faulty.fault_lines} - {lines[at - 1] for at in changed} <= {""} | set(
                clean.text.splitlines()
            ), fault.name
            statements = _loop(tree, lines)
            assert set(faulty.effect_lines) <= statements, fault.name
            assert faulty.effect_lines or faulty.effect_modules or faulty.effect_events, fault.name


@pytest.mark.parametrize("like", lookalikes().values(), ids=lambda one: one.name)
def test_what_only_looks_like_a_fault_changes_a_clean_program_and_is_none(like: Fault) -> None:
    fitting = [
        (programs()[family], mode, loader)
        for part, family, mode, loader in EVERY
        if part == "lookalikes" and like.fits(programs()[family], mode, loader)
    ]
    assert len(fitting) >= 8
    for program, mode, loader in fitting:
        clean = write(program, mode, loader=loader)
        script = write(program, mode, like, loader=loader, part="lookalikes")
        ast.parse(script.text)
        assert script.text != clean.text
        assert script.fault_lines == script.effect_lines == script.effect_modules == ()


def test_each_rank_is_told_its_own_effect() -> None:
    program, late = programs("ranks")["resnet"], faults("ranks")["COM036-work"]
    slow, waiting = (write(program, "train", late, severity=20, part="ranks", rank=rank) for rank in (1, 0))
    assert slow.text == waiting.text
    assert slow.fault_lines == waiting.fault_lines
    assert slow.effect_lines
    assert not slow.effect_events
    assert waiting.effect_events == ("^gloo:all_reduce$",)
    assert not waiting.effect_lines


def _changed(clean: list[str], faulty: list[str]) -> set[int]:
    matcher = difflib.SequenceMatcher(None, clean, faulty, autojunk=False)
    return {line + 1 for tag, _, _, begin, end in matcher.get_opcodes() if tag != "equal" for line in range(begin, end)}


def _loop(tree: ast.Module, lines: list[str]) -> set[int]:
    (loop,) = (node for node in ast.walk(tree) if isinstance(node, ast.For) and lines[node.lineno - 1].strip() == LOOP)
    return {statement.lineno for statement in loop.body}


@pytest.mark.parametrize(
    ("part", "fault"),
    [(part, fault) for part in PARTS for fault in faults(part).values()],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_a_fault_is_a_pattern_that_is_known_and_fits_some_program(part: str, fault: Fault) -> None:
    assert lookup(fault.code)
    assert any(fault.fits(programs(part)[family], mode, loader) for of, family, mode, loader in EVERY if of == part)
    assert list(fault.severities) == sorted(set(fault.severities))


@pytest.mark.parametrize("part", PARTS)
def test_nothing_in_a_script_names_its_fault(part: str) -> None:
    for item in plan(200, 3, part):
        text = item.script().text
        assert "inject" not in text
        assert not re.search(r"\bfault", text)
        assert item.code == "" or item.code not in text
        assert item.lookalike == "" or item.lookalike not in text


@pytest.mark.parametrize("part", PARTS)
def test_a_plan_is_told_by_its_seed_and_a_longer_one_goes_on(part: str) -> None:
    items = plan(600, 0, part)
    assert items[:90] == plan(90, 0, part)
    assert items != plan(600, 1, part)
    numbers = [int(item.id.removeprefix(PREFIX[part])) for item in items]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 610
    assert {item.part for item in items} == {part}


def test_a_whole_benchmark_has_each_parts_share() -> None:
    items = whole(600, 0)
    assert len({item.id for item in items}) == len(items) == 600
    counts = Counter(item.part for item in items)
    assert counts == {"eager": 408, "compiled": 72, "ranks": 72, "lookalikes": 48}
    for part in PARTS:
        assert tuple(item for item in items if item.part == part) == plan(counts[part], 0, part)


def test_every_fault_and_family_is_taken_and_no_family_is_in_two_splits() -> None:
    items = plan(600, 0)
    counts = {code: sum(item.code == code for item in items) for code in faults()}
    assert min(counts.values()) >= 15
    assert {item.family for item in items} == set(programs())
    assert {item.split for item in items} == set(SPLITS)
    everything = whole(600, 0)
    splits: dict[str, set[str]] = {}
    for one in everything:
        splits.setdefault(one.family, set()).add(one.split)
    assert all(len(one) == 1 for one in splits.values())
    # each split sees each fault
    for split in SPLITS:
        assert {item.code for item in items if item.split == split} >= set(faults())
    for part in ("compiled", "ranks"):
        named = {one.variant or one.code for one in everything if one.part == part} - {""}
        assert named == set(faults(part))
    assert {one.lookalike for one in everything} - {""} == set(lookalikes())


@pytest.mark.parametrize("part", PARTS)
def test_a_faulty_item_has_a_clean_twin_of_the_same_program(part: str) -> None:
    items = {one.id: one for one in plan(600, 0, part)}
    for item in items.values():
        twin = items[item.twin]
        assert twin.code == twin.lookalike == ""
        same = ("family", "mode", "loader", "batch", "seed", "stacks", "part", "rank")
        assert all(getattr(item, name) == getattr(twin, name) for name in same)


def test_the_ranks_of_a_program_are_one_run() -> None:
    runs: dict[str, list[Item]] = {}
    for one in plan(600, 0, "ranks"):
        runs.setdefault(one.run, []).append(one)
    for members in runs.values():
        assert [member.rank for member in members] == list(range(RANKS))
        assert len({member.script().text for member in members}) == 1


def test_twins_are_recorded_alike() -> None:
    items = {one.id: one for one in plan(408, 0)}
    for one in items.values():
        assert orders(one) == orders(items[one.twin]), one.id
    effects = {name for item in items.values() for name in item.script().effect_modules}
    assert effects
    assert effects <= set(orders(items["0000"])["modules"])
