"""A late rank whose peers hand the waiting on to other groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import FORWARD, all_reduce, records
from diagnose.ranks.pipelines import SEND

from torchtriage.core.finding import Finding
from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.rank_record import RankRecord

N, TENSOR, DATA = 8, 2, 4
TRANSFER = 500.0


def job(late: Mapping[int, float], *, how: str = "python", more: Mapping[int, int] | None = None) -> list[TraceBuilder]:
    """Return ranks in pairs that share each layer, and every second rank shares gradients.

    ``late`` : microseconds more of some ranks in each step. ``more`` : ranks with so many messages more in a pair.
    """
    builders = [TraceBuilder(distributedInfo={"backend": "nccl", "rank": r, "world_size": N}) for r in range(N)]
    begin = [1000.0] * N
    for step in range(6):
        free = []
        for rank, builder in enumerate(builders):
            at = begin[rank] + 10
            builder.op("aten::mm", at, 20)
            length = FORWARD + (late.get(rank, 0.0) if how == "device" else 0.0)
            builder.launch(at + 2, 5, at + 10, length, "forward")
            free.append(at + 20 + length + (late.get(rank, 0.0) if how == "python" else 0.0))
        for place in range(N // TENSOR):
            pair = [place * TENSOR, place * TENSOR + 1]
            for _ in range(1 + (more or {}).get(pair[0], 0)):
                end = max(free[rank] for rank in pair) + TRANSFER
                for rank in pair:
                    all_reduce(builders[rank], free[rank], end, N, group=f"t{place}", ranks=pair)
                    free[rank] = end + 10
        for column in range(TENSOR):
            some = list(range(column, N, TENSOR))
            end = max(free[rank] for rank in some) + TRANSFER
            for rank in some:
                all_reduce(builders[rank], free[rank], end, N, group=f"d{column}", ranks=some, nelems=512)
                free[rank] = end + 10
        for rank, builder in enumerate(builders):
            builder.launch(free[rank] + 1, 5, free[rank] + 10, 200)
            builder.step(10 + step, begin[rank], free[rank] + 220 - begin[rank])
            begin[rank] = free[rank] + 225
    for rank, builder in enumerate(builders):
        builder.profiler_stop(begin[rank] + 10, 20)
    return builders


def staged(late: Mapping[int, float]) -> tuple[list[TraceBuilder], float]:
    """Return ranks in pairs of two stages, which the second begins late anyway, and the length of a step.

    ``late`` : microseconds in which some ranks' hosts begin a step later.
    """
    builders = [TraceBuilder(distributedInfo={"backend": "nccl", "rank": r, "world_size": N}) for r in range(N)]
    begin, length = 1000.0, 0.0
    free: dict[int, float] = {}

    def meet(group: str, some: list[int]) -> None:
        end = max(free[rank] for rank in some) + TRANSFER
        for rank in some:
            all_reduce(builders[rank], free[rank], end, N, group=group, ranks=some, nelems=512)
            free[rank] = end + 10

    for step in range(6):
        for rank, builder in enumerate(builders):
            host = begin + 10 + late.get(rank, 0.0)
            other = (rank + 4) % N
            ends = {"Src Rank": min(rank, other), "Dst Rank": max(rank, other), "Process Group Name": f"p{rank % 4}"}
            message = {"Collective name": "recv", "In msg nelems": 4096, "dtype": "Float", **ends}
            if rank >= 4:
                sent = max(free[other], host + 20)
                builder.launch(host, 4, host + 10, sent - host, SEND, stream=20, **message)
                host = sent + 10
            builder.op("aten::mm", host - 8 if rank < 4 else begin + 12 + late.get(rank, 0.0), 20)
            builder.launch(host - 6 if rank < 4 else begin + 14 + late.get(rank, 0.0), 5, host, FORWARD, "forward")
            free[rank] = host + FORWARD + 10
            if rank % 2:
                meet(f"t{rank // 2}", [rank - 1, rank])
                for one in (rank - 1, rank) if rank < 4 else ():
                    ends = {"Src Rank": one, "Dst Rank": one + 4, "Process Group Name": f"p{one}"}
                    message |= {"Collective name": "send", **ends}
                    builders[one].launch(free[one] - 8, 4, free[one], 10, SEND, stream=21, **message)
                    free[one] += 20
        for some in ([0, 2], [1, 3], [4, 6], [5, 7], list(range(N))):
            meet("d" + "_".join(map(str, some)), some)
        length = max(free.values()) + 220 - begin
        for rank, builder in enumerate(builders):
            builder.launch(free[rank] + 1, 5, free[rank] + 10, 200)
            builder.step(10 + step, begin, length)
        begin += length + 5
    for builder in builders:
        builder.profiler_stop(begin + 10, 20)
    return builders, length


def test_a_stage_that_would_wait_anyway_saves_only_what_is_beyond_its_bubble() -> None:
    builders, now = staged({6: 4000})
    found = late_rank(builders)
    assert found is not None
    assert found.evidence["late_rank"] == 6
    assert found.cost is not None
    truth = (now - staged({})[1]) / 1e3
    assert truth < 2
    assert found.cost.low_ms <= truth <= found.cost.high_ms <= truth * 1.2


def late_rank(builders: list[TraceBuilder]) -> Finding | None:
    return late_of(records(builders))


def late_of(ranks: list[RankRecord]) -> Finding | None:
    (found,) = detect_jobs(ranks)
    findings = [finding for finding in judge(ranks, found, min_share=0.01).findings if finding.code == "COM036"]
    return findings[0] if findings else None


@pytest.mark.parametrize(("how", "cause"), [("python", "forward python"), ("device", "device")])
def test_the_rank_that_all_wait_for_is_named_through_the_groups(how: str, cause: str) -> None:
    found = late_rank(job({4: 800}, how=how))
    assert found is not None
    assert found.evidence["late_rank"] == 4
    assert found.evidence["cause"] == cause
    assert found.certainty == "likely"
    assert found.title == "Rank 4 makes the others wait"
    assert "all ranks together" not in found.fix.text
    assert found.cost is not None
    assert found.cost.low_ms <= 0.8 <= found.cost.high_ms


@pytest.mark.parametrize("left_out", ["missing", "twice", "other steps"])
def test_a_hint_where_the_late_rank_may_be_one_that_was_left_out(left_out: str) -> None:
    ranks = records(job({3: 4000, 5: 9000}))
    late = ranks.pop(5)
    if left_out == "twice":
        ranks += [late, replace(late, path="run/copy.json")]
    elif left_out == "other steps":
        ranks.append(replace(late, steps=replace(late.steps, number=late.steps.number + 100)))
    found = late_of(ranks)
    assert found is not None
    assert found.cost is not None
    assert (found.certainty, found.cost.low_ms, found.cost.grade, found.severity) == ("hint", 0, "C", "low")
    assert (
        "; ranks are missing or were left out: the rank that makes the others wait may be among them" in found.message
    )


def test_all_together_save_up_to_as_much_as_the_late_rank() -> None:
    ranks = records(job({3: 4000, 5: 9000}))
    ranks.pop(5)
    (found,) = detect_jobs(ranks)
    result = judge(ranks, found, min_share=0.01)
    late = next(finding for finding in result.findings if finding.code == "COM036")
    assert late.cost is not None
    assert result.joint_cost is not None
    assert result.joint_cost.high_ms >= late.cost.high_ms > 0
    assert result.joint_cost.method == "at least the largest single saving; at most its high end"


@pytest.mark.parametrize("late", [3, 4])  # seen in its largest group, too, or not
def test_without_steps_it_costs_time_of_the_window(late: int) -> None:
    builders = job({late: 3000})
    for builder in builders:
        builder.events = [event for event in builder.events if not event["name"].startswith("ProfilerStep")]
    found = late_rank(builders)
    assert found is not None
    assert found.cost is not None
    assert (found.cost.per, found.place.steps) == ("window", ())
    assert "in the window" in found.message
    assert "per step" not in found.message
    assert not any(key.endswith("per_step") for key in found.evidence)


def test_a_hint_where_there_is_a_single_step() -> None:
    ranks = [
        replace(rank, steps=replace(rank.steps, steady=rank.steps.number == 12)) for rank in records(job({4: 800}))
    ]
    found = late_of(ranks)
    assert found is not None
    assert found.certainty == "hint"


def test_quiet_where_none_is_late() -> None:
    assert late_rank(job({})) is None


def test_quiet_where_two_are_late_alike() -> None:
    assert late_rank(job({2: 800, 4: 780})) is None


def test_quiet_within_what_ranks_differ_by() -> None:
    assert late_rank(job({4: 60})) is None


def test_ranks_of_another_program_are_no_measure() -> None:
    # what a pair does more than the others is its part of the model
    assert late_rank(job({4: 800, 5: 800}, more={4: 1})) is None
