"""All shared recordings against each other: only what is alike is compared, and it adds up."""

from __future__ import annotations

from itertools import combinations_with_replacement
from pathlib import Path

import pytest

import torchtriage as tt
from torchtriage.diagnose.compare.attribute import attribute
from torchtriage.diagnose.compare.time_account import Account, account
from torchtriage.diagnose.compare.workload import Workload, limits, unlike, workload
from torchtriage.diagnose.verdict.doctor import examine

ALIKE = {
    # one script, four recordings
    *combinations_with_replacement(
        [f"cv/resnet50_v100_train_workers{n}" for n in ("0", "0_2021-01", "4", "4_2021-01")], 2
    ),
    ("cv/sam_amg_a100_compiled_2023-11-28", "cv/sam_amg_a100_eager_fp32_2023-11-28"),
    # copies of one recording
    ("odd/no_distributed_info", "odd/rank_missing_in_distributed_info"),
}


def evidence(path: Path) -> tuple[Workload, Account | None] | None:
    try:
        trace = tt.load(path)
    except tt.TriageError:
        return None
    notes = examine(trace)
    judged = not any(note.level == "refuse" for note in notes)
    return workload(trace, notes), account(trace) if judged else None


@pytest.mark.data
@pytest.mark.slow
def test_only_runs_of_one_workload_are_compared_and_they_add_up(recordings: Path) -> None:
    found = {}
    for path in sorted(recordings.rglob("*.json*")):
        read = evidence(path)
        if read is not None:
            found[str(path.relative_to(recordings)).removesuffix(".json.gz")] = read
    assert len(found) > 50
    compared = set()
    for one, other in combinations_with_replacement(found, 2):
        (work, run), (other_work, other_run) = found[one], found[other]
        reasons = unlike(work, other_work)
        assert {reason.code for reason in reasons} == {reason.code for reason in unlike(other_work, work)}
        if reasons:
            continue
        limits(work, other_work)
        assert run is not None
        assert other_run is not None
        result = attribute(run, other_run)
        assert sum(cause.change.delta_ns for cause in result.causes) == result.total.delta_ns
        assert sum(change.delta_ns for change in result.classes.values()) == result.total.delta_ns
        if one == other:
            assert result.total.delta_ns == 0
            assert not any(cause.change.told for cause in result.causes)
        # the eight ranks of one job do the same work
        elif not one.startswith("distributed/dlrm"):
            compared.add((one, other))
    assert compared <= ALIKE
    assert {pair for pair in ALIKE if pair[0] != pair[1]} <= compared
