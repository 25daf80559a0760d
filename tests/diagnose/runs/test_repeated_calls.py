"""Work that is done again, out of compared calls and looks at the stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.runs.hot_lines import hot_lines
from torchtriage.diagnose.runs.repeated_calls import repeated_calls

SOURCE = """\
def bank(n):
    rows = [0] * n
    for at in range(n):
        rows[at] = weight(at)
    return rows

def reset(env):
    env.state = start(env)
    return env.state

for batch in loader:
    filters = bank(40)
    reset(env)
    loss = model(filters @ batch)
    other = teacher(batch)
    optimizer.step()
"""
OP = ("torch/nn/modules/module.py:Module._call_impl",)


def call(function: str, caller_line: int, first_line: int, **of: Any) -> dict[str, Any]:
    """What the probe writes of a function; all of it repeated."""
    facts = {"file": "train.py" if first_line else "", "n_calls": 1, "ns": 1, "repeated": 1.0, "within": 0.0}
    place = {"function": function, "first_line": first_line, "caller_file": "train.py", "caller_line": caller_line}
    return {**facts, **place, "large": True, **of}


MODEL = call("Net", 14, 0, repeated=0.0)
BANK, RESET, TEACHER = call("bank", 12, 1), call("reset", 13, 7), call("Net", 15, 0)


def repeated(folder: Path, *probed: dict[str, Any], infers: bool = False) -> tuple[Finding, ...]:
    """The findings of a hundred steps of 10 ms: 4 in bank(), 1 in reset(), 2 in a teacher, 3 in the model."""
    built = SamplesBuilder(folder, SOURCE)
    built.step()
    for _ in range(100):
        built.look("filters =", "rows[at] =", ms=4)
        built.look("reset(env)", "env.state =", ms=1)
        built.look("other =", below=OP, ms=2)
        built.look("loss =", below=OP, ms=3)
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=0.5)
    assert loop is not None
    findings, rest = repeated_calls(loop, probed, [str(folder)], built.view, 10.0, infers=infers)
    assert ("HST020" in {finding.code for finding in hot_lines(rest, built.view, 10.0)}) != bool(
        findings and findings[0].place.frame and findings[0].place.frame.line == 12
    )
    return findings


def test_a_function_that_repeats_itself_is_named_at_its_call(tmp_path: Path) -> None:
    (finding,) = repeated(tmp_path, BANK, MODEL)
    assert finding.code == "LCH105"
    frame, cost = finding.place.frame, finding.cost
    assert frame is not None
    assert cost is not None
    assert (frame.line, frame.called) == (12, "bank")
    assert finding.place.stack[1].line == 4
    assert cost.share_low == pytest.approx(0.34, abs=0.04)
    assert cost.share_high == pytest.approx(0.4, abs=0.04)


def test_calls_that_differ_are_no_finding(tmp_path: Path) -> None:
    assert not repeated(tmp_path, {**BANK, "repeated": 0.1}, MODEL)
    assert not repeated(tmp_path, MODEL)
    assert not repeated(tmp_path)


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("rows = []\n    rows.append(1)\n    return rows", False),
        ("rows[0] = 1\n    return rows", True),
        ("return env.reset()", True),
        ("dist.all_reduce(env)\n    return env", True),
        ("env.add_(1)\n    return env", True),
        ("env = env * 2\n    return env.sum()", False),
    ],
)
def test_what_a_function_changes(tmp_path: Path, body: str, changes: bool) -> None:
    view = SamplesBuilder(tmp_path, f"def work(env):\n    {body}\n").view
    assert view.changes_state("train.py", 1) is changes
    assert view.changes_state("other.py", 1)


def test_another_caller_has_its_own_time(tmp_path: Path) -> None:
    assert not repeated(tmp_path, {**BANK, "caller_line": 13}, MODEL)


def test_where_nothing_varies_the_data_are_the_same(tmp_path: Path) -> None:
    assert not repeated(tmp_path, BANK, {**MODEL, "repeated": 1.0})


def test_a_function_that_changes_an_object_is_called_for_that(tmp_path: Path) -> None:
    assert not repeated(tmp_path, RESET, MODEL)


def test_a_module_that_repeats_itself_within_a_step_is_named(tmp_path: Path) -> None:
    assert not repeated(tmp_path, TEACHER, MODEL)
    (finding,) = repeated(tmp_path, {**TEACHER, "within": 0.6}, MODEL)
    assert finding.place.frame is not None
    assert finding.place.frame.line == 15


def test_a_module_that_gets_the_same_while_another_gets_something_new_is_named(tmp_path: Path) -> None:
    (finding,) = repeated(tmp_path, TEACHER, MODEL, infers=True)
    assert finding.place.frame is not None
    assert finding.place.frame.line == 15
    assert not repeated(tmp_path, TEACHER, {**MODEL, "repeated": 1.0}, infers=True)


def test_a_forward_is_named_where_the_user_calls_the_module(tmp_path: Path) -> None:
    source = SOURCE.replace("    loss = model", "    table = positions(batch)\n    loss = model").replace(
        "for batch", "def forward(n):\n    return build(n)\n\nfor batch"
    )
    source = source.replace("    other =", "    again = positions(batch)\n    other =")
    built = SamplesBuilder(tmp_path, source)
    built.step()
    for _ in range(100):
        # the library calls modules of modules at the same line of its own
        built.between("table = positions", below=OP, inner="return build", ms=4)
        built.between("again = positions", below=OP, inner="return build", ms=2)
        built.look("loss =", below=OP, ms=4)
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=0.5)
    assert loop is not None
    module = built.samples().looks[0].stack[1].file
    forward = call("Positions.forward", 1, 11, caller_file=module)
    (finding,), _ = repeated_calls(loop, [forward, MODEL], [str(tmp_path)], built.view, 10.0, infers=False)
    assert finding.place.frame is not None
    assert finding.place.frame.lines == (17, 19)
    assert "Positions.forward() takes 6.00 ms" in finding.message
    assert "called from train.py:17, 19" in finding.message


def test_what_a_repeated_call_calls_is_part_of_it(tmp_path: Path) -> None:
    inner = call("weight", 4, 2, ns=0)
    assert len(repeated(tmp_path, BANK, inner, MODEL)) == 1


def test_rows_that_were_in_the_step_before_are_told_with_the_way_to_keep_them(tmp_path: Path) -> None:
    (finding,) = repeated(tmp_path, call("Net", 14, 0, repeated=0.0, rows=0.875), infers=True)
    assert finding.code == "LCH105"
    assert finding.place.frame is not None
    assert finding.place.frame.line == 14
    assert "88 % of the rows of its input had equal results" in finding.message
    assert "deque" in finding.fix.code
    assert finding.cost is not None
    assert 0.1 < finding.cost.share_low < 0.14  # half of seven in eight rows of 0.3
    assert not repeated(tmp_path, call("Net", 14, 0, repeated=0.0, rows=0.3), infers=True)
    assert not repeated(tmp_path, call("Net", 14, 0, repeated=0.0, rows=1.0), infers=True)  # weights moved a little
    assert not repeated(tmp_path, call("Net", 14, 0, repeated=0.0, rows=0.875))
