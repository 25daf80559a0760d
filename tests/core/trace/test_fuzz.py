"""Broken input of every kind: an error of ours or a consistent trace, soon and in little memory."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from fuzz.fuzz_reader import NSYS, check_reading
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.trace.layouts import LAYOUTS, document
from tests.core.trace.test_parallel import assert_same, mixed

from torchtriage.core.errors import TriageError
from torchtriage.core.trace import parallel, read_trace

SEEDS = [document(mixed(8), {"schemaVersion": 1, "x": [{}]}, name, "first") for name in LAYOUTS]
BYTES = st.binary(max_size=4) | st.sampled_from(
    [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\xff", b"NaN", b"}, {", b"]}", b"1e9"]
)


@st.composite
def mutated(draw: Any) -> bytes:
    """Return a small trace with a few bytes flipped, cut, inserted or moved."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["put", "drop", "cut", "insert", "swap", "repeat"]))
        at = draw(st.integers(0, max(len(text) - 1, 0)))
        size = draw(st.integers(1, 60))
        if kind == "put":
            new = draw(BYTES)
            text = text[:at] + new + text[at + len(new) :]
        elif kind == "drop":
            text = text[:at] + text[at + size :]
        elif kind == "cut":
            text = text[:at]
        elif kind == "insert":
            text = text[:at] + draw(BYTES) + text[at:]
        elif kind == "swap":
            text = text[at:] + text[:at]
        else:
            text = text[:at] + text[at : at + size] * 3 + text[at:]
    return text


@settings(max_examples=300, deadline=2000)
@given(mutated(), st.sampled_from([1, 64, 1 << 18]))
def test_mutated_traces(text: bytes, chunk_bytes: int) -> None:
    check_reading(text, chunk_bytes)


@settings(max_examples=300, deadline=5000)
@given(st.lists(st.tuples(st.integers(0, len(NSYS) - 1), BYTES | st.binary(min_size=1, max_size=8)), max_size=6))
def test_mutated_databases(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(NSYS)
    for at, new in changes:
        data[at : at + len(new)] = new
    check_reading(bytes(data[: len(NSYS)]))


@settings(max_examples=60, deadline=5000)
@given(st.sampled_from(re.findall(rb"\w+ INTEGER", NSYS)), st.sampled_from(["TEXT", "REAL", "BLOB"]), st.data())
def test_databases_with_values_of_any_type(column: bytes, type_: str, data: Any) -> None:
    """Columns of another type, and in them what belongs into none."""
    value = data.draw(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text() | st.binary())
    name = column.split()[0].decode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(NSYS)
        with closing(sqlite3.connect(path)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master").fetchall():
                with suppress(sqlite3.Error):
                    connection.execute(f"ALTER TABLE {table} RENAME COLUMN {name} TO old")
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {type_}")
                    connection.execute(f"UPDATE {table} SET {name} = old")
                    connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid % 3 = 1", (value,))
            connection.commit()
        check_reading(path.read_bytes())


class _WorkersHere:
    """Settle blocks in this process: the same cuts and merges, without the processes."""

    def __init__(self, n_workers: int, function: Callable[..., Any]) -> None:
        self._function = function

    def __enter__(self) -> _WorkersHere:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def submit(self, *task: Any) -> Any:
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(self._function(*task))))
        return future


@settings(max_examples=150, deadline=5000)
@given(mutated(), st.sampled_from([64, 200]))
def test_blocks_of_mutated_traces_give_the_same(text: bytes, chunk_bytes: int) -> None:
    def read(n_processes: int) -> Any:
        try:
            return read_trace(io.BytesIO(text), chunk_bytes=chunk_bytes, processes=n_processes)
        except TriageError as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "Workers", _WorkersHere)
        patch.setattr(parallel, "BLOCK_CHUNKS", 2)
        one, other = read(1), read(2)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert_same(one, other)


@settings(max_examples=100, deadline=2000)
@given(mutated(), st.integers(0, 1 << 16))
def test_mutated_gzip(text: bytes, seed: int) -> None:
    packed = bytearray(gzip.compress(text))
    choose = random.Random(seed)
    for _ in range(choose.randrange(3)):
        packed[choose.randrange(len(packed))] ^= 1 << choose.randrange(8)
    check_reading(bytes(packed))


@settings(max_examples=200, deadline=2000)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    check_reading(data)
    check_reading(b'{"traceEvents": [' + data)
    check_reading(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + data)
    check_reading(b"PK\x03\x04" + data)


KEYS = st.sampled_from(["ph", "name", "cat", "pid", "tid", "ts", "dur", "args", "traceEvents", "correlation", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=2000)
@given(st.lists(JSON, max_size=6), st.booleans())
def test_json_of_any_shape(values: list[Any], bare: bool) -> None:
    check_reading(json.dumps(values if bare else {"traceEvents": values}).encode())


@pytest.mark.parametrize("depth", [100, 5000, 1_000_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"args":', b'{"traceEvents":['])
def test_deep_nesting(opening: bytes, depth: int) -> None:
    begun = time.process_time()
    check_reading(opening * depth)
    check_reading(b'{"traceEvents": [' + opening * (depth // 10))
    check_reading(b'{"a": ' + opening * (depth // 10))
    assert time.process_time() - begun < 20


def test_an_event_at_the_very_limit_of_nesting() -> None:
    for depth in range(880, 1020):
        event = '{"ph": "X", "args": {"x": ' + "[" * depth + "]" * depth + "}}"
        text = f'[{event}, {{"ph": "X" "Y"}}, {{"ph": "X"}}]'
        trace = read_trace(io.BytesIO(text.encode()))
        assert (len(trace), trace.report.n_lost) in ((1, 2), (2, 1))


def test_many_categories() -> None:
    events = [{"ph": "X", "cat": f"kind {i}", "name": "a", "ts": i, "dur": 1} for i in range(40_000)]
    trace = check_reading(json.dumps(events).encode(), 1 << 18)
    assert trace is not None
    assert len(trace.cats) == 1 << 15


def test_a_stream_that_fails() -> None:
    class Failing(io.BytesIO):
        n_reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.n_reads += 1
            if self.n_reads > 3:
                raise OSError(5, "Input/output error")
            return super().read(size)

    text = document(mixed(3000), {}, "indented", "first")
    trace = read_trace(Failing(text), chunk_bytes=1 << 16)
    assert 0 < len(trace) < 9000
    assert "Input/output error" in trace.report.loss[-1]


@pytest.mark.parametrize(
    "text",
    [
        # the list seems to end inside a damaged event of a chunk that is not the last
        b'{"traceEvents": [{"ph":, "traceEvents": [{"ph": "X", "name": "k", "x"":: "a"}], "d": "i",'
        b' "name": "m", "ts": 2, "s": {"B": -8}},\n {"ph": "M", "name": "t", "pid"{"id": 0}]}',
        # events behind what a damaged last event makes look like the end of the list
        b'[{"ph": "B", "ts": 1}, {"ph"r "E", "ts": 2}, {"ph": "s", "cat": "a"}], "d": "x":r"u,'
        b' "args": {"c"args": {"name": "m"}}, {"ph": "B", "ts": 1}, {"ph": "s"}], "d": 1',
    ],
)
def test_damaged_lists_that_seem_to_end(text: bytes) -> None:
    assert check_reading(text) is not None
