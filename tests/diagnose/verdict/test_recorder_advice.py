"""What the doctor says of exports of Nsight Systems, and how it says to record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from builder import TraceBuilder
from tests.core.trace.formats.nsys_files import OTHER_PROCESS, PROCESS, NsysFile, thread_id

from torchtriage import analyze_ranks
from torchtriage.core.finding import Note
from torchtriage.core.trace import read_trace
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose


def loop(*, operators: bool = False) -> NsysFile:
    file = NsysFile()
    for at in range(0, 10_000_000, 1_000_000):
        if operators:
            file.range("aten::mm, op_id = 1", at, at + 9000)
        file.kernel("k", at + 20_000, at + 900_000, launch=(at + 2000, at + 3000))
    return file


def judged(file: NsysFile, folder: Path) -> Result:
    return diagnose(read_trace(file.write(folder / "report.sqlite")))


def note(result: Result, code: str) -> Note:
    return next(note for note in result.notes if note.code == code)


def test_operators_and_shapes_come_from_emit_nvtx(tmp_path: Path) -> None:
    result = judged(loop(), tmp_path)
    assert "emit_nvtx()" in note(result, "no-host-rows").fix
    waiting = {item.code: item for item in result.not_checked}
    assert "emit_nvtx()" in waiting["CMP030"].how_to_record
    assert "emit_nvtx(record_shapes=True)" in waiting["KRN056"].how_to_record
    advice = [item.how_to_record for item in result.not_checked] + [item.fix for item in result.notes]
    assert not pytorchs(advice)


PYTORCHS = re.compile(r"ProfilerActivity|activities=|prof(?:iler)?\.step|schedule\(|(?<!emit_nvtx\()record_shapes=")


def pytorchs(advice: Iterable[str]) -> list[str]:
    """Return the advice that only PyTorch's profiler takes."""
    return [text for text in advice if PYTORCHS.search(text)]


def test_a_job_is_advised_alike(tmp_path: Path) -> None:
    file = NsysFile()
    for pid, device in ((PROCESS, 0), (OTHER_PROCESS, 1)):
        for at in range(0, 10_000_000, 1_000_000):
            launch = at + 2000, at + 3000
            file.kernel("k", at + 20_000, at + 900_000, launch=launch, pid=pid, device=device)
    (job,) = analyze_ranks(file.write(tmp_path / "report.sqlite")).jobs
    assert {"no-collectives", "no-host-rows"} <= {item.code for item in job.notes}
    assert not pytorchs([item.how_to_record for item in job.not_checked] + [item.fix for item in job.notes])


def test_efficiency_that_is_not_checked_is_advised_alike(tmp_path: Path) -> None:
    file = loop()
    file.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100 80GB HBM3", smCount=132, computeMajor=9, computeMinor=0)
    file.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=PROCESS)
    for at in range(0, 10_000_000, 1_000_000):
        file.kernel("sm90_xmma_gemm_f32f32", at + 910_000, at + 990_000, launch=(at + 4000, at + 5000))
    trace = read_trace(file.write(tmp_path / "report.sqlite"))
    (category,) = diagnose(trace, Options(by="category")).device_time
    (kernel,) = diagnose(trace, Options(by="kernel")).device_time[1:]
    assert category.mfu is not None
    said = [category.mfu.unchecked, kernel.peak_unchecked]
    assert all("shapes" in text for text in said)
    assert not pytorchs(said)


def test_what_the_format_has_no_room_for(tmp_path: Path) -> None:
    file = loop(operators=True)
    for _ in range(3):
        file.add("OSRT_API", start=1, end=2, globalTid=thread_id(PROCESS), nameId=file.text("poll"))
    result = judged(file, tmp_path)
    said = note(result, "other-recorder")
    assert said.level == "info"
    assert said.message == (
        "recorded with Nsight Systems: no Python stacks and no allocator records in this format;"
        " in the file and not read: 3 calls of the operating system"
    )
    assert "not in this format" in note(result, "no-stacks").fix
    assert "emit_nvtx(record_shapes=True)" in note(result, "no-shapes").fix


def test_graphs_in_one_piece(tmp_path: Path) -> None:
    file = loop()
    assert not [item for item in judged(file, tmp_path).notes if item.code == "whole-graphs"]
    correlation = file.call("cudaGraphLaunch_v10000", 10_000_000, 10_001_000)
    place = file.place(10_010_000, 10_510_000, PROCESS, 0, 7, correlation)
    file.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **place, graphId=12)
    (tmp_path / "more").mkdir()
    said = note(judged(file, tmp_path / "more"), "whole-graphs")
    assert said.level == "warn"
    assert said.message.startswith("1 launch of CUDA graphs, each recorded in one piece (500 µs on the GPU)")
    assert "--cuda-graph-trace=node" in said.fix


def test_a_file_without_work_is_not_said_to_be_pytorchs(tmp_path: Path) -> None:
    result = judged(NsysFile().range("a", 0, 1000), tmp_path)
    assert result.refused
    assert "Nsight Systems" in note(result, "too-few-events").message


@pytest.mark.parametrize("name", ["Command Buffer Full", "Lazy Function Loading"])
def test_what_cuda_does_itself_is_no_cost_of_the_recording(name: str) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 900)
    builder.launch(5, 2, 40, 800)
    builder.op("aten::mm", 950, 50)
    builder.event(name, "overhead", 100, 500)
    assert "heavy-recording" not in {item.code for item in diagnose(builder.build()).notes}
    builder.event("Activity Buffer Request", "overhead", 100, 500)
    assert "heavy-recording" in {item.code for item in diagnose(builder.build()).notes}
