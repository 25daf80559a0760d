"""MFU: exact where every shape, type and rate is known, and a reason everywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Trace
from torchtriage.diagnose.verdict.device_time import device_time
from torchtriage.diagnose.verdict.result import ModelFlops, PeakShare

HALF = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
TF32 = "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4"
SIDE = [[4096, 4096], [4096, 4096]]
FLOP = 2 * 4096**3
STEP_US = 10_000


def mfu(trace: Trace) -> ModelFlops | None:
    return device_time(trace)[0].mfu


def loop(
    *kernels: str, dims: Any = SIDE, dur_us: float = 1000, device: str = "NVIDIA H100", marked: bool = True
) -> TraceBuilder:
    """Return three steps, each with some products one after the other."""
    builder = TraceBuilder(device=device)
    for step in range(3):
        begin = step * STEP_US
        if marked:
            builder.step(step, begin, STEP_US)
        for index, kernel in enumerate(kernels):
            at = begin + 100 + index * (dur_us + 100)
            types = ["c10::BFloat16" if kernel == HALF else "float"] * 2
            builder.op("aten::mm", at, 50, dims=dims, types=types)
            builder.launch(at + 5, 2, at + 10, dur_us, kernel)
    return builder


def test_operations_over_the_peak_and_the_time_of_the_step() -> None:
    found = mfu(loop(HALF, HALF).build())
    assert found is not None
    assert found.share == pytest.approx(2 * FLOP / (989e6 * STEP_US), abs=1e-6)
    assert (found.flop, found.step_ns, found.peaks) == (2 * FLOP, STEP_US * 1000, (PeakShare(989.0, 1.0),))
    assert found.unchecked == ""


def test_each_operation_is_held_against_the_peak_of_its_type() -> None:
    found = mfu(loop(HALF, TF32).build())
    assert found is not None
    assert found.share == pytest.approx((FLOP / 989e6 + FLOP / 495e6) / STEP_US, abs=1e-6)
    assert found.peaks == (PeakShare(989.0, 0.5), PeakShare(495.0, 0.5))


def test_a_little_of_an_unknown_type_is_left_out() -> None:
    builder = loop(HALF, HALF)
    for step in range(3):
        builder.op("aten::mm", step * STEP_US + 5000, 50, dims=[[1, 1], [1, 1]], types=["int", "int"])
        builder.launch(step * STEP_US + 5005, 2, step * STEP_US + 5010, 20, "gemm_of_an_unknown_type")
    found = mfu(builder.build())
    assert found is not None
    assert found.flop == 2 * FLOP


def test_nothing_is_said_where_nothing_multiplies() -> None:
    assert mfu(loop("void at::native::vectorized_elementwise_kernel<4>").build()) is None


@pytest.mark.parametrize(
    ("builder", "reason"),
    [
        (loop(HALF, device="Some Future Device"), "Some Future Device"),
        (loop(HALF, dims=None), "record_shapes=True"),
        (loop(HALF, marked=False), "no marks of steps"),
        (loop(HALF, HALF, "gemm_of_an_unknown_type"), "67 %"),
        # 0.12 ms of work at the peak in 0.1 ms: the shapes or the type are others
        (loop(HALF, dur_us=100), "0 %"),
    ],
)
def test_what_is_not_known_is_not_checked(builder: TraceBuilder, reason: str) -> None:
    found = mfu(builder.build())
    assert found is not None
    assert found.share is None
    assert reason in found.unchecked


def test_it_is_never_above_the_peak() -> None:
    # three streams at once, each as fast as the whole device
    builder = TraceBuilder(device="NVIDIA H100")
    for step in range(3):
        begin = step * 400
        builder.step(step, begin, 400)
        for index in range(3):
            builder.op("aten::mm", begin + 10 * index, 9, dims=SIDE, types=["c10::Half"] * 2)
            builder.launch(begin + 10 * index + 1, 2, begin + 50, 200, HALF, stream=7 + index)
    found = mfu(builder.build())
    assert found is not None
    assert found.share is None
    assert "longer than the steps" in found.unchecked


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "giga_macs"),
    [
        # torchvision's counts for one image; in training twice as much backward, but for the images' own gradient
        ("cv/vit_nsfw_h100_infer.json.gz", 4 * 17.564),
        ("cv/vit_nsfw_mi300x_infer.json.gz", 4 * 17.564),
        ("cv/resnet18_mi300x_ddp_train.json.gz", 512 * (3 * 1.814 - 0.118)),
    ],
)
def test_operations_of_models_agree_with_what_is_published(name: str, giga_macs: float, recordings: Path) -> None:
    found = mfu(tt.load(recordings / name))
    assert found is not None
    assert found.flop == pytest.approx(2e9 * giga_macs, rel=1e-3)


@pytest.mark.data
def test_mfu_on_every_recording_is_a_share_or_a_reason(recordings: Path) -> None:
    n_known = 0
    for path in recordings.rglob("*.json.gz"):
        try:
            times = device_time(tt.load(path))
        except TraceFormatError:
            continue
        for found in (time.mfu for time in times[:1]):
            assert found is None or (found.share is None) == bool(found.unchecked), path.name
            assert found is None or 0 <= (found.share or 0) <= 1, path.name
            n_known += found is not None and found.share is not None
    assert n_known >= 10
