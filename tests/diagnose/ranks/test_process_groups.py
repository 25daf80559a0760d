"""Accounts of process groups: parts that add up, each moment once, and the link only where it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import TOKENS, all_reduce, job, meet, ranks_of, records, steps_of

from torchtriage.core import intervals
from torchtriage.core.trace.messages import ProcessGroup
from torchtriage.diagnose.ranks.group_rows import GroupRows
from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.process_groups import _parts as parts_of
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import GroupSummary
from torchtriage.diagnose.verdict.verdict import diagnose

TENSOR, DATA = 20, 21
LATE, BESIDE = 300.0, 300.0
N_STEPS = 6
MIB = 1 << 18
"""Elements of four bytes."""


def judged(builders: Sequence[TraceBuilder]) -> JobResult:
    ranks = records(builders)
    (found,) = detect_jobs(ranks)
    return judge(ranks, found, min_share=0.01)


def by_role(builders: Sequence[TraceBuilder]) -> dict[str, GroupSummary]:
    groups = judged(builders).process_groups
    assert len({group.role for group in groups}) == len(groups)
    return {group.role: group for group in groups}


def two_dimensions(
    names: Mapping[str, str] | None = None, *, hosts: Sequence[str] = ("a",) * 4, device: str = "NVIDIA A100-SXM4-80GB"
) -> list[TraceBuilder]:
    """Return four ranks: two groups of tensor parallelism next to each other, two of data parallelism across.

    In a step four all-reduces of 0.8 ms in the forward pass, to which odd ranks come 0.3 ms late. In the backward pass
    one of gradients over 1 ms, half of it beside computation, and at its end one of the tensors' for 0.4 ms, of which
    0.3 ms at the same time.
    """
    tensor, data = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    config = [("t0", tensor[0]), ("t1", tensor[1]), ("d0", data[0]), ("d1", data[1])]
    builders = []
    for rank in range(4):
        mine = [(name, ranks) for name, ranks in config if rank in ranks]
        builder = TraceBuilder(
            device=device,
            distributedInfo={
                "rank": rank,
                "world_size": 4,
                "pg_config": [
                    {"pg_name": name, "pg_desc": (names or {}).get(name[0], "undefined"), "ranks": list(ranks)}
                    for name, ranks in mine
                ],
            },
            **({"host_name": hosts[rank]} if hosts[rank] else {}),
        )
        (t_name, t_ranks), (d_name, d_ranks) = mine
        for step in range(N_STEPS):
            at = 1000.0 + 10_000.0 * step
            late = LATE * (rank % 2)
            builder.launch(at + 10, 5, at + 20, 1900, "forward")
            for start in (2000, 3000, 4000, 5000):
                reduce(builder, at + start + late, at + start + 800, t_name, t_ranks, stream=TENSOR)
            builder.op("autograd::engine::evaluate_function: MmBackward0", at + 5950, 2000)
            builder.launch(at + 5960, 5, at + 6000, 1000, "backward")
            reduce(builder, at + 6500, at + 7500, d_name, d_ranks, stream=DATA, nelems=25 * MIB)
            reduce(builder, at + 7200, at + 7600, t_name, t_ranks, stream=TENSOR)
            builder.launch(at + 8000, 5, at + 8010, 1900, "last")
            builder.step(step, at, 9990)
        builder.profiler_stop(1000.0 + 10_000 * N_STEPS, 20)
        builders.append(builder)
    return builders


def reduce(
    builder: TraceBuilder,
    start: float,
    end: float,
    group: str,
    ranks: Sequence[int],
    *,
    stream: int,
    nelems: int = 16 * MIB,
) -> None:
    size = len(ranks)
    more = {"ranks": ranks, "nelems": nelems, "stream": stream, "Group size": size}
    all_reduce(builder, start, end, size, group=group, **more)


def test_parts_of_two_dimensions_are_those_of_the_rows() -> None:
    groups = by_role(two_dimensions())
    assert set(groups) == {"TP", "DP"}
    tensor, data = groups["TP"], groups["DP"]
    assert (tensor.n_groups, tensor.least_ranks, tensor.most_ranks, tensor.n_ranks) == (2, 2, 2, 4)
    assert (tensor.layout, data.layout) == ("adjacent", "every 2nd")
    # even ranks wait 0.3 ms in each of four; and half of 0.3 ms is the gradients'
    assert (tensor.waiting_ns, tensor.transfer_ns, tensor.overlapped_ns) == (600_000, 2_250_000, 0)
    assert (data.waiting_ns, data.transfer_ns, data.overlapped_ns) == (0, 350_000, 500_000)
    assert tensor.shared_ns == data.shared_ns == 150_000
    assert tensor.unsplit_ns == data.unsplit_ns == 0
    assert (tensor.n_per_step, data.n_per_step) == (5, 1)
    assert (tensor.median_bytes, tensor.largest_bytes, tensor.small_share) == (16 << 20, 16 << 20, 0)
    assert tensor.told_by == data.told_by == "collectives"


def test_the_median_size_is_that_of_a_message() -> None:
    ranks = ranks_of(2)
    builders = steps_of(ranks, lambda _, begin: meet(ranks, [begin, begin], "allreduce", [MIB, MIB]))
    (group,) = judged(builders).process_groups
    assert (group.n_per_step, group.median_bytes, group.largest_bytes) == (2, 4 * TOKENS, 1 << 20)


def test_parts_add_up_and_no_moment_counts_twice() -> None:
    found = judged(two_dimensions())
    for group in found.process_groups:
        assert group.overlapped_ns + group.exposed_ns == group.communication_ns
        assert group.waiting_ns + group.transfer_ns + group.unsplit_ns == group.exposed_ns
    exposed = sum(group.exposed_ns for group in found.process_groups)
    assert exposed == pytest.approx(sum(rank.comm_ns + rank.wait_ns for rank in found.ranks) / len(found.ranks), abs=2)


def test_a_name_goes_before_what_is_exchanged() -> None:
    groups = judged(two_dimensions({"t": "mesh_cp", "d": "EXPERT_DATA_PARALLEL_GROUP"})).process_groups
    assert {(group.role, group.told_by, group.name) for group in groups} == {
        ("CP", "name", "mesh_cp"),
        ("DP", "name", "EXPERT_DATA_PARALLEL_GROUP"),
    }


def test_the_links_share_is_of_what_one_host_has() -> None:
    data = by_role(two_dimensions())["DP"]
    assert data.bus_gbps == pytest.approx(25 * (1 << 20) / 1e6, rel=1e-3)
    assert (data.link, data.link_gbps) == ("NVLink", 300)
    assert data.of_link == pytest.approx(data.bus_gbps / 300, rel=1e-3)


@pytest.mark.parametrize(
    ("hosts", "device", "why"),
    [
        (("a", "a", "b", "b"), "NVIDIA A100-SXM4-80GB", "spans hosts"),
        (("",) * 4, "NVIDIA A100-SXM4-80GB", "no host names"),
        (("a",) * 4, "NVIDIA A100-PCIE-40GB", "device's name does not say"),
        (("a",) * 4, "", "device's name does not say"),
    ],
)
def test_no_share_where_the_link_is_not_recorded(hosts: Sequence[str], device: str, why: str) -> None:
    data = by_role(two_dimensions(hosts=hosts, device=device))["DP"]
    assert data.bus_gbps is not None
    assert (data.link, data.link_gbps, data.of_link) == ("", None, None)
    assert data.link_how.startswith("link not recorded: ")
    assert why in data.link_how


def test_more_than_the_peak_is_said_and_gives_no_share() -> None:
    data = by_role(two_dimensions(device="Tesla T4"))["DP"]
    assert data.link == "PCIe 3.0 x16"
    assert data.of_link is None
    assert "of the peak" in data.link_how


def test_one_rank_alone_shows_no_waiting() -> None:
    result = diagnose(two_dimensions()[0].build())
    groups = {group.role: group for group in result.process_groups}
    tensor, data = groups["TP"], groups["DP"]
    assert (tensor.n_missing, data.n_missing) == (1, 1)
    assert (tensor.waiting_ns, tensor.transfer_ns, tensor.unsplit_ns) == (0, 0, 4 * 800_000 + 250_000)
    assert (data.overlapped_ns, data.exposed_ns) == (500_000, 350_000)
    assert tensor.bus_gbps is None
    assert result.process_groups[0].role == "TP"


def test_unmatched_collectives_are_neither_waiting_nor_transfer() -> None:
    groups = by_role(two_dimensions()[:2])
    tensor, data = groups["TP"], groups["DP"]
    assert (tensor.n_missing, data.n_missing) == (0, 2)
    assert (tensor.waiting_ns, tensor.transfer_ns, tensor.unsplit_ns) == (600_000, 2_250_000, 0)
    assert (data.waiting_ns, data.transfer_ns, data.unsplit_ns) == (0, 0, 350_000)
    assert data.bus_gbps is None


NASTY = ("", "\x1b[31mred\u202e", "<script>alert(1)</script>", "tp" * 100_000, "=cmd()|'/c calc'!A0", "\ud800")


@pytest.mark.parametrize("name", NASTY)
def test_names_of_any_kind_are_carried_and_cut(name: str) -> None:
    for group in judged(two_dimensions({"t": name})).process_groups:
        assert len(group.name) <= 200
        assert group.overlapped_ns + group.exposed_ns == group.communication_ns


def test_members_that_cannot_be_end_nothing() -> None:
    builders = two_dimensions()
    for builder in builders:
        for event in builder.events:
            args = event.get("args", {})
            if args.get("Process Group Name", "").startswith("t"):
                args["Process Group Ranks"] = "[0, 1, 2, 3, 999999999999999999999, -4]"
                args["Group size"] = 10**30
    found = judged(builders)
    exposed = sum(group.exposed_ns for group in found.process_groups)
    assert exposed == pytest.approx(sum(rank.comm_ns + rank.wait_ns for rank in found.ranks) / 4, abs=5)
    assert all(group.most_ranks < 1 << 20 for group in found.process_groups)


def test_hundreds_of_names_are_few_lines_that_still_add_up() -> None:
    builders = job(2, n_steps=6)
    for builder in builders:
        for step in range(6):
            for index in range(35):
                number = step * 35 + index
                start = 1000 + step * 7000 + 2500 + index * 15
                reduce(builder, start, start + 10, f"g{number}", (0, 1), stream=TENSOR, nelems=1)
        builder.meta["distributedInfo"]["pg_config"] += [
            {"pg_name": f"g{number}", "pg_desc": f"mesh_tp{'_x' * number}", "ranks": [0, 1]} for number in range(210)
        ]
    found = judged(builders)
    assert len(found.process_groups) <= 64
    exposed = sum(group.exposed_ns for group in found.process_groups)
    assert exposed == pytest.approx(sum(rank.comm_ns + rank.wait_ns for rank in found.ranks) / 2, abs=64)
    assert sum(group.n_groups for group in found.process_groups) > 150


@pytest.mark.parametrize("seed", range(40))
def test_any_rows_add_up_to_the_time_that_communicates(seed: int) -> None:
    """Against a count of every single ns."""
    rng = np.random.default_rng(seed)
    n, n_groups, end = int(rng.integers(1, 30)), int(rng.integers(1, 5)), 400
    start = np.sort(rng.integers(0, end, n))
    stop = np.minimum(start + rng.integers(0, 60, n), end)
    group, sends = rng.integers(0, n_groups, n), rng.random(n) < 0.2
    rows = GroupRows(
        group=group,
        kind=np.zeros(n, np.int8),
        forward=np.zeros(n, np.int8),
        place=np.where(sends, -1, np.cumsum(~sends) - 1),
        step=np.zeros(n, np.int64),
        start_ns=start,
        end_ns=stop,
        size_bytes=np.full(n, -1),
        groups=tuple(ProcessGroup(str(code)) for code in range(n_groups)),
        n_members=np.zeros(n_groups, np.int64),
    )
    last = (start + rng.integers(-20, 80, n))[~sends]
    known = (rng.random(n) < 0.7)[~sends]
    busy, windows = random_spans(rng, end), random_spans(rng, end)
    running = intervals.union(intervals.spans(start, stop))
    found = parts_of(rows, windows, intervals.subtract(running, busy), last, known)
    truth = np.zeros((n_groups, 5))
    told, until = np.zeros(n, bool), np.full(n, -100)
    told[~sends], until[~sends] = known, np.where(known, last, -100)
    for now in range(end):
        if not inside(windows, now):
            continue
        active = (start <= now) & (now < stop)
        here = np.unique(group[active])
        for code in here:
            mine = active & (group == code)
            if inside(busy, now):
                column = 0
            elif (mine & (now < until)).any():
                column = 1
            else:
                column = 2 if (mine & told).any() else 3
            truth[code, column] += 1 / len(here)
            truth[code, 4] += 1 / len(here) if len(here) > 1 else 0
    assert found == pytest.approx(truth)


def random_spans(rng: np.random.Generator, end: int) -> intervals.Spans:
    edges = np.unique(rng.integers(0, end, 2 * int(rng.integers(1, 6))))
    return edges[: len(edges) // 2 * 2].reshape(-1, 2)


def inside(spans: intervals.Spans, now: int) -> bool:
    return bool(((spans[:, 0] <= now) & (now < spans[:, 1])).any())


def host_job(descriptions: Sequence[str], forward: Sequence[float], backward: Sequence[float]) -> list[TraceBuilder]:
    """Return two ranks without a device, whose all-reduces run on gloo's own thread, which names no group."""
    builders = []
    for rank in range(2):
        groups = [
            {"pg_name": str(at), "pg_desc": text, "pg_size": 2, "ranks": [0, 1]} for at, text in enumerate(descriptions)
        ]
        builder = TraceBuilder(
            vendor="cpu", distributedInfo={"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": groups}
        )
        for step in range(N_STEPS):
            at = 1000.0 + 10_000 * step
            builder.op("aten::linear", at + 10, 2900)
            for begin in (3000, 4000, 5000):
                builder.op("autograd::engine::evaluate_function: AddmmBackward0", at + begin, 990)
            for start in (*forward, *backward):
                builder.event(
                    "gloo:all_reduce",
                    "user_annotation",
                    at + start,
                    80,
                    tid=9,
                    **{"Input Dims": [[1024]], "Input type": ["float"]},
                )
            builder.annotation("Optimizer.step#SGD.step", at + 6500, 500)
            builder.step(step, at, 9990)
        builders.append(builder)
    return builders


def test_buckets_on_a_thread_of_their_own_are_of_the_backward_pass() -> None:
    (group,) = judged(host_job(["default_pg"], [], [3300, 4300, 5300, 6200])).process_groups
    assert (group.role, group.name) == ("DP", "")


def test_collectives_of_the_host_that_name_no_group_may_be_of_several() -> None:
    forward = [200.0, 400.0, 600.0, 800.0]
    (group,) = judged(host_job(["default_pg", "mesh_dp", "mesh_tp"], forward, [3300])).process_groups
    assert group.role == "unknown"
    assert "name no group" in group.how
