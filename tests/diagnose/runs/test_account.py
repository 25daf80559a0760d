"""Where a step's time goes, out of looks at the stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import MS, SamplesBuilder

from torchtriage.diagnose.runs.account import EITHER, OPERATORS, run_account, step_account
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


@pytest.mark.parametrize(
    ("value", "at", "made"),
    [
        ("torch.from_numpy(img).permute(2, 0, 1).float() / 255", "", True),
        ("torch.from_numpy(img).permute(2, 0, 1).float() / 255", "torch.from_numpy(img).permute(2, 0, 1).float", True),
        ("(made - mean) / std", "", True),
        ("made.softmax(-1)", "", True),
        ("made.type(torch.float32) / 255", "", True),
        ("torch.FloatTensor(img) / 255", "", True),
        ("img / 255", "", False),
        ("torch.from_numpy(img).numpy() / 255", "", False),
        ("sum(made.tolist()) * 3", "", False),
        ("torch.load(path)['words'] * 3", "", False),
        ("torch.compile(net).encode(img)", "", False),
        ("img / torch.iinfo(torch.int16).max", "", False),
        ("img / torch.numel(given)", "", False),
        ("img * torch.initial_seed()", "", False),
        ("img * made.ndim", "", False),
        ("img * made.element_size()", "", False),
        ("net(img)", "", False),
        ("given + 1", "", False),
    ],
)
def test_arithmetic_on_what_torch_has_made_is_an_operator(tmp_path: Path, value: str, at: str, made: bool) -> None:
    source = (
        "net = torch.nn.Linear(2, 2)\n"
        "def step(img, given):\n    made = torch.ones(2)\n    made = F.relu(made)[0]\n"
        f"    y = {value}\nfor img in images:\n    step(img, 1)\n"
    )
    built = SamplesBuilder(tmp_path, source, at or value)
    for _ in range(100):
        built.look("step(img, 1)", "y =")
    loop = built.loop()
    assert loop is not None
    assert {item.kind for item in loop.seen} == ({OPERATORS} if made else {EITHER})


@pytest.mark.parametrize(
    ("lines", "at", "made"),
    [
        ("img = torch.from_numpy(img); img = img.float() / 255", "img.float() / 255", True),
        ("img = img[::-1]; img = torch.from_numpy(img); img = img.float(); y = img / 255", "img / 255", True),
        ("a = torch.zeros(3); b = a.float(); y = b / 255", "b / 255", True),
        ("a = torch.zeros(3); a += img; y = a * 2", "a * 2", True),
        ("a, b = torch.zeros(2, 3); y = b * 2", "b * 2", True),
        ("y = MEAN - img", "MEAN - img", True),
        ("img = img / 255; img = torch.from_numpy(img)", "img / 255", False),
        ("a = torch.zeros(3); a = a.numpy(); y = a * 2", "a * 2", False),
        ("a = torch.zeros(3); a, b = a.numpy(), img; y = a * 2", "a * 2", False),
        ("a = torch.zeros(3); for a in img:;     y = a * 2", "a * 2", False),
        ("img = img * 2; y = img / 255", "img / 255", False),
        ("y = part / 255", "part / 255", False),
        ("a = torch.zeros(3); a: torch.Tensor; y = a * 2", "a * 2", True),
        ("if img:;     a = np.array(img); else:;     a = torch.from_numpy(img); y = a / 255", "a / 255", False),
        ("if img:;     a = torch.from_numpy(img); else:;     a = np.array(img); y = a / 255", "a / 255", False),
        ("if img:;     a = torch.flip(img, (1,)); else:;     a = torch.relu(img); y = a / 255", "a / 255", True),
        ("if part:;     img = torch.ones(3); elif net:;     pass; else:;     y = img / 255", "img / 255", False),
        ("if part:;     img = torch.ones(3);     return img; y = img / 255", "img / 255", False),
        ("try:;     a = torch.from_numpy(img); except OSError:;     pass; y = a / 255", "a / 255", True),
        ("if part:;     img = torch.from_numpy(img); y = img / 255", "img / 255", True),
        ("a = torch.zeros(3); while img:;     y = a * 2;     a = y.relu()", "a * 2", True),
        ("a = torch.zeros(3); if img:;     a = net(a); y = a * 2", "a * 2", True),
        ("while img:;     a = net(img);     y = a * 2;     a = torch.from_numpy(y)", "a * 2", False),
        ("if img:;     a = torch.from_numpy(img);     y = a / 255; else:;     a = img", "a / 255", True),
        ("a = torch.zeros(3); if img:;     a = a.float(); y = a * 2", "a * 2", True),
        ("with torch.no_grad():;     a = torch.zeros(3); y = a * 2", "a * 2", True),
        ("a = torch.zeros(3); while img:;     y = a * 2;     a = a.numpy()", "a * 2", False),
        ("for part in img:;     a = torch.ones(3);     y = a * 2;     a = a.numpy()", "a * 2", True),
        (
            "for p in img:;     try:;         a = decode(p);     except OSError:;         continue;     "
            "a = a / 255;     a = torch.from_numpy(a)",
            "a / 255",
            False,
        ),
        (
            "for p in img:;     if p:;         a = read(p);     else:;         a = decode(p);     "
            "a = a / 255;     a = torch.from_numpy(a)",
            "a / 255",
            False,
        ),
        ("if img:;     MEAN = read(img); y = MEAN / 255", "MEAN / 255", False),
        ("global MEAN; MEAN = MEAN / 255", "MEAN / 255", True),
        (
            "a = np.load(img); if img:;     a = torch.from_numpy(a); else:;     a = torch.flip(a, (2,)); y = a / 255",
            "a / 255",
            True,
        ),
        (
            "a = np.load(img); try:;     a = torch.from_numpy(a); except TypeError:;     "
            "a = torch.from_numpy(a.copy()); y = a / 255",
            "a / 255",
            True,
        ),
        (
            "a = None; for p in img:;     if a is None:;         a = torch.zeros(3);     else:;         a = a * 2",
            "a * 2",
            True,
        ),
        (
            "a = torch.zeros(3); for p in img:;     if p:;         a = np.load(p);         continue;     "
            "a = torch.relu(a); y = a * 2",
            "a * 2",
            False,
        ),
        (
            "for p in img:;     a = torch.zeros(3);     if p:;         a = np.load(p);         break;     y = a * 2",
            "a * 2",
            True,
        ),
        ("a = torch.zeros(3); a /= 255", "a /= 255", True),
        ("a = torch.zeros(3); def inner():;     return a * 2; return inner()", "a * 2", True),
        ("a = torch.zeros(3); match img:;     case 1:;         a = np.load(img); y = a * 2", "a * 2", False),
        ("a = torch.zeros(3); if img:;     a = np.load(img);     raise ValueError(a); y = a * 2", "a * 2", True),
        ("a = np.load(img); match img:;     case 1:;         a = torch.from_numpy(a); y = a * 2", "a * 2", False),
        ("a = torch.zeros(3); try:;     a = np.load(img); except OSError:;     y = a * 2", "a * 2", False),
        ("a = np.load(img); try:;     a = torch.from_numpy(a); except OSError:;     y = a * 2", "a * 2", False),
        ("try:;     a = torch.zeros(3); except OSError:;     return; else:;     y = a * 2", "a * 2", True),
        ("for p in img:;     pass; else:;     a = torch.zeros(3); y = a * 2", "a * 2", True),
        ("try:;     pass; finally:;     a = torch.zeros(3); y = a * 2", "a * 2", True),
        (
            "a = torch.zeros(3); for p in img:;     y = a * 2;     for q in p:;         a = np.load(q);         "
            "continue;     a = torch.ones(3)",
            "a * 2",
            True,
        ),
        ("while (a := torch.relu(img)).any():;     y = a * 2", "a * 2", True),
        ("try:;     return; finally:;     a = torch.ones(2);     y = a * 2", "a * 2", True),
        ("a = torch.ones(2); from os import path as a; y = a * 2", "a * 2", False),
        ("a = torch.ones(2); del a; y = a * 2", "a * 2", False),
        ("a = torch.ones(2); match img:;     case [a]:;         y = a * 2", "a * 2", False),
        ("a = torch.ones(2); try:;     net(); except OSError as a:;     y = a * 2", "a * 2", False),
    ],
)
def test_a_name_is_what_it_was_last_set_to_above(tmp_path: Path, lines: str, at: str, made: bool) -> None:
    body = "".join(f"    {line}\n" for line in lines.split("; "))
    source = f"MEAN = torch.ones(3)\ndef other():\n    part = torch.ones(2)\ndef step(img):\n{body}step(img)\n"
    built = SamplesBuilder(tmp_path, source, at)
    built.look(next(line.strip() for line in source.splitlines() if at in line))
    (look,) = built.samples().looks
    assert built.view.of_tensor(look.stack[0]) == made


def test_of_a_function_that_nests_too_deep_nothing_is_known(tmp_path: Path) -> None:
    branches = "".join(f"    elif img == {number}:\n        pass\n" for number in range(2000))
    source = f"def step(img):\n    if img is None:\n        pass\n{branches}    y = torch.ones(3) * img\nstep(1)\n"
    built = SamplesBuilder(tmp_path, source, "torch.ones(3) * img")
    built.look("y = torch.ones(3) * img")
    (look,) = built.samples().looks
    assert built.view.of_tensor(look.stack[0])  # a tensor by itself, whatever the names hold


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
