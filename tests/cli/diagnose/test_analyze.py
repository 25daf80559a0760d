"""``torchtriage analyze``: what is printed where, what is written, and the exit code."""

from __future__ import annotations

import errno
import gzip
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builder import TraceBuilder, syncing, untraced
from click.testing import Result
from diagnose.ranks.jobs import job, write

from torchtriage.cli.diagnose import analyze
from torchtriage.core.units import DEFAULT_MAX_BYTES
from torchtriage.diagnose.verdict.options import DEFAULTS
from torchtriage.report import json_report

Run = Callable[..., Result]


# -- verdicts and exit codes -------------------------------------------------------------------


def test_findings_alone_are_no_failure(run: Run) -> None:
    result = run("analyze", "slow.json", code=0)
    assert "SYN001" in result.stdout
    assert result.stderr == ""


def test_the_folder_of_a_run_is_judged_as_the_run(run: Run, folder: Path) -> None:
    recordings = folder / "recorded" / "process1"
    recordings.mkdir(parents=True)
    (recordings / "light.json.gz").write_bytes(gzip.compress((folder / "slow.json").read_bytes()))
    (recordings / "recording.json").write_text('{"before": {"step_ns": [2000000]}, "steps_seen": 40}')
    (folder / "recorded/process-1.json").write_text(
        '{"pid": 1, "folder": "process1", "loop": {"how": "one step of SGD", "file": "train.py", "line": 7}}'
    )
    result = run("analyze", "recorded", code=0)
    head = " ".join(result.stdout.partition("recorded/")[0].split())
    assert " of 3 steady steps as recorded (" in head  # no other step time beside the one that costs are of
    assert head.endswith("; 2.00 ms per step without the profiler.")
    full = run("analyze", "recorded", "-v", code=0).stdout
    assert "40 steps seen" in full
    assert "hint and the grades mean: docs/definitions.md" in full
    assert result.stderr == ""  # its other files are no traces that were left out
    for option in ("--timing", "--perfetto=out.json", "--capture=slow.json", "--compile-log=log"):
        assert "needs exactly one trace file" in run("analyze", "recorded", option, code=2).stderr


def test_lines_of_a_run_are_quoted_from_where_its_script_was(run: Run, folder: Path) -> None:
    script = folder / "project" / "train.py"
    script.parent.mkdir()
    script.write_text("import torch\n\n\ndef step(x):\n    return x.sum().item()\n")
    trace = syncing(TraceBuilder(), n_steps=4)
    for step in range(4):
        trace.frame("train.py(4): step", step * 1000 + 1, 995)
    (folder / "recorded/process1").mkdir(parents=True)
    (folder / "recorded/process1/light.json.gz").write_bytes(gzip.compress(trace.json()))
    (folder / "recorded/process-1.json").write_text(
        json.dumps({"pid": 1, "folder": "process1", "roots": [str(script.parent)]})
    )
    assert "return x.sum().item()" in run("analyze", "recorded", code=0).stdout


def test_traces_with_the_names_of_a_run_are_traces(run: Run, folder: Path) -> None:
    (folder / "ranks").mkdir()
    for rank in range(2):
        (folder / f"ranks/process-{rank}.json").write_bytes((folder / "slow.json").read_bytes())
    assert "SYN001" in run("analyze", "ranks", code=0).stdout
    (folder / "ranks/process-2.json").write_text('{"pid": "x", "folder": 3}')
    assert "left out" in run("analyze", "ranks", code=2).stderr


def test_a_step_that_the_profiler_does_not_explain_is_said(run: Run) -> None:
    result = run("analyze", "slow.json", "--step-ms", "0.001", code=0)
    assert "--step-ms 0.001 is not reached" in result.stderr
    assert "Savings are scaled to a step of " in result.stdout
    assert "is not reached" not in run("analyze", "slow.json", code=0).stderr
    # nothing had to be taken off
    longer = run("analyze", "slow.json", "--step-ms", "9", code=0).stderr
    assert "--step-ms 9 is not reached: the recorded step is shorter" in longer


def test_a_window_is_no_step(run: Run, folder: Path) -> None:
    trace = TraceBuilder()
    for at in range(0, 400, 20):
        trace.op("aten::mm", at + 1, 9).launch(at + 2, 5, at + 9, 2)
    (folder / "window.json").write_bytes(trace.json())
    result = run("analyze", "window.json", "--step-ms", "0.001", code=0)
    for said in (result.stdout, result.stderr):
        assert "avings are scaled to a window of " in said


def test_a_job_and_a_refused_replay_say_that_the_step_is_not_reached(run: Run, folder: Path) -> None:
    (folder / "job").mkdir()
    write(job(2), folder / "job")
    told = run("analyze", "job", "--step-ms", "0.001", code=0).stderr
    assert told.startswith("torchtriage: job of 2 ranks: --step-ms 0.001 is not reached: nothing but")
    (folder / "blind.json").write_bytes(untraced().json())
    told = run("analyze", "blind.json", "--step-ms", "0.5", code=0).stderr
    assert told.startswith("torchtriage: blind.json: savings are not scaled to --step-ms 0.5: ")


def test_a_path_alone_means_analyze(run: Run) -> None:
    assert run("slow.json", code=0).stdout == run("analyze", "slow.json", code=0).stdout
    assert run("--json", "slow.json", code=0).stdout.startswith('{"schema"')
    assert run("./slow.json", "--top", "1", code=0).stdout


def test_a_name_without_a_dot_means_analyze_when_it_is_a_file(run: Run, folder: Path) -> None:
    (folder / "trace").write_bytes((folder / "slow.json").read_bytes())
    assert "SYN001" in run("trace", code=0).stdout
    assert "No such command 'nothing'" in run("nothing", code=2).stderr


def test_a_misspelt_command_is_not_taken_for_a_path(run: Run) -> None:
    assert "No such command 'analyse'" in run("analyse", "slow.json", code=2).stderr


def test_a_healthy_trace_says_so(run: Run) -> None:
    result = run("analyze", "fine.json", code=0)
    assert "Nothing found that saves 1.0 % of a step or more." in result.stdout


def test_a_refused_trace_is_unusable_input(run: Run) -> None:
    result = run("analyze", "refused.json", code=2)
    assert "No verdict: 10 launches and copies, but no GPU row" in result.stdout


def test_a_capture_is_for_one_trace_and_has_to_fit(run: Run) -> None:
    assert (
        "needs exactly one trace" in run("analyze", "slow.json", "fine.json", "--capture", "fine.json", code=2).stderr
    )
    assert "says nothing by category" in run("analyze", "slow.json", "--capture", "fine.json", code=2).stderr
    result = run("analyze", "slow.json", "--by", "module", "--capture", "fine.json", code=2)
    assert "expected a trace that replays graphs" in result.stderr


def test_a_compile_log_is_for_one_trace_and_has_to_hold_code(run: Run) -> None:
    result = run("analyze", "slow.json", "fine.json", "--compile-log", "log.log", code=2)
    assert "--compile-log needs exactly one trace file" in result.stderr
    result = run("analyze", "slow.json", "--compile-log", "fine.json", code=2)
    assert "fine.json: expected a log with Inductor's output code, found none" in result.stderr


def test_an_empty_path_and_a_second_table_are_refused(run: Run) -> None:
    assert "found an empty one" in run("analyze", "fine.json", "--capture", "", code=2).stderr
    twice = run("analyze", "fine.json", "--by", "kernel", "--by", "line", code=2)
    assert "expected one of kernel and line" in twice.stderr


def test_an_unreadable_trace_is_one_clear_message(run: Run) -> None:
    result = run("analyze", "broken.json", code=2)
    assert result.stdout == ""
    first, hint = result.stderr.splitlines()
    assert first.startswith("torchtriage: broken.json: expected a profiler trace")
    assert first.endswith("found text that is no JSON")
    assert hint.startswith("  try: ")


@pytest.mark.parametrize(("level", "code"), [("never", 0), ("note", 1), ("low", 1), ("medium", 1), ("high", 1)])
def test_fail_on(run: Run, level: str, code: int) -> None:
    assert "HIGH" in run("analyze", "slow.json", "--fail-on", level, code=code).stdout
    run("analyze", "fine.json", "--fail-on", level, code=0)


def test_fail_on_is_about_severity(run: Run) -> None:
    # at a tenth of the step and more a finding is high; a hundredth of it is not
    run("analyze", "slow.json", "--fail-on", "high", "--only", "MSR034", code=0)


def test_fail_on_of_another_level_is_refused(run: Run) -> None:
    assert "'fatal' is not one of" in run("slow.json", "--fail-on", "fatal", code=2).stderr


# -- many files --------------------------------------------------------------------------------


def test_a_folder_stands_for_the_traces_in_it(run: Run, folder: Path) -> None:
    ranks = folder / "ranks" / "deep"
    ranks.mkdir(parents=True)
    for name in ("rank0.json", "rank1.json.gz"):
        data = (folder / "slow.json").read_bytes()
        (ranks / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (ranks / "notes.txt").write_text("not a trace")
    result = run("analyze", "ranks", "--json", code=0)
    paths = [one.trace.path for one in json_report.decode(result.stdout_bytes)]
    assert [Path(path).name for path in paths] == ["rank0.json", "rank1.json.gz"]


def test_links_out_of_a_folder_are_not_followed(run: Run, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "ranks" / "deep").mkdir(parents=True)
    (folder / "ranks" / "deep" / "rank0.json").write_bytes((folder / "slow.json").read_bytes())
    (folder / "ranks" / "same.json").symlink_to(folder / "ranks" / "deep" / "rank0.json")
    (folder / "ranks" / "out.json").symlink_to(folder / "fine.json")
    (folder / "ranks" / "loop.json").symlink_to(folder / "ranks" / "loop.json")
    result = run("analyze", "ranks", "--json", code=0)
    paths = [Path(item["trace"]["path"]).name for item in json.loads(result.stdout)["results"]]
    assert paths == ["rank0.json", "same.json"]
    assert "left out 1 link to files outside" in caplog.text
    (folder / "only").mkdir()
    (folder / "only" / "secret.json").symlink_to("/etc/passwd")
    assert "pass the files that its links lead to" in run("analyze", "only", code=2).stderr


def test_one_bad_file_hides_nothing_and_is_still_a_failure(run: Run) -> None:
    result = run("analyze", "slow.json", "broken.json", "fine.json", code=2)
    assert "SYN001" in result.stdout
    assert "fine.json" in result.stdout
    assert result.stderr.startswith("torchtriage: left out: broken.json: expected")


def test_findings_at_fail_on_come_before_unusable_files(run: Run) -> None:
    run("analyze", "slow.json", "broken.json", "--fail-on", "high", code=1)


def test_nothing_but_bad_files(run: Run, folder: Path) -> None:
    (folder / "bad.json").write_text("[]")
    result = run("analyze", "broken.json", "bad.json", code=2)
    assert result.stderr.count("left out") == 2
    assert "none of the 2 files is a readable trace" in result.stderr


def test_the_same_file_twice_is_one(run: Run) -> None:
    result = run("analyze", "slow.json", "slow.json", "--json", code=0)
    assert len(json.loads(result.stdout)["results"]) == 1


def test_standard_input(run: Run, folder: Path) -> None:
    data = (folder / "slow.json").read_bytes()
    for stdin in (data, gzip.compress(data)):
        result = run("analyze", "-", "--json", code=0, stdin=stdin)
        (one,) = json_report.decode(result.stdout_bytes)
        assert (one.trace.path, one.findings[0].code) == ("<stdin>", "SYN001")
    assert "empty" in run("analyze", "-", code=2, stdin=b"").stderr


# -- forms -------------------------------------------------------------------------------------


def test_json_is_the_versioned_document(run: Run) -> None:
    document = json.loads(run("slow.json", "--json", code=0).stdout)
    assert document["schema"] == "torchtriage/1"
    assert document["results"][0]["findings"][0]["code"] == "SYN001"


def test_json_holds_all_findings_whatever_top_says(run: Run) -> None:
    assert run("slow.json", "--json").stdout == run("slow.json", "--json", "--top", "1").stdout


def test_markdown_and_sarif(run: Run) -> None:
    assert "| " in run("slow.json", "--markdown", code=0).stdout
    assert json.loads(run("slow.json", "--sarif", code=0).stdout)["version"] == "2.1.0"


@pytest.mark.parametrize("form", ["--json", "--markdown", "--sarif", None])
def test_output_goes_to_a_file_instead(run: Run, folder: Path, form: str | None) -> None:
    forms = [form] if form else []
    printed = run("slow.json", *forms, code=0).stdout
    result = run("slow.json", *forms, "-o", "out.txt", code=0)
    assert result.stdout == ""
    assert result.stderr == "wrote out.txt\n"
    assert (folder / "out.txt").read_text(encoding="utf-8").strip() == printed.strip()


def test_the_same_bytes_give_the_same_output(run: Run) -> None:
    assert run("slow.json", "--json").stdout == run("slow.json", "--json").stdout


def test_page_and_overlay_come_beside_the_report(run: Run, folder: Path) -> None:
    result = run("slow.json", "--html", "page.html", "--perfetto", "seen.json.gz", code=0)
    assert "SYN001" in result.stdout
    assert result.stderr == ("wrote page.html\nwrote seen.json.gz: open it at https://ui.perfetto.dev\n")
    assert (folder / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    events = json.loads(gzip.decompress((folder / "seen.json.gz").read_bytes()))["traceEvents"]
    assert events[-1]["name"].startswith("SYN001")


def test_perfetto_needs_one_file_or_one_job(run: Run) -> None:
    for paths, said in (
        (["slow.json", "fine.json"], "expected the ranks of one job for one Perfetto file, found 0 jobs"),
        (["-"], "--perfetto needs exactly one trace file, or those of a job's ranks"),
    ):
        result = run("analyze", *paths, "--perfetto", "seen.json", code=2, stdin=b"x")
        assert result.stderr == f"torchtriage: {said}\n"


@pytest.mark.parametrize("option", ["-o", "--html", "--perfetto"])
def test_the_input_is_never_overwritten(run: Run, folder: Path, option: str) -> None:
    before = (folder / "slow.json").read_bytes()
    (folder / "link.json").symlink_to("slow.json")
    for name in ("slow.json", "./slow.json", "link.json"):
        assert "found the input itself" in run("slow.json", option, name, code=2).stderr
        assert (folder / "slow.json").read_bytes() == before


def test_outputs_are_checked_before_anything_is_read(run: Run, folder: Path) -> None:
    (folder / "out").mkdir()
    for names, message in (
        (["-o", "missing/out.json"], "the folder does not exist"),
        (["--html", "out"], "expected a file to write to, found a folder"),
        (["--html", "same", "-o", "./same"], "two outputs have the same name"),
        (["-o", "x" * 5000], "cannot be written"),
    ):
        assert message in run("slow.json", *names, code=2).stderr
        assert not (folder / "same").exists()


def test_an_output_without_permission_is_one_line(run: Run, folder: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs a file that nobody can write")
    result = run("slow.json", "-o", "/proc/self/status", code=2)
    assert result.stderr.startswith("torchtriage: /proc/self/status: cannot be written")


# -- which findings ----------------------------------------------------------------------------


def test_only_and_skip(run: Run) -> None:
    assert "SYN001" not in run("slow.json", "--skip", "SYN001", code=0).stdout.split("checked")[0]
    only = json.loads(run("slow.json", "--only", "syn001", "--only", "LCH014", "--json").stdout)
    assert only["results"][0]["checked"] == ["LCH014", "SYN001"]
    by_name = json.loads(run("slow.json", "--only", "host-sync-scalar", "--json").stdout)
    assert by_name["results"][0]["checked"] == ["SYN001"]


@pytest.mark.parametrize("option", ["--only", "--skip"])
def test_an_unknown_code_is_refused_before_reading(run: Run, option: str) -> None:
    result = run("missing.json", option, "SYN01", code=2)
    assert result.stderr.startswith("torchtriage: no pattern is called 'SYN01'\n  try: did you mean")


def test_min_share(run: Run) -> None:
    assert "SYN001" in run("slow.json", "--min-share", "0.05", code=0).stdout
    assert "Nothing found that saves 99 %" in run("slow.json", "--min-share", "0.99").stdout
    assert "0<=x<=1" in run("slow.json", "--min-share", "5", code=2).stderr


def test_top_shows_the_costliest_and_says_how_many_are_left(run: Run) -> None:
    every = run("slow.json", "--min-share", "0", code=0).stdout
    assert run("slow.json", "--top", "1", "--min-share", "0", code=0).stdout.count("saves") == 1
    assert every.count("saves") >= 1
    assert "x>=1" in run("slow.json", "--top", "0", code=2).stderr


# -- limits ------------------------------------------------------------------------------------


def test_max_bytes_refuses_what_expands_beyond_it(run: Run, folder: Path) -> None:
    (folder / "bomb.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 5_000_000))
    result = run("bomb.json.gz", "--max-bytes", "1M", code=2)
    assert "at most 1.00 MiB" in result.stderr
    run("slow.json", "--max-bytes", "1 MiB", code=0)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("500M", 500 << 20), ("1.5k", 1536), ("64G", 64 << 30), ("2 TiB", 2 << 40), ("7kb", 7168)],
)
def test_sizes(run: Run, text: str, size: int) -> None:
    context = analyze.command.make_context("analyze", ["slow.json", "--max-bytes", text])
    assert context.params["max_bytes"] == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1Q", "1e9", "G"])
def test_odd_sizes_are_refused(run: Run, text: str) -> None:
    assert "expected a size such as 500M or 4G" in run("slow.json", f"--max-bytes={text}", code=2).stderr


def test_defaults_are_those_of_the_library() -> None:
    params = analyze.command.make_context("analyze", ["x"]).params
    assert params["min_share"] == DEFAULTS.min_share
    assert params["max_bytes"] == DEFAULT_MAX_BYTES


def test_cache_gives_the_same_result_the_second_time(run: Run, folder: Path) -> None:
    first = run("slow.json", "--cache", "--json", code=0).stdout
    assert (folder / "slow.json.torchtriage-cache").is_file()
    assert run("slow.json", "--cache", "--json", code=0).stdout == first
    assert run("slow.json", "--json", code=0).stdout == first
    # another trace under the same name is read again
    (folder / "slow.json").write_bytes((folder / "fine.json").read_bytes())
    changed = json.loads(run("slow.json", "--cache", "--json", code=0).stdout)
    assert changed["results"][0]["findings"] == []


# -- paths that are no trace -------------------------------------------------------------------


@pytest.fixture
def unusable(folder: Path) -> Iterator[list[str]]:
    """Yield paths that cannot be traces, of every kind a file system has."""
    (folder / "empty").mkdir()
    (folder / "empty.json").write_bytes(b"")
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "dangling.json").symlink_to("nowhere.json")
    os.mkfifo(folder / "pipe.json")
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket.json")  # a long path does not fit an address
    yield [
        "missing.json",
        "empty",
        "empty.json",
        "loop.json",
        "dangling.json",
        "pipe.json",
        "socket.json",
        "missing/below/trace.json",
        "slow.json/below",
        "/dev/null",
        "x" * 5000,
        "nul\0.json",
        "\x1b[31mred.json",
        "\udcff.json",
    ]
    server.close()


@pytest.mark.parametrize("command", ["analyze", "doctor", "show"])
def test_a_path_that_is_no_trace_is_one_message_and_exit_code_2(run: Run, unusable: list[str], command: str) -> None:
    for path in unusable:
        result = run(command, path, code=2)
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert lines[0].startswith("torchtriage: "), path
        assert len(lines) <= 2, path
        assert all(line.startswith("  try: ") for line in lines[1:])
        # a name cannot send escape codes to the terminal
        assert "\x1b" not in result.stderr


def test_a_file_without_read_permission(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(file: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    path = folder / "secret.json"
    path.write_text("{}")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything: let the system say no
        monkeypatch.setattr("io.open", denied)
    assert "Permission denied" in run("analyze", "secret.json", code=2).stderr


# -- where the time goes -----------------------------------------------------------------------


def test_timing_names_every_part_on_stderr_and_in_json(run: Run) -> None:
    result = run("analyze", "slow.json", "--timing", "--json", code=0)
    document = json.loads(result.stdout)
    names = {part["name"] for part in document["timing"]}
    assert {"read", "doctor", "replay", "device time", "summary", "SYN001 host-sync-scalar"} <= names
    assert sum(part["share"] for part in document["timing"]) == pytest.approx(1, abs=1e-3)
    first, *lines = result.stderr.splitlines()
    assert first.endswith("s in all, of which")
    assert names | {"rendering"} == {line.split(maxsplit=4)[-1].removeprefix("% ") for line in lines}
    assert json_report.read(result.stdout.encode()).timing


def test_without_timing_the_document_says_nothing_of_it(run: Run) -> None:
    assert "timing" not in json.loads(run("analyze", "slow.json", "--json", code=0).stdout)


def test_timing_is_of_one_file(run: Run) -> None:
    assert (
        "--timing needs exactly one trace file" in run("analyze", "slow.json", "fine.json", "--timing", code=2).stderr
    )
