"""All arguments of a row, read again from wherever the trace came from."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.trace.plain import plain_rows, read_file

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Trace, read_trace

TINY = 200


def mixed(n: int) -> list[dict[str, Any]]:
    """Rows of all sorts, and events that are none, each with its own arguments."""
    events: list[dict[str, Any]] = []
    for i in range(n):
        common = {"pid": 1, "tid": 1, "ts": 10 * i, "args": {"n": i, "deep": [{"x": "}, {"}]}}
        events += [
            {"ph": "X", "name": f"call {i}", "dur": 1, **common},
            {"ph": "i", "name": "[memory]", **common},
            {"ph": "i", "name": "mark", **common},
            {"ph": "s", "name": "arrow", **common},
            {"ph": "B", "name": f"begin {i}", **common},
            {"ph": "E", **common},
        ]
    return events


def wanted(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e["args"] for e in events if e["ph"] in "XiB" and e["name"] != "[memory]"]


FORMS = {
    "plain": lambda text: text,
    "marked": lambda text: b"\xef\xbb\xbf" + text,
    "gzip": gzip.compress,
    "utf-16": lambda text: text.decode().encode("utf-16"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk_bytes", [TINY, 1 << 18])
def test_every_row_gives_its_own_arguments(form: str, chunk_bytes: int, tmp_path: Path) -> None:
    events = mixed(30)
    path = tmp_path / "trace.json"
    path.write_bytes(FORMS[form](json.dumps({"a": 1, "traceEvents": events, "b": 2}).encode()))
    trace = read_trace(path, chunk_bytes=chunk_bytes)
    assert [trace.args(row) for row in range(len(trace))] == wanted(events)
    # in any order
    assert trace.args(3) == wanted(events)[3]


def test_damaged_events_do_not_shift_the_others(tmp_path: Path) -> None:
    events = mixed(30)
    text = json.dumps(events).replace('"call 3"', '"call "3""').replace('"call 7", ', '"call 7" ')
    text = text.replace('"n": 9,', '"n": 9, "bandwidth": NaN,', 1)
    path = tmp_path / "trace.json"
    path.write_text(text[:-40])
    trace = read_trace(path, chunk_bytes=TINY)
    assert trace.report.n_lost == 2
    want = wanted(events)
    del want[3 * 7]
    found = [trace.args(row) for row in range(len(trace))]
    assert found[27 - 1].pop("bandwidth") is None
    assert found == want[: len(found)]
    assert len(found) >= len(want) - 1


@pytest.mark.parametrize("kind", ["bytes", "file", "pipe"])
def test_streams_are_kept(kind: str, tmp_path: Path) -> None:
    events = mixed(5)
    text = json.dumps(events).encode()
    if kind == "bytes":
        trace = read_trace(io.BytesIO(text))
    elif kind == "file":
        (tmp_path / "a").write_bytes(text)
        with (tmp_path / "a").open("rb") as stream:
            trace = read_trace(stream)
            assert trace.args(1) == {"n": 0, "deep": [{"x": "}, {"}]}
        with pytest.raises(TraceFormatError, match="a closed one"):
            read_trace(stream)
        return
    else:
        read_end, write_end = os.pipe()
        os.write(write_end, text)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as stream:
            trace = read_trace(stream)
    assert [trace.args(row) for row in range(len(trace))] == wanted(events)


def test_a_relative_path_survives_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(mixed(2)))
    trace = read_trace("a.json")
    monkeypatch.chdir("/")
    assert trace.report.path == "a.json"
    assert trace.args(0)["n"] == 0


def _trace(path: Path) -> Trace:
    path.write_text(json.dumps(mixed(50)))
    return read_trace(path, chunk_bytes=TINY)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"call 40"', '"CALL 40"'),
        lambda text: text.replace('"ts": 400', '"ts": 401'),
        lambda text: " " * 150 + text,
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: '{"cells": []}',
    ],
)
def test_a_file_that_changed_is_told(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = _trace(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(TraceFormatError) as caught:
        trace.args(3 * 40)
    assert caught.value.hint
    assert str(path) in caught.value.where


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = _trace(path)
    path.unlink()
    with pytest.raises(TraceFormatError, match="No such file"):
        trace.args(0)


@pytest.mark.parametrize("row", [-1, 150])
def test_a_row_that_is_not_there(row: int, tmp_path: Path) -> None:
    trace = _trace(tmp_path / "a.json")
    with pytest.raises(IndexError, match="expected a row from 0 to 149"):
        trace.args(row)


@pytest.mark.data
def test_real_rows(recordings: Path) -> None:
    path = recordings / "llm" / "bert_small_h100.json.gz"
    rows = list(plain_rows(read_file(path)))
    trace = read_trace(path)
    for row in np.linspace(0, len(trace) - 1, 50).astype(int).tolist():
        found = trace.args(row)
        assert found == {
            key: float(value) if type(value).__name__ == "Decimal" else value for key, value in rows[row].args.items()
        }
