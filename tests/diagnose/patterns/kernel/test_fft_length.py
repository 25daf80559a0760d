"""KRN070 fft-length: lengths with a large prime factor, told from those that are fast; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.kernel.fft_length import find
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.verdict import diagnose


def claims(
    dims: list[int],
    axes: str = "[1]",
    *,
    name: str = "aten::_fft_r2c",
    last: str = "True",
    op_us: float = 400,
    call_us: float = 500,
) -> list[Claim]:
    """Four steps of 1 ms on a CPU, each with one transform."""
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        builder.op("aten::fft_rfft", at + 10, call_us, dims=[dims], concrete=["", "", "-1", ""])
        builder.op(name, at + 20, op_us, dims=[dims, [], [], []], concrete=["", axes, "0", last])
    return builder.claims(find)


@pytest.mark.parametrize("length", [400, 20_480, 127 * 64])
def test_quiet_on_lengths_of_small_factors(length: int) -> None:
    assert not claims([8, length])


def test_quiet_along_another_axis_and_without_shapes() -> None:
    assert not claims([19_991, 512])
    assert not claims([])
    assert not claims([8, 19_991], "[2]")
    assert not claims([8, 19_991], "")


def test_quiet_below_five_percent() -> None:
    assert not claims([8, 19_991], op_us=0, call_us=49)
    assert claims([8, 19_991], op_us=0, call_us=51)


def test_the_cost_is_that_of_the_call_with_its_copies() -> None:
    (claim,) = claims([8, 19_991])
    assert claim.evidence["transforms_ms_per_step"] == 0.5
    assert claim.evidence["length"] == claim.evidence["largest_prime_factor"] == 19_991
    assert "length 19,991, a prime number, take 500 µs, 50 % of the step in 1 call" in claim.message


def test_a_transform_back_goes_to_the_length_that_it_was_asked_for() -> None:
    (claim,) = claims([8, 9_996], name="aten::_fft_c2r", last="19991")
    assert claim.evidence["length"] == 19_991
    assert not claims([8, 10_001], name="aten::_fft_c2r", last="20000")  # 10,001 is 73 times 137


def test_one_of_two_axes_is_half_of_the_time() -> None:
    (claim,) = claims([8, 512, 1_021], "[1, 2]")
    assert claim.evidence["largest_prime_factor"] == 1_021
    assert [edit.factor for edit in claim.edits] == pytest.approx([1 - 0.65 / 2])


def test_the_line_is_that_of_the_transform_also_where_its_gradient_takes_longer() -> None:
    builder = TraceBuilder(vendor="cpu")
    given: dict[str, Any] = {"dims": [[8, 19_991], [], [], []], "concrete": ["", "[1]", "0", "True"]}
    for step in range(4):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        builder.frame("net.py(7): blur", at + 5, 120)
        builder.op("aten::_fft_r2c", at + 10, 100, seq=step, **given)
        builder.frame("train.py(30): main", at + 200, 500)
        builder.op("autograd::engine::evaluate_function: FftR2CBackward0", at + 210, 410, seq=step, fwd=1)
        builder.op("aten::_fft_c2c", at + 220, 390, **given)
    (finding,) = diagnose(builder.build(), Options(only=["KRN070"])).findings
    assert finding.place.frame is not None
    assert (finding.place.frame.file, finding.place.frame.function) == ("net.py", "blur")
    assert finding.place.ops[-1] == "aten::_fft_c2c"


def test_the_line_is_that_of_the_backward_pass_where_it_is_the_users_own() -> None:
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        builder.frame("net.py(7): forward", at + 5, 120)
        builder.op("Blur", at + 10, 100, seq=step)
        builder.frame("train.py(30): main", at + 200, 500)
        builder.op("autograd::engine::evaluate_function: BlurBackward", at + 210, 410, seq=step, fwd=1)
        builder.frame("net.py(12): backward", at + 215, 400)
        builder.op("aten::_fft_r2c", at + 220, 390, dims=[[8, 19_991], [], [], []], concrete=["", "[1]", "0", "True"])
    (finding,) = diagnose(builder.build(), Options(only=["KRN070"])).findings
    assert finding.place.frame is not None
    assert finding.place.frame.function == "backward"
