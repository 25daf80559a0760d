"""KRN024 low-parallelism."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage import analyze
from torchtriage.diagnose.patterns.kernel.low_parallelism import PATTERN, find

SMALL = [33, 1, 1]
"""A quarter of the 132 multiprocessors of the builder's device."""


def steps(
    *, grid: list[int] | None = None, name: str = "gemm", dur: float = 100, rest: float = 300, late: bool = False
) -> TraceBuilder:
    """Steps of 1 ms with a small kernel and one that fills the device, launched ahead."""
    builder = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        args = {} if grid is None else {"grid": grid}
        builder.launch(at + 10, 5, at + 100, dur, name, **args)
        builder.launch(at + (400 if late else 20), 5, at + 500, rest, "big", grid=[999, 1, 1])
    return builder


def test_quiet_on_grids_that_fill_most_of_the_device() -> None:
    assert not steps(grid=[67, 1, 1]).claims(find)


def test_quiet_without_recorded_grids() -> None:
    # the kernels of a replayed graph
    assert not steps(grid=None).claims(find)


def test_quiet_on_short_kernels() -> None:
    assert not steps(grid=SMALL, dur=9, rest=20).claims(find)


def test_quiet_below_a_fifth_of_the_kernel_time() -> None:
    assert not steps(grid=SMALL, dur=60).claims(find)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<128, 4>()",
        "void cudnn::bn_bw_1C11_kernel_new<float>()",
        "void at::native::batch_norm_backward_kernel<c10::BFloat16>()",
        "void at::native::multi_tensor_apply_kernel<Adam>()",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    ],
)
def test_quiet_on_kernels_whose_grid_a_batch_does_not_change(name: str) -> None:
    assert not steps(grid=SMALL, name=name).claims(find)


def test_quiet_where_the_host_is_late() -> None:
    assert not steps(grid=SMALL, late=True).claims(find)


def test_quiet_where_another_stream_fills_the_rest() -> None:
    builder = steps(grid=SMALL)
    for i in range(4):
        builder.launch(1_000 * i + 15, 3, 1_000 * i + 150, 100, "other", stream=8)
    assert not builder.claims(find)


def test_quiet_on_devices_of_unknown_size() -> None:
    builder = steps(grid=SMALL)
    del builder.meta["deviceProperties"][0]["numSms"]
    assert not builder.claims(find)
    assert PATTERN.code in {item.code for item in analyze(builder.build()).not_checked}


def test_loud_on_small_grids() -> None:
    (claim,) = steps(grid=SMALL).claims(find)
    assert claim.certainty == "hint"
    assert claim.evidence["small_kernel_ms_per_step"] == pytest.approx(0.1)
    assert claim.evidence["share_of_kernel_time"] == pytest.approx(0.25)
    assert claim.evidence["mean_filled_share_of_multiprocessors"] == pytest.approx(0.25)
    assert claim.evidence["n_multiprocessors"] == 132
    assert claim.message.startswith("kernels that fill 25 % of 132 multiprocessors take 100 µs")


def test_the_cost_is_nothing_for_sure_and_the_empty_part_at_best() -> None:
    (claim,) = steps(grid=SMALL).claims(find)
    assert claim.gain_low == 0.0
    np.testing.assert_allclose(claim.gain_high, 0.75)
    (edit,) = claim.edits
    assert (edit.kind, edit.factor) == ("shrink", 1.0)
    np.testing.assert_allclose(np.asarray(edit.best), 0.25)
