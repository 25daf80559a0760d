"""Two recordings of one job: rank by rank, and the step of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import TraceBuilder
from tests.conftest import DATA
from tests.core.trace.formats.nsys_files import OTHER_PROCESS, PROCESS, NsysFile
from tests.diagnose.ranks import jobs
from tests.diagnose.ranks.jobs import job, write

import torchtriage as tt
from torchtriage.core.errors import UsageError
from torchtriage.diagnose.compare.sentences import promise_saved


def test_a_straggler_that_is_gone_is_the_jobs_saving(tmp_path: Path) -> None:
    write(job(late={2: 4000}), tmp_path / "before")
    write(job(), tmp_path / "after")
    result = tt.compare(tmp_path / "before", tmp_path / "after")
    total = result.total
    assert total is not None
    assert total.told
    assert total.delta_ns == pytest.approx(-4_000_000, rel=0.01)
    assert sum(cause.change.delta_ns for cause in result.causes) == total.delta_ns
    assert [item.rank for item in result.ranks] == [0, 1, 2, 3]
    assert {item.change.delta_ns for item in result.ranks} == {-4_000_000}
    # three ranks waited, and one was late: means over the four
    waited = next(cause for cause in result.causes if cause.time_class == "comm_only")
    assert waited.change.delta_ns == pytest.approx(-3_000_000, rel=0.01)
    assert result.promise is not None
    assert result.promise.codes[0] == "COM036"
    assert promise_saved(result.promise) == "4.00 ms of the step saved (kept)"


def test_a_late_rank_and_another_finding_that_are_gone_are_held_against_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(job(), tmp_path / "after")
    begin_step = jobs._until_all_reduce

    def load_first(builder: TraceBuilder, begin: float, extra: float, how: str) -> float:
        builder.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin + 1, 1499)
        return begin_step(builder, begin + 1500, extra, how)

    monkeypatch.setattr(jobs, "_until_all_reduce", load_first)
    write(job(late={2: 4000}), tmp_path / "before")
    promise = tt.compare(tmp_path / "before", tmp_path / "after").promise
    assert promise is not None
    assert promise.codes == ("COM036", "DAT018")
    assert promise.holds_within_noise
    assert promise.measured_ms == promise.step_ms == pytest.approx(5.5, rel=0.01)


def test_a_rank_that_is_missing_on_one_side_is_a_reason(tmp_path: Path) -> None:
    write(job(), tmp_path / "before")
    write(job()[:3], tmp_path / "after")
    result = tt.compare(tmp_path / "before", tmp_path / "after")
    assert not result.comparable
    assert result.reasons[0].message == "other ranks were recorded: 0, 1, 2, 3 before, 0, 1, 2 after"


def test_a_late_rank_is_not_gone_where_nobodys_waiting_could_be_told(tmp_path: Path) -> None:
    write(job(late={2: 4000}), tmp_path / "before")
    # other ranks' messages have other sizes: none match
    odd = job(late={2: 4000})
    for rank, builder in enumerate(odd):
        for event in builder.events:
            if "In msg nelems" in event.get("args", {}):
                event["args"]["In msg nelems"] = 4096 + rank
    write(odd, tmp_path / "after")
    result = tt.compare(tmp_path / "before", tmp_path / "after")
    assert ("COM036", "unchecked") in {(item.code, item.status) for item in result.findings}
    assert result.promise is None


def test_ranks_are_averaged_over_the_steps_that_are_steady_on_all_of_them(tmp_path: Path) -> None:
    ranks = job(late=[{}] * 5 + [{2: 4000}])
    ranks[1].events = [event for event in ranks[1].events if event["name"] != "ProfilerStep#15"]
    write(ranks, tmp_path / "job")
    result = tt.compare(tmp_path / "job", tmp_path / "job")
    assert result.before.n_steps == 4
    # the last step, 4 ms longer, is in three of the recordings only
    assert result.before.mean_ns == pytest.approx(6_865_000, rel=0.001)
    assert {item.change.before_ns for item in result.ranks} == {6_869_750, 6_871_000}


def test_jobs_without_a_step_that_is_steady_on_every_rank_are_refused(tmp_path: Path) -> None:
    write(job(2), tmp_path / "after")
    odd = job(2)
    for event in odd[1].events:
        if event["name"].startswith("ProfilerStep#") and event["name"] != "ProfilerStep#10":
            event["name"] = event["name"].replace("#1", "#2")
    write(odd, tmp_path / "before")
    result = tt.compare(tmp_path / "before", tmp_path / "after")
    assert [reason.code for reason in result.reasons] == ["steps"]
    assert result.reasons[0].message.startswith("no step of the run before is steady on every rank")


def test_work_of_one_rank_counts_as_its_share(tmp_path: Path) -> None:
    ranks = job()
    for event in ranks[0].events:
        if event["name"] == "forward":
            event["name"] = "fused"
    write(ranks, tmp_path / "before")
    write(job(), tmp_path / "after")
    parts = [part for cause in tt.compare(tmp_path / "before", tmp_path / "after").causes for part in cause.parts]
    counts = {part.name: (part.n_before, part.n_after, part.before_ns) for part in parts}
    assert counts["fused"] == (0.25, 0.0, 500_000)


def test_what_any_rank_lacks_limits_the_comparison(tmp_path: Path) -> None:
    ranks = job()
    (*_, last) = (event for event in ranks[1].events if "nccl" in event["name"])
    ranks[1].events.remove(last)
    write(ranks, tmp_path / "before")
    write(job(), tmp_path / "after")
    limits = {note.code: note.message for note in tt.compare(tmp_path / "before", tmp_path / "after").limits}
    assert limits["collectives-unmatched"].startswith("before: process group 0: different numbers of collectives")
    assert limits["sizes-unknown"].startswith("on each of 4 ranks: no input shapes")


@pytest.mark.parametrize(
    ("factors", "where", "bar"),
    [({2: 1.2}, "on rank 2", 1.07), ({0: 1.11, 2: 1.2}, "on 2 of 4 ranks (0, 2), as rank 2", 1.09)],
)
def test_a_machine_in_another_state_is_named_by_its_rank_and_raises_the_bar_by_its_part(
    tmp_path: Path, factors: dict[int, float], where: str, bar: float
) -> None:
    write(job(), tmp_path / "before")
    ranks = job()
    for rank, factor in factors.items():
        for event in ranks[rank].events:
            if event.get("cat") == "kernel" and "nccl" not in event["name"]:
                event["dur"] *= factor
    write(ranks, tmp_path / "after")
    (note,) = (
        note for note in tt.compare(tmp_path / "before", tmp_path / "after").limits if note.code == "machine-state"
    )
    assert note.message.startswith(f"{where}: kernels that did the same work took 1.20 times as long after")
    assert note.message.endswith(f"so device times count as changed only beyond {bar} times")


def test_a_late_rank_in_place_of_another_is_a_new_finding(tmp_path: Path) -> None:
    write(job(late={2: 4000}), tmp_path / "before")
    write(job(late={1: 4000}), tmp_path / "after")
    result = tt.compare(tmp_path / "before", tmp_path / "after")
    late = [(item.status, item.title) for item in result.findings if item.code == "COM036"]
    assert late == [("went", "Rank 2 makes the others wait"), ("came", "Rank 1 makes the others wait")]


def test_a_folder_is_not_compared_with_a_file_nor_one_that_holds_no_job(tmp_path: Path) -> None:
    paths = write(job(2), tmp_path / "job")
    with pytest.raises(UsageError, match="expected two folders"):
        tt.compare(tmp_path / "job", paths[0])
    write(job(2)[:1], tmp_path / "one")
    with pytest.raises(UsageError, match="expected the ranks of one job"):
        tt.compare(tmp_path / "one", tmp_path / "one")


def all_ranks(kernel_us: int) -> NsysFile:
    """Two processes, each with a GPU of its own, in one recording."""
    file = NsysFile()
    for pid, device in ((PROCESS, 0), (OTHER_PROCESS, 1)):
        for step in range(6):
            start = 1_000_000 * step
            file.range("step", start, start + 990_000, pid=pid)
            file.range("aten::mm, op_id = 1", start + 1000, start + 10_000, pid=pid)
            launch = start + 2000, start + 3000
            file.kernel("k", start + 20_000, start + 20_000 + 1000 * kernel_us, pid=pid, device=device, launch=launch)
    return file


def test_files_that_hold_all_ranks_are_compared_as_jobs(tmp_path: Path) -> None:
    before = all_ranks(900).write(tmp_path / "before.sqlite")
    after = all_ranks(600).write(tmp_path / "after.sqlite")
    result = tt.compare(before, after)
    assert result.comparable
    assert [item.rank for item in result.ranks] == [0, 1]
    kernel = next(cause for cause in result.causes if cause.time_class == "compute")
    assert kernel.change.delta_ns == pytest.approx(-300_000, rel=0.02)
    alone = NsysFile().range("a", 0, 9000).kernel("k", 10_000, 20_000).write(tmp_path / "alone.sqlite")
    with pytest.raises(UsageError, match="one of each"):
        tt.compare(before, alone)


@pytest.mark.data
def test_a_sleep_cut_to_a_fiftieth_is_saved_on_every_rank() -> None:
    jobs = DATA / "gpu2" / "jobs"
    sides = (jobs / f"pytorch__torchrec__sst_long_a2a_optimizer_2__run{run}" for run in (955364, 955629))
    result = tt.compare(*sides)
    assert result.total is not None
    for change in (result.total, *(item.change for item in result.ranks)):
        assert change.told
        assert change.delta_ns == pytest.approx(-978_000_000, rel=0.005)


@pytest.mark.data
def test_what_stayed_has_the_saving_that_the_report_promised() -> None:
    job = DATA / "traces" / "distributed" / "dlrm_v100_8ranks"
    (report,) = tt.analyze_ranks(job).jobs
    promised = {finding.code: finding.cost.low_ms for finding in report.findings if finding.cost is not None}
    stayed = {item.code: item.before.low_ms for item in tt.compare(job, job).findings if item.before is not None}
    assert {"LCH014", "DAT018"} <= stayed.keys()
    assert stayed.items() <= promised.items()
