"""The server as clients start it: a process on standard input and output, and the programs that it runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_types", reason="the MCP SDK is not installed: pip install 'torchtriage[mcp]'")

import anyio
from agents.asking import Agent, numbers
from agents.made_traces import HOSTILE, UNSEEN, syncing
from tests.waiting import alive, wait_for

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", deaf])
time.sleep(1)
with open("pids", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
print("started", flush=True)
time.sleep(60)
"""
SHOUTING = f"""
import sys
for text in {HOSTILE!r}:
    sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass") + b"\\n")
sys.exit(3)
"""
TRAINING = """
import time
import torch

torch.set_num_threads(1)  # threads that wait for each other on a busy machine would cost more than the sleep
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(0)
x = torch.randn(32, 64)
for step in range(120):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(SLEEP)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with a trace and programs, beside a folder for temporary files."""
    (tmp_path / "tmp").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "slow.json").write_bytes(syncing().json())
    (root / "stubborn.py").write_text(STUBBORN)
    (root / "-odd name.py").write_text("import sys\nprint(sys.argv)\n")
    (root / "shouting.py").write_text(SHOUTING)
    return root


def serving(root: Path, *words: str) -> Any:
    """Return how a client starts the server."""
    from mcp import StdioServerParameters

    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TMPDIR": str(root.parent / "tmp")}
    arguments = ["-m", "torchtriage", "mcp", "--root", str(root), *words]
    return StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=root.parent)


def use(root: Path, function: Callable[[Any], Awaitable[Any]], *words: str, mode: str = "auto") -> Any:
    """Return what a function returns that is given a client of a served process."""
    from mcp import Client, stdio_client

    async def main() -> Any:
        async with Client(stdio_client(serving(root, *words)), mode=mode) as client:
            return await function(client)

    return anyio.run(main)


def left(root: Path) -> list[int]:
    """Return which processes of the stubborn program are there."""
    pids = [int(word) for word in (root / "pids").read_text().split()]
    return [pid for pid in pids if alive(pid)]


async def begun(root: Path) -> None:
    with anyio.fail_after(60):
        while not (root / "pids").exists() or len((root / "pids").read_text().split()) < 2:
            await anyio.sleep(0.05)


def wait_until_gone(root: Path, limit_s: float = 10) -> None:
    """Wait until the program, its children and all temporary files are gone."""
    wait_for(lambda: not left(root) and not list((root.parent / "tmp").iterdir()), limit_s)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_every_tool_that_reads_answers_over_stdio(root: Path, mode: str) -> None:
    agent = Agent(root, max_bytes=2048)

    async def main(client: Any) -> list[list[str]]:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("doctor", {"path": "slow.json"}),
            ("analyze", {"path": "slow.json"}),
            ("tables", {"path": "slow.json"}),
            ("explain", {"what": "F1-SYN001", "path": "slow.json"}),
            ("compare", {"before": "slow.json", "after": "slow.json"}),
            ("what_if", {"path": "slow.json", "questions": ["gpu*0.5"]}),
            ("lint", {"paths": ["."]}),
        ]
        assert client.instructions
        return [await agent.pages(client, tool, **arguments) for tool, arguments in calls]

    texts = use(root, main, "--max-bytes", "2048", mode=mode)
    here = Agent(root, max_bytes=2048)
    assert texts[1] == here.use(lambda client: here.pages(client, "analyze", path="slow.json"))


def test_program_output_arrives_escaped_bounded_and_marked(root: Path) -> None:
    agent = Agent(root)

    async def main(client: Any) -> tuple[str, bool]:
        return await agent.call(client, "run", script="shouting.py")

    text, failed = use(root, main, "--allow-run")
    assert failed
    assert text.isprintable()
    assert not set(text) & set(UNSEEN)
    document = json.loads(text)
    assert "ended with exit code 3" in str(document["untrusted"]["message"])
    assert "IGNORE" not in json.dumps({**document, "untrusted": None})
    assert not list((root.parent / "tmp").iterdir())


def test_a_script_gets_its_words_whatever_they_look_like(root: Path) -> None:
    agent = Agent(root)
    words = ["--steps", "-m", "a b", "$(id)", "--json"]

    async def main(client: Any) -> tuple[str, bool]:
        return await agent.call(client, "run", script="-odd name.py", args=words)

    text, failed = use(root, main, "--allow-run")
    assert failed
    assert repr(["./-odd name.py", *words]) in json.loads(text)["untrusted"]["message"]


@needs_proc
@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("tool", ["run", "verify"])
def test_a_cancelled_program_is_gone_with_all_it_started_and_wrote(root: Path, tool: str, mode: str) -> None:
    agent = Agent(root)
    sides = {"before": "stubborn.py", "after": "stubborn.py"}

    async def main(client: Any) -> None:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await agent.call(client, tool, **(sides if tool == "verify" else {"script": "stubborn.py"}))

            tasks.start_soon(call)
            await begun(root)
            assert len(left(root)) == 2
            tasks.cancel_scope.cancel()
        text, failed = await agent.call(client, "doctor", path="slow.json")
        assert not failed, text
        wait_until_gone(root)

    use(root, main, "--allow-run", mode=mode)
    assert agent.told


@needs_proc
def test_a_program_that_takes_too_long_is_ended(root: Path) -> None:
    agent = Agent(root)

    async def main(client: Any) -> tuple[str, bool]:
        return await agent.call(client, "run", script="stubborn.py", timeout_s=4)

    text, failed = use(root, main, "--allow-run")
    assert failed
    assert "was stopped after 4 s" in json.loads(text)["untrusted"]["message"]
    wait_until_gone(root)


@needs_proc
@pytest.mark.parametrize("how", ["hang up", "SIGTERM"])
def test_a_server_that_ends_leaves_no_program(root: Path, how: str) -> None:
    parameters = serving(root, "--allow-run")
    process = subprocess.Popen(
        [parameters.command, *parameters.args],
        env={**os.environ, **parameters.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=parameters.cwd,
    )
    assert process.stdin is not None
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "run", "arguments": {"script": "stubborn.py"}}
    for message in (
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()
    anyio.run(begun, root)
    assert len(left(root)) == 2
    if how == "hang up":
        process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=15) == (0 if how == "hang up" else 128 + signal.SIGTERM)
    wait_until_gone(root, 2)
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_is_explained_and_its_fix_verified(root: Path) -> None:
    (root / "train.py").write_text(TRAINING.replace("SLEEP", "0.03"))
    (root / "fixed.py").write_text(TRAINING.replace("SLEEP", "0.0"))
    agent = Agent(root, allow_run=True)

    async def main(client: Any) -> list[list[dict[str, Any]]]:
        pages = await agent.pages(client, "run", script="train.py")
        found = [record for text in pages for record in json.loads(text)["records"]]
        name = json.loads(pages[0])["input"]
        findings = [record for record in found if record["kind"] == "finding"]
        assert findings, found
        answers = [found]
        for tool, arguments in (
            ("explain", {"what": findings[0]["id"], "path": name}),
            ("tables", {"path": name, "table": "step_account"}),
            ("doctor", {"path": name}),
            ("verify", {"before": "train.py", "after": "fixed.py", "rounds": 3, "steps": 20}),
        ):
            pages = await agent.pages(client, tool, **arguments)
            answers.append([record for text in pages for record in json.loads(text)["records"]])
        return answers

    run, explained, table, quality, verified = agent.use(main)
    assert run[0]["kind"] == "program"
    assert run[0]["exit_code"] == 0
    document = agent.desk._runs["run:1"]
    assert not numbers([run[1:], table, quality]) - numbers(document)
    assert explained[0]["id"].startswith("F1-")
    assert verified[0]["outcome"] in ("faster", "undecided")  # three rounds on a busy machine decide little
    assert verified[0]["ratio"] < 1
    assert verified[0]["answers"]["status"] == "same"
    assert "are not kept" in agent.error("what_if", path="run:1", questions=["gpu*0.5"])["untrusted"]["message"]


def test_a_client_that_dies_while_it_is_answered_is_no_defect(root: Path) -> None:
    how = serving(root)
    process = subprocess.Popen(
        [how.command, *how.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=how.cwd
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = [{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info}]
    asked.append({"jsonrpc": "2.0", "method": "notifications/initialized"})
    for message in asked:
        process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        for number in range(1, 200):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {}}
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.decode()) == (0, "")
