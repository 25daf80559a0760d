"""What the looks at the stack say of findings that a recording made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.runs.samples_builder import MS, SamplesBuilder

import torchtriage as tt
from torchtriage.api.traces import sample_path
from torchtriage.core.finding import Cost, Finding, Frame, Place
from torchtriage.core.trace import Trace
from torchtriage.diagnose.runs.loaders import causes_first
from torchtriage.diagnose.runs.result import RecordedRun, WatchedMemory
from torchtriage.diagnose.runs.run_folder import Recording
from torchtriage.diagnose.runs.sampled import _order, untraced, with_samples
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict_text import sentences

SOURCE = """\
import gc

def main(loader, model):
    for batch in loader:
        model(batch)
        for row in batch:
            total = score(row)
        for row in batch:
            state = follow(row, state)
        end()

main()
"""
SAMPLE = SOURCE.replace("def main", "def __getitem__(self, at):\n    return scaled(self.series)[at]\n\ndef main")
MAIN, NEXT, FORWARD, ROW, CHAIN = "main()", "for batch in", "model(batch)", "total =", "state ="
LOADER = "torch/utils/data/dataloader.py:_BaseDataLoaderIter.__next__"
READ = "torch/utils/data/_utils/fetch.py:_MapDatasetFetcher.fetch"
OP = "torch/nn/modules/module.py:Module._call_impl"


def twenty_steps(folder: Path, *looks: tuple[str, str], first: tuple[tuple[str, str], ...] = ()) -> SamplesBuilder:
    """Make steps with a look of 4 ms at each of these lines and what it calls; ``first`` ones in the first only."""
    built = SamplesBuilder(folder, SOURCE)
    built.look(MAIN, ms=40)
    for step in range(20):
        for line, below in (*(first if step < 2 else ()), *looks):
            built.look(MAIN, line, below=(below,) if below else ())
        built.step()
    return built


def finding(code: str, share: float, of_ms: float, line: int = 0) -> Finding:
    cost = Cost(share * of_ms, share * of_ms, "step", of_ms, share, share, share * of_ms, "measured", "arithmetic", "A")
    return Finding(
        code=code,
        name="a-name",
        family="input",
        title="A title",
        severity="medium",
        message="what was seen",
        place=Place(ops=(), frame=Frame("train.py", line, "main") if line else None),
        cost=cost,
        evidence={},
        fix=tt.explain("SYN001").fix,  # type: ignore[union-attr]
        certainty="likely",
    )


def checked(
    built: SamplesBuilder, *findings: Finding, of_ms: float, traces: Sequence[Trace] = ()
) -> dict[str, Finding]:
    """Return the findings that are left, the first of each code."""
    by_code: dict[str, Finding] = {}
    for left in judged(built, *findings, of_ms=of_ms, traces=traces).findings:
        by_code.setdefault(left.code, left)
    return by_code


def judged(
    built: SamplesBuilder, *findings: Finding, of_ms: float, traces: Sequence[Trace] = (), **more: Any
) -> Result:
    """Return a result with these findings by what the looks say."""
    built.samples()
    facts: dict[str, Any] = {"pid": 1, "roots": [str(built.folder)], "sampled": True}
    recording = Recording(facts, {}, None, None, samples_file=built.folder / "samples-1.json")
    run = RecordedRun(
        "train.py", 0, "a loop", str(built.folder / "train.py"), 10, "main", 20, of_ms, 20, True, of_ms, None
    )
    result = replace(tt.analyze(sample_path()), findings=findings, **more)
    result, _ = with_samples(result, recording, run, traces, [str(built.folder)])
    return result


def test_a_loader_that_is_slow_in_the_first_steps_only_is_none(tmp_path: Path) -> None:
    built = twenty_steps(tmp_path, *[(FORWARD, OP)] * 5, first=((NEXT, READ),) * 10)
    assert "DAT018" not in checked(built, finding("DAT018", 0.6, 20.0), of_ms=20.0)


@pytest.mark.parametrize(("sample_ms", "low"), [(8.0, 6.0), (1.0, 0.0)])
def test_loading_is_the_share_of_the_looks_that_load(tmp_path: Path, sample_ms: float, low: float) -> None:
    built = SamplesBuilder(tmp_path, SAMPLE)
    for _ in range(20):
        built.look(MAIN, NEXT, below=(LOADER, READ), ms=4)
        built.between(MAIN, NEXT, below=(LOADER, READ), inner="return scaled", ms=sample_ms)
        built.look(MAIN, FORWARD, below=(OP,), ms=16 - sample_ms)
        built.step()
    left = checked(built, finding("DAT018", 0.6, 20.0), of_ms=20.0)
    cost = left["DAT018"].cost
    assert cost is not None
    assert cost.high_ms == pytest.approx(4.0 + sample_ms, rel=0.1)
    # workers take over what the data set does where that is long enough; the step itself needs one of the four cores
    assert cost.low_ms == pytest.approx(low, rel=0.1)
    assert cost.of_ms == 20.0


@pytest.mark.parametrize("method", ["__init__", "_shutdown_workers"])
def test_workers_that_start_in_every_round_have_their_time(tmp_path: Path, method: str) -> None:
    starts = f"torch/utils/data/dataloader.py:_MultiProcessingDataLoaderIter.{method}"
    built = twenty_steps(tmp_path, (FORWARD, OP), (NEXT, starts))
    finding = checked(built, of_ms=8.0)["DAT019"]
    assert finding.place.frame is not None
    assert finding.place.frame.line == 4
    assert finding.cost is not None
    assert finding.cost.high_ms == pytest.approx(4.0, rel=0.25)
    assert finding.cost.low_ms > 2.0
    assert "DAT019" not in checked(twenty_steps(tmp_path, (FORWARD, OP), (FORWARD, OP)), of_ms=8.0)


@pytest.mark.parametrize(("n_long", "found"), [(4, True), (2, False)])
def test_long_steps_under_the_profiler_count_where_they_come_again(tmp_path: Path, n_long: int, found: bool) -> None:
    starts = "torch/utils/data/dataloader.py:_MultiProcessingDataLoaderIter.__init__"
    built = SamplesBuilder(tmp_path, SAMPLE)
    for at in range(40):
        if at % 8 == 7 and at // 8 < n_long:  # the first two of them under the profiler
            for _ in range(5):
                built.look(MAIN, NEXT, below=(starts,), ms=40)
        for _ in range(4):
            built.look(MAIN, FORWARD, below=(OP,), ms=5)
        built.step("light" if at in range(5, 17) else "off")
    assert ("DAT019" in checked(built, of_ms=20.0)) == found


def test_one_long_step_beside_those_of_the_profiler_does_not_come_again(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SAMPLE)
    for at in range(40):
        recorded = 5 <= at < 22
        built.look(MAIN, FORWARD, below=(OP,), ms=90 if 18 <= at < 22 else 300 if at == 30 else 24 if recorded else 20)
        built.step("heavy" if 18 <= at < 22 else "light" if recorded else "off")
    assert built.samples().recurring == ()


def test_the_line_that_the_loader_spends_its_time_at_comes_first(tmp_path: Path) -> None:
    for inner, first in (("return scaled", "HST114"), ("", "DAT018")):
        built = SamplesBuilder(tmp_path, SAMPLE)
        for _ in range(20):
            for _ in range(3):
                if inner:
                    built.between(MAIN, NEXT, below=(LOADER, READ), inner=inner)
                else:
                    built.look(MAIN, NEXT, below=(LOADER, READ))
            built.look(MAIN, FORWARD, below=(OP,))
            built.step()
        result = judged(built, finding("DAT018", 0.5, 16.0, 7), of_ms=16.0)
        assert result.findings[0].code == first
        # the line is part of what the loader takes: together they save no more than the larger of them
        assert result.joint_cost is not None
        highs = [found.cost.high_ms for found in result.findings if found.cost is not None]
        assert result.joint_cost.high_ms == max(highs)


def test_needless_work_in_the_loader_comes_before_the_advice_to_load_elsewhere(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SAMPLE)
    for _ in range(20):
        for _ in range(3):
            built.between(MAIN, NEXT, below=(LOADER, READ), inner="return scaled")
        built.look(MAIN, FORWARD, below=(OP,))
        built.step()
    at = next(number for number, line in enumerate(SAMPLE.splitlines(), 1) if "return scaled" in line)
    loop = built.loop()
    assert loop is not None
    loading, needless = finding("DAT018", 0.5, 16.0, 7), finding("KRN105", 0.2, 16.0, at)
    assert [found.code for found in causes_first((loading, needless), loop)] == ["KRN105", "DAT018"]
    elsewhere = finding("KRN105", 0.2, 16.0, 1)
    assert [found.code for found in causes_first((loading, elsewhere), loop)] == ["DAT018", "KRN105"]


def test_what_the_source_shows_on_the_way_is_the_same_finding(tmp_path: Path) -> None:
    source = SOURCE.replace("import gc", "import gc, torch").replace("end()", "open(name, 'a')")
    built = SamplesBuilder(tmp_path, source)
    for _ in range(20):
        built.look(MAIN, FORWARD, below=(OP,))
        built.step()
    seen = finding("HST101", 0.2, 4.0, 2)
    seen = replace(seen, place=replace(seen.place, stack=(Frame("other.py", 2, "f"), Frame("train.py", 10, "main"))))
    found = checked(built, seen, of_ms=4.0)
    frame = found["HST101"].place.frame
    assert frame is not None
    assert (frame.line, found["HST101"].certainty) == (10, "certain")


ROUNDS = """\
import json

def train(batches):
    for batch in batches:
        model(batch)
        end()

def main():
    for turn in range(5):
        train(batches)
        text = json.dumps(weights)

main()
"""


@pytest.mark.parametrize(("sending_ms", "loop_line"), [(200, 9), (12, 4), (4, 4)])
def test_where_rounds_take_longer_than_their_steps_the_round_is_told(
    sending_ms: float, loop_line: int, tmp_path: Path
) -> None:
    built = SamplesBuilder(tmp_path, ROUNDS)
    for _ in range(8):
        for _ in range(6):
            built.look(MAIN, "train(batches)", FORWARD, below=(OP,))
            built.step()
        built.look(MAIN, "text =", below=("json/__init__.py:dumps",), ms=sending_ms)
    built.samples()
    at_end = RecordedRun("train.py", 0, "a loop", str(tmp_path / "train.py"), 6, "train", 48, 4.0, 20, True, 4.0, None)
    facts: dict[str, Any] = {"pid": 1, "roots": [str(tmp_path)], "sampled": True}
    recording = Recording(facts, {}, None, None, samples_file=tmp_path / "samples-1.json")
    result = replace(tt.analyze(sample_path()), findings=(finding("LCH016", 0.5, 4.0, 5),))
    result, run = with_samples(result, recording, at_end, (), [str(tmp_path)])
    assert run.account is not None
    assert run.account.loop_line == loop_line
    codes = [one.code for one in result.findings]
    if sending_ms > 100:
        assert codes == ["HST103", "LCH016"]  # half of a step is less than a tenth of the rounds
        cost = result.findings[0].cost
        assert cost is not None
        assert (cost.per, round(cost.of_ms)) == ("window", 8 * (sending_ms + 24))
    else:
        assert codes[0] == "LCH016"
        assert "HST103" in codes  # in steps, or beside them in a third of the rounds


LEARN = """\
import random
import torch

def learn(memory, optimizer):
    states, next_states = zip(*random.sample(memory, 32))
    states = torch.FloatTensor(states)
    following = torch.FloatTensor(next_states)
    loss = model(states, following)
    loss.backward()
    optimizer.step()

def main(memory, optimizer):
    for step in range(100):
        learn(memory, optimizer)
        end()

main(memory, optimizer)
"""


def test_lines_of_one_function_with_one_fault_are_one_finding_that_names_it(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, LEARN)
    for _ in range(20):
        built.look("main(memory", "learn(memory", "states = ", ms=4)
        built.look("main(memory", "learn(memory", "following = ", ms=3)
        built.look("main(memory", "learn(memory", "loss = model", below=(OP,), ms=3)
        built.step()
    by_code = checked(built, of_ms=10.0)
    seen = by_code["CPY102"]
    assert seen.place.frame is not None
    assert seen.cost is not None
    assert (seen.place.frame.line, seen.place.frame.lines) == (6, (6, 7))
    error = (0.7 * 0.3 / 54) ** 0.5  # of counting 54 looks
    assert (seen.cost.share_low, seen.cost.share_high) == pytest.approx((0.5 * (0.7 - error), 0.7 + error), abs=1e-5)
    assert "HST114" not in by_code  # the line whose reason is known is no mere line


@pytest.mark.parametrize(("ms", "left"), [(0.1, False), (6.0, True)])
def test_the_collector_costs_what_it_costs_without_the_profiler(tmp_path: Path, ms: float, left: bool) -> None:
    built = twenty_steps(tmp_path, *[(FORWARD, "")] * 5)
    begun = built.looks[0][0]
    built.collections = [(begun + step * 20 * MS + 5 * MS, round(ms * MS), 2) for step in range(19)]
    found = checked(built, finding("HST021", 0.2, 20.0), of_ms=20.0)
    assert ("HST021" in found) == left
    if left:
        cost = found["HST021"].cost
        assert cost is not None
        assert (cost.low_ms, cost.high_ms) == (pytest.approx(3.0, rel=0.1), pytest.approx(6.0, rel=0.1))


def test_rows_that_need_the_one_before_are_not_worked_on_together(tmp_path: Path) -> None:
    built = twenty_steps(tmp_path, (FORWARD, OP), *[(ROW, OP)] * 2, *[(CHAIN, OP)] * 2)
    alone, chained = finding("LCH017", 0.4, 20.0, line=7), finding("LCH017", 0.4, 20.0, line=9)
    cost = checked(built, alone, of_ms=20.0)["LCH017"].cost
    assert cost is not None
    error = (0.8 * 0.2 / 15) ** 0.5  # of counting 15 looks
    ends = 10 * 0.5 * (0.8 - error), 10 * (0.8 + error)
    assert (cost.low_ms, cost.high_ms) == pytest.approx(ends, rel=1e-3)
    assert "LCH017" not in checked(built, chained, of_ms=20.0)


SEARCH = """\
import torch

def gather(edges):
    nodes = []
    rows = []
    for source in edges:
        if source not in nodes:
            nodes.append(source)
        rows.append(nodes.index(source))
    return torch.tensor(rows)

def main(loader, model, optimizer):
    for edges in loader:
        loss = model(gather(edges))
        loss.backward()
        optimizer.step()
        end()

main(loader, model, optimizer)
"""


def test_a_loop_of_python_is_called_by_what_most_of_it_does(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SEARCH)
    for _ in range(20):
        built.look("main(loader", "loss = model", "for source", below=("collections/abc.py:Iterator.__next__",), ms=3)
        built.look("main(loader", "loss = model", "rows.append", below=("collections/abc.py:Sequence.index",), ms=5)
        built.look("main(loader", "loss.backward", below=(OP,), ms=2)
        built.step()
    by_code = checked(built, of_ms=10.0)
    searched = by_code["HST118"]
    assert searched.place.frame is not None
    assert searched.cost is not None
    assert searched.cost.share_high > 0.7  # of the loop, not of the statement alone
    assert "HST020" not in by_code


HISTORY = """\
import torch

def score(history):
    scores = torch.cat(history)
    return auroc(scores)

def main(loader, model):
    history = []
    for batch in loader:
        history.append(model(batch))
        score(history)
        end()

main(loader, model)
"""


def test_a_history_costs_what_is_computed_of_it(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, HISTORY)
    for _ in range(20):
        built.look("main(loader", "history.append", below=(OP,), ms=4)
        built.look("main(loader", "score(history)", "scores =", below=(OP,), ms=1)
        built.look("main(loader", "score(history)", "return auroc", ms=5)
        built.step()
    seen = checked(built, of_ms=10.0)["HST106"]
    assert seen.cost is not None
    assert seen.cost.share_high == pytest.approx(0.6 + (0.6 * 0.4 / 54) ** 0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("call", "everywhere", "asked"),
    [("torch.set_default_dtype(kind)", False, True), ("model.double()", True, True), ("x.double()", False, False)],
)
def test_float64_that_the_source_asks_for_is_asked_about(
    call: str, everywhere: bool, asked: bool, tmp_path: Path
) -> None:
    built = SamplesBuilder(tmp_path, SOURCE.replace("import gc", f"import gc, torch; {call}"))
    for _ in range(20):
        built.look(MAIN, FORWARD, below=(OP,))
        built.step()
    seen = replace(finding("CPY012", 0.4, 4.0, 5), evidence={"float64_everywhere": everywhere})
    left = checked(built, seen, of_ms=4.0)["CPY012"]
    assert left.cost is not None
    assert (left.severity, left.cost.low_ms) == (("note", 0.0) if asked else ("medium", 1.6))


def test_without_stacks_nothing_is_taken_back_and_nothing_is_healthy(tmp_path: Path) -> None:
    built = twenty_steps(tmp_path, (FORWARD, OP))
    built.samples()
    (tmp_path / "samples-1.json").unlink()
    facts: dict[str, Any] = {"pid": 1, "roots": [str(tmp_path)], "sampled": True}
    recording = Recording(facts, {}, None, None, samples_file=tmp_path / "samples-1.json")
    run = RecordedRun("train.py", -9, "a loop", "train.py", 10, "main", 20, 20.0, 20, True, 20.0, None)
    before = replace(tt.analyze(sample_path()), findings=(finding("DAT018", 0.6, 20.0),), healthy=True)
    after, _ = with_samples(before, recording, run, (), None)
    assert after.findings == before.findings
    assert not after.healthy
    assert {note.code for note in after.notes} >= {"no-stacks", "ended-by-signal"}


def test_python_that_a_device_waits_for_is_at_the_line_that_most_looks_saw(tmp_path: Path) -> None:
    source = "def images(store):\n    count = len(store)\n    return store.astype() / 255.0\n\n"
    source += "def main(store):\n    for _ in range(100):\n        images(store)\n        end()\n\nmain(store)\n"
    built = SamplesBuilder(tmp_path, source)
    for _ in range(20):
        built.look("main(store", "images(store)", "count =", ms=1)
        built.look("main(store", "images(store)", "return store", ms=8)
        built.look("main(store", "end()", ms=1)
        built.step()
    seen = finding("HST020", 0.7, 10.0)
    seen = replace(seen, place=replace(seen.place, frame=Frame("train.py", 1, "images")))
    by_code = checked(built, seen, of_ms=10.0)
    frame = by_code["HST020"].place.frame
    assert frame is not None
    assert (frame.line, frame.exact) == (3, True)
    assert "HST114" not in by_code


def test_python_that_the_profiler_made_longer_costs_what_the_looks_saw_of_it(tmp_path: Path) -> None:
    source = "def images(store):\n    return {name: name for name in store}\n\n"
    source += "def main(store):\n    for _ in range(100):\n        images(store)\n        model(store)\n\nmain(store)\n"
    built = SamplesBuilder(tmp_path, source)
    for _ in range(20):
        built.look("main(store", "images(store)", "return {", ms=2)
        built.look("main(store", "model(store)", below=(OP,), ms=8)
        built.step()
    seen = finding("HST020", 0.7, 10.0)
    seen = replace(seen, place=replace(seen.place, frame=Frame("train.py", 1, "images")))
    cost = checked(built, seen, of_ms=10.0)["HST020"].cost
    assert cost is not None
    assert cost.calibration is not None
    assert cost.calibration.share_low < 0.06
    assert 0.2 < cost.calibration.share_high < 0.3


def test_python_of_another_function_of_that_name_is_not_its(tmp_path: Path) -> None:
    source = "class Inner:\n    def forward(self, x):\n        return {name: name for name in x}\n\n"
    source += (
        "class Outer:\n    def forward(self, x):\n        total = {name: x for name in x}\n        inner.forward(x)\n\n"
    )
    source += "def main(outer):\n    for _ in range(100):\n        outer.forward(x)\n        end()\n\nmain(outer)\n"
    built = SamplesBuilder(tmp_path, source)
    for _ in range(20):
        built.look("main(outer", "outer.forward(x)", "total =", ms=6)
        built.look("main(outer", "outer.forward(x)", "inner.forward(x)", "return {", ms=2)
        built.look("main(outer", "end()", ms=2)
        built.step()
    seen = finding("HST020", 0.7, 10.0)
    seen = replace(seen, place=replace(seen.place, frame=Frame("train.py", 2, "forward")))
    result = judged(built, seen, of_ms=10.0)
    own = [item for item in result.findings if item.place.frame and item.place.frame.lines == (3,) and item.cost]
    assert own
    assert all(item.cost and item.cost.share_high < 0.45 for item in own)


def test_steps_that_are_a_part_of_a_run_rank_their_findings_as_any_step_does() -> None:
    cost = finding("OPT041", 0.026, of_ms=1650).cost
    assert cost is not None
    sure = replace(finding("CFG044", 0.026, of_ms=1650), cost=replace(cost, high_ms=107))
    wide = replace(finding("LCH016", 0.009, of_ms=1650), cost=replace(cost, low_ms=14.9, high_ms=249, share_low=0.009))
    for part in (1.0, 0.31):
        assert sorted((wide, sure), key=lambda one: _order(one, part)) == [sure, wide]


KEEPS = """\
import torch

losses = []
for batch in loader:
    loss = model(batch)
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


EVALUATES = """\
import torch

outs = []
for batch in loader:
    out = model(batch)
    outs.append(out)
    show(out)
"""


@pytest.mark.parametrize(("source", "code", "why"), [(KEEPS, "MEM029", ""), (EVALUATES, "CFG043", "train.py:6 keeps")])
def test_memory_that_surely_grows_leads_the_verdict_and_is_not_too_early_to_tell(
    tmp_path: Path, source: str, code: str, why: str
) -> None:
    built = SamplesBuilder(tmp_path, source)
    built.step()
    for at in range(40):
        built.look(source.splitlines()[4].strip(), below=(OP,), ms=10)
        built.resident(300 + 2 * at)
        built.step()
    built.samples()
    early = WatchedMemory("too early", 40, 1, (), 300 << 20, 378 << 20, 378 << 20, None, None, "", 0.0, ())
    run = RecordedRun("train.py", 0, "a loop", "train.py", 5, "<module>", 40, 10.0, 40, True, 10.0, None, memory=early)
    facts = {"pid": 1, "roots": [str(tmp_path)], "sampled": True}
    recording = Recording(facts, {}, None, None, samples_file=tmp_path / "samples-1.json")
    result = replace(tt.analyze(sample_path()), findings=(), healthy=True)
    result, run = with_samples(result, recording, run, (), [str(tmp_path)])
    assert run.memory is not None
    grows = "the process grows by 2.00 MiB per step: from 320 MiB to 378 MiB over 29 steps"
    assert (run.memory.answer, run.memory.leaks) == ("leak", (grows,))
    assert not result.healthy
    _, saving, _ = sentences(tt.load(sample_path()), result, 0.01)
    assert saving.startswith(f"Memory grows from step to step ({code}): ")
    assert why in saving
    assert grows.partition(":")[0] in saving
    assert untraced(recording, run, "none", "", [str(tmp_path)]).verdict[1] == saving
