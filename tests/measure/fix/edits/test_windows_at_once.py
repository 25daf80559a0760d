"""Windows of a series are taken with one index."""

import pytest
from tests.measure.fix.proposing import proposed

LOOP = """\
import numpy as np
import torch


def windows(x, w, h):
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


def windows(x, w, h):
    n = x.shape[0] - w - h
    return {window}, {target}
"""


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
    before = LOOP.format(number=number, window=window, target=target, join=join)
    arange = f"{join.partition('.')[0]}.arange"
    after = AT_ONCE.format(window=whole.replace("A(", f"{arange}("), target=whole_target.replace("A(", f"{arange}("))
    assert proposed(before, "xs.append", "LCH017", "windows-at-once") == [after]


BEFORE = LOOP.format(number="n", window="x[i : i + w]", target="x[i + w]", join="torch.stack")


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
        ("        xs.append(x[i : i + w])", "        size = w\n        xs.append(x[i : i + size])"),
    ],
)
def test_other_loops_stay(old, new):
    assert proposed(BEFORE, "xs.append", "LCH017", "windows-at-once")
    assert not proposed(BEFORE.replace(old, new, 1), "for i in", "LCH017", "windows-at-once")


def test_lists_are_no_arrays():
    before = BEFORE.replace("torch.stack", "np.array").replace("x.shape[0]", "len(x)")
    assert not proposed(before, "xs.append", "LCH017", "windows-at-once")


@pytest.mark.torch
@pytest.mark.parametrize("window", ["x[i : i + w]", "x[i + h : w + i + h]", "x[i + w]", "x[i : i + w, 0]"])
@pytest.mark.parametrize("join", ["torch.stack", "np.array"])
def test_the_result_is_equal(window, join):
    import torch

    before = LOOP.format(number="n", window=window, target="x[i]", join=join)
    x = torch.rand(30, 2)
    results = []
    for text in (before, *proposed(before, "xs.append", "LCH017", "windows-at-once")):
        names = {}
        exec(text, names)
        results.append(names["windows"](x if join == "torch.stack" else x.numpy(), 5, 3))
    assert len(results) == 2
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(torch.as_tensor(first), torch.as_tensor(second), rtol=0, atol=0)
