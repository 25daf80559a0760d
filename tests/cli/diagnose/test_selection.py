"""``--steps``, ``--window``, ``--annotation``, ``--rank`` and ``--device``: what the reports say of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder
from click.testing import Result

import torchtriage as tt
from torchtriage.cli.diagnose import analyze

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("options", "label", "over"),
    [
        (("--steps", "4-5"), "steps 4-5", "2 selected steps of 1.00 ms, steps 4-5"),
        (("--window", "500us-1500us"), "window 500us-1500us, as one step", "1 selected step of 1.00 ms, window"),
        (("--device", "0"), "device 0", "3 steady steps of 1.00 ms, device 0"),
    ],
)
def test_every_form_says_what_was_selected(run: Run, options: tuple[str, ...], label: str, over: str) -> None:
    assert over in " ".join(run("analyze", "slow.json", *options).stdout.split())
    assert over in run("analyze", "slow.json", "--markdown", *options).stdout
    document = json.loads(run("analyze", "slow.json", "--json", *options).stdout)
    (result,) = document["results"]
    assert result["trace"]["selection"] == label
    assert over in result["verdict"][0]
    run("analyze", "slow.json", "--html", "page.html", "-o", "out.txt", *options)
    assert label in Path("page.html").read_text(encoding="utf-8")


def test_selected_steps_are_not_called_steady(run: Run) -> None:
    text = " ".join(run("analyze", "slow.json", "-v", "--steps", "4-5").stdout.split())
    assert "in 2 selected steps" in text
    assert "2 selected steps of 4, selected: steps 4-5" in text
    assert "2 steady" not in text


def test_a_job_without_steps_is_one_window(run: Run, folder: Path) -> None:
    (folder / "plain").mkdir()
    for rank in range(2):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2})
        for i in range(20):
            at = 1000.0 * i
            builder.op("aten::copy_", at + 10, 500)
            builder.copy(at + 12, 400, at + 20, 700, size=1 << 20)
        (folder / "plain" / f"rank{rank}.json").write_bytes(builder.json())
    verdict = json.loads(run("analyze", "plain", "--json").stdout)["jobs"][0]["verdict"]
    assert verdict[0].startswith("2 ranks of one job, one window of 19")
    assert "per step" not in verdict[1]


def test_steps_are_judged_alone(run: Run) -> None:
    document = json.loads(run("analyze", "slow.json", "--json", "--steps", "5").stdout)
    (finding,) = [one for one in document["results"][0]["findings"] if one["code"] == "SYN001"]
    assert finding["place"]["steps"] == [2]
    assert finding["n_events"] == 4


def test_nothing_is_said_without_a_selection(run: Run) -> None:
    assert "selected" not in run("analyze", "slow.json").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "9"), "expected steps 9, found steps 3-6"),
        (("--window", "9s-10s"), "the recording lasts 4"),
        (("--annotation", "forward"), "expected annotation 'forward'"),
        (("--rank", "1"), "found recordings that name no rank"),
        (("--device", "1"), "expected work on device 1, found work on 0"),
        (("--steps", "x"), "expected steps such as 3 or 3-5"),
        (("--steps", "3", "--annotation", "a"), "expected one of steps, window and annotation"),
    ],
)
def test_what_is_not_there_is_refused(run: Run, options: tuple[str, ...], message: str) -> None:
    for command in (("analyze", "slow.json"), ("compare", "slow.json", "fine.json")):
        done = run(*command, *options)
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_compare_says_what_was_compared(run: Run) -> None:
    done = run("compare", "slow.json", "slow.json", "--steps", "4-5")
    assert "2 selected steps of 1.00 ms, selected: steps 4-5" in " ".join(done.stdout.split())
    document = json.loads(run("compare", "slow.json", "slow.json", "--steps", "4-5", "--json").stdout)
    assert document["before"]["selection"] == document["after"]["selection"] == "steps 4-5"


def job(folder: Path, n: int = 2) -> Path:
    folder.mkdir()
    for rank in range(n):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": n}, baseTimeNanoseconds=0)
        for i in range(5):
            at = 1000.0 * i
            builder.step(i, at, 1000).op("aten::mm", at + 10, 50).op("c10d::allreduce_", at + 500, 20)
            builder.launch(at + 12, 4, at + 20, 300 + 100 * rank, "gemm")
            message: Any = {
                "Collective name": "allreduce",
                "In msg nelems": 64,
                "dtype": "Float",
                "Process Group Name": "0",
                "Seq": i,
                "Group size": n,
            }
            builder.launch(at + 505, 4, at + 520, 300, "ncclDevKernel_AllReduce_Sum", **message)
        (folder / f"rank{rank}.json").write_bytes(builder.json())
    return folder


def test_a_job_is_judged_in_the_selected_steps(run: Run, folder: Path) -> None:
    job(folder / "job")
    text = " ".join(run("analyze", "job", "--steps", "2-3").stdout.split())
    assert "selected steps 2-3" in text
    document = json.loads(run("analyze", "job", "--steps", "2-3", "--json").stdout)
    assert {result["trace"]["selection"] for result in document["results"]} == {"steps 2-3"}
    assert [rank["n_steps"] for rank in document["jobs"][0]["ranks"]] == [2, 2]


def test_one_rank_of_a_job(run: Run, folder: Path) -> None:
    job(folder / "job")
    document = json.loads(run("analyze", "job", "--rank", "1", "--json").stdout)
    assert document["jobs"] == []
    assert [result["trace"]["rank"] for result in document["results"]] == [1]
    done = run("analyze", "job", "--rank", "7")
    assert (done.exit_code, "expected rank 7, found ranks 0, 1" in done.stderr) == (2, True)
    document = json.loads(run("compare", "job", "job", "--rank", "1", "--steps", "1-4", "--json").stdout)
    assert document["before"]["path"].endswith("rank1.json")


def devices(folder: Path) -> Path:
    """Write ranks that have a device each, as a folder and as one file."""
    (folder / "own").mkdir()
    whole = TraceBuilder()
    for rank in range(2):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2})
        for i in range(3):
            for one, extra in ((builder, {}), (whole, {"rank": rank})):
                at, key = 1000.0 * i, 10 * rank + i + 1
                process = 100 + rank
                one.event(f"ProfilerStep#{i}", "user_annotation", at, 1000, pid=process, **extra)
                one.event("aten::mm", "cpu_op", at + 10, 50, pid=process, **extra)
                one.event("cudaLaunchKernel", "cuda_runtime", at + 12, 4, pid=process, correlation=key, **extra)
                one.kernel(f"gemm{rank}", at + 20, 800, correlation=key, device=rank, **extra)
        (folder / "own" / f"rank{rank}.json").write_bytes(builder.json())
    (folder / "merged.json").write_bytes(whole.json())
    return folder


def test_ranks_without_the_device_are_left_out(run: Run, folder: Path) -> None:
    devices(folder)
    for source in ("own", "merged.json"):
        document = json.loads(run("analyze", source, "--device", "1", "--json").stdout)
        assert len(document["results"]) == 1
        exported = run("export", source, "--device", "1", "--csv", "out.csv")
        assert exported.exit_code == 0, exported.stderr
        rows = Path("out.csv").read_text().splitlines()[1:]
        assert [row.split(",")[4] for row in rows] == ["gemm1"] * 3
        for words in (("analyze", source), ("export", source, "--csv", "out.csv")):
            done = run(*words, "--device", "2")
            assert (done.exit_code, "expected work on device 2, found work on" in done.stderr) == (2, True)


def test_a_file_that_is_no_trace_does_not_hide_a_rank(run: Run, folder: Path) -> None:
    (job(folder / "job") / "other.json").write_text("hello")
    assert run("analyze", "job", "--rank", "1").exit_code == 0


def test_of_several_traces_each_is_judged_in_its_part(run: Run) -> None:
    document = json.loads(run("analyze", "slow.json", "fine.json", "--steps", "4-5", "--json").stdout)
    assert [result["trace"]["selection"] for result in document["results"]] == ["steps 4-5"] * 2


def test_a_run_has_no_parts(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyze, "_run_folder", lambda paths: folder)
    done = run("analyze", ".", "--steps", "4-5")
    assert (done.exit_code, "no part of a run's recordings can be selected" in done.stderr) == (2, True)


def test_in_python(run: Run, folder: Path) -> None:
    report = tt.analyze("slow.json", selection=tt.Selection(steps="4-5"))
    assert report.trace.selection == "steps 4-5"
    trace = tt.load("slow.json")
    assert tt.analyze(trace, selection=tt.Selection(steps="4")).summary.n_steady_steps == 1
    assert tt.analyze(trace).trace.selection == ""
