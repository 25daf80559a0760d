"""Which names hold a tensor that torch has made, as lines with arithmetic on them are judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.diagnose.runs.account import EITHER, OPERATORS
from torchtriage.diagnose.runs.samples import Position


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
        ("a = torch.ones(2); y = [a * 2 for a in img]", "a * 2", False),
        ("a = torch.ones(2); y = [a * part for part in img]", "a * part", True),
        ("a = torch.ones(2); double = lambda a: a * 2", "a * 2", False),
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


def test_of_a_sum_that_nests_too_deep_nothing_is_known(tmp_path: Path) -> None:
    total = " + ".join(["img"] * 2000)
    built = SamplesBuilder(tmp_path, f"def step(img):\n    y = {total}\n")
    place = Position(str(tmp_path / "train.py"), "step", 1, 2, 2, 8, 8 + len(total))
    assert not built.view.of_tensor(place)


def test_of_a_function_that_nests_too_deep_nothing_is_known(tmp_path: Path) -> None:
    branches = "".join(f"    elif img == {number}:\n        pass\n" for number in range(2000))
    source = f"def step(img):\n    if img is None:\n        pass\n{branches}    y = torch.ones(3) * img\nstep(1)\n"
    built = SamplesBuilder(tmp_path, source, "torch.ones(3) * img")
    built.look("y = torch.ones(3) * img")
    (look,) = built.samples().looks
    assert built.view.of_tensor(look.stack[0])  # a tensor by itself, whatever the names hold
