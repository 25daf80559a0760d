from __future__ import annotations

from builder import TraceBuilder

from torchtriage.diagnose.verdict.verdict import diagnose


def test_one_rank_of_a_job_is_not_checked() -> None:
    builder = TraceBuilder(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8})
    builder.step(3, 0, 100).op("aten::mm", 10, 20).launch(12, 5, 20, 50)
    (missing,) = [item for item in diagnose(builder.build()).not_checked if item.code == "COM068"]
    assert "all ranks" in missing.missing[0]


def test_a_program_of_one_process_has_no_other_ranks_to_record() -> None:
    builder = TraceBuilder()
    builder.step(3, 0, 100).op("aten::mm", 10, 20).launch(12, 5, 20, 50)
    assert "COM068" in diagnose(builder.build()).checked
