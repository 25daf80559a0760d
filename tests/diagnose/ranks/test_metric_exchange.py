"""COM101: exchanges of a few numbers in the middle of a step, at which all ranks wait for whoever is last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import all_reduce, found, meet, ranks_of, records, steps_of

from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs

N_MICRO = 4


def accumulating(
    us: Callable[[int, int], float],
    place: str,
    *,
    nelems: int = 1,
    reduced: int = 1,
    took: float = 20,
    times: int = 1,
    lines: bool = False,
    n_groups: int = 1,
) -> list[TraceBuilder]:
    """Return ranks that compute so long in each micro-batch, by number and rank, and exchange a number meanwhile.

    ``place`` : ``after`` a backward pass, ``loss`` between forward and backward pass, in a ``layer``, before the
    ``optimizer`` alone, after the first backward pass ``once``, or ``""`` nowhere. ``n_groups`` : of four ranks,
    each of which exchanges its own. ``reduced`` : micro-batches of each step that reduce gradients, the last.
    ``took`` : microseconds of an exchange. ``times`` : exchanges in a row.
    """
    builders = ranks_of(4 * n_groups)

    def exchange(at: list[float], line: int = 31) -> list[float]:
        for _ in range(times):
            for rank, builder in enumerate(builders):
                builder.op("c10d::allreduce_", at[rank] - 10, 7)
                if lines:
                    builder.frame(f"train.py({line}): train", at[rank] - 20, 30)
            at = [when for group in range(n_groups) for when in exchange_in(group, at)]
        return at

    def exchange_in(group: int, at: list[float]) -> list[float]:
        members = list(range(4 * group, 4 * group + 4))
        end = max(at[rank] for rank in members) + took
        for rank in members:
            all_reduce(builders[rank], at[rank], end, 4, group=str(group + 1), ranks=members, nelems=nelems)
        return [end + 30] * 4

    def compute(at: list[float], name: str, part: float, micro: int) -> list[float]:
        out = []
        for rank, builder in enumerate(builders):
            builder.op(name, at[rank] - 6, 4)
            builder.op("aten::mm", at[rank] - 5.5, 3)
            dur = us(micro, rank % 4) * part
            builder.launch(at[rank] - 5, 2, at[rank], dur, "gemm")
            out.append(at[rank] + dur + 20)
        return out

    def arrive(_step: int, begin: float) -> list[float]:
        at = [begin] * len(builders)
        for micro in range(N_MICRO):
            at = compute(at, "aten::linear", 0.25, micro)
            at = exchange(at) if place == "layer" else at
            at = compute(at, "aten::linear", 0.25, micro)
            at = exchange(at) if place == "loss" else at
            at = compute(at, "autograd::engine::evaluate_function: MmBackward0", 0.5, micro)
            if N_MICRO - reduced <= micro < N_MICRO - 1:
                at = [when + 20 for when in meet(builders, at, "allreduce")]
            at = exchange(at, 31 + micro) if micro < {"after": N_MICRO - 1, "once": 1}.get(place, 0) else at
        at = exchange(at) if place == "optimizer" else at
        for rank, builder in enumerate(builders):
            builder.annotation("Optimizer.step#SGD.step", at[rank] - 5, 4)
        return at

    return steps_of(builders, arrive)


def by_turns(micro: int, rank: int) -> float:
    return 3000.0 if micro == rank else 1000.0


def test_ranks_that_exchange_a_number_after_each_micro_batch_wait_for_the_longest():
    both = found(accumulating(by_turns, "after"))
    one = both["COM101"]
    assert one.cost is not None
    assert one.evidence["n_exchanges_per_step"] == 3
    # 4 x 3 ms, and 6 ms where nobody waits; and the three exchanges take 20 us each
    assert one.cost.low_ms == pytest.approx(0.8 * 6, rel=0.02)
    assert one.cost.high_ms == pytest.approx(6.06 / 0.8, rel=0.02)
    assert one.severity == "high"
    assert "COM035" not in both


def test_exposed_communication_that_goes_with_the_exchanges_is_theirs():
    both = found(accumulating(by_turns, "after", took=500))
    assert "COM035" not in both
    assert both["COM101"].also_explains == ("COM035",)


def test_the_line_of_the_exchange_that_is_waited_at_longest_is_named():
    us = lambda micro, rank: 4000.0 if micro == rank == 2 else by_turns(micro, rank)  # noqa: E731
    frame = found(accumulating(us, "after", lines=True))["COM101"].place.frame
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == ("train.py", 33, "train")


def test_a_loss_that_is_exchanged_before_its_backward_pass_is_found():
    assert "COM101" in found(accumulating(by_turns, "loss"))


def test_groups_that_exchange_at_the_same_time_are_not_added_up():
    one, four = (found(accumulating(by_turns, "after", took=300, n_groups=n))["COM101"] for n in (1, 4))
    assert four.evidence["n_exchanges_per_step"] == one.evidence["n_exchanges_per_step"] == 3
    assert one.cost is not None
    assert four.cost is not None
    assert four.cost.high_ms == pytest.approx(one.cost.high_ms, rel=0.02)


def test_where_sizes_are_not_recorded_exchanges_are_not_checked():
    builders = accumulating(by_turns, "after")
    for builder in builders:
        for event in builder.events:
            event.get("args", {}).pop("In msg nelems", None)
    ranks = records(builders)
    (job,) = detect_jobs(ranks)
    result = judge(ranks, job, min_share=0.01)
    assert "COM101" not in result.checked
    (entry,) = (entry for entry in result.not_checked if entry.code == "COM101")
    assert "record_shapes=True" in entry.how_to_record


def test_where_a_rank_is_missing_it_may_be_the_late_one():
    ranks = records(accumulating(by_turns, "after", took=500))[:3]
    (job,) = detect_jobs(ranks)
    findings = {finding.code: finding for finding in judge(ranks, job, min_share=0.01).findings}
    cost = findings["COM101"].cost
    assert cost is not None
    assert (findings["COM101"].certainty, cost.low_ms) == ("hint", 0)
    assert "the rank that makes the others wait may be among them" in findings["COM101"].message
    assert not findings["COM101"].also_explains


@pytest.mark.parametrize("place", ["", "layer", "optimizer", "once"])
def test_what_layers_and_the_optimizer_need_is_no_exchange_for_a_log(place: str):
    assert "COM101" not in found(accumulating(by_turns, place))


def test_messages_are_no_exchanges_of_a_few_numbers():
    assert "COM101" not in found(accumulating(by_turns, "after", nelems=4096))


def test_exchanges_are_free_where_ranks_meet_anyway():
    assert "COM101" not in found(accumulating(by_turns, "after", reduced=N_MICRO))


def test_the_latency_of_many_exchanges_in_a_row_is_not_waiting():
    one, several = (found(accumulating(by_turns, "after", took=100, times=times))["COM101"] for times in (1, 5))
    assert several.evidence["n_exchanges_per_step"] == one.evidence["n_exchanges_per_step"]
    assert several.cost is not None
    assert one.cost is not None
    assert several.cost.high_ms == pytest.approx(one.cost.high_ms, rel=0.02)


def test_exchanges_of_even_ranks_are_free():
    assert "COM101" not in found(accumulating(lambda micro, _: 1000.0 + 500 * micro, "after"))


def test_exchanges_do_not_matter_where_one_rank_is_late():
    both = found(accumulating(lambda _, rank: 3000.0 if rank == 2 else 1000.0, "after"))
    assert "COM036" in both
    assert "COM101" not in both
