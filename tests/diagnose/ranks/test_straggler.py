from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import all_reduce, job, records

from torchtriage.diagnose.ranks.host_activity import PHASES, find_pieces
from torchtriage.diagnose.ranks.match import match
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.straggler import Straggler, Waiting, find_straggler, waiting
from torchtriage.diagnose.ranks.straggler_finding import straggler_finding

MS = 1_000_000


def judged(ranks: Sequence[RankRecord]) -> tuple[Waiting, Straggler | None]:
    matches = match(ranks, range(len(ranks)))
    waits = waiting(ranks, matches)
    return waits, find_straggler(ranks, matches, waits)


def test_a_balanced_job_has_no_straggler() -> None:
    waits, found = judged(records(job()))
    assert found is None
    assert waits.n_judged == 5  # six steps, the first is not steady
    assert int(waits.wait_ns.sum()) == 0


def test_little_waiting_is_no_straggler() -> None:
    assert judged(records(job(late={2: 150})))[1] is None


def test_ranks_that_take_turns_are_no_straggler() -> None:
    turns = [{step % 4: 3000.0} for step in range(8)]
    waits, found = judged(records(job(late=turns, n_steps=8)))
    assert found is None
    assert int(waits.wait_ns.sum()) > 10 * MS


def test_a_rank_late_once_is_no_straggler() -> None:
    once = [{}, {}, {}, {2: 6000.0}, {}, {}, {}]
    assert judged(records(job(late=once, n_steps=7)))[1] is None


def test_a_rank_late_by_what_its_batches_are_is_late() -> None:
    often = [{2: late} for late in (0.0, 100.0, 3000.0, 9000.0, 1500.0, 7000.0, 4000.0, 400.0, 6000.0, 2500.0)]
    _, found = judged(records(job(late=often, n_steps=10)))
    assert found is not None
    assert found.position == 2


def test_a_job_without_collectives_has_none_to_compare() -> None:
    builders = job(late={1: 4000})
    for builder in builders:
        builder.events = [event for event in builder.events if "nccl" not in event["name"]]
    waits, found = judged(records(builders))
    assert found is None
    assert waits.n_judged == 0


@pytest.mark.parametrize(
    ("how", "cell"),
    [
        ("python", ("between", "python")),
        ("after", ("between", "python")),
        ("loader", ("loader", "python")),
        ("device", ("", "device")),
        ("op", ("forward", "op")),
        ("gc", ("between", "gc")),
        ("inside", ("between", "op")),
    ],
)
def test_the_late_rank_is_named_with_what_it_did(how: str, cell: tuple[str, str]) -> None:
    waits, found = judged(records(job(late={2: 4000}, how=how)))
    assert found is not None
    assert found.position == 2
    assert found.n_late == len(found.gain_ns) == 5
    assert found.blame_share == 1.0
    assert found.reaches_all
    # the others waited exactly as long as it was late
    assert set(found.gain_ns.tolist()) == {4 * MS}
    assert found.cause is not None
    assert (found.cause.phase, found.cause.activity) == cell
    # what it did longer is what it was late by, but for the rims of operators and launches
    assert found.cause.excess_ns == pytest.approx(4 * MS, rel=0.02)
    assert waits.wait_ns[:, waits.steady].tolist() == [[0 if rank == 2 else 4 * MS] * 5 for rank in range(4)]


def test_more_operators_are_counted() -> None:
    _, found = judged(records(job(late={2: 4000}, how="op")))
    assert found is not None
    assert found.cause is not None
    assert found.cause.n_more_ops == 1


def test_no_more_than_the_second_to_last_allows() -> None:
    _, found = judged(records(job(late={2: 4000, 0: 1500})))
    assert found is not None
    assert found.position == 2
    assert set(found.gain_ns.tolist()) == {int(2.5 * MS)}
    assert found.mean_wait_ns.tolist() == pytest.approx([(2.5 + 4 + 4) / 3 * MS] * 5, abs=1)


def test_waiting_beside_computation_costs_nothing() -> None:
    waits, found = judged(records(job(late={2: 4000}, overlap=3000)))
    assert found is not None
    assert set(found.gain_ns.tolist()) == {1 * MS}
    assert set(waits.wait_ns[0, waits.steady].tolist()) == {1 * MS}


def test_the_first_collective_is_the_profilers() -> None:
    # one step only: the first collective of the recording cannot be told from a late start
    waits, found = judged(records(job(late={2: 4000}, n_steps=1)))
    assert waits.n_judged == 0
    assert found is None


def test_blame_is_the_mean_over_who_waits() -> None:
    waits, _ = judged(records(job(late={2: 4000, 0: 1500})))
    blame = waits.blame_ns[:, waits.steady]
    assert np.flatnonzero(blame.sum(axis=1)).tolist() == [2]
    assert blame[2].tolist() == pytest.approx([10.5 / 3 * MS] * 5, abs=1)


def test_nobody_waits_longer_in_the_mean_than_a_rank_does() -> None:
    # rank 0 is late to two groups, in each of which another rank waits for it
    builders = job(4, late={0: 4000})
    groups = {1: (0, 1), 2: (0, 2)}
    for rank, builder in enumerate(builders):
        for kernel in [event for event in builder.events if event["name"].startswith("ncclDevKernel")]:
            end = kernel["ts"] + kernel["dur"] + 20
            kernel["dur"] = 0.5
            kernel["args"]["Process Group Ranks"] = str([rank])
            for peer, ranks in groups.items():
                if rank in ranks:
                    at = end + 20 * peer if rank == 0 else end - 3000
                    all_reduce(builder, at, end + 20 * peer + 10, 2, group=f"g{peer}", ranks=ranks)
    waits, found = judged(records(builders))
    assert found is not None
    assert (found.position, found.n_peers, found.reaches_all) == (0, 2, False)
    most = waits.wait_ns.max(axis=0)
    assert (most > 2 * MS).all()
    assert (waits.blame_ns.max(axis=0) <= most).all()


def test_a_message_that_only_the_late_rank_hides_is_waiting_too() -> None:
    # two buckets: the late rank computes beside the first, for which the others have nothing left to do
    builders, late = job(3), 5000.0
    for rank, builder in enumerate(builders):
        builder.events.clear()
        for step in range(6):
            begin = 1000 + step * 11_000
            at = begin + late * (rank == 2)
            builder.op("aten::mm", at, 20)
            builder.launch(at + 2, 5, at + 10, 1990, "backward")
            builder.launch(at + 12, 5, at + 2000, 2000, "backward")
            all_reduce(builder, at + 2000, begin + late + 3000, 3)
            all_reduce(builder, begin + late + 4000 if rank == 2 else begin + late + 3000, begin + late + 5000, 3)
            builder.step(10 + step, begin, late + 5050)
        builder.profiler_stop(begin + 11_000, 20)
    ranks = records(builders)
    waits, found = judged(ranks)
    assert found is not None
    cost = straggler_finding(ranks, range(3), found, waits).cost
    assert cost is not None
    # 3 ms of waiting until the first, its transfer of 1 ms, 1 ms until the second
    assert cost.low_ms == pytest.approx(4, abs=0.1)
    assert cost.high_ms == pytest.approx(5, abs=0.1)


def test_a_rank_without_its_cause_is_at_times_the_last_again() -> None:
    ranks = records(job(late={2: 4000}))
    waits, found = judged(ranks)
    assert found is not None
    assert found.cause is not None
    part = replace(found, cause=replace(found.cause, excess_ns=2.0 * MS))
    cost = straggler_finding(ranks, range(4), part, waits).cost
    assert cost is not None
    assert 1.7 <= cost.low_ms <= 1.8


def test_a_recording_cut_in_the_middle_hides_no_late_rank() -> None:
    builders = job(4, late={2: 4000}, n_steps=8)
    middle = max(event["ts"] for event in builders[1].events) / 2
    builders[1].events = [
        event for event in builders[1].events if event["ts"] < middle or not event["name"].startswith("nccl")
    ]
    waits, found = judged(records(builders))
    assert found is not None
    assert found.position == 2
    # of the steps in which rank 1 lacks its collectives nothing is said
    assert set(found.gain_ns.tolist()) == {4 * MS}
    assert waits.steady.sum() == waits.n_judged == 3


def test_two_ranks() -> None:
    _, found = judged(records(job(2, late={1: 4000})))
    assert found is not None
    assert found.position == 1
    assert set(found.gain_ns.tolist()) == {4 * MS}


@pytest.mark.parametrize(
    ("name", "phase"), [("## backward ##", "backward"), ("backward-compute", "backward"), ("f", "forward")]
)
def test_a_range_of_the_program_is_the_backward_pass_where_nothing_else_tells(name: str, phase: str) -> None:
    builder = TraceBuilder().step(0, 0, 1000)
    builder.op("aten::mm", 10, 100).annotation(name, 200, 300).op("aten::mm", 210, 100)
    pieces = find_pieces(builder.build())
    at = int(np.searchsorted(pieces.spans[:, 0], 250_000, side="right")) - 1
    assert PHASES[pieces.phase[at]] == phase


def test_an_operator_that_waits_for_its_collective_computes_nothing_meanwhile() -> None:
    builder = TraceBuilder(vendor="cpu").step(0, 0, 1000)
    builder.op("Reduce", 100, 500).op("aten::clone", 110, 50).op("c10d::allreduce_", 170, 10)
    builder.event("gloo:all_reduce", "user_annotation", 175, 420, tid=900)
    builder.op("aten::mm", 600, 300)
    pieces = find_pieces(builder.build())
    computes = pieces.spans[pieces.activity == 0]
    assert int((computes[:, 1] - computes[:, 0]).sum()) == 350_000
