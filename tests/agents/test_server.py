"""The tools as an agent sees them: all answers of one schema, below the roots, with the numbers of --json."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_types", reason="the MCP SDK is not installed: pip install 'torchtriage[mcp]'")

import anyio
from agents.asking import Agent, numbers
from agents.made_traces import HOSTILE, UNSEEN, syncing
from builder import TraceBuilder
from click.testing import CliRunner
from diagnose.ranks.jobs import job, write

from torchtriage.agents import desk, records
from torchtriage.agents.server import READERS, RUNNERS, SKILL, server
from torchtriage.api import traces
from torchtriage.cli.main import cli
from torchtriage.core.errors import MissingExtraError, UsageError

SLOW = (
    "import torch\n\nmodel = torch.nn.Linear(3, 3).cuda()\nfor batch in loader:\n    print(model(batch).sum().item())\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a root with traces, a job, sources, and things that are none; beside it a secret."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "slow.json").write_bytes(syncing().json())
    (root / "other.json").write_bytes(syncing(n_steps=6).json())
    (root / "broken.json").write_text("hello")
    (root / "slow.py").write_text(SLOW)
    write(job(4, late={2: 4000}), root / "late")
    shutil.copy(traces.sample_path(), root / "sample.json.gz")
    (tmp_path / "secret.json").write_bytes(syncing().json())
    (tmp_path / "secret.py").write_text(SLOW)
    (root / "link.json").symlink_to(tmp_path / "secret.json")
    (root / "out").symlink_to(tmp_path)
    return root


def printed(*words: str | Path) -> Any:
    """Return what a command prints with --json."""
    result = CliRunner().invoke(cli, [*map(str, words), "--json"])
    assert result.exception is None, result.output
    return json.loads(result.stdout)


# -- what is offered ---------------------------------------------------------------------------


def offered(agent: Agent, mode: str = "auto") -> dict[str, Any]:
    tools = agent.use(lambda client: client.list_tools(), mode).tools
    return {tool.name: tool for tool in tools}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_programs_are_run_only_where_it_was_allowed(folder: Path, mode: str) -> None:
    readers = ["doctor", "analyze", "tables", "explain", "compare", "what_if", "lint"]
    assert list(offered(Agent(folder), mode)) == readers
    tools = offered(Agent(folder, allow_run=True), mode)
    assert list(tools) == [*readers, "run", "verify", "fix"]
    assert [name for name, tool in tools.items() if tool.annotations.read_only_hint] == readers
    assert "expected a tool out of doctor" in Agent(folder).error("run", script="slow.py")["untrusted"]["message"]
    assert len(READERS) + len(RUNNERS) == len(tools)


def test_every_tool_and_argument_says_what_it_is(folder: Path) -> None:
    for tool in offered(Agent(folder, allow_run=True)).values():
        assert len(tool.description) > 40
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert set(tool.input_schema["required"]) <= set(tool.input_schema["properties"])
        assert "next" not in tool.input_schema["required"]


def test_the_skill_is_about_these_tools() -> None:
    result = CliRunner().invoke(cli, ["mcp", "--skill"])
    text = SKILL.read_text(encoding="utf-8")
    assert result.stdout == text
    head, _, body = text.removeprefix("---\n").partition("\n---\n")
    assert [line.partition(":")[0] for line in head.splitlines()] == ["name", "description"]
    for kind in (*READERS, *RUNNERS):
        name = "what_if" if kind.__name__ == "WhatIf" else kind.__name__.lower()
        assert f"`{name}`" in body
    for word in ("not checked", "untrusted", "When to stop", "next", "low_ms"):
        assert word in body


def test_an_interpreter_and_a_root_must_be_there(tmp_path: Path) -> None:
    for words, problem in (
        (["--python", str(tmp_path / "python")], "expected a Python interpreter"),
        (["--root", str(tmp_path / "none")], "expected a folder as root"),
        (["--max-bytes", "10"], "not in the range"),
    ):
        result = CliRunner().invoke(cli, ["mcp", *words])
        assert result.exit_code == 2
        assert problem in result.stderr


def test_without_the_sdk_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(folder)
    for name in ("mcp_types", "anyio"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(MissingExtraError, match=r"torchtriage\[mcp\]"):
                server(agent.desk)
            result = CliRunner().invoke(cli, ["mcp", "--root", str(folder)])
            assert result.exit_code == 2
            assert "pip install 'torchtriage[mcp]'" in result.stderr


# -- the numbers of the command line -----------------------------------------------------------


@pytest.mark.parametrize("name", ["slow.json", "sample.json.gz", "late"])
def test_numbers_are_those_of_the_command_line(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    document = printed("analyze", name)
    known = numbers(json.dumps(document))
    agent = Agent(folder)
    for tool in ("doctor", "analyze", "tables"):
        records = agent.ask(tool, path=name)
        assert not numbers(records) - known, tool
    (subject,) = document["jobs"] or document["results"]
    found = [record for record in agent.ask("analyze", path=name) if record["kind"] == "finding"]
    assert [record["code"] for record in found] == [finding["code"] for finding in subject["findings"]]
    for record, finding in zip(found, subject["findings"], strict=True):
        cost = finding["cost"] or {}
        assert record["cost"] == ({key: cost[key] for key in record["cost"]} if cost else None)
        full = agent.ask("explain", what=record["id"], path=name)
        assert full[0]["cost"] == finding["cost"]
        pieces = [piece["untrusted"] for piece in full if piece["kind"] == "evidence"]
        evidence = {piece["name"]: piece["value"] for piece in pieces}
        shown = {key: value for key, value in evidence.items() if key != "example"}
        if len(json.dumps(finding["evidence"])) < 2000:
            assert shown == finding["evidence"]


def test_the_step_time_of_a_run_is_that_without_the_profiler(folder: Path) -> None:
    document = printed("analyze", folder / "slow.json")
    (result,) = document["results"]
    verdict, *_ = records.analysis(document)
    assert verdict["step_ms"] == result["summary"]["step_ms"]
    assert "recorded_step_ms" not in verdict
    result["recorded"] = {"step_ms": 1.5}
    verdict, *_ = records.analysis(document)
    assert (verdict["step_ms"], verdict["recorded_step_ms"]) == (1.5, result["summary"]["step_ms"])


def test_tables_by_kernel_are_those_of_the_command_line(folder: Path) -> None:
    document = printed("analyze", folder / "slow.json", "--by", "kernel")
    records = Agent(folder).ask("tables", path="slow.json", by="kernel", table="device_time")
    rows = [record["untrusted"] for record in records if record["kind"] == "row"]
    (result,) = document["results"]
    assert rows == [row for table in result["device_time"] for row in table["rows"]]
    assert [record["id"] for record in records if record["kind"] == "table"] == [
        "device_time/category",
        "device_time/kernel",
    ]


def test_answers_of_what_if_are_those_of_the_command_line(folder: Path) -> None:
    questions = ["gpu*0.5", "no-sync"]
    document = printed("analyze", folder / "slow.json", "--what-if", questions[0], "--what-if", questions[1])
    records = Agent(folder).ask("what_if", path="slow.json", questions=questions)
    (result,) = document["results"]
    assert numbers(records) == numbers(result["what_ifs"])
    assert [record["untrusted"]["question"] for record in records] == questions


def test_a_comparison_has_the_numbers_of_the_command_line(folder: Path) -> None:
    document = printed("compare", folder / "slow.json", folder / "other.json")
    records = Agent(folder).ask("compare", before="slow.json", after="other.json")
    assert records[0]["kind"] == "comparison"
    assert records[0]["total"] == document["total"]
    assert not numbers(records) - numbers(document)
    kinds = Counter(record["kind"] for record in records)
    assert kinds["cause"] == len(document["causes"])
    assert kinds["finding"] == len(document["findings"])


def test_lint_has_the_findings_of_the_command_line(folder: Path) -> None:
    document = printed("lint", folder / "slow.py")
    head, *records = Agent(folder).ask("lint", paths=["slow.py"])
    assert head["findings"] == len(document["findings"]) > 0
    assert not numbers(records) - numbers(document)
    found = [record for record in records if record["kind"] == "finding"]
    assert [record["id"] for record in found] == [
        f"F{n}-{finding['code']}" for n, finding in enumerate(document["findings"], 1)
    ]


def test_names_in_lint_are_those_below_the_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sub").mkdir()
    made = "from torch.utils.data import DataLoader\nloader = DataLoader(files, num_workers=4)\n"
    slow = SLOW.replace("\n\n", f"\n{made}", 1).replace("model(batch)", "model(batch.to('cuda'))")
    (folder / "sub" / "slow.py").write_text(slow)
    (folder / "sub" / "odd.py").write_text("import torch\nx = (\n")
    monkeypatch.chdir(folder / "sub")
    text = json.dumps(Agent(folder).ask("lint", paths=["sub"]))
    assert '"file": "sub/slow.py"' in text
    assert '"file": "sub/odd.py"' in text
    assert "a/sub/slow.py" in text
    assert str(folder) not in text


# -- ids and pages -----------------------------------------------------------------------------


def test_every_finding_is_reached_once_on_the_smallest_pages(folder: Path) -> None:
    wide = Agent(folder).ask("analyze", path=".")
    narrow = Agent(folder, max_bytes=1024).ask("analyze", path=".")
    ids = [record["id"] for record in wide]
    assert ids == [record["id"] for record in narrow]
    assert len(ids) == len(set(ids))
    assert {identity.partition(".")[0] for identity in ids} == {"J1", "T1", "T2", "T3", "X1", "X2", "X3"}
    assert [record["kind"] for record in narrow if record["kind"] == "unreadable"] == ["unreadable"] * 3


def test_a_cursor_belongs_to_its_request(folder: Path) -> None:
    agent = Agent(folder, max_bytes=1024)
    first, failed = agent.use(lambda client: agent.call(client, "tables", path="slow.json"))
    assert not failed
    cursor = json.loads(first)["next"]
    again = agent.error("tables", path="other.json", next=cursor)
    assert "another request" in again["untrusted"]["message"]
    assert "cursor" in agent.error("tables", path="slow.json", next="a7:1")["untrusted"]["message"]


def test_a_finding_and_a_piece_of_its_evidence_are_explained(folder: Path) -> None:
    agent = Agent(folder)
    (finding, *_) = [record for record in agent.ask("analyze", path="slow.json") if record["kind"] == "finding"]
    assert finding["id"] == "F1-SYN001"
    records = agent.ask("explain", what="F1-SYN001", path="slow.json")
    assert [record["id"] for record in records if record["kind"] == "evidence"] == finding["evidence"]
    assert {"page", "section", "fix"} <= {record["kind"] for record in records}
    (piece,) = agent.ask("explain", what=finding["evidence"][1], path="slow.json")
    assert piece in records
    assert (
        "its findings are F1-SYN001" in agent.error("explain", what="F9-SYN001", path="slow.json")["untrusted"]["try"]
    )
    assert "expected a path" in agent.error("explain", what="F1-SYN001")["untrusted"]["message"]


@pytest.mark.parametrize("code", ["SYN001", "host-sync-scalar", "CFG101"])
def test_a_code_is_explained_without_any_input(folder: Path, code: str) -> None:
    records = Agent(folder).ask("explain", what=code)
    assert records[0]["kind"] == "page"
    assert any(record["kind"] == "section" and record["title"] == "Leave it when" for record in records)


def test_what_is_not_checked_is_named_with_how_to_record(folder: Path) -> None:
    (result,) = printed("analyze", folder / "slow.json")["results"]
    records = [record for record in Agent(folder).ask("doctor", path="slow.json") if record["kind"] == "not checked"]
    assert sorted(code for record in records for code in record["codes"]) == sorted(
        item["code"] for item in result["not_checked"]
    )
    assert all(record["how_to_record"] for record in records)


def test_an_empty_table_says_that_there_is_nothing(folder: Path) -> None:
    (record,) = Agent(folder).ask("tables", path="slow.json", table="serving")
    assert record["kind"] == "no table"
    assert (
        "expected a table out of" in Agent(folder).error("tables", path="slow.json", table="x")["untrusted"]["message"]
    )


# -- below the roots ---------------------------------------------------------------------------


OUTSIDE = (
    "../secret.json",
    "late/../../secret.json",
    "link.json",
    "out/secret.json",
    "out",
    "..",
    "/",
    "/etc/passwd",
    "~",
    "-",
    "",
    "a\0b",
    "*.json",
    "missing.json",
    "x" * 5000,
)
URLS = ("s3://bucket/trace.json", "https://example.com/t.json", "file:///etc/passwd", "memory://x", "gs:x", "s3:/b/t")


@pytest.mark.parametrize("path", [*OUTSIDE, *URLS])
def test_nothing_outside_the_roots_is_read(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("analyze", "analyze_ranks", "compare", "find_traces"):
        monkeypatch.setattr(traces, name, lambda *_args, **_options: pytest.fail("read it"))
    monkeypatch.setattr("torchtriage.diagnose.lint.lint", lambda *_args, **_options: pytest.fail("read it"))
    agent = Agent(folder, allow_run=True)

    async def main(client: Any) -> list[tuple[str, bool]]:
        return [
            await agent.call(client, "doctor", path=path),
            await agent.call(client, "analyze", path=path),
            await agent.call(client, "tables", path=path),
            await agent.call(client, "explain", what="F1-SYN001", path=path or "x"),
            await agent.call(client, "what_if", path=path, questions=["gpu*0.5"]),
            await agent.call(client, "compare", before=path, after="slow.json"),
            await agent.call(client, "compare", before="slow.json", after=path),
            await agent.call(client, "lint", paths=["slow.py", path]),
            await agent.call(client, "run", script=path),
            await agent.call(client, "fix", script=path),
            await agent.call(client, "verify", before="slow.py", after=path),
        ]

    expected = "found a URL" if path in URLS else "below a root, found none"
    for text, failed in agent.use(main):
        assert failed
        assert expected in json.loads(text)["untrusted"]["message"]


def test_paths_are_followed_before_they_are_judged(folder: Path, tmp_path: Path) -> None:
    roots = desk.Roots([folder])
    slow = (folder / "slow.json").resolve()
    (folder / "inside.json").symlink_to(slow)
    for path in ("slow.json", "./late/../slow.json", "inside.json", str(folder / "slow.json"), "../root/slow.json"):
        assert roots.find(path) == slow
    assert roots.find(".") == folder.resolve()
    assert desk.Roots(["/"]).shown("/a/b") == "/a/b"
    os.mkfifo(folder / "pipe.json")
    with pytest.raises(UsageError, match="found none"):
        roots.find("pipe.json")
    both = desk.Roots([folder / "late", tmp_path])
    assert both.find("secret.json") == (tmp_path / "secret.json").resolve()
    with pytest.raises(UsageError, match="expected a folder as root"):
        desk.Roots([folder / "slow.json"])


def test_a_folder_does_not_lead_outside(folder: Path, tmp_path: Path) -> None:
    (folder / "sources").mkdir()
    (folder / "sources" / "train.py").write_text(SLOW)
    (folder / "sources" / "link.py").symlink_to(tmp_path / "secret.py")
    (folder / "sources" / "root").symlink_to(folder)
    (folder / "sources" / ".venv").mkdir()
    for hidden in (".venv/lib.py", ".secret.py"):
        (folder / "sources" / hidden).symlink_to(tmp_path / "secret.py")
    head, *others = Agent(folder).ask("lint", paths=["sources"])
    assert head["n_files"] == 1
    told = [record["untrusted"]["message"] for record in others if "outside" in json.dumps(record)]
    assert told == ["link.py: not read, a link to a place outside"]
    for tool in ("analyze", "doctor"):
        records = Agent(folder).ask(tool, path=".")
        told = [record["untrusted"]["message"] for record in records if "link.json" in json.dumps(record)]
        assert told == ["link.json: not read, a link to a place outside"]


def test_a_recording_opens_no_source_outside(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtriage.core.source import files

    opened: list[str] = []
    read = files.read
    monkeypatch.setattr(files, "read", lambda path: opened.append(str(path)) or read(path))
    for place in (tmp_path / "secret.py", folder / "slow.py"):
        builder = TraceBuilder()
        for index in range(4):
            at = index * 1000.0
            builder.step(index + 3, at, 1000).frame(f"{place}(4): <module>", at + 5, 990)
            for read_at in (100, 400):
                builder.op("aten::item", at + read_at, 80).op("aten::_local_scalar_dense", at + read_at + 1, 78)
                builder.launch(at + read_at - 50, 5, at + read_at - 40, 60, "gemm")
                builder.copy(at + read_at + 2, 70, at + read_at + 60, 2, kind="DtoH (Device -> Pageable)")
        (folder / "framed.json").write_bytes(builder.json())
        Agent(folder).ask("analyze", path="framed.json")
        assert opened == ([str(place)] if place.is_relative_to(folder) else [])


# -- text that is not ours ---------------------------------------------------------------------


def test_hostile_names_arrive_escaped_bounded_and_marked(folder: Path) -> None:
    (folder / "hostile.json").write_bytes(syncing(HOSTILE, n_steps=4).json())
    agent = Agent(folder)

    async def main(client: Any) -> list[str]:
        asked = [
            ("doctor", {}),
            ("analyze", {}),
            ("tables", {"by": "kernel"}),
            ("tables", {"by": "operator"}),
            ("tables", {"by": "annotation"}),
            ("explain", {"what": "F1-SYN001"}),
        ]
        return [text for tool, more in asked for text in await agent.pages(client, tool, path="hostile.json", **more)]

    texts = agent.use(main)
    assert any("IGNORE ALL PREVIOUS" in text for text in texts)
    for text in texts:
        assert not set(text) & set(UNSEEN)
        assert text.isprintable()
        for record in json.loads(text)["records"]:
            own = json.dumps({name: value for name, value in record.items() if name != "untrusted"})
            for word in ("IGNORE", "owned", "bidi", "obey", "longlong", "üü", "surrogate"):
                assert word not in own, record["kind"]


@pytest.mark.parametrize("name", [name for name in HOSTILE if len(name) < 100 and not set("\0/\ud800") & set(name)])
def test_hostile_file_names_arrive_escaped(folder: Path, name: str) -> None:
    (folder / f"{name}.json").write_bytes(syncing().json())
    (folder / f"{name}.py").write_text(SLOW)
    broken = folder / f"{name}.json.gz"
    broken.write_bytes(gzip.compress(b"{"))
    agent = Agent(folder)

    async def main(client: Any) -> list[str]:
        texts = await agent.pages(client, "analyze", path=f"{name}.json")
        texts += await agent.pages(client, "lint", paths=[f"{name}.py"])
        text, failed = await agent.call(client, "doctor", path=broken.name)
        assert failed
        return [*texts, text]

    for text in agent.use(main):
        assert not set(text) & set(UNSEEN)
        assert text.isprintable()
        assert json.loads(text)["schema"]


# -- errors, progress, cancellation ------------------------------------------------------------


def test_errors_are_answers(folder: Path) -> None:
    agent = Agent(folder, allow_run=True)
    broken = agent.error("analyze", path="broken.json")
    assert broken["error"] == "TraceFormatError"
    assert broken["untrusted"]["where"] == "broken.json"
    assert "expected" in broken["untrusted"]["message"]
    for arguments, problem in (
        ({}, "missing required field `path`"),
        ({"path": 5}, "Expected `str`, got `int` - at `$.path`"),
        ({"path": "slow.json", "only": []}, "unknown field `only`"),
    ):
        assert problem in agent.error("analyze", **arguments)["untrusted"]["message"]
    assert "Invalid enum value" in agent.error("tables", path="slow.json", by="x")["untrusted"]["message"]
    assert "no pattern is called" in agent.error("explain", what="XYZ999")["untrusted"]["message"]
    assert "targets are" in agent.error("what_if", path="slow.json", questions=["x*2"])["untrusted"]["try"]
    assert "expected a Python script" in agent.error("run", script="slow.json")["untrusted"]["message"]
    assert "expected one of the last" in agent.error("doctor", path="run:3")["untrusted"]["message"]


def test_a_defect_is_an_answer_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("boom\x1b[2J")

    monkeypatch.setattr(traces, "analyze", fail)
    document = Agent(folder).error("doctor", path="slow.json")
    assert document["untrusted"]["message"] == "a bug in torchtriage: RuntimeError: boom\\x1b[2J"


def test_progress_grows_and_names_what_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "_EVERY_S", 0.0)
    agent = Agent(folder)
    agent.ask("analyze", path="late")
    assert [message for *_, message in agent.told if "4 of 4" in str(message)]
    done = [told[0] for told in agent.told]
    assert done == sorted(set(done))
    assert all(total == 4 for _, total, _ in agent.told)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_analysis_ends_in_its_thread(folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def endless(_file: Any, *, progress: Any, **_options: Any) -> None:
        import time

        number = 0
        try:
            while True:
                time.sleep(0.01)
                progress(number := number + 1, 100)
        except Exception as error:
            ended.append(type(error).__name__)
            raise

    monkeypatch.setattr(traces, "analyze", endless)
    agent = Agent(folder)

    async def main(client: Any) -> None:
        with anyio.move_on_after(0.5) as scope:
            await agent.call(client, "doctor", path="slow.json")
        assert scope.cancelled_caught
        with anyio.fail_after(5):
            while not ended:
                await anyio.sleep(0.02)

    agent.use(main, mode)
    assert ended == ["_CancelledError"]


def test_an_analysis_is_made_once_and_again_when_the_file_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    analyze = traces.analyze
    monkeypatch.setattr(traces, "analyze", lambda file, **options: calls.append(str(file)) or analyze(file, **options))
    agent = Agent(folder)
    agent.ask("doctor", path="slow.json")
    agent.ask("analyze", path="./slow.json")
    agent.ask("explain", what="F1-SYN001", path=str(folder / "slow.json"))
    assert len(calls) == 1
    (folder / "slow.json").write_bytes(syncing(n_steps=7).json())
    agent.ask("doctor", path="slow.json")
    assert len(calls) == 2
