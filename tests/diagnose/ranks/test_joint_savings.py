"""The job's savings by the joint replay of its ranks, each reduced to its collectives."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import job, records
from diagnose.ranks.test_job_replay import device_bound

from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.job_replay import JobReplay, RankReplay, rank_replay
from torchtriage.diagnose.ranks.joint_savings import JointSavings
from torchtriage.diagnose.ranks.match import Matches, match
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.rank_skeleton import RankSkeleton, rank_skeleton
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.ranks.straggler import waiting
from torchtriage.diagnose.replay import Edit, model
from torchtriage.diagnose.replay.reduce import reduce_graph
from torchtriage.diagnose.verdict.verdict import diagnose_with_fixes


def shrunk(builder: TraceBuilder) -> tuple[RankSkeleton, RankReplay]:
    """Return a rank with one fix, its backward kernels take half of their time, in both replays."""
    trace = builder.build()
    result, fixes = diagnose_with_fixes(trace)
    bare = rank_skeleton(trace, result, fixes)
    assert bare is not None
    assert not bare.reason
    rows = np.flatnonzero(trace.works & (trace.name == trace.names.index("backward")))
    edits = (Edit("shrink", rows, 0.5),)
    replayed = model(trace)
    scenario = replayed.scenario(edits)
    body = np.array([np.flatnonzero((replayed.graph.row == row) & (replayed.graph.kind == 5))[0] for row in bare.row])
    reduced = reduce_graph(replayed.graph, body, [None, scenario])
    saving = replayed.step_ns - replayed.after_ns(edits)
    whole = rank_replay(trace, (), None)
    return (replace(bare, reduced=reduced, fixes={0: 1}, saving_ns={0: saving}), replace(whole, questions=(scenario,)))


def matched(builders: list[TraceBuilder]) -> tuple[list[RankRecord], Matches, list[np.ndarray]]:
    ranks = records(builders)
    (found,) = detect_jobs(ranks)
    matches = match(ranks, found.numbers)
    waits = waiting(ranks, matches)
    return ranks, matches, [np.searchsorted(rank.steps.number, waits.step[waits.steady]) for rank in ranks]


def joint_savings(backward_us: tuple[float, ...], **more: float) -> JointSavings:
    builders = device_bound(backward_us)
    _, matches, steps = matched(builders)
    return JointSavings([shrunk(builder)[0] for builder in builders], matches, steps, n_point_to_point=0, **more)


@pytest.mark.parametrize("fixed", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_reduced_ranks_save_what_whole_ones_save(fixed):
    builders = device_bound((3000.0, 4000.0, 5000.0))
    _, matches, steps = matched(builders)
    both = [shrunk(builder) for builder in builders]
    joint = JointSavings([one for one, _ in both], matches, steps, n_point_to_point=0)
    whole = JobReplay([one for _, one in both], matches, steps)
    assert not joint.reason
    assert joint.step_ns == pytest.approx(whole.step_ns, abs=10)
    after = whole.after_ns([one.questions[0] if rank in fixed else None for rank, (_, one) in enumerate(both)])
    (saved,) = joint.savings_ns({rank: [(0, (1.0,))] for rank in fixed}, 1)
    assert saved == pytest.approx(whole.step_ns - after, abs=10)


def test_fixing_the_last_rank_saves_up_to_the_second_to_last():
    joint = joint_savings((3000.0, 4000.0, 5000.0))
    (last,) = joint.savings_ns({2: [(0, (1.0,))]}, 1)
    assert last == pytest.approx(1_000_000, abs=20_000)
    (first,) = joint.savings_ns({0: [(0, (1.0,))]}, 1)
    assert first == pytest.approx(0, abs=1_000)
    # together they save what neither does alone
    (both,) = joint.savings_ns({1: [(0, (1.0,))], 2: [(0, (1.0,))]}, 1)
    assert both == pytest.approx(2_000_000, abs=20_000)


def test_half_a_fix_comes_half_as_much_earlier():
    joint = joint_savings((1000.0, 5000.0))
    none, half, whole = joint.savings_ns({1: [(0, (0.0, 0.5, 1.0))]}, 3)
    assert none == pytest.approx(0, abs=10)
    assert half == pytest.approx(1_250_000, abs=20_000)
    assert whole == pytest.approx(2_500_000, abs=20_000)


def test_nobody_waits_for_a_late_rank():
    joint = joint_savings((3000.0, 4000.0, 5000.0))
    assert joint.without_waiting_for(2)[1:] == pytest.approx(1_000_000, abs=20_000)
    assert joint.without_waiting_for(0) == pytest.approx(0, abs=1_000)


def test_waiting_that_does_not_come_back_is_not_replayed():
    # the first rank waits 4 ms a step for the second, 2 ms in the mean
    assert not joint_savings((1000.0, 5000.0), wait_ns=2e6).reason
    # twice as much as there is to get back: it waited elsewhere
    assert "alone" in joint_savings((1000.0, 5000.0), wait_ns=5e6).reason


def with_skeletons(builders: list[TraceBuilder]) -> JobResult:
    whole = []
    for builder, record in zip(builders, records(builders), strict=True):
        trace = builder.build()
        result, fixes = diagnose_with_fixes(trace)
        whole.append(replace(record, skeleton=rank_skeleton(trace, result, fixes)))
    (found,) = detect_jobs(whole)
    return judge(whole, found, min_share=0.01)


def test_a_finding_says_by_which_method_it_is_priced():
    found = with_skeletons(device_bound((3000.0, 3000.0, 5000.0))).findings
    straggler = next(one for one in found if one.code == "COM036")
    assert straggler.cost is not None
    assert straggler.cost.method.startswith("all ranks replayed together without waiting for this one")
    assert straggler.cost.low_ms <= 2.0 <= straggler.cost.high_ms + 0.05


def test_without_skeletons_the_bound_stays():
    builders = job(late={2: 4000.0}, how="python")
    ranks = records(builders)
    (found,) = detect_jobs(ranks)
    straggler = next(finding for finding in judge(ranks, found, min_share=0.01).findings if finding.code == "COM036")
    assert straggler.cost is not None
    assert straggler.cost.method.startswith("time for which every other rank waits")


def test_ranks_that_send_to_each_other_are_not_replayed():
    builders = device_bound((3000.0, 4000.0))
    _, matches, steps = matched(builders)
    ranks = [shrunk(builder)[0] for builder in builders]
    assert "send" in JointSavings(ranks, matches, steps, n_point_to_point=2).reason
    assert "host" in JointSavings([*ranks[:1], None], matches, steps, n_point_to_point=0).reason


@pytest.mark.slow
def test_a_thousand_ranks_take_seconds():
    n_ranks = 1000
    builders = device_bound((3000.0, 5000.0))
    ranks, matches, steps = matched(builders)
    fast, slow = (shrunk(builder)[0] for builder in builders)
    group = matches.groups[0]
    n = len(group)
    many = replace(
        matches,
        rank=np.repeat(np.arange(n_ranks), n),
        row=np.concatenate([np.tile(ranks[0].collectives.row[group.index[:, 0]], n_ranks - 1), matches.row[-n:]]),
        match_id=np.tile(np.arange(n), n_ranks),
        offset_ns=np.zeros(n_ranks, np.int64),
    )
    begun = time.perf_counter()
    joint = JointSavings(
        [*[fast] * (n_ranks - 1), slow], many, [*[steps[0]] * (n_ranks - 1), steps[1]], n_point_to_point=0
    )
    (saved,) = joint.savings_ns({n_ranks - 1: [(0, (1.0,))]}, 1)
    assert not joint.reason
    assert saved == pytest.approx(2_000_000, abs=20_000)
    assert time.perf_counter() - begun < 10
