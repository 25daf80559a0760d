"""A group whose messages take longer than equal ones of its equals, and what looks like it and is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import FORWARD, all_reduce, records

from torchtriage.core.finding import Finding
from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.result import JobResult

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
TRANSFER, AFTER = 1000.0, 1000.0


def job(
    slow: Mapping[int, float],
    *,
    groups: Sequence[Sequence[int]] = PAIRS,
    nelems: Mapping[int, int] | None = None,
    dtypes: Mapping[int, str] | None = None,
    hosts: Mapping[int, str] | None = None,
    beside: bool = False,
    only_steps: Sequence[int] = range(6),
    without: Sequence[int] = (),
    listed: bool = True,
    **each: Any,
) -> JobResult:
    """Judge a job whose groups all-reduce, and then all ranks; ``slow`` : place of a group to microseconds more.

    ``listed`` : each message says who its group's members are, not only how many.
    """
    n = sum(map(len, groups))
    builders = [
        TraceBuilder(
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": n},
            **({"host_name": hosts[rank]} if hosts else {}),
            **each,
        )
        for rank in range(n)
    ]
    begin = 1000.0
    for step in range(6):
        start = begin + 20 + FORWARD
        ends = {
            rank: start + TRANSFER + (slow.get(at, 0.0) if step in only_steps else 0.0)
            for at, group in enumerate(groups)
            for rank in group
        }
        last = max(ends.values())
        for at, group in enumerate(groups):
            for rank in group:
                builder = builders[rank]
                builder.op("aten::mm", begin + 1, 20)
                builder.launch(begin + 3, 5, begin + 11, FORWARD, "forward")
                size = (nelems or {}).get(at, 4096)
                members: dict[str, Any] = {"ranks": group if listed else (), "Group size": len(group)}
                dtype = (dtypes or {}).get(at, "Float")
                all_reduce(builder, start, ends[rank], n, group=f"g{at}", nelems=size, dtype=dtype, **members)
                if beside:
                    builder.launch(start - 3, 2, start, ends[rank] - start, "beside", stream=9)
                all_reduce(builder, ends[rank] + 10, last + 10 + AFTER, n, nelems=512)
                builder.op("aten::add_", last + 20 + AFTER, 10)
                builder.launch(last + 21 + AFTER, 5, last + 30 + AFTER, 400)
                builder.step(10 + step, begin, last + AFTER + 440 - begin)
        begin = last + AFTER + 450
    for builder in builders:
        builder.profiler_stop(begin + 10, 20)
    some = [record for rank, record in enumerate(records(builders)) if rank not in without]
    (found,) = detect_jobs(some)
    return judge(some, found, min_share=0.01)


def links(result: JobResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == "COM068"]


def test_the_slow_group_is_named_with_what_it_costs() -> None:
    result = job({1: 800})
    (found,) = links(result)
    assert found.evidence["ranks"] == [2, 3]
    assert found.evidence["group"] == "g1"
    assert found.evidence["times_as_long"] == 1.8
    assert found.certainty == "likely"
    assert found.cost is not None
    assert (found.cost.low_ms, found.cost.high_ms) == (0.72, 0.88)
    assert "COM068" in result.checked
    assert "ranks 2, 3" in found.message


def test_slow_groups_that_the_job_waits_for_at_once_are_one_finding() -> None:
    result = job({1: 800, 2: 700})
    (found,) = links(result)
    assert "group g1 of ranks 2, 3: " in found.message
    assert "; also slow: group g2 of ranks 4, 5 (1.7 times)" in found.message
    assert found.ranks is not None
    assert found.ranks.ranks == (2, 3, 4, 5)
    assert found.cost is not None
    assert (found.cost.low_ms, found.cost.high_ms) == (0.72, 0.88)


def test_the_low_end_is_what_a_link_takes_beyond_the_slowest_of_the_others() -> None:
    (found,) = links(job({1: 800, 2: 200}))
    assert found.cost is not None
    assert (found.cost.low_ms, found.cost.high_ms) == (0.54, 0.88)


def test_of_two_groups_it_is_a_hint() -> None:
    (found,) = links(job({1: 800}, groups=((0, 1), (2, 3))))
    assert found.certainty == "hint"


def test_quiet_where_all_are_equal() -> None:
    result = job({})
    assert not links(result)
    assert "COM068" in result.checked
    assert "COM068" not in {item.code for item in result.not_checked}


def test_quiet_within_what_links_differ_by() -> None:
    assert not links(job({1: 200}))


def test_quiet_where_its_messages_are_larger() -> None:
    assert not links(job({1: 800}, nelems={1: 8192}))
    assert not links(job({1: 800}, dtypes={1: "Double"}))


def test_quiet_where_it_has_more_hosts_or_members() -> None:
    hosts = {rank: "a" if rank < 3 else "b" for rank in range(8)}
    assert not links(job({1: 800}, hosts=hosts))
    assert not links(job({1: 800}, groups=((0, 1), (2, 3, 4), (5, 6))))


def test_quiet_where_computation_runs_beside_it() -> None:
    assert not links(job({1: 800}, beside=True))


def test_quiet_where_few_messages_are_slow() -> None:
    assert not links(job({1: 800}, only_steps=(2, 3)))


@pytest.mark.parametrize("listed", [True, False])
def test_quiet_where_a_member_is_missing(*, listed: bool) -> None:
    groups = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11))
    assert links(job({1: 800}, groups=groups, listed=listed))
    assert not links(job({1: 800}, groups=groups, listed=listed, without=(2, 5, 8, 11)))


@pytest.mark.parametrize("late", [0, 1])
def test_a_late_rank_is_no_slow_link(late: int) -> None:
    from diagnose.ranks.jobs import job as straggling

    some = records(straggling(4, late={late: 4000}))
    (found,) = detect_jobs(some)
    assert not links(judge(some, found, min_share=0.01))
