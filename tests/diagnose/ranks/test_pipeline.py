"""Pipelines of built recordings: which they are, how long their ranks wait, and what is no pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import all_reduce, job, records, shifted, write
from diagnose.ranks.pipelines import (
    BACKWARD,
    FORWARD,
    Order,
    gpipe,
    interleaved,
    odd,
    one_by_one,
    one_forward_one_backward,
    pipeline,
    times,
)

import torchtriage as tt
from torchtriage.core.finding import Finding
from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.result import JobResult


def judged(builders: Sequence[TraceBuilder]) -> JobResult:
    ranks = records(builders)
    return judge(ranks, found(ranks), min_share=0.01)


def found(ranks: Sequence[RankRecord]):  # type: ignore[no-untyped-def]
    (one,) = detect_jobs(ranks)
    return one


def codes(result: JobResult) -> dict[str, Finding]:
    return {finding.code: finding for finding in result.findings if finding.code in ("COM036", "COM062", "COM063")}


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize(
    ("order", "name", "p", "m"),
    [
        (gpipe, "GPipe", 2, 2),
        (gpipe, "GPipe", 4, 8),
        (one_forward_one_backward, "1F1B", 2, 2),
        (one_forward_one_backward, "1F1B", 3, 6),
        (one_forward_one_backward, "1F1B", 4, 8),
    ],
)
def test_the_schedule_is_named_and_the_bubble_is_what_books_give(
    order: Order, name: str, p: int, m: int, device: bool
) -> None:
    result = judged(pipeline(p, m, order, device=device))
    (pipe,) = result.pipelines
    assert (pipe.schedule, pipe.n_micro, pipe.n_chunks) == (name, m, 1)
    assert [rank.stages for rank in pipe.ranks] == [(stage,) for stage in range(p)]
    books = (p - 1) / (m + p - 1)
    assert pipe.books_share == pytest.approx(books, abs=1e-6)
    assert pipe.implied_share == pytest.approx(books, abs=0.002)
    assert pipe.bubble_share == pytest.approx(books, abs=0.01)
    # every rank waits as long, and a message is no waiting
    assert max(rank.bubble_ns for rank in pipe.ranks) - min(rank.bubble_ns for rank in pipe.ranks) < 2_000_000
    assert pipe.n_matched == 2 * m * (p - 1) * len(pipe.steps)
    assert pipe.n_unmatched == 0


def test_micro_batches_one_after_another_are_told_that_stages_could_overlap() -> None:
    result = judged(pipeline(3, 6, one_by_one))
    (pipe,) = result.pipelines
    assert pipe.schedule == "one micro-batch after another"
    assert pipe.bubble_share == pytest.approx(2 / 3, abs=0.01)
    assert pipe.books_share == pytest.approx(2 / 3, abs=1e-6)
    found = codes(result)["COM062"]
    step_ms = result.step_ms
    assert found.fix.text.endswith("a 1F1B schedule.")
    # 1F1B takes 8 of what takes 18 now
    assert found.evidence["saved_ms"]["1F1B"] == pytest.approx(step_ms * 10 / 18, rel=0.05)


def test_clocks_of_stages_on_other_hosts_are_aligned_by_what_they_send() -> None:
    # no collective holds two stages
    builders = pipeline(4, 8, device=True, longer=[1, 1, 1.5, 1])
    for rank, builder in enumerate(builders):
        builder.meta["host_name"] = f"host{rank}"
        shifted(builder, 4000 * (rank % 3))
    result = judged(builders)
    (pipe,) = result.pipelines
    assert pipe.schedule == "1F1B"
    assert [rank.clock_offset_ns for rank in result.ranks] == pytest.approx([0, -4e6, -8e6, 0], abs=20_000)
    assert codes(result)["COM063"].evidence["slow_stage_rank"] == 2
    # what one rank guesses of another is known of all stages
    assert "COM036" not in codes(result)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("p", [2, 4])
def test_two_stages_on_each_rank_are_told_by_order_alone(p: int, device: bool) -> None:
    (pipe,) = judged(pipeline(p, 8, interleaved, device=device)).pipelines
    assert (pipe.schedule, pipe.n_micro, pipe.n_chunks) == ("interleaved 1F1B", 8, 2)
    assert [rank.stages for rank in pipe.ranks] == [(rank, rank + p) for rank in range(p)]
    books = (p - 1) / (16 + p - 1)
    assert pipe.books_share == pytest.approx(books, abs=1e-6)
    assert pipe.implied_share == pytest.approx(books, abs=0.002)
    assert pipe.bubble_share == pytest.approx(books, abs=0.02)


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
def test_a_kernel_of_a_batch_is_what_the_calls_before_it_say(order: Order) -> None:
    alone, batched = (judged(pipeline(4, 8, order, device=True, batched=batched)) for batched in (False, True))
    (left,), (right,) = alone.pipelines, batched.pipelines
    assert left.schedule == right.schedule != "unknown schedule"
    assert right.n_matched == left.n_matched
    assert right.bubble_share == pytest.approx(left.bubble_share, abs=0.001)


def test_a_bubble_is_one_finding_with_what_other_schedules_give_back() -> None:
    result = judged(pipeline(4, 8))
    (bubble,) = codes(result).values()
    assert bubble.code == "COM062"
    assert bubble.cost is not None
    saved = bubble.evidence["saved_ms"]
    # books: 3/11 of eleven passes; with twice as many micro-batches 3/19, interleaved by two 3/19
    whole_ms = 11 * (FORWARD + BACKWARD) / 1e3
    after_ms = 8 * (FORWARD + BACKWARD) / 1e3 / (16 / 19)
    assert saved["twice as many micro-batches, half as large"] == pytest.approx(whole_ms - after_ms, rel=0.1)
    assert saved["two stages on each rank, interleaved"] == pytest.approx(whole_ms - after_ms, rel=0.1)
    assert bubble.cost.low_ms == pytest.approx(min(saved.values()) / 2)
    assert bubble.cost.high_ms == max(saved.values())
    assert "point-to-point" not in {note.code for note in result.notes}


def test_many_micro_batches_are_healthy() -> None:
    result = judged(pipeline(2, 32))
    assert result.pipelines[0].bubble_share == pytest.approx(1 / 33, abs=0.01)
    assert not codes(result)
    assert {"COM062", "COM063"} <= set(result.checked)


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
@pytest.mark.parametrize("device", [False, True])
def test_the_longest_stage_is_named_with_what_equal_ones_would_save(slow: int, device: bool) -> None:
    longer = [2.0 if rank == slow else 1.0 for rank in range(4)]
    result = judged(pipeline(4, 8, longer=longer, device=device))
    one = codes(result)["COM063"]
    assert one.evidence["slow_stage_rank"] == slow
    assert one.cost is not None
    (_, now), (_, even) = (times(4, 8, one_forward_one_backward, each) for each in (longer, [1.25] * 4))
    assert one.cost.low_ms == pytest.approx((now - even) / 2e3, rel=0.03)
    assert one.cost.low_ms * 2 <= one.cost.high_ms <= one.cost.low_ms * 2.1
    assert result.joint_cost is not None
    assert result.joint_cost.high_ms >= one.cost.high_ms


def test_messages_inside_a_pass_move_with_its_layers() -> None:
    longer = [1.0, 2.0, 1.0, 1.0]
    builders = pipeline(4, 8, longer=longer, device=True)
    for builder in builders:
        calls = {event["args"]["correlation"]: event for event in builder.events if event["cat"] == "cuda_runtime"}
        for one in [event for event in builder.events if event["name"] == "gemm"]:
            # for its second fifth the device waits for a message of the tensor group
            whole, one["dur"] = one["dur"], one["dur"] / 5
            launched = calls[one["args"]["correlation"]]["ts"]
            builder.launch(launched + 5, 4, one["ts"] + whole * 2 / 5, whole * 3 / 5, "gemm")
    cost = codes(judged(builders))["COM063"].cost
    assert cost is not None
    (_, now), (_, even) = (times(4, 8, one_forward_one_backward, each) for each in (longer, [1.25] * 4))
    assert cost.low_ms * 2 == pytest.approx((now - even) / 1e3, rel=0.03)
    assert cost.high_ms >= (now - even) / 1e3


def test_stages_that_differ_little_are_no_imbalance() -> None:
    assert "COM063" not in codes(judged(pipeline(4, 8, longer=[1.0, 1.05, 1.0, 0.95])))


def test_waiting_for_stages_is_no_stragglers() -> None:
    builders = pipeline(2, 4, longer=[2.0, 1.0], device=True)
    # the norm of all gradients: the last stage has long been done
    for builder in builders:
        marks = [event for event in builder.events if event["name"].startswith("Optimizer")]
        passes = [event for event in builder.events if event["name"] == "gemm"]
        for mark in marks:
            last = max(pass_["ts"] + pass_["dur"] for pass_ in passes if pass_["ts"] < mark["ts"])
            all_reduce(builder, last + 5, mark["ts"] + 5, 2)
    said = codes(judged(builders))
    assert "COM036" not in said
    assert said["COM063"].evidence["slow_stage_rank"] == 0


def test_a_stage_that_waits_for_the_one_before_is_no_guess_of_a_late_rank() -> None:
    assert "COM036" not in codes(judged(pipeline(4, 8, device=True)[:3]))


def test_a_pipeline_lacks_no_collectives_to_tell_a_late_rank_by() -> None:
    result = judged(pipeline(4, 8))
    assert {"COM062", "COM063"} <= {*result.checked}
    assert "COM036" not in {*result.checked, *(entry.code for entry in result.not_checked)}


def test_collectives_with_ranks_that_are_not_recorded_tell_no_late_one() -> None:
    builders = pipeline(2, 4, device=True, ranks=[0, 1], world=4)
    for rank, builder in enumerate(builders):
        for mark in [event for event in builder.events if event["name"].startswith("ProfilerStep")]:
            end = mark["ts"] + mark["dur"]
            all_reduce(builder, end - 1500, end - 500, 2, group=f"dp{rank}", ranks=[rank, rank + 2])
    (entry,) = (entry for entry in judged(builders).not_checked if entry.code == "COM036")
    assert entry.how_to_record == "record 5 or more whole steps at the same time on every rank"


def test_an_order_without_a_name_claims_no_theory() -> None:
    result = judged(pipeline(2, 8, odd))
    (pipe,) = result.pipelines
    assert pipe.schedule == "unknown schedule"
    assert pipe.implied_share is pipe.even_share is pipe.books_share is None
    assert pipe.bubble_share > 0
    assert not codes(result)
    assert {"COM062", "COM063"} <= {one.code for one in result.not_checked}


def test_replicas_are_pipelines_of_their_own() -> None:
    builders = [*pipeline(2, 4, ranks=[0, 1], world=4), *pipeline(2, 4, ranks=[2, 3], world=4)]
    result = judged(builders)
    assert [[rank.rank for rank in pipe.ranks] for pipe in result.pipelines] == [[0, 1], [2, 3]]
    assert "mesh_pp" in result.pipelines[0].basis
    assert codes(result)["COM062"].evidence["n_pipelines"] == 2


def test_a_stage_that_is_long_in_one_replica_is_a_late_rank_and_no_long_stage() -> None:
    def said(*longer: Sequence[float]) -> dict[str, Finding]:
        builders = [
            builder
            for first, each in zip((0, 2), longer, strict=True)
            for builder in pipeline(2, 8, ranks=[first, first + 1], world=4, longer=each)
        ]
        return codes(judged(builders))

    assert "COM063" not in said([1.0, 2.0], [1.0, 1.0])
    assert said([1.0, 2.0], [1.0, 2.0])["COM063"].evidence["n_pipelines_alike"] == 2


# -- what is none, or cannot be judged -----------------------------------------------------------


def test_a_missing_rank_in_the_middle_is_said_and_nothing_claimed() -> None:
    builders = pipeline(4, 8)
    ranks = records([builders[0], builders[1], builders[3]])
    result = judge(ranks, found(ranks), min_share=0.01)
    assert not result.pipelines
    assert not codes(result)
    (note,) = [note for note in result.notes if note.code == "pipeline-not-judged"]
    assert "rank 2 of its group not recorded" in note.message


def test_a_rank_whose_sends_are_cut_is_named_and_nothing_claimed() -> None:
    builders = pipeline(4, 8)
    builders[2].events = [event for event in builders[2].events if event["name"] != "gloo:send"]
    result = judged(builders)
    assert not result.pipelines
    assert not codes(result)
    (note,) = [note for note in result.notes if note.code == "pipeline-not-judged"]
    assert "rank 2" in note.message


def test_a_step_with_other_counts_is_left_out() -> None:
    builders = pipeline(4, 8)
    sends = [event for event in builders[1].events if event["name"] == "gloo:send"]
    third = sorted(sends, key=lambda event: event["ts"])[2 * len(sends) // 5]
    builders[1].events.remove(third)
    (pipe,) = judged(builders).pipelines
    assert [step.number for step in pipe.steps] == [11, 13, 14]


def test_a_ring_is_no_pipeline() -> None:
    builders = job(4)
    for rank, builder in enumerate(builders):
        for kernel in [event for event in builder.events if event["name"] == "forward"]:
            at = kernel["ts"] + kernel["dur"] / 2
            to = {"Dst Rank": (rank + 1) % 4, "Src Rank": rank, "Collective name": "send"}
            of = {"Dst Rank": rank, "Src Rank": (rank - 1) % 4, "Collective name": "recv"}
            builder.launch(kernel["ts"] - 8, 2, at, 300, "ncclDevKernel_SendRecv", stream=21, **to)
            builder.launch(kernel["ts"] - 5, 2, at, 300, "ncclDevKernel_SendRecv", stream=22, **of)
    result = judged(builders)
    assert not result.pipelines
    assert not {"COM062", "COM063"} & set(codes(result))
    assert "point-to-point" in {note.code for note in result.notes}


def test_neighbours_that_exchange_halos_are_no_pipeline() -> None:
    """As many messages as in a pipeline that turns round at its end, but all ranks compute at once."""
    builders = []
    for rank in range(4):
        builder = TraceBuilder(vendor="cpu", distributedInfo={"backend": "gloo", "rank": rank, "world_size": 4})
        near = 1 + (rank in (1, 2))
        for step in range(5):
            at = begin = 1_000.0 + step * 100_000
            for name in ["aten::conv2d"] * 2 + ["autograd::engine::evaluate_function: ConvolutionBackward0"] * 2:
                builder.op(name, at, 9_000)
                for place in range(near):
                    builder.annotation("gloo:send", at + 9_010 + place, 2)
                    builder.annotation("gloo:recv", at + 9_020 + place * 100, 80)
                at += 10_000
            builder.annotation("Optimizer.step#SGD.step", at, 900)
            builder.step(step, begin - 10, at + 1_000 - begin)
        builders.append(builder)
    result = judged(builders)
    assert not result.pipelines
    assert not codes(result)


def test_counts_that_fit_are_no_pipeline_where_passes_do_not_follow_each_other() -> None:
    builders = pipeline(2, 8)
    shifted(builders[1], -60_000)
    result = judged(builders)
    assert not result.pipelines
    assert not codes(result)


def test_a_send_of_another_size_has_no_receive() -> None:
    builders = pipeline(2, 8, device=True)
    sends = [event for event in builders[0].events if event.get("args", {}).get("Collective name") == "send"]
    for event in sends[-3:]:
        event["args"]["In msg nelems"] = 17
    (pipe,) = judged(builders).pipelines
    assert (pipe.n_matched, pipe.n_unmatched) == (2 * 8 * len(pipe.steps) - 3, 3)


def test_peers_that_are_no_neighbours_are_no_pipeline() -> None:
    builders = pipeline(4, 8, device=True)
    for event in builders[1].events:
        if event.get("args", {}).get("Dst Rank") == 2:
            event["args"]["Dst Rank"] = 3
    assert not judged(builders).pipelines


def test_only_and_skip_hold_for_pipelines(tmp_path: Path) -> None:
    paths = write(pipeline(4, 8), tmp_path)

    def said(**options: list[str]) -> set[str]:
        (job,) = tt.analyze_ranks(paths, **options).jobs
        return {finding.code for finding in job.findings} | set(job.checked)

    assert "COM062" in said()
    assert not {"COM062", "COM063"} & said(only=["COM036"])
    assert {"COM062", "COM063"} & said(skip=["COM062"]) == {"COM063"}
