"""Every shared recording through the tools: pages within their limit, each finding on exactly one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_types", reason="the MCP SDK is not installed: pip install 'torchtriage[mcp]'")

from agents.asking import Agent, numbers
from agents.made_traces import UNSEEN
from conftest import DATA

SUFFIXES = (".json", ".json.gz", ".zip")
FEW_PER_FOLDER = 2
"""Of the recordings that come in many alike."""

pytestmark = [pytest.mark.data, pytest.mark.slow]


def inputs() -> list[str]:
    """Return the recordings to ask about, below the folder of all: files, and folders with the ranks of a job."""
    every = sorted(path for path in (DATA / "traces").rglob("*") if path.name.endswith(SUFFIXES))
    by_folder: dict[Path, list[Path]] = {}
    for path in sorted((DATA / "gpu2").rglob("*")):
        if path.name.endswith(SUFFIXES) and path.is_file():
            by_folder.setdefault(path.parent, []).append(path)
    some = [path for files in by_folder.values() for path in files[:FEW_PER_FOLDER]]
    jobs = [DATA / "traces" / "distributed" / "dlrm_v100_8ranks", *sorted((DATA / "gpu2" / "jobs").glob("*"))]
    return [str(path.relative_to(DATA)) for path in (*every, *some, *filter(Path.is_dir, jobs))]


@pytest.mark.parametrize("path", inputs())
def test_every_page_of_a_recording_is_within_the_limit_and_every_finding_on_one(path: str) -> None:
    agent = Agent(DATA, max_bytes=4096)

    async def main(client: Any) -> dict[str, list[Any]] | str:
        text, failed = await agent.call(client, "doctor", path=path)
        if failed:
            return text
        answers = {tool: await agent.pages(client, tool, path=path) for tool in ("doctor", "analyze", "tables")}
        records = [record for text in answers["analyze"] for record in json.loads(text)["records"]]
        found = [record for record in records if record["kind"] == "finding"]
        answers["findings"] = found
        for record in found:
            answers[record["id"]] = await agent.pages(client, "explain", what=record["id"], path=path)
        return answers

    answers = agent.use(main)
    if isinstance(answers, str):  # not a trace: the answer says what it is
        assert json.loads(answers)["untrusted"]["message"]
        assert answers.isprintable()
        return
    found = answers.pop("findings")
    (document,) = agent.desk._traces.values()
    spoken = {rank["path"] for job in document["jobs"] for rank in job["ranks"]}
    subjects = [*document["jobs"], *[result for result in document["results"] if result["trace"]["path"] not in spoken]]
    expected = [(item["code"], item["message"]) for subject in subjects for item in subject["findings"]]
    assert [record["code"] for record in found] == [code for code, _ in expected]
    assert len({record["id"] for record in found}) == len(found)
    known = numbers(document)
    for tool, texts in answers.items():
        records = []
        for text in texts:
            assert len(text.encode()) <= 4096
            assert not set(text) & set(UNSEEN), tool
            records += json.loads(text)["records"]
        assert not set(numbers(records)) - set(known), tool
        assert not [record for record in records if "left_out" in record], tool
