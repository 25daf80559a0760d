"""Windows of a series are taken with one index."""

import pytest
from tests.measure.fix.proposing import proposed

LOOP = """\
import numpy as np
import torch


def windows(x{kind}, w, h):
    n = x.shape[0] - w - h
    xs, ys = [], []
    for i in range({number}):
        xs.append({window})
        ys.append({target})
    return {join}(xs), {join}(ys)
"""
AT_ONCE = """\
import numpy as np
import torch


def windows(x{kind}, w, h):
    n = x.shape[0] - w - h
    return {window}, {target}
"""


KIND = {"torch.stack": "", "np.array": ": np.ndarray", "np.stack": ": np.ndarray"}


@pytest.mark.parametrize(
    ("number", "window", "target", "whole", "whole_target"),
    [
        ("n", "x[i : i + w]", "x[i + w]", "x[A(n)[:, None] + A(w)]", "x[A(n) + w]"),
        ("n", "x[i : w + i]", "x[i + w + h - 1, 0]", "x[A(n)[:, None] + A(w)]", "x[A(n) + w + h - 1, 0]"),
        (
            "w, n",
            "x[i - w : i]",
            "x[i : i + h, :2]",
            "x[A(w, n)[:, None] + A(w) - w]",
            "x[A(w, n)[:, None] + A(h), :2]",
        ),
        ("n", "x[i + w : i + w + h]", "x[i]", "x[A(n)[:, None] + A(h) + w]", "x[A(n)]"),
    ],
)
@pytest.mark.parametrize("join", ["torch.stack", "np.array", "np.stack"])
def test_windows(number, window, target, whole, whole_target, join):
    before = LOOP.format(number=number, window=window, target=target, join=join, kind=KIND[join])
    arange = f"{join.partition('.')[0]}.arange"
    whole, whole_target = (text.replace("A(", f"{arange}(") for text in (whole, whole_target))
    after = AT_ONCE.format(window=whole, target=whole_target, kind=KIND[join])
    assert proposed(before, "xs.append", "LCH017", "windows-at-once") == [after]


BEFORE = LOOP.format(number="n", window="x[i : i + w]", target="x[i + w]", join="torch.stack", kind="")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(n)", "range(0, n, 2)"),
        ("range(n)", "order"),
        ("x[i : i + w]", "x[i : i + w : 2]"),
        ("x[i : i + w]", "x[i : i * w]"),
        ("x[i : i + w]", "x[i : w]"),
        ("x[i : i + w]", "x[i : i + w, i]"),
        ("x[i : i + w]", "x[i : i + w] * 2"),
        ("x[i : i + w]", "x[: i + w]"),
        ("xs, ys = [], []", "xs, ys = [x], []"),
        ("torch.stack(xs)", "torch.stack(xs, 1)"),
        ("torch.stack(xs)", "xs"),
        ("torch.stack(xs)", "torch.stack(xs), len(xs)"),
        ("torch.stack(xs)", "torch.stack(xs) + i"),
        ("        ys.append", "        if i > 3:\n            break\n        ys.append"),
        ("        ys.append", "        x += 1\n        ys.append"),
        ("    n =", "    x = [0, 1]\n    n ="),
        ("    return", "    x = x * 2\n    return"),
        ("    return", "    x.mul_(2)\n    return"),
        ("    return", "    scale(x)\n    return"),
        ("    return", "    n = 3\n    return"),
        ("x[i : i + w]", "x[i : i + w, cols]"),
        ("x[i : i + w]", "x[i : i + w, : len(cols)]"),
        ("x[i : i + w]", "x[i : i + w, True]"),
        ("x[i : i + w]", "x[i : i + random.randint(1, 3)]"),
        ("x[i : i + w]", "data[i]"),
        ("range(n)", "range(random.randint(3, 9))"),
        ("range(n)", "range(max(1, n))"),
        ("range(n)", "range(n or 1)"),
        ("x.shape[0] - w - h", "max(x.shape[0] - w - h, 1)"),
        (
            "import torch\n",
            "import torch\n\nclass Series:\n    def __getitem__(self, i):\n        return torch.ones(3)\n",
        ),
        ("        xs.append(x[i : i + w])", "        size = w\n        xs.append(x[i : i + size])"),
    ],
)
def test_other_loops_stay(old, new):
    assert proposed(BEFORE, "xs.append", "LCH017", "windows-at-once")
    assert not proposed(BEFORE.replace(old, new, 1), "for i in", "LCH017", "windows-at-once")


def test_only_arrays_are_arrays():
    before = BEFORE.replace("torch.stack", "np.array")
    assert not proposed(before, "xs.append", "LCH017", "windows-at-once")


@pytest.mark.torch
@pytest.mark.parametrize("window", ["x[i : i + w]", "x[i + h : w + i + h]", "x[i + w]", "x[i : i + w, 0]"])
@pytest.mark.parametrize("join", ["torch.stack", "np.array"])
def test_the_result_is_equal(window, join):
    import torch

    before = LOOP.format(number="n", window=window, target="x[i]", join=join, kind=KIND[join] or ": torch.Tensor")
    x = torch.rand(30, 2)
    results = []
    for text in (before, *proposed(before, "xs.append", "LCH017", "windows-at-once")):
        names = {}
        exec(text, names)
        results.append(names["windows"](x if join == "torch.stack" else x.numpy(), 5, 3))
    assert len(results) == 2
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(torch.as_tensor(first), torch.as_tensor(second), rtol=0, atol=0)
