"""``run --compile-log``: the compiler's log is kept and read, and names what the trace shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compile.logs.log_builder import LogBuilder, break_text

from torchtriage.compile.logs.read import read_logs
from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.record.launch import BOOTSTRAP
from torchtriage.diagnose.runs.compile_events import read_compiled, watched_compile
from torchtriage.diagnose.runs.compile_findings import compile_findings
from torchtriage.diagnose.runs.result import CompileEvent, WatchedCompile
from torchtriage.diagnose.runs.run_folder import Recording, find_recordings
from torchtriage.diagnose.runs.source_view import SourceView

SCRIPT = """
import os, torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 8)
    def forward(self, x):
        y = torch.relu(self.a(x))
        if y.sum() > 1e9:  # the break
            y = y * 2
        return self.b(y)
net = Net()
compiled = torch.compile(net, backend="eager")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for place in range(300):
    loss = compiled(torch.randn(32 if place else 16, 64)).square().mean()
    loss.backward()
    if "RANK" in os.environ:
        dist.all_reduce(net.b.bias.grad)
    optimizer.step()
    optimizer.zero_grad()
if "RANK" in os.environ:
    dist.destroy_process_group()
"""
LINE = SCRIPT.count("\n", 0, SCRIPT.index("# the break")) + 1


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "torchtriage", "run", "-q", "--out", "out", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(BOOTSTRAP.parents[2]), **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )


def events(compiled: dict[str, Any]) -> list[tuple[str, str, int]]:
    rows = compiled["events"]
    return [(row["kind"], row["what"], (row["frame"] or {}).get("line")) for row in rows]


@pytest.mark.torch
def test_breaks_and_recompilations_are_named_beside_the_trace(tmp_path: Path) -> None:
    words = ("--compile-log", "--json", "-o", "r.json", "--html", "page.html", "train.py")
    run(tmp_path, *words, TORCH_TRACE=str(tmp_path / "mine"))
    (result,) = json.loads((tmp_path / "r.json").read_text())["results"]
    compiled = result["recorded"]["compiled"]
    assert events(compiled)[0] == ("graph break", "GB0170 Data-dependent branching", LINE)
    assert ("recompilation", "size 0 of x") in [event[:2] for event in events(compiled)]
    first = compiled["events"][0]
    assert 0 < first["host_ms"] < first["of_ms"]
    assert compiled["n_compiles"] == 4
    (finding,) = [one for one in result["findings"] if one["code"] == "CMP030"]
    assert finding["place"]["frame"]["line"] == LINE
    assert finding["fix"]["text"].startswith("Decide on the device")
    assert finding["evidence"]["compile_log"] == [f"GB0170 Data-dependent branching at train.py:{LINE}"]
    assert "What torch.compile did" in (tmp_path / "page.html").read_text()
    # the folder of the run is one that torchtriage compile reads, and the user's own log is whole
    (ours,), _ = read_logs([str(tmp_path / "out")])
    (mine,), _ = read_logs([str(tmp_path / "mine")])
    assert ours.torch == mine.torch != ""
    assert len(ours.compilations) == len(mine.compilations)
    assert ours.n_break_records == mine.n_break_records > 0


@pytest.mark.torch
def test_every_rank_has_a_log_and_the_job_names_its_breaks(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    run(tmp_path, "--compile-log", "--json", "-o", "r.json", *launcher, "train.py")
    report = json.loads((tmp_path / "r.json").read_text())
    logs, _ = read_logs([str(tmp_path / "out")])
    assert [log.named_rank for log in logs] == [0, 1]
    assert [one["recorded"]["compiled"]["n_compiles"] for one in report["results"]] == [4, 4]
    (job,) = report["jobs"]
    (finding,) = [one for one in job["findings"] if one["code"] == "CMP030"]
    assert finding["fix"]["text"].startswith("Decide on the device")
    assert "GB0170" in finding["message"]


@pytest.mark.torch
def test_no_log_is_kept_where_it_is_not_wanted(tmp_path: Path) -> None:
    run(tmp_path, "--no-compile-log", "--json", "-o", "r.json", "train.py")
    (result,) = json.loads((tmp_path / "r.json").read_text())["results"]
    assert result["recorded"]["compiled"] is None
    assert not (tmp_path / "out" / "compile").exists()


def recording(**facts: Any) -> Recording:
    return Recording({"pid": 7, **facts}, {}, None, None)


def test_where_nothing_was_compiled_nothing_is_said() -> None:
    assert watched_compile(recording(), None) is None
    assert watched_compile(recording(compile_log=False), None) is None
    told = watched_compile(recording(compile_log=True), None)
    assert told is not None
    assert (told.verdict, told.events, told.notes) == ((), (), ())
    told = watched_compile(recording(compile_log=True, compile_problem="OSError: full"), None)
    assert told is not None
    assert (told.verdict, told.notes) == ((), ("the compiler's log could not be stored: OSError: full",))


def test_the_log_confirms_a_break_that_only_the_source_shows() -> None:
    frame = Frame("train.py", 7, "forward")
    event = CompileEvent(
        "graph break", "GB0170", "forward", frame, 2, 0, False, "step", None, None, None, False, Fix("Decide.")
    )
    compiled = WatchedCompile((), 1, 5.0, (event,), "", "log", "", ())
    hint = Finding(
        code="CMP030",
        name="compile-graph-break",
        family="compile",
        title="",
        severity="low",
        certainty="hint",
        message="the branch looks at a value",
        place=Place(frame=frame),
        cost=None,
        evidence={"column": 4},
        fix=Fix("Look."),
    )
    (finding,) = compile_findings(compiled, (hint,), 0.0, SourceView(None))
    assert (finding.certainty, finding.fix.text) == ("certain", "Decide.")
    assert finding.evidence == {"column": 4, "compile_log": ["GB0170 at train.py:7"]}
    elsewhere = replace(hint, place=Place(frame=Frame("train.py", 8, "forward")))
    assert compile_findings(compiled, (elsewhere,), 0.0, SourceView(None)) == (elsewhere,)


def test_a_process_reads_its_own_log(tmp_path: Path) -> None:
    for pid in (7, 17):
        (tmp_path / f"process-{pid}.json").write_text(json.dumps({"pid": pid, "compile_log": True}))
    log = LogBuilder().compiled("0/0", "step", 5)
    log.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", 7))
    (tmp_path / "compile").mkdir()
    log.write(tmp_path / "compile" / "dedicated_log_torch_trace_rank_0_17.log")
    seven, seventeen = find_recordings(tmp_path)
    assert seven.compile_log is None
    assert read_compiled(seven, None) == (None, "")
    compiled, _ = read_compiled(seventeen, None)
    told = watched_compile(seventeen, compiled)
    assert told is not None
    (one,) = told.events
    assert (one.kind, one.what, one.count) == ("graph break", "GB0170 Data-dependent branching", 1)
    assert (one.host_ms, one.of_ms) == (None, None)
    (tmp_path / "compile" / "dedicated_log_torch_trace_rank_0_17.log").write_bytes(b"")
    told = watched_compile(seventeen, *read_compiled(seventeen, None))
    assert told is not None
    assert told.verdict == ()
    assert told.notes[0].startswith("the compiler's log could not be read: ")
