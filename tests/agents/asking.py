"""A client of the SDK, in this process: what an agent sees."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from torchtriage.agents.answers import SCHEMA
from torchtriage.agents.desk import Desk, Limits, Roots
from torchtriage.agents.server import server

COUNTS = frozenset({"findings", "not_checked", "checked", "rows"})
"""Own fields that count records."""


class Agent:
    """Calls tools of one server and holds every page to the limit."""

    def __init__(self, *roots: Path, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.desk = Desk(Roots(roots), self.limits)
        self.told: list[tuple[float, float | None, str | None]] = []

    def use(self, function: Callable[[Any], Any], mode: str = "auto") -> Any:
        """Return what an async function returns that is given a connected client."""
        from mcp import Client

        async def main() -> tuple[Any, AssertionError | None]:
            async with Client(server(self.desk), mode=mode) as client:
                try:
                    return await function(client), None
                except AssertionError as failure:  # the client would wrap it twice
                    return None, failure

        result, failure = anyio.run(main)
        if failure is not None:
            raise failure
        return result

    async def call(self, client: Any, tool: str, **arguments: Any) -> tuple[str, bool]:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            self.told.append((done, total, message))

        answer = await client.call_tool(tool, arguments, progress_callback=progress)
        (content,) = answer.content
        assert answer.structured_content is None, "an answer comes once"
        assert len(content.text.encode()) <= self.limits.max_bytes
        assert "Traceback" not in content.text
        return content.text, answer.is_error

    async def pages(self, client: Any, tool: str, **arguments: Any) -> list[str]:
        """Return all pages of an answer."""
        texts = []
        cursor: str | None = ""
        while cursor is not None:
            text, failed = await self.call(client, tool, **arguments, **({"next": cursor} if cursor else {}))
            assert not failed, text
            texts.append(text)
            assert json.loads(text)["schema"] == SCHEMA
            cursor = json.loads(text)["next"]
        return texts

    def ask(self, tool: str, **arguments: Any) -> list[dict[str, Any]]:
        """Return the records of all pages."""
        texts = self.use(lambda client: self.pages(client, tool, **arguments))
        return [record for text in texts for record in json.loads(text)["records"]]

    def error(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a call that must fail."""
        text, failed = self.use(lambda client: self.call(client, tool, **arguments))
        assert failed, text
        document = json.loads(text)
        assert document["schema"] == SCHEMA
        assert document["error"]
        assert document["untrusted"]["message"]
        return document


def numbers(value: Any) -> Counter[str]:
    """Return every number of a document as it is printed, without our own counts of records."""
    found: list[str] = []
    text = json.dumps(without_counts(value)) if not isinstance(value, str | bytes) else value
    json.loads(text, parse_float=found.append, parse_int=found.append)
    return Counter(found)


def without_counts(value: Any) -> Any:
    if isinstance(value, list):
        return [without_counts(item) for item in value]
    if isinstance(value, dict):
        own = COUNTS if "kind" in value else frozenset()
        return {name: without_counts(item) for name, item in value.items() if name not in own}
    return value
