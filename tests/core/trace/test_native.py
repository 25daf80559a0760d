"""The native scanner gives what the Python engine gives, whatever the text."""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.trace.layouts import LAYOUTS, document
from tests.core.trace.test_parallel import assert_same, mixed
from tests.invariants import check_trace

from torchtriage.cli.main import cli
from torchtriage.core import engine
from torchtriage.core.engine import READER_VARIABLE, find_engine
from torchtriage.core.errors import TriageError, UsageError
from torchtriage.core.trace import Trace, native, read_trace
from torchtriage.core.trace.column_builder import ColumnBuilder

needs_library = pytest.mark.skipif(
    not engine.FILE.exists(), reason="the native scanner is not built (make native needs cargo)"
)
SHARED = Path(os.environ.get("TORCHTRIAGE_DATA", "../shared/data")) / "traces"


def read_with(engine: str, text: bytes, **options: Any) -> Trace | str:
    """Return the trace, or what is wrong with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(READER_VARIABLE, engine)
        try:
            trace = read_trace(io.BytesIO(text), **options)
        except TriageError as error:
            return str(error)
        trace.tree, trace.frames, trace.links  # noqa: B018 - made by the engine of the moment
        return trace


def assert_same_structure(one: Trace, other: Trace) -> None:
    for mine, yours in ((one.tree, other.tree), (one.frames, other.frames)):
        assert np.array_equal(mine.members, yours.members)
        assert np.array_equal(mine.parent, yours.parent)
        assert mine.members.dtype == yours.members.dtype
        assert mine.parent.dtype == yours.parent.dtype
    assert np.array_equal(one.links.call, other.links.call)
    assert np.array_equal(one.links.op, other.links.op)


def assert_equal(expected: Trace | str, found: Trace | str) -> None:
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        assert_same(expected, found)
        assert_same_structure(expected, found)


def read_both(text: bytes, **options: Any) -> Trace | str:
    options.setdefault("chunk_bytes", 4096)
    expected = read_with("python", text, **options, processes=1)
    for n_threads in (1, 2):
        assert_equal(expected, read_with("native", text, **options, processes=n_threads))
    return expected


def readable(text: bytes, **options: Any) -> Trace:
    trace = read_both(text, **options)
    assert isinstance(trace, Trace)
    check_trace(trace)
    return trace


META = {"schemaVersion": 1, "later": [{"a": 1}, {"b": 2}]}
PLACES = ("first", "last", "between", "bare")


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the chunks that the Python engine reads."""
    seen: list[int] = []
    add = ColumnBuilder.add
    monkeypatch.setattr(ColumnBuilder, "add", lambda self, chunk: (seen.append(chunk.size), add(self, chunk))[1])
    return seen


# -- equal results -----------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_result_in_every_layout(layout: str, place: str) -> None:
    trace = readable(document(mixed(300), META, layout, place), chunk_bytes=2048)
    assert trace.report.tier == "strict"
    assert len(trace) == 630


@needs_library
def test_every_scanner_sees_its_blocks_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    scan = native.Scanner.scan

    def slow_at_first(self: native.Scanner, block: native.NativeBlock, step: int) -> native.Found:
        seen.append((block.offset, id(self)))
        if len(seen) == 1:
            time.sleep(0.05)  # the others could overtake
        return scan(self, block, step)

    monkeypatch.setattr(native.Scanner, "scan", slow_at_first)
    text = document(mixed(400), META, "compact", "first")
    want = read_with("python", text, chunk_bytes=512, processes=1)
    assert_equal(want, read_with("native", text, chunk_bytes=512, processes=2))
    scanners = [scanner for _, scanner in sorted(seen)]
    assert len(scanners) > 10
    assert len(set(scanners[:2])) == 2
    assert scanners[2:] == scanners[:-2]


@needs_library
def test_same_result_from_gzip() -> None:
    readable(gzip.compress(document(mixed(500), META, "indented", "first")))


@needs_library
def test_all_but_the_last_chunk_is_read_natively(chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, "native")
    text = document(mixed(1000), META, "indented", "last")
    trace = read_trace(io.BytesIO(text), chunk_bytes=4096, processes=1)
    assert len(trace.report.chunks) > 100
    assert len(chunks) == 1


@needs_library
def test_an_odd_event_costs_one_chunk(chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    events = mixed(1000)
    events[2500]["ts"] = "7.5"
    text = document(events, META, "one line", "last")
    readable(text)
    chunks.clear()
    monkeypatch.setenv(READER_VARIABLE, "native")
    read_trace(io.BytesIO(text), chunk_bytes=4096, processes=1)
    assert len(chunks) == 2


@needs_library
def test_nothing_but_odd_events_is_read_once(chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    events = [{"ph": "X", "name": None, "ts": i, "dur": 1} for i in range(5000)]
    text = json.dumps(events).encode()
    readable(text, chunk_bytes=512)
    chunks.clear()
    monkeypatch.setenv(READER_VARIABLE, "native")
    trace = read_trace(io.BytesIO(text), chunk_bytes=512, processes=2)
    assert len(chunks) == len(trace.report.chunks)


@needs_library
def test_an_event_of_many_keys_is_read_as_any_other(chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    events = mixed(1000)
    args = {f"key {k}": k for k in range(10_000)}
    events[1500]["args"] = {"correlation": 5, **args, "stream": 7}
    events[1501]["args"] = {"correlation": 6, **args, "device": 1}
    text = document(events, META, "compact", "last")
    readable(text)
    chunks.clear()
    monkeypatch.setenv(READER_VARIABLE, "native")
    read_trace(io.BytesIO(text), chunk_bytes=4096, processes=1)
    assert len(chunks) == 1


@needs_library
@pytest.mark.parametrize("name", ["tt_copy", "tt_renumber"])
def test_what_the_library_refuses_is_never_a_column(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, "native")
    monkeypatch.setattr(find_engine().library, name, lambda *_: -1)
    text = document(mixed(30), META, "compact", "last")
    with pytest.raises(AssertionError, match="refused"):
        read_trace(io.BytesIO(text), chunk_bytes=4096, processes=1)


@needs_library
def test_arguments_are_read_again() -> None:
    events = [event for event in mixed(400) if event["ph"] == "X"]
    text = document(events, META, "new Kineto", "last")
    trace = read_with("native", text, chunk_bytes=1024)
    assert isinstance(trace, Trace)
    for row in (0, 1, 333, len(events) - 1):
        assert trace.args(row) == events[row]["args"]


@needs_library
@pytest.mark.data
@pytest.mark.parametrize("path", sorted(SHARED.rglob("*.json*")), ids=lambda path: path.name.split(".json")[0])
def test_same_result_from_a_real_trace(path: Path) -> None:
    data = path.read_bytes()
    assert_equal(read_with("python", data, processes=1), read_with("native", data, processes=2))


# -- trees -------------------------------------------------------------------------------------


@st.composite
def timelines(draw: Any) -> bytes:
    """Calls and frames that nest, cross, tie and repeat their ids."""
    moments = st.integers(0, 12)
    events = []
    for i in range(draw(st.integers(1, 30))):
        cat = draw(st.sampled_from(["cpu_op", "user_annotation", "cuda_runtime", "kernel"]))
        args: dict[str, Any] = {"correlation": draw(st.integers(0, 4))}
        if draw(st.booleans()):
            cat = "python_function"
            unique = draw(st.integers(0, 9)) > 0
            args = {
                "Python id": i * draw(st.sampled_from([1, 1, 1 << 50])) if unique else i // 2,
                "Python parent id": draw(st.integers(-1, 30) | st.none()),
            }
        start, dur = draw(moments), draw(moments)
        tid = draw(st.integers(0, 1))
        events.append(
            {"ph": "X", "cat": cat, "name": "a", "pid": 1, "tid": tid, "ts": start, "dur": dur} | {"args": args}
        )
    return json.dumps(events).encode()


@needs_library
@settings(max_examples=100, deadline=None)
@given(timelines())
def test_same_trees_of_any_calls(text: bytes) -> None:
    read_both(text)


# -- any text ----------------------------------------------------------------------------------

gaps = st.sampled_from(["", "", "", " ", "\n", "\t\r\n  ", "   \n" * 9])
plain_words = st.text("abc :_-{}[],/'", max_size=20)
letters = st.text(st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["Cc"]), max_size=12)
escapes = st.sampled_from([*(f"\\{c}" for c in '"\\/bfnrt'), "\\u0041", "\\u00e9", "\\ud83d\\ude00", "\\u0000"])
strings = st.builds("".join, st.lists(plain_words | letters | escapes, max_size=4)).map('"{}"'.format)
memory = st.sampled_from(['"[memory]"', '"[m\\u0065mory]"'])
odd_strings = st.sampled_from(
    ['"\\ud800"', '"\\udc00x"', '"\\ud800\\u0041"', '"\\x"', '"\\u12g4"', '"a\x01b"', '"\x00"']
)
whole = st.integers(-5, 10**6) | st.sampled_from(
    [2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**18, 10**19, 10**40]
)
numbers = (
    whole.map(str)
    | st.decimals(0, 10**13, places=3).map(str)
    | st.decimals(-(10**4), 10**4, places=3).map(str)
    | st.sampled_from(["-0", "0.5", "1.5e3", "1E-2", "7.12345", "8796093022208.125", "1e2"])
    | st.sampled_from(["8796093022207.9995", "0.0005", "1.0005", "2.0015", "-0.0005", "1" * 400])
)
odd_numbers = st.sampled_from(
    ["NaN", "01", "1.", ".5", "-", "1e", "+1", "0x1", "1e999", "6e53135406", "6e-53135406", "inf"]
)
simple = numbers | strings | st.sampled_from(["true", "false", "null", "[]", "{}"])
nested = st.recursive(
    simple,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{' , '.join(items)}]")
        | st.lists(st.tuples(strings, inner), max_size=3).map(
            lambda items: "{" + ",\n".join(f"{k}: {v}" for k, v in items) + "}"
        )
    ),
    max_leaves=6,
)
ARGUMENTS = [
    *("correlation", "bytes", "stream", "device", "Python id", "Python parent id", "Bytes"),
    *("Sequence number", "Fwd thread id", "Addr", "Total Allocated", "Total Reserved"),
    *("Device Type", "Device Id", "Input Dims", "Input type", "Concrete Inputs", "Input Strides"),
    *("grid", "block", "Collective name", "In msg nelems", "dtype", "External id", "Ev Idx"),
    *("Process Group Name", "Process Group Ranks", "Seq", "Group size", "other"),
]
categories = st.sampled_from(
    [
        *("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "python_function"),
        *("ac2g", "cpu_instant_event", "Trace", "overhead", "new_runtime", "something", ""),
    ]
)


@st.composite
def objects(draw: Any, items: dict[str, Any]) -> str:
    keys = draw(st.permutations(sorted(items)))
    parts = [f'"{key}"{draw(gaps)}:{draw(gaps)}{items[key]}{draw(gaps)}' for key in keys]
    return "{" + draw(gaps) + f",{draw(gaps)}".join(parts) + "}"


@st.composite
def events(draw: Any, odd: bool) -> str:
    """One event as text; an odd one may have any type anywhere."""

    def one(usual: Any) -> str:
        if odd and draw(st.integers(0, 9)) == 0:
            return draw(nested | odd_strings | odd_numbers)
        return draw(usual)

    ids = st.integers(0, 3).map(str) | st.sampled_from(['"1"', '"Spans"', "140234123456789"])
    phase = draw(st.sampled_from("XXXXXXXXiIBEMstfC"))
    items = {"ph": one(st.just(f'"{phase}"')), "name": one(strings | memory)}
    if phase != "E":
        items["cat"] = one(categories.map('"{}"'.format))
    items |= {"pid": one(ids), "tid": one(ids), "ts": one(numbers)}
    if phase == "X":
        items["dur"] = one(numbers)
    if draw(st.booleans()):
        keys = draw(st.lists(st.sampled_from(ARGUMENTS), max_size=7, unique=True))
        given = {key: one(nested if odd else whole.map(str) | nested) for key in keys}
        if phase == "M":
            given["name"] = one(strings)
        items["args"] = one(st.just(draw(objects(given))))
    if draw(st.booleans()):
        items["id"] = draw(nested)
    for key in [key for key in items if key != "ph" and draw(st.integers(0, 19)) == 0]:
        del items[key]
    return draw(objects(items))


@st.composite
def documents(draw: Any, odd: bool) -> bytes:
    parts = draw(st.lists(events(odd), min_size=1, max_size=25))
    text = f"{draw(gaps)},{draw(gaps)}".join(parts)
    return ('{"a": 1, "traceEvents": [' + draw(gaps) + text + draw(gaps) + '], "b": 2}').encode()


@needs_library
@settings(max_examples=120, deadline=None)
@given(documents(odd=False), st.sampled_from([1, 64, 300, 1 << 18]))
def test_any_usual_text(text: bytes, chunk_bytes: int) -> None:
    read_both(text, chunk_bytes=chunk_bytes)


@needs_library
@settings(max_examples=120, deadline=None)
@given(documents(odd=True), st.sampled_from([1, 64, 300]))
def test_any_odd_text(text: bytes, chunk_bytes: int) -> None:
    read_both(text, chunk_bytes=chunk_bytes)


REAL = document(mixed(12), META, "new Kineto", "last")
damages = st.tuples(st.integers(0, len(REAL)), st.integers(0, 8), st.binary(max_size=4) | st.just(b'"},{'))


@needs_library
@settings(max_examples=150, deadline=None)
@given(st.lists(damages, min_size=1, max_size=3), st.sampled_from([64, 700, 1 << 18]))
def test_any_damage(changes: list[tuple[int, int, bytes]], chunk_bytes: int) -> None:
    text = REAL
    for at, n_removed, added in changes:
        text = text[:at] + added + text[at + n_removed :]
    read_both(text, chunk_bytes=chunk_bytes)


# -- hostile text ------------------------------------------------------------------------------


def hostile() -> Iterator[tuple[str, str]]:
    call = '{"ph": "X", "cat": "cpu_op", "name": %s, "pid": 1, "ts": 5, "dur": 1, "args": %s}'
    yield "deep list", call % ('"a"', '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    yield "deep object", call % ('"a"', '{"x": ' + '{"y": ' * 50_000 + "1" + "}" * 50_000 + "}")
    yield "just too deep", call % ('"a"', '{"x": ' + "[" * 65 + "]" * 65 + "}")
    yield "deep enough", call % ('"a"', '{"x": ' + "[" * 64 + "]" * 64 + "}")
    yield "never closed", call % ('"a"', '{"x": ' + "[" * 100_000)
    yield "long number", call % ('"a"', '{"correlation": ' + "9" * 10_000 + "}")
    yield "long decimals", call % ('"a"', '{"bytes": 1.' + "9" * 10_000 + "}")
    yield "long time", (call % ('"a"', "{}")).replace("5", "5" * 10_000)
    yield "long fraction", (call % ('"a"', "{}")).replace("5", "0." + "5" * 10_000)
    yield "long string", call % ('"' + "n" * 9_000_000 + '"', "{}")
    yield "zeros", call % ('"a\0b"', "{}") + "\0\0\0"
    yield "half a pair", call % ('"\\ud83d"', "{}")
    yield "pair the wrong way round", call % ('"\\ude00\\ud83d"', "{}")
    yield "the same key twice", call % ('"a"', '{"bytes": 1, "bytes": 2}')
    yield "an escaped key", (call % ('"a"', "{}")).replace('"dur"', '"du\\u0072"')
    yield "no comma", call % ('"a"', "{}") + " " + call % ('"b"', "{}")
    yield "two commas", call % ('"a"', "{}") + ",," + call % ('"b"', "{}")


@needs_library
@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in hostile()])
def test_hostile_text(text: str) -> None:
    good = json.dumps(mixed(30))[1:-1]
    read_both(f"[{good}, {text}, {good}]".encode(), chunk_bytes=2000)


@needs_library
def test_a_long_single_line_is_read_in_bounded_memory() -> None:
    events = ", ".join(json.dumps(mixed(500))[1:-1] for _ in range(40))
    readable(f"[{events}]".encode(), chunk_bytes=1 << 18)


# -- engines -----------------------------------------------------------------------------------


def test_the_python_engine_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, "python")
    assert find_engine().library is None


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, "fast")
    with pytest.raises(UsageError, match="expected python or native"):
        find_engine()


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "FILE", tmp_path / "none.so")
    monkeypatch.delenv(READER_VARIABLE, raising=False)
    assert find_engine().name == "python"
    assert "make native" in find_engine().reason
    monkeypatch.setenv(READER_VARIABLE, "native")
    with pytest.raises(UsageError, match="make native"):
        find_engine()


def test_a_file_that_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("nothing of the kind")
    monkeypatch.setattr(engine, "FILE", tmp_path / "text.so")
    monkeypatch.delenv(READER_VARIABLE, raising=False)
    assert "cannot be loaded" in find_engine().reason


@needs_library
def test_a_library_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "VERSION", 77)
    monkeypatch.delenv(READER_VARIABLE, raising=False)
    engine._load.cache_clear()
    try:
        found = find_engine()
    finally:
        engine._load.cache_clear()
    assert found.library is None
    assert "another version" in found.reason


@needs_library
def test_an_error_here_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, "native")

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    text = document(mixed(1000), META, "indented", "last")
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        read_trace(io.BytesIO(text), processes=2, chunk_bytes=4096, progress=stop)
    assert threading.active_count() == before


def test_the_doctor_says_which_engine_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, "python")
    done = CliRunner().invoke(cli, ["doctor", "--system"])
    assert done.exit_code == 0
    assert f"read by the python engine: ${READER_VARIABLE} asks for it" in done.output


def test_the_doctor_wants_a_path_or_the_system() -> None:
    done = CliRunner().invoke(cli, ["doctor"])
    assert done.exit_code == 2
    assert "Missing argument" in done.output
