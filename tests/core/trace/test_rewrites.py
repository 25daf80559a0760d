"""Real recordings, written again in other ways: columns and arguments are what JSON says.

The text is held against ``json`` and ``Decimal``, whichever engine reads it.
"""

from __future__ import annotations

import io
import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.core.trace.layouts import LAYOUTS
from tests.core.trace.plain import MEMORY, events_of, plain_rows, read_file

from torchtriage.core.engine import FILE, READER_VARIABLE
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.events import Chunk

SHARED = Path(os.environ.get("TORCHTRIAGE_DATA", "../shared/data")) / "traces"
CHUNK_BYTES = 16 << 10
MAX_EVENTS = 3000
"""Of one recording, spread over all of it: each text is read by Python's own parser, too."""

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not FILE.exists(), reason="the native library is not built (make native)"),
]


def recordings() -> list[Path]:
    """Return those whose text is JSON, the smallest of each folder."""
    folders: dict[Path, list[Path]] = {}
    for path in SHARED.rglob("*.json.gz"):
        if path.parent.name != "odd":
            folders.setdefault(path.parent, []).append(path)
    return [
        path for folder in sorted(folders) for path in sorted(folders[folder], key=lambda path: path.stat().st_size)[:2]
    ]


_PLAIN = ("ph", "cat", "pid", "tid", "device", "stream")


class Writer:
    """Writes JSON with permuted keys, random white space and escapes, numbers as they were."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def gap(self) -> str:
        return self._random.choice(["", "", "", " ", "\n", "\t", "\r\n   ", " " * 40])

    def text(self, value: str) -> str:
        out = []
        for letter in value:
            short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "/": "\\/"}.get(letter)
            if short and (letter != "/" or self._random.random() < 0.5):
                out.append(short)
            elif ord(letter) < 32 or self._random.random() < 0.02:
                # beyond the basic plane as a pair of surrogates
                units = letter.encode("utf-16-be")
                out += [f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)]
            else:
                out.append(letter)
        return '"' + "".join(out) + '"'

    def value(self, value: Any) -> str:
        gap = self.gap
        if isinstance(value, dict):
            keys = sorted(value)
            self._random.shuffle(keys)
            inside = (
                f"{gap()}{json.dumps(k)}{gap()}:{gap()}"
                # escapes here are left to the Python engine
                f"{json.dumps(value[k]) if k in _PLAIN else self.value(value[k])}{gap()}"
                for k in keys
            )
            return "{" + ",".join(inside) + "}"
        if isinstance(value, list):
            return "[" + ",".join(f"{gap()}{self.value(item)}{gap()}" for item in value) + "]"
        if isinstance(value, str):
            return self.text(value)
        return str(value) if isinstance(value, Decimal) else json.dumps(value)


def sample(path: Path) -> list[dict[str, Any]]:
    """Return some events, in their order, with names beyond ASCII among them."""
    events = events_of(read_file(path))
    events = events[:: max(len(events) // MAX_EVENTS, 1)]
    for event, more in zip(events[::50], ("é", "漢字", "😀", "\u2028", "a\tb") * 1000, strict=False):
        if "name" in event and event["name"] != MEMORY:
            event["name"] = f"{event['name']} {more}"
    return events


def as_floats(value: Any) -> Any:
    """Return the nearest doubles of decimals, which is what arguments are given as."""
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def assert_as_written(text: bytes, events: list[dict[str, Any]], engine: str) -> None:
    """Hold every column and every argument against the events."""
    n_by_python = 0
    add = ColumnBuilder.add

    def counted(builder: ColumnBuilder, chunk: Chunk) -> None:
        nonlocal n_by_python
        n_by_python += chunk.size
        add(builder, chunk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(READER_VARIABLE, engine)
        patch.setattr(ColumnBuilder, "add", counted)
        trace: Trace = read_trace(io.BytesIO(text), processes=1, chunk_bytes=CHUNK_BYTES)
    # the native one leaves the last chunk to the other, and what is written oddly
    assert n_by_python < len(text) // 4 + 2 * CHUNK_BYTES or engine == "python"
    rows = plain_rows(events)
    assert trace.report.n_lost == trace.report.n_repaired == 0
    assert trace.start_ns.tolist() == [row.start_ns for row in rows]
    assert trace.dur_ns.tolist() == [row.dur_ns for row in rows]
    assert [trace.names[code] for code in trace.name] == [row.name for row in rows]
    assert [trace.cats[code] for code in trace.cat] == [row.cat for row in rows]
    for index, row in enumerate(rows):
        assert trace.args(index) == as_floats(row.args)


@pytest.mark.parametrize("path", recordings(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_recording_written_in_another_way_reads_the_same(path: Path) -> None:
    events = sample(path)
    exact = json.dumps([as_floats(event) for event in events])
    texts = {layout: write(json.loads(exact)).encode() for layout, write in LAYOUTS.items()}
    writer = Writer(len(events))
    texts["any way"] = writer.value(events).encode()
    for n, (layout, text) in enumerate(texts.items()):
        # what json.dumps wrote is the nearest double's shortest text; the last keeps the decimals
        written = events if layout == "any way" else json.loads(text, parse_float=Decimal)
        assert_as_written(text, written, "native")
        if n % 3 == 0:
            assert_as_written(text, written, "python")
