from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from diagnose.ranks.jobs import all_reduce, job, meet, ranks_of, records, steps_of

from torchtriage.core.finding import Cost, Finding, Fix, Note, Place, RankSpread
from torchtriage.core.units import format_ms
from torchtriage.diagnose.patterns import lookup
from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.merge import merge_findings, merge_notes
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.ranks.straggler_finding import with_reasons
from torchtriage.diagnose.verdict.result import Result
from torchtriage.report import words

STEP_MS = 10.0


def of(ranks: Sequence[RankRecord], min_share: float = 0.01) -> JobResult:
    (one,) = detect_jobs(ranks)
    return judge(ranks, one, min_share=min_share)


def straggler(result: JobResult) -> Finding:
    (found,) = [finding for finding in result.findings if finding.code == "COM036"]
    return found


# -- the verdict ---------------------------------------------------------------------------------


def test_the_straggler_is_a_finding_of_the_job() -> None:
    result = of(records(job(late={2: 4000})))
    found = straggler(result)
    assert found.title == "Rank 2 makes the others wait"
    assert found.certainty == "likely"
    assert found.severity == "high"
    cost = found.cost
    assert cost is not None
    assert result.step_ms == pytest.approx(10.87)
    assert cost.of_ms == result.step_ms
    # a stretch without rows is no longer under the profiler than without
    assert (cost.low_ms, cost.high_ms) == pytest.approx((4.0, 4.0), rel=0.01)
    assert cost.share_high == pytest.approx(4 / result.step_ms, abs=1e-5)
    assert found.evidence["late_rank"] == 2
    assert found.evidence["n_late_steps"] == found.evidence["n_judged_steps"] == 5
    assert "rank 2 comes last to the collectives with the longest waits in 5 of 5 steady steps, and" in found.message
    assert "the other 3 ranks wait: 4.00 ms of 10.9 ms per step on average" in found.message
    assert "more than they do in Python between the phases of the step" in found.message
    assert found.evidence["after"].startswith("autograd::engine")
    assert result.verdict[0].startswith("4 ranks of one job, 5 common steady steps of 10.9 ms")
    assert "waiting for other ranks" in result.verdict[0]
    assert result.verdict[1].startswith("Largest saving: Rank 2 makes the others wait (COM036), 4.00 ms of 10.9 ms")
    assert not result.healthy


def test_without_steps_a_straggler_costs_of_the_window() -> None:
    builders = job(late={2: 4000}, n_steps=2)
    for builder in builders:
        builder.events = [event for event in builder.events if not event["name"].startswith("ProfilerStep")]
    found = straggler(of(records(builders)))
    assert found.cost is not None
    assert found.cost.per == "window"
    assert "longest waits, and the other 3 ranks wait: 4.00 ms of 21.7 ms in the window;" in found.message
    assert "; no steps to compare" in found.message
    assert "mean_wait_ms_per_window" in found.evidence


def test_a_step_without_the_profiler_scales_waiting_too() -> None:
    ranks = records(job(late={2: 4000}, how="loader"))
    (one,) = detect_jobs(ranks)
    result = judge(ranks, one, min_share=0.01, unprofiled_ms=5.435)
    cost = straggler(result).cost
    assert cost is not None
    assert result.step_ms == cost.of_ms == 5.435
    assert (cost.low_ms, cost.high_ms, cost.grade) == (2.0, 2.0, "C")
    # its parts are those of the recorded steps
    assert "common steady steps as recorded: " in result.verdict[0]
    assert result.verdict[0].endswith("; 5.43 ms per step without the profiler.")


def test_work_that_is_shared_out_comes_back_in_part() -> None:
    cost = straggler(of(records(job(late={2: 4000}, how="device")))).cost
    assert cost is not None
    assert (cost.low_ms, cost.high_ms) == pytest.approx((3.0, 4.0))


def test_a_late_loader_is_told_its_own_fix() -> None:
    found = straggler(of(records(job(late={1: 4000}, how="loader"))))
    assert "data loader" in found.message
    assert "num_workers" in found.fix.code
    assert found.cost is not None
    assert found.cost.low_ms == pytest.approx(4.0)


def test_a_stretch_that_began_beside_the_device_is_named_whole_with_its_innermost_range() -> None:
    found = straggler(of(records(job(late={2: 4000}, how="range", n_steps=3))))
    # two steps that show the same cause are evidence
    assert (found.certainty, found.severity) == ("likely", "high")
    assert found.place.ops == ("## forward ##", "# sparse")
    assert (found.evidence["after"], found.evidence["before"]) == ("aten::view", "exchange")
    assert found.evidence["excess_ms_per_step"] == pytest.approx(6.0, rel=0.01)
    assert "inside # sparse, after aten::view and before exchange" in found.message
    assert found.fix.text.startswith("Move what only this rank does there")


def test_a_stall_inside_an_operator_is_no_uneven_work() -> None:
    found = straggler(of(records(job(late={2: 4000}, how="inside"))))
    assert found.place.ops == ("aten::embedding",)
    assert found.evidence["n_more_ops_per_step"] == 0
    assert "aten::embedding between the phases of the step takes 4.0" in found.message
    assert "longer than theirs, in one stretch" in found.message
    assert "Share the work" not in found.fix.text
    assert found.cost is not None
    # nothing is shared out, and nothing in it was recorded
    assert found.cost.low_ms == pytest.approx(4.0, rel=0.01)


def test_a_slow_host_is_not_told_to_look_at_its_device() -> None:
    found = straggler(of(records(job(late={2: 2000}, how="slow"))))
    assert found.evidence["cause_kind"] == "slower"
    assert found.evidence["pace"] == 3.0
    assert "a slower host, where kernels take 1.00 times as long" in found.message
    assert "cores of its own" in found.fix.text


def test_a_slow_device_is_told_from_its_host() -> None:
    found = straggler(of(records(job(late={2: 4000}, how="device"))))
    assert "its device computes 4.00 ms longer than theirs" in found.message
    assert "a slower device" in found.message
    assert "clocks of its device" in found.fix.text


def test_missing_ranks_make_it_a_hint() -> None:
    ranks = records(job(late={2: 4000}))
    result = of(ranks[1:])
    found = straggler(result)
    assert found.certainty == "hint"
    # a rank that is not here may be later still: then nothing is gained
    assert found.cost is not None
    assert (found.cost.low_ms, found.severity) == (0, "low")
    assert "ranks are missing or were left out" in found.message
    assert any(note.code == "rank-missing" for note in result.notes)


def test_ranks_that_are_there_twice_or_recorded_other_steps_make_it_a_hint_as_well() -> None:
    ranks = records(job(late={2: 4000}))
    twice = of([*ranks, replace(ranks[0], path="run/copy.json")])
    steps = ranks[0].steps
    away = replace(ranks[0], steps=replace(steps, number=steps.number + 100))
    for result, code in ((twice, "rank-duplicate"), (of([away, *ranks[1:]]), "rank-skewed")):
        found = straggler(result)
        assert found.certainty == "hint"
        assert found.cost is not None
        assert found.cost.low_ms == 0
        assert code in {note.code for note in result.notes}


def test_pipeline_stages_promise_nothing() -> None:
    builders = job(2, late={1: 4000})
    for rank, builder in enumerate(builders):
        all_reduce(builder, 90_000, 90_050, 2, name="recv" if rank else "send")
    found = straggler(of(records(builders)))
    assert found.certainty == "hint"
    assert found.cost is not None
    assert found.cost.low_ms == 0
    assert "pipeline" in found.message


def test_waiting_handed_on_between_groups_is_not_promised() -> None:
    # ranks 0 and 1 exchange, 2 and 3 exchange; nobody knows whether 2 and 3 wait for 1
    builders = job(4, late={1: 4000, 3: 4000})
    for rank, builder in enumerate(builders):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        for event in builder.events:
            if event["name"].startswith("ncclDevKernel"):
                event["args"]["Process Group Name"] = "tp"
                event["args"]["Process Group Ranks"] = str(pair)
    result = of(records(builders))
    # two ranks late alike: neither of them makes most of the waiting
    assert not [finding for finding in result.findings if finding.code == "COM036"]
    builders = job(4, late={1: 4000})
    for rank, builder in enumerate(builders):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        for event in builder.events:
            if event["name"].startswith("ncclDevKernel"):
                event["args"]["Process Group Name"] = "tp"
                event["args"]["Process Group Ranks"] = str(pair)
    found = straggler(of(records(builders)))
    assert found.certainty == "hint"
    assert found.cost is not None
    assert found.cost.low_ms == 0
    assert "process group tp" in found.message


def test_a_balanced_job_is_healthy_where_its_ranks_are() -> None:
    ranks = [replace(record, result=healthy(record.result)) for record in records(job())]
    result = of(ranks)
    assert result.findings == ()
    assert result.healthy
    assert result.verdict[1] == "Nothing found that saves 1.0 % of a step or more."
    assert "6 collectives matched in 1 process group" in result.verdict[2]


def test_a_job_whose_waiting_is_unknown_is_not_healthy() -> None:
    ranks = [
        replace(
            record,
            result=healthy(record.result),
            collectives=_none(record.collectives),
            by_group=_none(record.by_group),
        )
        for record in records(job())
    ]
    result = of(ranks)
    assert not result.healthy
    (note,) = (note for note in result.notes if note.level == "warn")
    assert note.code == "no-collectives"
    assert [entry.how_to_record for entry in result.not_checked if entry.code == "COM036"] == [note.fix]


def _none(table: Any) -> Any:
    arrays = {name: value[:0] for name, value in vars(table).items() if isinstance(value, np.ndarray)}
    return replace(table, **arrays)


def healthy(result: Result) -> Result:
    return replace(result, findings=(), notes=(), healthy=True, joint_cost=None)


def test_what_a_file_without_all_rows_does_not_show_is_not_idle_time() -> None:
    whole, filtered = job(), job()
    for builder in filtered:
        builder.events = [event for event in builder.events if "nccl" in event["name"]]
    assert of(records(whole)).verdict[0].endswith(" idle.")
    result = of(records(filtered))
    assert result.verdict[0].endswith(" without rows.")
    assert words.rank_parts(result)[-1][:2] == ("idle_ns", "no rows")
    cut = of(records(whole))
    for share, word in ((0.007, "idle"), (0.3, "no rows")):
        note = Note("cut-window", "warn", "the window was cut", "", {"share": share})
        assert words.rank_parts(replace(cut, notes=(note,)))[-1][1] == word


def test_the_rank_that_lacks_most_rows_speaks_for_all() -> None:
    notes = [Note("cut-window", "warn", f"{share} is missing", "", {"share": share}) for share in (0.01, 0.5, 0.02)]
    (merged,) = merge_notes([(note,) for note in notes], [0, 1, 2])
    assert merged.message == "on all 3 ranks, as rank 1: 0.5 is missing"
    assert merged.evidence == {"share": 0.5, "ranks": [0, 1, 2]}


def test_parts_of_a_rank_add_up() -> None:
    result = of(records(job(late={2: 4000})))
    for rank in result.ranks:
        parts = rank.compute_ns + rank.comm_ns + rank.wait_ns + rank.copy_ns + rank.idle_ns
        assert parts == rank.wall_ns
    waits = {rank.rank: rank.wait_ns for rank in result.ranks}
    assert waits == {0: 4_000_000, 1: 4_000_000, 2: 0, 3: 4_000_000}
    assert [rank.caused_wait_ns for rank in result.ranks] == [0, 0, 4_000_000, 0]


def test_transfer_and_waiting_are_split_by_collective() -> None:
    (one,) = of(records(job(late={2: 4000}))).collectives
    assert (one.name, one.nelems, one.n_ranks, one.n_per_step) == ("allreduce", 4096, 4, 1.0)
    assert one.transfer_ns == 1_000_000
    assert one.wait_ns == one.max_wait_ns == 4_000_000
    assert (one.late_rank, one.late_share) == (2, 1.0)


def test_all_to_alls_whose_sizes_change_are_one_kind() -> None:
    def kinds(by_step: int) -> list[tuple[str, int | None, float]]:
        ranks = ranks_of(2)

        def arrive(step: int, begin: float) -> list[float]:
            size = 1500 + by_step * step
            return meet(ranks, meet(ranks, [begin, begin + 9], "all_to_all"), "all_to_all", [size, size + 11])

        return sorted(
            (kind.name, kind.nelems or 0, kind.n_per_step) for kind in of(records(steps_of(ranks, arrive))).collectives
        )

    fixed = [("all_to_all", 4096, 1.0), ("allreduce", 4096, 1.0)]
    assert kinds(by_step=0) == [("all_to_all", 1500, 1.0), *fixed]
    assert kinds(by_step=37) == [("all_to_all", 0, 1.0), *fixed]


def test_microseconds_make_nobody_last() -> None:
    (one,) = of(records(job(late={2: 40}))).collectives
    assert one.wait_ns == 40_000  # of a step of 7 ms
    assert (one.late_rank, one.late_share) == (None, 0.0)


def test_bandwidth_is_of_the_transfer_not_of_the_waiting() -> None:
    (one,) = of(records(job(late={2: 4000}))).collectives
    size = 4096 * 4
    assert (one.size_bytes, one.n_missing) == (size, 0)
    assert one.algorithm_gbps == round(size / 1e6, 3)
    assert one.bus_gbps == round(size / 1e6 * 2 * 3 / 4, 3)


def test_bandwidth_is_a_bound_where_a_rank_of_the_group_is_missing() -> None:
    (one,) = of(records(job(late={2: 4000}))[:3]).collectives
    assert (one.n_ranks, one.n_missing) == (3, 1)
    assert one.bus_gbps == round(4096 * 4 / 1e6 * 2 * 3 / 4, 3)


def test_without_type_or_members_there_is_no_bandwidth() -> None:
    for change in ({"dtype": None}, {"Process Group Ranks": None}):
        builders = job()
        for builder in builders:
            del builder.meta["distributedInfo"]["pg_config"]
            for event in builder.events:
                args = event.get("args", {})
                args.update({key: value for key, value in change.items() if key in args})
        (one,) = of(records(builders)).collectives
        assert (one.n_ranks, one.size_bytes, one.bus_gbps) == (4, None, None)


def test_steps_say_who_was_last() -> None:
    result = of(records(job(late=[{}, {0: 2000}, {1: 3000}, {}, {2: 1000}, {}])))
    assert [step.number for step in result.steps] == list(range(10, 16))
    assert [step.steady for step in result.steps] == [False, *[True] * 5]
    assert [step.late_rank for step in result.steps] == [None, 0, 1, None, 2, None]
    assert [step.late_wait_ns for step in result.steps][1:3] == [2_000_000, 3_000_000]


# -- findings of ranks ---------------------------------------------------------------------------


def a_finding(low: float, high: float, **more: Any) -> Finding:
    cost = Cost(low, high, "step", STEP_MS, low / 10, high / 10, high, "bounded", "sum", "C")
    fields: dict[str, Any] = {
        "code": "SYN001",
        "name": "host-sync-scalar",
        "family": "sync",
        "title": "Scalars are read",
        "severity": "high",
        "certainty": "likely",
        "message": "2 reads",
        "place": Place(),
        "cost": cost,
        "evidence": {},
        "fix": Fix("Do not."),
    }
    return Finding(**{**fields, **more})


def merged(savings: Sequence[Finding | None], waits: Sequence[float]) -> list[Finding]:
    base = records(job(2))[0].result
    results = [replace(base, findings=() if saving is None else (saving,), summary=None) for saving in savings]
    return merge_findings(results, range(len(results)), waits, STEP_MS, judged=True)


def test_the_same_finding_on_all_ranks_is_one_with_its_spread() -> None:
    found = [a_finding(2 + at / 10, 4 + at / 10) for at in range(4)]
    (one,) = merged(found, [0, 0, 0, 0])
    assert one.ranks is not None
    assert (one.ranks.n_with, one.ranks.n_ranks, one.ranks.ranks) == (4, 4, (0, 1, 2, 3))
    assert (one.ranks.low_ms, one.ranks.high_ms) == (3.0, 3.3)
    assert one.cost is not None
    assert (one.cost.low_ms, one.cost.high_ms) == (2.0, 4.0)
    assert one.evidence["shown_rank"] == 3


def test_a_share_of_the_step_of_one_rank_names_the_rank() -> None:
    message = "2 ms of 12.5 ms per step"
    (one,) = merged([a_finding(2, 4), a_finding(3, 5, message=message)], [0, 0])
    assert one.message == "2 ms of 12.5 ms per step of rank 1"
    (one,) = merged([a_finding(3, 5, message=f"2 ms of {format_ms(STEP_MS)} per step")] * 2, [0, 0])
    assert one.message == f"2 ms of {format_ms(STEP_MS)} per step"


def test_a_job_saves_the_least_of_saving_and_waiting() -> None:
    # rank 0 saves, and rank 1 waits for it, but no longer than 1.5 ms
    (one,) = merged([a_finding(2, 4), None], [0, 1.5])
    assert one.cost is not None
    assert (one.cost.low_ms, one.cost.high_ms) == (1.5, 1.5)
    assert one.severity == "high"


def test_what_no_rank_waits_for_is_a_note() -> None:
    (one,) = merged([a_finding(2, 4), None], [1.5, 0])
    assert one.cost is not None
    assert one.cost.high_ms == 0
    assert one.severity == "note"
    assert "the job's step stays as long" in one.message


def test_waiting_promises_no_more_than_the_finding() -> None:
    (one,) = merged([a_finding(2, 4), a_finding(1, 2)], [9, 9])
    assert one.cost is not None
    assert (one.cost.low_ms, one.cost.high_ms) == (2.0, 4.0)


def test_what_a_rank_exchanges_for_longer_the_others_wait_for() -> None:
    comm = {"family": "comm", "code": "COM037"}
    (one,) = merged([a_finding(0, 6, **comm), None], [1, 5])
    assert one.cost is not None
    assert one.cost.high_ms == 5
    (both,) = merged([a_finding(0, 6, **comm), a_finding(0, 2, **comm)], [0, 5])
    assert both.cost is not None
    assert both.cost.high_ms == 2


def test_exposed_communication_holds_the_waiting_already() -> None:
    comm = {"family": "comm", "code": "COM035"}
    (one,) = merged([a_finding(1, 2, **comm), a_finding(3, 6, **comm)], [0, 4])
    assert one.cost is not None
    assert (one.cost.low_ms, one.cost.high_ms) == (1.0, 2.0)


@pytest.mark.parametrize(("late", "found"), [(600, True), (4000, False)])
def test_communication_of_which_little_is_left_without_the_waiting_is_no_finding(late: float, found: bool) -> None:
    # the transfer alone is 1 ms of a step of 7.4 or 10.8 ms
    ranks = records(job(late=[{at % 4: late} for at in range(6)]))
    assert all("COM035" in [finding.code for finding in rank.result.findings] for rank in ranks)
    result = of(ranks)
    assert ("COM035" in [finding.code for finding in result.findings]) == found
    assert ("no-rank-late" in [note.code for note in result.notes]) != found


def test_a_job_does_not_ask_for_the_traces_it_has() -> None:
    alone = a_finding(1.0, 8.0, family="comm", code="COM035", fix=Fix("Analyse the traces of all ranks."))
    (found,) = merged([alone, alone], [6.0, 0.0])
    assert found.fix == lookup("COM035").fix


def test_what_one_rank_guesses_of_others_is_replaced() -> None:
    assert merged([a_finding(1, 2, code="COM036"), None], [0, 0]) == []


def test_two_places_of_one_code_stay_two() -> None:
    base = records(job(2))[0].result
    both = (a_finding(2, 4, place=Place(ops=("a",))), a_finding(1, 2, place=Place(ops=("b",))))
    results = [replace(base, findings=both, summary=None)] * 2
    found = merge_findings(results, (0, 1), [0, 0], STEP_MS, judged=True)
    assert [(one.place.ops, one.cost and one.cost.high_ms) for one in found] == [(("a",), 4.0), (("b",), 2.0)]


def test_notes_say_on_which_ranks() -> None:
    base = records(job(2))[0].result
    note = base.notes[0]
    results = [replace(base, notes=(note,)), replace(base, notes=(replace(note, level="refuse"),))]
    first, second = merge_notes([result.notes for result in results], (0, 5))
    assert first.message == f"on rank 0: {note.message}"
    assert second.message == f"on rank 5: {note.message}"
    assert second.level == "warn"  # one rank that cannot be judged does not stop the other
    (both,) = merge_notes([results[0].notes] * 2, (0, 5))
    assert both.message == f"on each of 2 ranks: {note.message}"  # what it counts is one rank's
    (twice,) = merge_notes([(note,) * 3, ()], (0, 5))
    assert twice.message == f"on rank 0: {note.message}"


# -- a late rank and its cause -------------------------------------------------------------------


def test_the_cause_on_the_late_rank_is_told_with_it() -> None:
    late = straggler(of(records(job(late={2: 4000}, how="loader"))))
    assert "DAT019" in late.also_explains  # from the recording itself
    one = RankSpread(1, 4, 5, 5, (2,))
    loader = a_finding(4, 6, code="DAT018", family="data", ranks=one, fix=Fix("Give it workers."))
    elsewhere = a_finding(4, 6, code="DAT018", family="data", ranks=replace(one, ranks=(1,)))
    sync = a_finding(4, 6, ranks=one)
    told, *rest = with_reasons([late, loader, elsewhere, sync])
    assert rest == [elsewhere, sync]
    assert told.message == f"{late.message}; only on this rank: 2 reads (DAT018)"
    assert told.fix == late.fix
    assert told.also_explains == (*late.also_explains, "DAT018")
    assert told.cost == late.cost
    assert with_reasons([loader, sync]) == [loader, sync]
