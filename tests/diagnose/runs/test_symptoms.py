"""What says why stands before what says only that time is lost, and tells what it explains of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builder import TraceBuilder
from tests.diagnose.runs.samples_builder import SamplesBuilder
from tests.diagnose.runs.test_sampled import checked, finding, judged, twenty_steps

from torchtriage.core.finding import Finding, Frame, NotChecked
from torchtriage.diagnose.runs.sampled import _inner_loops
from torchtriage.diagnose.runs.source_hints import with_source
from torchtriage.diagnose.runs.symptoms import one_of_each_cause

OPTIMIZER = """\
import torch

class Plain:
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    @torch.no_grad()
    def step(self):
        for p in self.params:
            p.sub_(self.lr * p.grad)

def main(model, loader, device):
    opt = Plain(model.parameters(), 1e-3)
    for batch in loader:
        loss = model(batch).mean()
        loss.backward()
        opt.step()
        end()

main(model, loader, device)
"""
TRACE = TraceBuilder()
TRACE.launch(0, 1, 2, 3)
OP = "torch/nn/modules/module.py:Module._call_impl"


@pytest.mark.parametrize(("looks", "order"), [(6, ["LCH016", "LCH014"]), (1, ["LCH014", "LCH016"])])
def test_the_loop_that_launches_so_much_stands_before_the_slow_launches(
    tmp_path: Path, looks: int, order: list[str]
) -> None:
    built = SamplesBuilder(tmp_path, OPTIMIZER)
    for _ in range(40):
        for at in range(10):
            if at < looks:
                built.look("main(model", "opt.step()", "p.sub_(", ms=1)
            else:
                built.look("main(model", "loss = model", below=(OP,), ms=1)
        built.step()
    by_code = checked(built, finding("LCH014", 0.9, 10.0), of_ms=10.0, traces=[TRACE.build()])
    assert [code for code in by_code if code in order] == order
    assert f"of this LCH016 at train.py:9 explains {looks:.2f} ms" in by_code["LCH014"].message


FENCE = """\
import torch

def main(slots, model):
    for batch in slots:
        batch.done.synchronize()
        model(batch.rows)
        end()

main(slots, model)
"""


@pytest.mark.parametrize(("judged", "told"), [(("SYN003",), False), ((), True)])
def test_a_wait_that_the_recording_has_judged_is_not_told_again(
    tmp_path: Path, judged: tuple[str, ...], told: bool
) -> None:
    built = SamplesBuilder(tmp_path, FENCE)
    for _ in range(20):
        built.look("main(slots", "batch.done.sync", ms=4)
        built.step()
    found = with_source([], built.samples(), [str(tmp_path)], on_device=True, judged=judged, timed=(), view=built.view)
    assert ("SYN003" in {finding.code for finding in found}) == told


def at(code: str, line: int, share: float = 0.0, file: str = "train.py", **more: object) -> Finding:
    seen = finding(code, share, 10.0, line)
    seen = replace(seen, place=replace(seen.place, frame=Frame(file, line, "main", exact=True, lines=(line,))))
    return replace(seen, cost=seen.cost if share else None, **more)


def test_one_problem_at_several_lines_is_one_finding_that_lists_them() -> None:
    (seen,) = one_of_each_cause([at("CPY102", 17, 0.3), at("CPY102", 13), at("CPY102", 13), at("CPY102", 15)])
    assert seen.place.frame is not None
    assert (seen.place.frame.line, seen.place.frame.lines) == (17, (17, 13, 15))


def test_problems_with_costs_or_files_or_fixes_of_their_own_stay_apart() -> None:
    first = at("CPY102", 17, 0.3)
    for other in (
        at("CPY102", 13, 0.2),
        at("CPY102", 13, file="data.py"),
        at("CPY006", 13),
        at("CPY102", 13, fix=replace(first.fix, text="Another.")),
    ):
        assert one_of_each_cause([first, other]) == (first, other)


def test_a_needless_graph_takes_in_the_memory_that_grows_because_it_is_kept() -> None:
    graph = at(
        "CFG043",
        21,
        0.1,
        severity="low",
        message="62 of 62 operators; the cost of the memory it keeps is not estimated",
    )
    growth = at("MEM029", 30, 0.1, evidence={"bytes_per_step": 34 << 20})
    (seen,) = one_of_each_cause([growth, graph])
    assert (seen.code, seen.severity, seen.also_explains) == ("CFG043", "medium", ("MEM029",))
    assert seen.message == (
        "62 of 62 operators; train.py:30 keeps it from step to step, and the process grows by 34.0 MiB per step"
    )
    # what grows nobody knows where may be something else
    unplaced = replace(growth, place=replace(growth.place, frame=None))
    assert len(one_of_each_cause([graph, unplaced])) == 2


def test_python_that_the_looks_have_a_name_for_is_not_told_twice(tmp_path: Path) -> None:
    built = twenty_steps(tmp_path, ("model(batch)", "torch/serialization.py:save"))
    for function, left in (("main", set()), ("other", {"HST020"})):
        seen = finding("HST020", 0.5, 4.0)
        seen = replace(seen, place=replace(seen.place, frame=Frame("train.py", 3, function)))
        assert set(checked(built, seen, of_ms=4.0)) & {"HST020", "HST102"} == {"HST102"} | left


def test_what_is_found_is_not_listed_as_unchecked(tmp_path: Path) -> None:
    built = twenty_steps(tmp_path, ("model(batch)", "torch/serialization.py:save"))
    before = (NotChecked("HST102", "a", (), ""), NotChecked("MEM030", "b", (), ""))
    result = judged(built, of_ms=4.0, not_checked=before)
    assert [one.code for one in result.not_checked] == ["MEM030"]
    assert "HST102" in result.checked


MASKS = """
def one(points):
    for point in points:
        mask[point] = 1

def batch(n):
    for row in range(n):
        masks[row] = one(points)
    other = one(points)
"""


@pytest.mark.parametrize(("call", "share", "left"), [(8, 0.3, ["HST020"]), (9, 0.3, None), (8, 0.1, None)])
def test_a_loop_over_rows_is_left_to_the_loop_inside_that_takes_its_time(
    tmp_path: Path, call: int, share: float, left: list[str] | None
) -> None:
    view = SamplesBuilder(tmp_path, MASKS).view
    file = str(tmp_path / "train.py")
    rows = at("LCH017", 8, 0.4, file)
    inner = at("HST020", 4, share, file)
    inner = replace(inner, place=replace(inner.place, stack=(inner.place.frame, Frame(file, call, "batch"))))
    seen = _inner_loops([rows, inner], view)
    assert [finding.code for finding in seen] == (left or ["LCH017", "HST020"])
    assert seen[-1].also_explains == (("LCH017",) if left else ())
