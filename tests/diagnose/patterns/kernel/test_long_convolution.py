"""KRN074 long-convolution: signals convolved with many taps; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.kernel.long_convolution import find

PLAIN = ["[1]", "[0]", "[1]", "False", "[0]", "1"]


def steps(
    us: float = 16_000,
    *,
    signal: Any = (8, 1, 16_000),
    kernel: Any = (1, 1, 512),
    options: list[str] = PLAIN,
    back: bool = False,
    vendor: str = "cpu",
    dtype: str = "float",
) -> list[Claim]:
    """Four steps of 20 ms, each with one convolution."""
    builder = TraceBuilder(vendor=vendor)
    shapes: list[Any] = [list(signal), list(kernel), [], [], [], [], [], [], []]
    for step in range(4):
        at = 20_000 * step
        builder.step(step, at, 20_000)
        before = [[8, 1, 15_489]] if back else []
        name = "aten::convolution_backward" if back else "aten::convolution"
        values = [""] * (len(before) + 3) + options
        builder.op(name, at + 10, us, dims=before + shapes, types=[dtype] * 3, concrete=values)
        if vendor != "cpu":
            builder.launch(at + 20, 5, at + 30, 100)
    return builder.claims(find)


def test_what_transforms_would_take_stays() -> None:
    (claim,) = steps()
    assert claim.evidence["n_taps"] == 512
    (edit,) = claim.edits
    # 17 transforms of 32,768 numbers and 15 bits, 8 products of half as many
    once_ns = 17 * 32_768 * 15 * 0.25 + 8 * 16_384 * 1.5
    assert edit.factor == pytest.approx(3 * once_ns / 16e6, rel=0.01)
    assert edit.best == pytest.approx(once_ns / 3 / 16e6, rel=0.01)


def test_a_backward_pass_takes_two() -> None:
    (forward,), (back,) = steps(), steps(back=True)
    assert back.edits[0].factor == pytest.approx(2 * forward.edits[0].factor)


@pytest.mark.parametrize(
    "given",
    [
        {"us": 5_000},
        {"dtype": "c10::BFloat16"},
        {"kernel": (1, 1, 63)},
        {"signal": (8, 64, 1000), "kernel": (64, 64, 127), "us": 19_000},
        {"signal": (8, 1, 16, 1000)},
        {"signal": (8, 1, -5)},
        {"signal": (1 << 62, 1, 1 << 62)},
        {"options": ["[2]", *PLAIN[1:]]},
        {"options": [*PLAIN[:-1], "0"]},
        {"options": [*PLAIN[:3], "True", *PLAIN[4:]]},
        {"vendor": "nvidia"},
    ],
)
def test_what_is_fast_or_something_else(given: dict[str, Any]) -> None:
    assert steps(**given) == []
