"""The ranks of public jobs among the shared recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import DATA

import torchtriage as tt
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.match import match
from torchtriage.diagnose.ranks.rank_record import build_record
from torchtriage.diagnose.verdict.verdict import diagnose

pytestmark = pytest.mark.data

TRACES = DATA / "traces"
DLRM = TRACES / "distributed" / "dlrm_v100_8ranks"


@pytest.fixture(scope="module")
def report() -> tt.RanksReport:
    return tt.analyze_ranks(TRACES / "distributed", what_if=["comm=0"])


def test_eight_ranks_are_one_job_and_a_stranger_stays_apart(report: tt.RanksReport) -> None:
    assert len(report.results) == 9
    (job,) = report.jobs
    assert [rank.rank for rank in job.ranks] == list(range(8))
    assert "world size (8)" in job.basis
    # rank 0 of 16 of another program is in the folder as well
    assert not any("torchrec" in rank.path for rank in job.ranks)


def test_true_matches_end_within_ten_microseconds() -> None:
    ranks = []
    for path in sorted(DLRM.glob("*.json.gz")):
        trace = tt.load(path)
        ranks.append(build_record(trace, str(path), diagnose(trace)))
    matches = match(ranks, range(8))
    (one,) = matches.groups
    assert one.fault == ""
    assert len(one) == 8
    assert one.n_unmatched == 0
    assert not matches.offset_ns.any()
    assert int(one.end_skew_ns.max()) <= 10_000
    assert np.unique(one.step).tolist() == [10]
    assert one.name.count("all_to_all") == 5
    assert len(detect_jobs(ranks)) == 1


def test_one_step_promises_no_straggler_and_says_why(report: tt.RanksReport) -> None:
    (job,) = report.jobs
    assert "COM036" not in {finding.code for finding in job.findings}
    assert "first-collective" in {note.code for note in job.notes if note.level == "warn"}
    # who was last, read off the kernels' starts by hand: rank 7 at the second collective
    second = next(collective for collective in job.collectives if collective.nelems == 24)
    assert (second.name, second.late_rank) == ("all_to_all", 7)
    assert second.max_wait_ns == 1_101_000


def test_a_perfect_network_gives_back_next_to_nothing(report: tt.RanksReport) -> None:
    (job,) = report.jobs
    (one,) = job.what_ifs
    assert one.saving_ms is not None
    assert one.naive_ms is not None
    # what rank by rank looks like 11 ms of communication is waiting
    assert one.naive_ms > 11
    assert one.saving_ms < 0.2


def test_two_programs_with_a_rank_each_are_no_job() -> None:
    files = [
        TRACES / "cv" / "convnet_a100_ddp_rank0_of_2.json.gz",
        Path(DLRM) / "worker1_step_12.1694128201556.pt.trace.json.gz",
        TRACES / "llm" / "b200_eager.json.gz",
    ]
    assert tt.analyze_ranks(files).jobs == ()


@pytest.mark.parametrize(
    ("run", "inside", "excess_ms"),
    [
        ("sst_sleep_pl_dense_after_backward_2__run954910", "# running sparse arch", 1001),
        ("sst_long_a2a_optimizer_2__run955364", "# running sparse arch", 1001),
        ("sst_long_a2a_optimizer_2__run955629", "# running sparse arch", 20.2),
        ("sst_long_a2a_optimizer_4__run957662", "# running sparse arch", 20.2),
        ("sst_long_a2a_optimizer_5_qcomm__run958942", "_AlltoAllSingle", 20.2),
    ],
)
def test_a_sleep_of_one_rank_is_named_with_its_place(run: str, inside: str, excess_ms: float) -> None:
    (job,) = tt.analyze_ranks(DATA / "gpu2" / "jobs" / f"pytorch__torchrec__{run}").jobs
    (late,) = [finding for finding in job.findings if finding.code == "COM036"]
    assert late.evidence["late_rank"] == 2
    assert late.place.ops[-1] == inside
    assert late.evidence["cause_kind"] == "stall"
    assert late.evidence["excess_ms_per_step"] == pytest.approx(excess_ms, rel=0.02)
    assert late.evidence["n_more_ops_per_step"] == 0
    assert "only this rank does" in late.fix.text


def test_bandwidth_of_eight_ranks_is_that_of_the_last_kernels() -> None:
    # read off the raw rows: the shortest of each eight kernels takes 617 us in the mean, of 80 all-reduces of 64 MiB
    (job,) = tt.analyze_ranks(DATA / "gpu2" / "jobs" / "astra-sim__astra-sim__megatron-tp8").jobs
    large, small = job.collectives
    assert (large.size_bytes, large.n_per_step, small.size_bytes, small.n_per_step) == (64 << 20, 80.0, 32 << 10, 3.0)
    assert large.bus_gbps == pytest.approx((64 << 20) * 1.75 / 617e3, rel=0.01)
    assert large.n_missing == small.n_missing == 0


@pytest.mark.parametrize(
    ("job", "role", "overlapped_ns", "exposed_ns", "waiting_ns"),
    [
        # unions of the raw rows in the steps, labelled before the account was written
        ("astra-sim__astra-sim__megatron-tp8", "TP", 0, 417_511_375, 340_661_750),
        ("pytorch__torchrec__resnet18__run107929", "unknown", 0, 1_316_500, 1_190_000),
        ("pytorch__torchrec__sst_long_a2a_optimizer_2__run955629", "unknown", 39_890_375, 38_200_125, 23_117_375),
        ("pytorch__torchrec__sst_long_a2a_optimizer_4__run957662", "unknown", 31_434_875, 30_532_000, 7_409_250),
    ],
)
def test_groups_of_public_jobs_are_those_of_the_rows(
    job: str, role: str, overlapped_ns: int, exposed_ns: int, waiting_ns: int
) -> None:
    (one,) = tt.analyze_ranks(DATA / "gpu2" / "jobs" / job).jobs
    (group,) = one.process_groups
    assert (group.role, group.overlapped_ns, group.exposed_ns) == (role, overlapped_ns, exposed_ns)
    assert group.waiting_ns == pytest.approx(waiting_ns, rel=1e-3)
    assert group.waiting_ns + group.transfer_ns + group.unsplit_ns == group.exposed_ns


def test_a_link_without_host_names_is_told_by_its_bandwidth() -> None:
    (one,) = tt.analyze_ranks(DATA / "gpu2" / "jobs" / "astra-sim__astra-sim__megatron-tp8").jobs
    (group,) = one.process_groups
    assert (group.link, group.link_gbps) == ("NVLink", 300)
    assert group.of_link == pytest.approx(0.632, abs=0.001)


@pytest.mark.parametrize(
    ("trace", "role"),
    [
        ("gpu2/traces/deepseek-ai__profile-data__train.json.gz", "EP"),
        ("traces/cv/convnet_a100_ddp_rank0_of_2.json.gz", "DP"),
        ("traces/llm/b200_eager.json.gz", "TP"),
    ],
)
def test_one_rank_shows_what_its_groups_are_for(trace: str, role: str) -> None:
    assert tt.analyze(DATA / trace).process_groups[0].role == role
