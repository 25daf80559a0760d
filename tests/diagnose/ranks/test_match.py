from __future__ import annotations

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import STEP_NUMBER, all_reduce, job, records, shifted

from torchtriage.core.trace.messages import ProcessGroup
from torchtriage.diagnose.ranks.match import Matches, match
from torchtriage.diagnose.ranks.rank_record import RankRecord

MS = 1_000_000


def drop(builder: TraceBuilder, places: set[int]) -> None:
    """Remove the all-reduces at these places, with their launches."""
    found = [event for event in builder.events if event["name"].startswith("ncclDevKernel")]
    ids = {found[place]["args"]["correlation"] for place in places}
    builder.events = [event for event in builder.events if event.get("args", {}).get("correlation") not in ids]


def of(builders: list[TraceBuilder]) -> tuple[list[RankRecord], Matches]:
    ranks = records(builders)
    return ranks, match(ranks, range(len(ranks)))


def test_equal_order_is_a_match() -> None:
    ranks, matches = of(job())
    (one,) = matches.groups
    assert one.group == ProcessGroup("0", (0, 1, 2, 3), "default_pg")
    assert one.index.tolist() == [[place] * 4 for place in range(6)]
    assert one.step.tolist() == list(range(STEP_NUMBER, STEP_NUMBER + 6))
    assert set(one.nelems.tolist()) == {4096}
    assert one.name == ("allreduce",) * 6
    assert one.fault == ""
    assert one.n_unmatched == 0
    assert one.end_skew_ns.tolist() == [0] * 6
    assert not matches.offset_ns.any()
    assert len(ranks[0].collectives) == 6


def test_flat_arrays_hold_every_match_once_per_rank() -> None:
    ranks, matches = of(job(late={1: 700}))
    assert len(matches.rank) == len(matches.row) == len(matches.match_id) == 24
    for number in range(6):
        here = matches.match_id == number
        assert matches.rank[here].tolist() == [0, 1, 2, 3]
        rows = matches.row[here].tolist()
        assert rows == [ranks[rank].collectives.row[number] for rank in range(4)]


def test_a_step_in_which_one_rank_lacks_a_collective_is_left_out() -> None:
    builders = job()
    drop(builders[3], {2})
    _, matches = of(builders)
    (one,) = matches.groups
    steps = [STEP_NUMBER + number for number in (0, 1, 3, 4, 5)]
    assert one.step.tolist() == steps
    assert one.n_unmatched == 3
    assert one.unmatched == ("different numbers of collectives in 1 of 6 steps (rank 3)",)


def test_different_numbers_in_a_step_are_said_with_the_rank() -> None:
    builders = job()
    kernels = [event for event in builders[3].events if event["name"].startswith("ncclDevKernel")]
    third = kernels[2]
    all_reduce(builders[3], third["ts"] + 1400, third["ts"] + 1450, 4)
    _, matches = of(builders)
    (one,) = matches.groups
    assert len(one) == 5
    assert one.unmatched == ("different numbers of collectives in 1 of 6 steps (rank 3)",)
    assert one.n_unmatched == 5


def test_of_two_ranks_the_one_that_was_cut_is_named() -> None:
    for places in ({3, 4, 5}, set(range(6))):
        builders = job(2)
        for event in [event for event in builders[0].events if event["name"].startswith("ncclDevKernel")]:
            for builder in builders:
                all_reduce(builder, event["ts"] + event["dur"] + 20, event["ts"] + event["dur"] + 40, 2)
        drop(builders[1], places)
        _, matches = of(builders)
        (one,) = matches.groups
        assert one.unmatched[0].endswith("steps (rank 1)")


def test_without_a_rank_that_was_cut_in_every_step_the_others_are_matched() -> None:
    builders = job(4)
    for event in [event for event in builders[0].events if event["name"].startswith("ncclDevKernel")]:
        for rank, builder in enumerate(builders):
            if rank != 3:
                all_reduce(builder, event["ts"] + event["dur"] + 20, event["ts"] + event["dur"] + 40, 4)
    _, matches = of(builders)
    (one,) = matches.groups
    assert one.members.tolist() == [0, 1, 2]
    assert len(one) == 12
    assert one.unmatched == ("different numbers of collectives in 6 of 6 steps (rank 3)",)
    assert one.n_unmatched == 6


def test_sequence_numbers_match_where_order_cannot() -> None:
    builders = job()
    for builder in builders:
        kernels = [event for event in builder.events if event["name"].startswith("ncclDevKernel")]
        for number, kernel in enumerate(kernels):
            kernel["args"]["Seq"] = 100 + number
    drop(builders[3], {0, 2})
    _, matches = of(builders)
    (one,) = matches.groups
    assert one.step.tolist() == [STEP_NUMBER + number for number in (1, 3, 4, 5)]
    assert one.index[:, 3].tolist() == [0, 1, 2, 3]
    assert one.index[:, 0].tolist() == [1, 3, 4, 5]
    assert one.fault == ""


@pytest.mark.parametrize("change", [{"In msg nelems": 99}, {"Collective name": "broadcast"}])
def test_another_operation_is_no_match(change: dict[str, object]) -> None:
    builders = job()
    kernels = [event for event in builders[1].events if event["name"].startswith("ncclDevKernel")]
    kernels[4]["args"].update(change)
    _, matches = of(builders)
    (one,) = matches.groups
    assert len(one) == 5
    assert one.unmatched == ("1 of 6 differ in operation or size",)


def test_all_to_all_may_differ_in_size() -> None:
    builders = job()
    for rank, builder in enumerate(builders):
        for event in builder.events:
            if event["name"].startswith("ncclDevKernel"):
                event["args"].update({"Collective name": "all_to_allv", "In msg nelems": rank + 9})
    _, matches = of(builders)
    assert len(matches.groups[0]) == 6


def test_process_groups_are_kept_apart() -> None:
    builders = job(4, n_steps=4)
    pairs = {"tp": [(0, 1), (2, 3)], "dp": [(0, 2), (1, 3)]}
    for rank, builder in enumerate(builders):
        kernels = [event for event in builder.events if event["name"].startswith("ncclDevKernel")]
        for kernel in kernels:
            for place, (name, groups) in enumerate(pairs.items()):
                ranks = next(group for group in groups if rank in group)
                start = kernel["ts"] + kernel["dur"] + 20 + 100 * place
                all_reduce(builder, start, start + 50, 2, group=name, ranks=ranks)
    _, matches = of(builders)
    found = {(group.group.name, group.group.ranks): group for group in matches.groups}
    assert sorted(found) == [("0", (0, 1, 2, 3)), ("dp", (0, 2)), ("dp", (1, 3)), ("tp", (0, 1)), ("tp", (2, 3))]
    assert found["dp", (1, 3)].members.tolist() == [1, 3]
    assert all(len(group) == 4 and not group.fault for group in matches.groups)


def test_a_group_of_one_recorded_rank_is_alone() -> None:
    builders = job(2)
    all_reduce(builders[0], 40_000, 40_050, 2, group="9", ranks=(0, 7))
    _, matches = of(builders)
    assert [group.group.name for group in matches.groups] == ["0"]
    assert [one.name for one in matches.alone] == ["9"]


def test_sends_and_receives_are_not_matched() -> None:
    builders = job(2)
    for rank, builder in enumerate(builders):
        all_reduce(builder, 40_000, 40_050, 2, name="recv" if rank else "send")
    ranks, matches = of(builders)
    assert [rank.n_point_to_point for rank in ranks] == [1, 1]
    assert len(matches.groups[0]) == 6


def test_groups_that_were_not_recorded_go_by_the_order_of_streams() -> None:
    builders = job(2)
    for event in builders[1].events:
        if event["name"].startswith("ncclDevKernel"):
            event["tid"] = event["args"]["stream"] = 33
    for builder in builders:
        del builder.meta["distributedInfo"]["pg_config"]
        for event in builder.events:
            for key in ("Process Group Name", "Process Group Ranks"):
                event.get("args", {}).pop(key, None)
    _, matches = of(builders)
    (one,) = matches.groups
    assert one.group == ProcessGroup("stream 1")
    assert len(one) == 6


# -- clocks ------------------------------------------------------------------------------------


def test_clocks_apart_are_aligned_on_ends() -> None:
    builders = job(late={2: 4000})
    shifted(builders[1], 50_000)
    shifted(builders[3], -700)
    ranks, matches = of(builders)
    assert matches.offset_ns.tolist() == [0, -50 * MS, 0, int(0.7 * MS)]
    (one,) = matches.groups
    assert one.fault == ""
    assert one.end_skew_ns.tolist() == [0] * 6
    assert set((one.start_ns.max(axis=1) - one.start_ns.min(axis=1)).tolist()) == {4 * MS}
    assert len(ranks) == 4


def test_of_many_hosts_all_clocks_are_aligned_where_any_is() -> None:
    # each within the limit of the first, and together beyond it
    builders = job(4, late={2: 4000})
    for builder, ahead in zip(builders, (0, 280, -280, 20), strict=True):
        shifted(builder, ahead)
    _, matches = of(builders)
    assert matches.offset_ns.tolist() == [0, int(-0.28 * MS), int(0.28 * MS), int(-0.02 * MS)]
    (one,) = matches.groups
    assert one.fault == ""
    assert one.end_skew_ns.tolist() == [0] * 6


def test_base_times_bring_clocks_together() -> None:
    builders = job(2)
    builders[0].meta["baseTimeNanoseconds"] = 1_790_857_026_000_000_000
    builders[1].meta["baseTimeNanoseconds"] = 1_790_857_026_000_000_000 - 9_000_000
    shifted(builders[1], 9_000)
    _, matches = of(builders)
    assert not matches.offset_ns.any()
    assert matches.groups[0].end_skew_ns.tolist() == [0] * 6


def test_one_host_has_one_clock() -> None:
    builders = job(2)
    for builder in builders:
        builder.meta["host_name"] = "here"
    shifted(builders[1], 5_000)
    _, matches = of(builders)
    assert not matches.offset_ns.any()
    # but then these are no matches: one rank is done before the other has come
    assert "done before another has come" in matches.groups[0].fault


def test_wrong_matches_are_found_out_by_their_ends() -> None:
    builders = job(2, n_steps=8)
    kernels = [event for event in builders[1].events if event["name"].startswith("ncclDevKernel")]
    for number, kernel in enumerate(kernels):
        kernel["dur"] += 800 * (number % 2)
    _, matches = of(builders)
    assert matches.groups[0].fault == "its matched ends lie 400 µs apart at the median"


def test_drifting_clocks_are_found_out() -> None:
    builders = job(2, n_steps=8)
    for event in builders[1].events:
        event["ts"] *= 1.2
    _, matches = of(builders)
    assert matches.groups[0].fault
