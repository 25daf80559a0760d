"""A scripted agent that follows SKILL.md over stdio, without a model: run, explain, fix, verify.

Each program NAME_bad.py is run through the server's tools, its first finding is explained, the patch that ``fix`` gives
is applied to a copy, and both are verified. Without a patch the agent gives up. What an agent would read is counted.

    python benchmarks/agent_loop.py FOLDER [NAME…] [--rounds 5] [--minutes 5]

Needs torch and the SDK (torchtriage[mcp]) in the interpreter it runs in.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters, stdio_client


@dataclass
class Agent:
    """Calls tools, reads all pages, and counts what it read."""

    client: Any
    n_calls: int = 0
    n_bytes: int = 0
    largest: int = 0

    async def page(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return one page; raise RuntimeError with what an error says."""
        answer = await self.client.call_tool(tool, arguments)
        text = answer.content[0].text
        self.n_calls += 1
        self.n_bytes += len(text.encode())
        self.largest = max(self.largest, len(text.encode()))
        document: dict[str, Any] = json.loads(text)
        if answer.is_error:
            raise RuntimeError(f"{tool}: {json.dumps(document['untrusted'])[:2000]}")
        return document

    async def records(self, tool: str, **arguments: Any) -> list[dict[str, Any]]:
        """Return the records of all pages."""
        document = await self.page(tool, **arguments)
        records = document["records"]
        while document["next"] is not None:
            document = await self.page(tool, **arguments, next=document["next"])
            records += document["records"]
        return records


async def loop(agent: Agent, root: Path, name: str, rounds: int, minutes: float) -> str:
    """Go once around the loop of SKILL.md, and return a line of the table."""
    begun = time.monotonic()
    judged = await agent.page("run", script=f"{name}.py")
    findings = [record for record in judged["records"] if record["kind"] == "finding"]
    if not findings:
        return f"{name:20}  no finding on the first page"
    first = findings[0]
    explained = await agent.records("explain", what=first["id"], path=judged["input"])
    fix = next(record["text"] for record in explained if record["kind"] == "fix")
    proved = await agent.records("fix", script=f"{name}.py", budget_minutes=minutes, allow=True)
    lines = [line for record in proved if record["kind"] == "patch" for line in record["untrusted"]["lines"]]
    if not lines:
        return f"{name:20}  {first['id']:10} no patch  [{agent.n_calls} calls, {time.monotonic() - begun:.0f} s]"
    shutil.copy(root / f"{name}.py", root / f"{name}_fixed.py")
    patch = "\n".join(lines).replace(f"/{name}.py", f"/{name}_fixed.py") + "\n"
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=root, check=True)
    (verdict, *more) = await agent.records("verify", before=f"{name}.py", after=f"{name}_fixed.py", rounds=rounds)
    kept = next((record for record in more if record["kind"] == "promise"), None)
    cost = first["cost"]
    share = "fact" if cost is None else f"{cost['share_low']:.0%}-{cost['share_high']:.0%}"
    promise = "none" if kept is None else f"{kept['low_ms']:.3g}-{kept['high_ms']:.3g} ms for {','.join(kept['codes'])}"
    return (
        f"{name:20}  {first['id']:10} {share:9}  {verdict['outcome']:15} {1 / verdict['ratio']:7.2f}x"
        f"  saved {verdict['saved_ms']:.3g} ms, promised {promise}"
        f"  [{agent.n_calls} calls, {agent.n_bytes:,} bytes, largest {agent.largest:,},"
        f" {time.monotonic() - begun:.0f} s]  {fix[:60]}"
    )


async def line(client: Any, root: Path, name: str, rounds: int, minutes: float) -> str:
    """Return the line of one program, or why it has none."""
    try:
        return await loop(Agent(client), root, name, rounds, minutes)
    except RuntimeError as error:
        return f"{name:20}  {error}"


async def main(folder: Path, names: list[str], rounds: int, minutes: float) -> None:
    """Serve a folder of programs, and print a line for each."""
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            shutil.copy(folder / f"{name}_bad.py", Path(root, f"{name}.py"))
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "torchtriage", "mcp", "--root", root, "--allow-run"],
            env={name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ},
        )
        async with Client(stdio_client(server)) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            print(f"tools: {', '.join(tools)}", flush=True)
            for name in names:
                print(await line(client, Path(root), name, rounds, minutes), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=5.0, help="budget of fix")
    given = parser.parse_args()
    pairs = sorted(path.name.removesuffix("_bad.py") for path in given.folder.glob("*_bad.py"))
    anyio.run(main, given.folder, given.names or pairs, given.rounds, given.minutes)
