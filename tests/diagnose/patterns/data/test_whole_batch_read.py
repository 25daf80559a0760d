"""DAT069 whole-batch-read."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.data.whole_batch_read import find


def loop(
    *,
    read: float = 3000,
    n: int = 48,
    cut: tuple[int, int, int] = (12, 24, 1),
    dim: int = 0,
    world: int = 4,
    before: str = "aten::stack",
) -> TraceBuilder:
    """Steps of 10 ms on rank 1: the host reads, a batch is made and cut, and a product computes."""
    builder = TraceBuilder(vendor="cpu", distributedInfo={"rank": 1, "world_size": world, "backend": "gloo"})
    for step in range(5):
        at = 10_000.0 * step
        builder.step(step, at, 9_990)
        builder.op(before, at + read - 20, 10, dims=[[n, 20]])
        given = {"Concrete Inputs": ["", str(dim), *map(str, cut)], "Input Dims": [[n, 20], [], [], [], []]}
        builder.event("aten::slice", "cpu_op", at + read, 5, **given)
        builder.op("aten::mm", at + read + 100, 5_000, dims=[[12, 20], [20, 40]])
    return builder


def test_quiet_on_a_batch_that_is_cut_at_once() -> None:
    assert not loop(read=400).claims(find)


@pytest.mark.parametrize(
    "change",
    [
        {"n": 50},
        {"cut": (0, 12, 1)},  # the first rank's
        {"cut": (12, 30, 1)},
        {"dim": 1},
        {"world": 1},
        {"world": 2},
        {"before": "aten::mm"},  # in the middle of the model
    ],
)
def test_quiet_on_other_slices(change: dict[str, int]) -> None:
    assert not loop(**change).claims(find)  # type: ignore[arg-type]


def test_three_of_four_parts_are_other_ranks() -> None:
    (claim,) = loop().claims(find)
    assert claim.evidence["until_cut_ms_per_step"] == 3.0
    assert claim.evidence["n_samples"] == 48
    assert claim.gain_high == 0.75
    assert "rank 1 keeps one of 4 equal parts" in claim.message


def test_every_fourth_sample_is_a_part_too() -> None:
    assert loop(cut=(1, 9223372036854775807, 4)).claims(find)
