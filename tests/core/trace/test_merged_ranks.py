"""Ranks merged into one file: separated by the rank that every event names."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import job, merged
from tests.conftest import DATA

import torchtriage as tt
from torchtriage.core.selection import Selection
from torchtriage.core.trace.merged_ranks import find_merged_ranks, split_ranks
from torchtriage.core.trace.select import select

SHARED = DATA / "gpu2" / "traces"


def test_each_rank_gets_its_rows_their_links_and_their_arguments() -> None:
    ranks = job(3)
    whole = merged(ranks).build()
    parts = split_ranks(whole)
    assert [part.origin.rank for part in parts] == [0, 1, 2]
    assert {part.origin.world_size for part in parts} == {3}
    for number, (part, builder) in enumerate(zip(parts, ranks, strict=True)):
        alone = builder.build()
        assert (part.start_ns == alone.start_ns).all()
        assert (part.links.call == alone.links.call).all()
        assert len(part.steps) == len(alone.steps)
        last = len(part) - 1
        assert part.args(last)["rank"] == number


def test_rows_of_tables_are_those_of_the_whole_file() -> None:
    whole = merged(job(3)).build()
    for part in split_ranks(whole):
        for name in ("kernels", "ops", "collectives"):
            table = part.table(name)
            assert len(table)
            rows = table["row"].tolist()
            assert [whole.name_of(row) for row in rows] == table["name"].tolist()
            assert {whole.args(row)["rank"] for row in rows} == {part.origin.rank}
        ops = part.table("ops")
        assert (~ops["parent"].mask).any()
        assert (ops["parent"].compressed() == whole.tree.parent[ops["row"][~ops["parent"].mask]]).all()


def test_a_window_is_the_same_time_on_every_rank() -> None:
    ranks = job(3)
    ranks[0].op("early", 0, 5)
    chosen = [select(part, Selection(window="5ms-8ms")) for part in split_ranks(merged(ranks).build())]
    assert len({(trace.window.start_ns, trace.window.end_ns) for trace in chosen}) == 1


def test_a_part_of_a_job_is_known_as_one() -> None:
    parts = split_ranks(merged(job(4)[:2]).build())
    assert {part.origin.world_size for part in parts} == {4}


def test_files_of_one_rank_are_left_alone() -> None:
    for builder in (job(2)[1], merged(job(2)[:1])):
        trace = builder.build()
        assert find_merged_ranks(trace) is None
        assert split_ranks(trace) == (trace,)


def test_several_processes_that_name_no_rank_are_no_ranks() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 10)
    builder.event("aten::mm", "cpu_op", 5, 10, pid=200)
    assert find_merged_ranks(builder.build()) is None


def test_ranks_that_share_a_device_number_are_not_split() -> None:
    trace = merged(job(3), devices=[0, 0, 1]).build()
    ranks = find_merged_ranks(trace)
    assert ranks is not None
    assert ranks.shared == ("0",)
    assert split_ranks(trace) == (trace,)
    result = tt.analyze(trace)
    assert result.refused
    assert "share device 0" in result.verdict[0]


def test_the_whole_is_refused_with_what_to_do() -> None:
    result = tt.analyze(merged(job(3)).build())
    assert result.refused
    assert result.holds_ranks
    assert result.verdict[0] == "No verdict: 3 ranks are in one file, which is judged as a job, not as a process."
    assert result.verdict[1] == "Judge the ranks together: torchtriage analyze FILE."


@pytest.mark.data
def test_the_late_rank_of_a_merged_recording() -> None:
    (file,) = SHARED.glob("*merged_all_events.json.gz")
    report = tt.analyze_ranks(file)
    (found,) = report.jobs
    assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3]
    waits = np.array([rank.wait_ns for rank in found.ranks])
    assert (waits[:3] > 10e6).all()
    assert waits[3] < 0.5e6
    (late,) = (finding for finding in found.findings if finding.code == "COM036")
    assert late.evidence["late_rank"] == 3
