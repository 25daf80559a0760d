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


MODEL = call("Net", 13, 0, repeated=0.0)
BANK, RESET, TEACHER = call("bank", 11, 1), call("reset", 12, 6), call("Net", 14, 0)


def repeated(folder: Path, *probed: dict[str, Any]) -> tuple[Finding, ...]:
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
    findings, rest = repeated_calls(loop, probed, [str(folder)], built.view, 10.0)
    assert ("HST020" in {finding.code for finding in hot_lines(rest, built.view, 10.0)}) != bool(
        findings and findings[0].place.frame and findings[0].place.frame.line == 11
    )
    return findings


def test_a_function_that_repeats_itself_is_named_at_its_call(tmp_path: Path) -> None:
    (finding,) = repeated(tmp_path, BANK, MODEL)
    assert finding.code == "LCH105"
    frame, cost = finding.place.frame, finding.cost
    assert frame is not None
    assert cost is not None
    assert (frame.line, frame.called) == (11, "bank")
    assert finding.place.stack[1].line == 3
    assert cost.share_low == pytest.approx(0.34, abs=0.04)
    assert cost.share_high == pytest.approx(0.4, abs=0.04)


def test_calls_that_differ_are_no_finding(tmp_path: Path) -> None:
    assert not repeated(tmp_path, {**BANK, "repeated": 0.1}, MODEL)
    assert not repeated(tmp_path, MODEL)
    assert not repeated(tmp_path)


def test_where_nothing_varies_the_data_are_the_same(tmp_path: Path) -> None:
    assert not repeated(tmp_path, BANK, {**MODEL, "repeated": 1.0})


def test_a_function_that_changes_an_object_is_called_for_that(tmp_path: Path) -> None:
    assert not repeated(tmp_path, RESET, MODEL)


def test_a_module_that_repeats_itself_within_a_step_is_named(tmp_path: Path) -> None:
    assert not repeated(tmp_path, TEACHER, MODEL)
    (finding,) = repeated(tmp_path, {**TEACHER, "within": 0.6}, MODEL)
    assert finding.place.frame is not None
    assert finding.place.frame.line == 14


def test_what_a_repeated_call_calls_is_part_of_it(tmp_path: Path) -> None:
    inner = call("weight", 3, 2, ns=0)
    assert len(repeated(tmp_path, BANK, inner, MODEL)) == 1
