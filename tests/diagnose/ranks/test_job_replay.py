"""Ranks replayed together: who waits in a collective is told by who comes last."""

from __future__ import annotations

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import COMM, TRANSFER

from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.job_replay import rank_replay
from torchtriage.diagnose.ranks.rank_record import build_record
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Answer
from torchtriage.diagnose.verdict.verdict import diagnose

QUESTIONS = ("gpu*0.5", "comm=0", "cpu*0.5", "kernel:backward=0", "kernel:nothing=0")
N_STEPS = 6


def device_bound(busy: tuple[float, ...], *, late_host: float = 0.0) -> list[TraceBuilder]:
    """Return ranks that enqueue a step at once and wait for the device at its end.

    ``busy`` : microseconds of computation before the all-reduce on each rank. ``late_host`` : what
    the last rank's host does before it enqueues anything.
    """
    n = len(busy)
    builders = [
        TraceBuilder(distributedInfo={"backend": "nccl", "rank": rank, "world_size": n}, host_name=f"host{rank}")
        for rank in range(n)
    ]
    host = [late_host * (rank == n - 1) for rank in range(n)]
    begin = 1000.0
    for step in range(N_STEPS):
        last = max(begin + host[rank] + 60 + busy[rank] for rank in range(n))
        end = last + TRANSFER
        for rank, builder in enumerate(builders):
            at = begin + host[rank]
            if host[rank]:
                builder.op("aten::cumsum", begin + 1, host[rank] - 2)
            builder.launch(at + 10, 5, at + 50, busy[rank], "backward")
            start = at + 60 + busy[rank]
            builder.launch(
                at + 20,
                5,
                start,
                end - start,
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                stream=COMM,
                **{"Collective name": "allreduce", "In msg nelems": 64},
            )
            builder.op("aten::wait", at + 30, 5)
            builder.sync(at + 40, end + 5 - at - 40, "cudaDeviceSynchronize")
            builder.step(step, begin, end + 10 - begin)
        begin = end + 10
    for builder in builders:
        builder.sync(begin + 5, 3, "cudaDeviceSynchronize")
    return builders


def judged(builders: list[TraceBuilder]) -> JobResult:
    records = []
    for rank, builder in enumerate(builders):
        trace = builder.build()
        result = diagnose(trace, Options(what_if=QUESTIONS))
        one = build_record(trace, f"run/rank{rank}.json", result)
        object.__setattr__(one, "replay", rank_replay(trace, QUESTIONS, None))
        records.append(one)
    (job,) = detect_jobs(records)
    return judge(records, job, min_share=0.01, what_if=QUESTIONS)


def answers(result: JobResult) -> dict[str, Answer]:
    return {what_if.question: what_if for what_if in result.what_ifs}


def after_ms(result: JobResult, question: str) -> float:
    one = answers(result)[question]
    assert one.reason == "", one
    assert one.after_ms is not None
    return one.after_ms


def test_a_faster_device_shortens_what_the_slowest_rank_computes() -> None:
    result = judged(device_bound((4000, 9000, 5000)))
    assert result.step_ms == pytest.approx(10.07, abs=0.01)
    assert after_ms(result, "gpu*0.5") == pytest.approx(10.07 - 4.5, abs=0.05)
    # without the backward pass all ranks come at once, and the transfer is left
    assert after_ms(result, "kernel:backward=0") == pytest.approx(1.07, abs=0.05)


def test_a_perfect_network_gives_the_transfer_and_not_the_waiting() -> None:
    result = judged(device_bound((4000, 9000, 5000)))
    assert after_ms(result, "comm=0") == pytest.approx(10.07 - 1.0, abs=0.05)
    # one rank alone takes its waiting for the network's time
    alone = judged(device_bound((4000, 9000, 5000))).ranks[0]
    assert alone.wait_ns == pytest.approx(5_000_000, abs=20_000)


def test_a_late_host_is_everybodys_time() -> None:
    result = judged(device_bound((4000, 4000, 4000), late_host=6000))
    assert result.step_ms == pytest.approx(11.07, abs=0.01)
    assert after_ms(result, "cpu*0.5") == pytest.approx(11.07 - 3.0, abs=0.1)
    # half the computation is half of everybody's, the host's lateness stays
    assert after_ms(result, "gpu*0.5") == pytest.approx(11.07 - 2.0, abs=0.05)


def test_what_is_not_there_has_no_answer() -> None:
    one = answers(judged(device_bound((4000, 9000))))["kernel:nothing=0"]
    assert one.saving_ms is None
    assert one.reason == "nothing in the recordings is that"


def test_answers_have_an_interval_around_them() -> None:
    for what_if in judged(device_bound((4000, 9000))).what_ifs:
        if what_if.saving_ms is not None:
            assert what_if.low_ms is not None
            assert what_if.high_ms is not None
            assert what_if.low_ms <= what_if.saving_ms <= what_if.high_ms


def test_collectives_of_the_host_are_refused() -> None:
    builders = device_bound((4000, 9000))
    for builder in builders:
        builder.meta.pop("deviceProperties")
        builder.events = [event for event in builder.events if event["cat"] == "user_annotation"]
        for step in range(N_STEPS):
            begin = builder.events[step]["ts"]
            builder.event("gloo:all_reduce", "user_annotation", begin + 50, 900, tid=7)
            builder.op("aten::mm", begin + 1, 40)
    assert {what_if.reason for what_if in judged(builders).what_ifs} == {"collectives of the host are not replayed"}
