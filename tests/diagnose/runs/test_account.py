"""Where a step's time goes, out of looks at the stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import MS, SamplesBuilder

from torchtriage.diagnose.runs.account import run_account, step_account
from torchtriage.diagnose.runs.samples import read_samples

SOURCE = """\
import json
import torch

def clean(image):
    for row in image:
        for value in row:
            total = value * 2

def save(step):
    torch.save(step, "last.pt")

model = make()
for epoch in range(2):
    for batch in loader:
        clean(batch)
        loss = model(batch)
        optimizer.step()
        save(loss)
"""
OP = ("torch/nn/modules/module.py:Module._call_impl",)
OURS = ("torchtriage/core/record/stack_sampler.py:_collected",)
SAVE = ("torch/serialization.py:save",)


def steps(built: SamplesBuilder, n: int = 10) -> SamplesBuilder:
    """Ten steps: 8 ms of Python, 8 ms of operators, 4 ms of saving, each seen every 4 ms."""
    built.look("model = make()", ms=40)
    built.step()
    for _ in range(n):
        for _ in range(2):
            built.look("clean(batch)", "total = value")
        for _ in range(2):
            built.look("loss = model(batch)", below=OP)
        built.look("save(loss)", "torch.save", below=SAVE)
        built.step()
    return built


def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    built = steps(SamplesBuilder(tmp_path, SOURCE))
    loop = built.loop(boundary="optimizer.step()", operators=0.4)
    assert loop is not None
    assert loop.place is not None
    assert (loop.place.line, loop.n_steps) == (14, 9)  # the first step is warm-up
    account = step_account(loop, built.samples(), 20.0)
    parts = {part.kind: part.ms for part in account.parts}
    assert parts == pytest.approx({"Python": 8.0, "operators": 8.0, "files": 4.0}, abs=0.01)
    assert sum(part.share for part in account.parts) == pytest.approx(1.0)
    assert (account.per, account.of_ms, account.n_looks) == ("step", 20.0, 45)
    assert [(line.line, line.function, line.kind) for line in account.lines] == [
        (7, "clean", "Python"),
        (16, "<module>", "operators"),
        (10, "save", "files"),
    ]


def test_what_may_be_either_is_shared_by_what_the_recording_saw(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for _ in range(20):
        built.look("clean(batch)", "total = value")
        built.step()
    for share, python in ((0.0, 1.0), (0.75, 0.25), (1.0, 0.0)):
        loop = built.loop(boundary="optimizer.step()", operators=share)
        assert loop is not None
        assert loop.share_of("Python") == pytest.approx(python)
        assert loop.share_of("operators") == pytest.approx(1 - python)


@pytest.mark.parametrize(("below", "counts"), [(SAVE, True), (("torch/_dynamo/convert_frame.py:_compile",), False)])
def test_long_steps_that_recur_are_of_the_loop_unless_they_compile(
    below: tuple[str, ...], counts: bool, tmp_path: Path
) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    for at in range(30):
        built.look("loss = model(batch)", below=OP, ms=10)
        if at % 10 == 9:
            built.look("save(loss)", "torch.save", below=below, ms=60)
        built.step()
    samples = built.samples()
    assert {step.ns for step in samples.steady} == ({10 * MS, 70 * MS} if counts else {10 * MS})
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    assert (loop.share_of("operators") < 0.7) == counts


def test_what_is_called_with_a_list_is_not_inside_the_loop_that_makes_the_list(tmp_path: Path) -> None:
    source = """def main(model, rows):
    for batch in rows:
        out = model(batch, [rows[int(n)] for n in batch])
        out.backward()
"""
    built = SamplesBuilder(tmp_path, source)
    for _ in range(20):
        built.look("out = model", below=("torch/nn/modules/module.py:Module._call_impl",))
        built.look("out.backward", below=("torch/_tensor.py:Tensor.backward",))
        built.step()
    loop = built.loop(boundary="out.backward")
    assert loop is not None
    assert loop.share_inside({("train.py", 3)}) == 0


def test_recorded_and_odd_steps_are_not_accounted_for(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step("light")
    for _ in range(3):
        built.look("loss = model(batch)", below=OP, ms=400)
        built.step("light")
    built.step("off")
    for at in range(20):
        built.look("loss = model(batch)", below=OP, ms=10)
        if at == 9:
            built.look("save(loss)", "torch.save", below=SAVE, ms=300)
        built.step("off")
    samples = built.samples()
    assert {step.ns for step in samples.steady} == {10 * MS}
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    assert [part.kind for part in step_account(loop, samples, None).parts] == ["operators"]


def test_a_loop_without_a_boundary_is_found_and_accounted_for_as_a_whole(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.look("model = make()", ms=40)
    for _ in range(100):
        built.look("clean(batch)", "total = value")
    loop = built.loop()
    assert loop is not None
    assert loop.place is not None
    assert (loop.place.line, loop.n_steps) == (14, None)
    account = step_account(loop, built.samples(), loop.step_ns / 1e6)
    assert (account.per, account.of_ms) == ("loop", pytest.approx(400.0))


def test_a_run_adds_up_from_the_start_of_the_process(tmp_path: Path) -> None:
    built = steps(SamplesBuilder(tmp_path, SOURCE))
    loop = built.loop(boundary="optimizer.step()", operators=0.4)
    account = run_account(built.samples(), loop)
    parts = {part.kind: part.ms for part in account.parts}
    assert account.of_ms == pytest.approx(1000 + 40 + 200)
    assert sum(parts.values()) == pytest.approx(account.of_ms)
    assert parts["start and import of torch"] == 1000
    assert parts["before the loop"] == 40
    assert [(line.line, line.kind, line.share) for line in account.lines] == [
        (12, "before the loop", pytest.approx(40 / 1240, abs=1e-6))
    ]


def test_garbage_collections_are_taken_from_python(tmp_path: Path) -> None:
    built = steps(SamplesBuilder(tmp_path, SOURCE))
    samples = built.samples()
    first = samples.steady[0].begin_ns
    built.collections = [(first + 1, 18 * MS, 2)]
    loop = built.loop(boundary="optimizer.step()", operators=0.4)
    assert loop is not None
    parts = {part.kind: part.ms for part in step_account(loop, built.samples(), 20.0).parts}
    assert parts["garbage collection"] == pytest.approx(2.0)
    assert parts["Python"] == pytest.approx(6.0)


def test_a_look_that_waited_for_a_collection_is_one(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for _ in range(10):
        built.look("clean(batch)", "total = value")
        begin = built.now
        built.look("clean(batch)", "total = value", below=OURS, ms=12)
        built.collections.append((begin, 12 * MS, 2))
        built.look("loss = model(batch)", below=OP)
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=0.2)
    assert loop is not None
    account = step_account(loop, built.samples(), 20.0)
    parts = {part.kind: part.ms for part in account.parts}
    assert parts == pytest.approx({"garbage collection": 12.0, "Python": 4.0, "operators": 4.0}, abs=0.01)
    assert (account.lines[0].line, account.lines[0].kind) == (7, "garbage collection")


def test_a_damaged_file_is_no_samples(tmp_path: Path) -> None:
    built = steps(SamplesBuilder(tmp_path, SOURCE))
    built.samples()
    path = tmp_path / "samples-1.json"
    text = path.read_text()
    for broken in ("", "{", "[]", '{"frames": 3}', text.replace('"looks": [[', '"looks": [["x", '), text[:-40]):
        path.write_text(broken)
        assert read_samples(path) is None
    assert read_samples(tmp_path / "none.json") is None
