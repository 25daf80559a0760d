"""What only several ranks show: experts, work of one rank alone, other programs, causal attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import N_STEPS, found, meet, ranks_of, records, steps_of

from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs


def kernel(builder: TraceBuilder, at: float, dur: float, name: str) -> float:
    builder.op("aten::op", at - 6, 4)
    builder.launch(at - 5, 2, at, dur, name)
    return at + dur


def experts(
    n: int,
    tokens: Callable[[int, int], int],
    *,
    us: float = 1.0,
    kernel_name: str = "grouped_gemm",
    took: float = 200,
    activation_us: float = 0.0,
    once_more_in: int = -1,
    size: int = 0,
) -> list[TraceBuilder]:
    """Return ranks that dispatch tokens, compute as long as they have of them, and give them back.

    ``once_more_in`` : a step with one more all-to-all at its end. ``size`` : ranks of a group, without all of them.
    """
    builders = ranks_of(n)

    def arrive(step: int, begin: float) -> list[float]:
        at = [kernel(builder, begin, 1500, "attention") + 10 for builder in builders]
        at = meet(builders, at, "all_to_all", size=size)
        load = [tokens(step, rank) for rank in range(n)]
        at = [
            kernel(one, kernel(one, when, load[rank] * us, kernel_name), load[rank] * activation_us, "gelu") + 5
            for rank, (one, when) in enumerate(zip(builders, at, strict=True))
        ]
        at = meet(builders, at, "all_to_all", load, took, size)
        return meet(builders, at, "all_to_all") if step == once_more_in else at

    return steps_of(builders, arrive)


# -- experts -------------------------------------------------------------------------------------


def test_a_hot_expert_makes_the_others_wait():
    skew = found(experts(4, lambda step, rank: 3000 + step * 100 if rank == 2 else 1000 + step * 70))
    one = skew["COM064"]
    assert one.evidence["hot_rank"] == 2
    assert one.ranks is not None
    assert one.ranks.ranks == (2,)
    # the late rank is the hot one, and is said once
    assert "COM036" not in skew
    assert "COM036" in one.also_explains
    # 3300 against a mean of (3 * 1175 + 3300) / 4 in the middle
    assert one.cost is not None
    assert one.cost.low_ms <= 1.5 <= one.cost.high_ms + 0.1


def test_even_experts_would_exchange_faster_too():
    builders = experts(4, lambda step, rank: 3000 + step * 100 if rank == 2 else 1000 + step * 70, took=1000)
    cost = found(builders)["COM064"].cost
    assert cost is not None
    # its lateness of 1.9 to 2.1 ms, and of the exchange that gives back what the fullest rank has above the mean
    assert cost.high_ms >= 2.1 + 1.0 * (1 - 1675 / 3250)


def test_all_that_experts_compute_grows_with_their_tokens():
    builders = experts(4, lambda step, rank: 3000 + step * 100 if rank == 2 else 1000 + step * 70, activation_us=0.5)
    cost = found(builders)["COM064"].cost
    assert cost is not None
    # of 1.5 us for each token, half a microsecond is no product: from 3250 to the mean in the middle
    assert cost.low_ms <= 1.5 * (3.25 - 1.675) <= cost.high_ms


def test_without_the_profiler_the_step_is_the_denominator():
    builders = experts(4, lambda step, rank: 3000 + step * 100 if rank == 2 else 1000 + step * 70)
    ranks = records(builders)
    (job,) = detect_jobs(ranks)
    recorded = found(builders)["COM064"].cost
    assert recorded is not None
    result = judge(ranks, job, min_share=0.01, unprofiled_ms=5.0)
    (cost,) = [finding.cost for finding in result.findings if finding.code == "COM064"]
    assert cost is not None
    assert cost.of_ms == result.step_ms == pytest.approx(5.0)
    assert cost.high_ms == pytest.approx(recorded.high_ms * 5.0 / recorded.of_ms, rel=1e-3)


def test_the_hot_expert_may_change_from_step_to_step():
    one = found(experts(4, lambda step, rank: 3000 if rank == step % 4 else 1000))["COM064"]
    assert "one rank or another" in one.message
    assert one.ranks is not None
    assert len(one.ranks.ranks) > 1


def test_groups_of_experts_wait_at_the_same_time():
    # the third of four ranks, as in the job of one group
    groups = found(experts(8, lambda step, rank: 3000 + step * 100 if rank % 4 == 2 else 1000 + step * 70, size=4))
    alone = found(experts(4, lambda step, rank: 3000 + step * 100 if rank == 2 else 1000 + step * 70))["COM064"].cost
    both = groups["COM064"]
    assert both.cost is not None
    assert alone is not None
    assert (both.cost.low_ms, both.cost.high_ms) == (alone.low_ms, alone.high_ms)
    assert "the experts of ranks 2, 6, one in each group, mostly, have" in both.message
    assert both.ranks is not None
    assert both.ranks.ranks == (2, 6)


def test_even_experts_are_silent():
    assert "COM064" not in found(experts(4, lambda step, rank: 1500 + (step * 7 + rank * 3) % 50))


def test_tables_of_other_sizes_are_no_experts():
    # an embedding table is as large in every step
    assert "COM064" not in found(experts(4, lambda _, rank: 3000 if rank == 2 else 1000, kernel_name="gemm"))


def test_tables_are_no_experts_where_a_step_has_an_exchange_more():
    tables = experts(4, lambda _, rank: 3000 if rank == 2 else 1000, kernel_name="gemm", once_more_in=3)
    assert "COM064" not in found(tables)


def test_what_is_called_experts_may_be_as_uneven_in_every_step():
    assert "COM064" in found(experts(4, lambda _, rank: 3000 if rank == 2 else 1000))


def test_unnamed_experts_are_told_by_sizes_that_change():
    one = found(experts(4, lambda step, rank: 3000 + step * 100 if rank == 2 else 1000, kernel_name="gemm"))
    assert one["COM064"].evidence["hot_rank"] == 2


def test_lookups_are_no_experts():
    skew = found(experts(4, lambda step, rank: 3000 + step * 100 if rank == 2 else 1000, kernel_name="embedding_bag"))
    assert "COM064" not in skew


def test_a_skew_that_costs_little_is_silent():
    assert "COM064" not in found(experts(4, lambda step, rank: 1300 + step if rank == 2 else 1000, us=0.05))


def test_a_group_with_a_rank_that_was_not_recorded_is_silent():
    # the fullest may be the missing one
    skew = found(experts(4, lambda step, rank: (1000, 2200, 4000, 1000)[rank] + step * 70), without=2)
    assert "COM064" not in skew


# -- one rank alone ------------------------------------------------------------------------------


def training(n: int, alone: Callable[[int, TraceBuilder, float], float], *, who: int = 0) -> list[TraceBuilder]:
    """Return ranks that train; one of them does something before the gradients of some steps."""
    builders = ranks_of(n)

    def arrive(step: int, begin: float) -> list[float]:
        at = []
        for rank, builder in enumerate(builders):
            when = alone(step, builder, begin) if rank == who else begin
            for _ in range(6):
                when = kernel(builder, when + 8, 300, "forward")
            builder.op("autograd::engine::evaluate_function: MmBackward0", when, 30)
            builder.launch(when + 2, 5, when + 10, 2000, "backward")
            at.append(when + 2020)
        return at

    return steps_of(builders, arrive)


def test_a_checkpoint_in_one_step_is_found():
    def save(step: int, builder: TraceBuilder, at: float) -> float:
        if step != 3:
            return at
        builder.frame("torch/serialization.py(900): save", at, 20_000)
        return at + 20_010

    one = found(training(4, save))["COM065"]
    assert one.evidence["kind"] == "saves"
    assert one.evidence["steps"] == [13]
    assert one.cost is not None
    assert one.cost.high_ms == pytest.approx(20 / N_STEPS, rel=0.1)


def test_a_checkpoint_in_every_step_takes_over_the_straggler():
    def save(_step: int, builder: TraceBuilder, at: float) -> float:
        builder.frame("torch/serialization.py(900): save", at, 2000)
        return at + 2010

    both = found(training(4, save))
    assert "COM036" not in both
    assert "COM036" in both["COM065"].also_explains


def test_a_checkpoint_at_the_end_of_a_step_is_waited_for_in_the_next():
    builders = ranks_of(3)
    begin = [1000.0] * 3
    for step in range(N_STEPS):
        at = []
        for one, when in zip(builders, begin, strict=True):
            one.op("autograd::engine::evaluate_function: MmBackward0", when + 10, 30)
            at.append(kernel(one, when + 60, 2000, "backward") + 10)
        at = meet(builders, at, "allreduce")
        for rank, builder in enumerate(builders):
            end = at[rank] + 30
            if rank == 1 and step == 2:
                builder.frame("trainer.py(5): save_checkpoint", at[rank] + 5, 20_000)
                end += 20_000
            builder.step(10 + step, begin[rank], end - begin[rank])
            begin[rank] = end + 5
    for rank, builder in enumerate(builders):
        builder.profiler_stop(begin[rank] + 10, 20)
    one = found(builders)["COM065"]
    assert one.evidence["rank"] == 1
    assert one.evidence["steps"] == [13]


def test_an_evaluation_is_a_forward_pass_without_a_backward_pass():
    def evaluate(step: int, builder: TraceBuilder, at: float) -> float:
        if step != 4:
            return at
        for _ in range(40):
            at = kernel(builder, at + 8, 500, "forward")
        return at

    one = found(training(4, evaluate))["COM065"]
    assert one.evidence["kind"] == "forward"
    assert one.certainty == "hint"


def test_a_save_that_nobody_waits_for_is_silent():
    def save(step: int, builder: TraceBuilder, at: float) -> float:
        if step == 3:
            builder.frame("torch/serialization.py(900): save", at, 5)
        return at

    assert "COM065" not in found(training(4, save))


def test_a_stall_without_a_name_stays_a_straggler():
    def stall(_step: int, _builder: TraceBuilder, at: float) -> float:
        return at + 2000

    both = found(training(4, stall))
    assert "COM065" not in both
    assert "COM036" in both


# -- other programs ------------------------------------------------------------------------------


def same(
    n: int,
    name: Callable[[int], str] = lambda _: "gemm",
    *,
    us: Callable[[int], float] = lambda _: 2000.0,
    types: Sequence[str] = (),
    **meta: Sequence[Any],
) -> list[TraceBuilder]:
    builders = ranks_of(n, **meta)

    def arrive(_step: int, begin: float) -> list[float]:
        for rank, kind in enumerate(types):
            builders[rank].op("aten::mm", begin - 16, 3, dims=[[8, 8], [8, 8]], types=[kind, kind])
        return [kernel(builder, begin, us(rank), name(rank)) + 5 for rank, builder in enumerate(builders)]

    return steps_of(builders, arrive)


def test_another_version_is_a_note():
    one = found(same(4, pytorch_version=["2.5", "2.5", "2.4", "2.5"]))["COM066"]
    assert one.severity == "note"
    assert "2.4" in one.message
    assert one.ranks is not None
    assert one.ranks.ranks == (2,)


def test_another_kernel_is_a_note():
    one = found(same(4, lambda rank: "sgemm_fp32" if rank == 1 else "hgemm_fp16"))["COM066"]
    assert "sgemm_fp32" in one.message


def test_two_ranks_of_other_types_name_the_late_one():
    both = found(
        same(
            2,
            lambda rank: ("fast_kernel", "slow_kernel")[rank],
            us=lambda rank: (2000, 3000)[rank],
            types=("float", "double"),
        )
    )
    one = both["COM066"]
    assert "aten::mm computes in double, not float" in one.message
    assert one.severity == "low"
    assert one.ranks is not None
    assert one.ranks.ranks == (1,)
    assert "COM036" in both


def test_a_log_of_one_rank_is_silent():
    builders = same(4)
    for step in range(N_STEPS):
        start = 1000.0 + step * 2265
        for place, name in enumerate(("aten::item", "aten::_local_scalar_dense", "aten::mean")):
            builders[0].op(name, start + 3 + 2 * place, 1)
    assert "COM066" not in found(builders)


def test_equal_programs_are_silent():
    assert "COM066" not in found(same(4, pytorch_version=["2.5"] * 4))


def test_a_version_that_one_rank_does_not_say_is_silent():
    builders = same(4)
    builders[1] = same(4, pytorch_version=["2.5"] * 4)[1]
    assert "COM066" not in found(builders)


def test_experts_and_tables_differ_rightly():
    assert "COM066" not in found(experts(4, lambda step, rank: 1500 + step, kernel_name="gemm"))


# -- causal attention ----------------------------------------------------------------------------


def rings(
    n: int, attention: Callable[[int], float], other: Callable[[int], float] = lambda _: 2000.0
) -> list[TraceBuilder]:
    builders = ranks_of(n)
    return steps_of(
        builders,
        lambda _, begin: [
            kernel(one, kernel(one, begin, other(rank), "linear_gemm") + 8, attention(rank), "flash_fwd_kernel") + 5
            for rank, one in enumerate(builders)
        ],
    )


def test_causal_attention_in_whole_stretches_is_found():
    both = found(rings(4, lambda rank: 1000.0 * (rank + 1)))
    one = both["COM067"]
    assert one.evidence["fullest_rank"] == 3
    assert one.cost is not None
    # 4 ms against a mean of 2.5
    assert one.cost.high_ms == pytest.approx(1.5, abs=0.05)
    assert "COM036" not in both


def test_zigzag_is_silent():
    assert "COM067" not in found(rings(4, lambda rank: 2500.0 + 10 * rank))


def test_longer_sequences_are_no_context_parallelism():
    both = found(rings(4, lambda rank: 1000.0 * (rank + 1), lambda rank: 1000.0 * (rank + 1)))
    assert "COM067" not in both


def test_a_rank_that_does_less_of_all_else_is_no_context_parallelism():
    assert "COM067" not in found(rings(4, lambda rank: 1000.0 * (rank + 1), lambda rank: 2000.0 if rank else 800.0))


def test_one_slow_rank_is_no_ring():
    assert "COM067" not in found(rings(4, lambda rank: 4000.0 if rank == 1 else 1000.0))


@pytest.mark.parametrize("missing", [0, 3])
def test_a_hint_where_the_fullest_rank_may_be_missing(missing: int):
    finding = found(rings(4, lambda rank: 1000.0 * (rank + 1)), without=missing)["COM067"]
    assert finding.cost is not None
    assert (finding.certainty, finding.cost.low_ms, finding.cost.grade) == ("hint", 0, "C")
    assert (
        "; ranks are missing or were left out: the rank that makes the others wait may be among them" in finding.message
    )


# -- batches of unequal size ---------------------------------------------------------------------


def batches(
    n: int,
    tokens: Callable[[int, int], int],
    us: Callable[[int, int], float],
    calls: Callable[[int, int], int] = lambda _step, _rank: 1,
) -> list[TraceBuilder]:
    """Return ranks whose batches have so many tokens, by step and rank, in so many calls, and take so long."""
    builders = ranks_of(n)

    def arrive(step: int, begin: float) -> list[float]:
        for rank, builder in enumerate(builders):
            for call in range(calls(step, rank)):
                dims = [[tokens(step, rank), 64], [64, 64], []]
                builder.op("aten::linear", begin + 0.3 * call, 0.2, dims=dims, types=["float"] * 2 + [""])
        return [kernel(builder, begin + 10, us(step, rank), "gemm") + 5 for rank, builder in enumerate(builders)]

    return steps_of(builders, arrive)


def turns(step: int, rank: int) -> int:
    return 1000 + 700 * ((step + rank) % 3 == 0) + 50 * ((step * 7 + rank * 5) % 4)


def test_batches_of_unequal_size_make_ranks_late_by_turns():
    finding = found(batches(4, turns, lambda step, rank: float(turns(step, rank))))["COM069"]
    own = [[turns(step, rank) for rank in range(4)] for step in range(N_STEPS)]
    assert finding.cost is not None
    assert finding.cost.high_ms == pytest.approx(sum(max(row) - sum(row) / 4 for row in own) / N_STEPS / 1e3, rel=0.05)
    assert finding.cost.low_ms == pytest.approx(0.8 * finding.cost.high_ms, rel=0.05)
    assert finding.certainty == "likely"


def test_ranks_that_share_a_batch_are_late_together():
    pairs = batches(4, lambda step, rank: turns(step, rank // 2), lambda step, rank: turns(step, rank // 2) + rank % 2)
    assert "COM069" in found(pairs)


def test_more_calls_of_one_size_are_no_larger_batches():
    assert "COM069" not in found(
        batches(
            4,
            lambda _step, _rank: 1000,
            lambda step, rank: float(turns(step, rank)),
            lambda step, rank: 1 + turns(step, rank) // 200,
        )
    )


def test_experts_that_take_turns_are_named_as_such():
    builders = experts(4, lambda step, rank: 3000 if rank == step % 4 else 1000)
    for builder in builders:
        for event in [event for event in builder.events if event["name"] == "grouped_gemm"]:
            builder.op("aten::_grouped_mm", event["ts"] - 6, 4, dims=[[int(event["dur"]), 64], [64, 64]])
    both = found(builders)
    assert "COM064" in both
    assert "COM069" not in both


def test_a_machine_that_is_slow_by_turns_is_silent():
    assert "COM069" not in found(batches(4, lambda _step, _rank: 1000, lambda step, rank: float(turns(step, rank))))


def test_sizes_that_do_not_take_longer_are_silent():
    assert "COM069" not in found(batches(4, turns, lambda step, rank: float(turns(step, 3 - rank))))


def test_the_same_rank_with_the_largest_batch_is_a_late_rank():
    both = found(batches(4, lambda _, rank: 1000 + 800 * (rank == 1), lambda _, rank: 1000.0 + 800 * (rank == 1)))
    assert "COM036" in both
    assert "COM069" not in both


def test_batches_that_are_long_for_all_ranks_are_silent():
    assert "COM069" not in found(batches(4, lambda step, _: 500 * (1 + step), lambda step, _: 500.0 * (1 + step)))


def test_sizes_that_no_trace_would_say_are_silent():
    found(batches(4, lambda step, rank: -(10**30) * turns(step, rank), lambda step, rank: float(turns(step, rank))))
