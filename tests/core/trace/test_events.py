"""Damaged text: what is mended, what is lost, and that a loss costs only itself."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.trace.layouts import LAYOUTS, document

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.salvage import mend

TINY = 64
META = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}]}


def calls(n: int) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": "python_function",
            "name": f"train.py({i}): step",
            "pid": 1,
            "tid": 1,
            "ts": 10 * i,
            "dur": 5,
            "args": {"Python id": i, "shapes": [{"n": 1}, {"n": 2}]},
        }
        for i in range(n)
    ]


def read(text: bytes, **options: Any) -> Trace:
    return read_trace(io.BytesIO(text), **options)


def python_ids(trace: Trace) -> list[int]:
    return trace.key.tolist()


# -- literals and bytes that are not JSON --------------------------------------------------------


@pytest.mark.parametrize("literal", ["NaN", "nan", "inf", "-inf", "Infinity", "-Infinity", "N/A"])
@pytest.mark.parametrize("where", ["args", "dur"])
def test_literals_json_does_not_have(literal: str, where: str) -> None:
    text = document(calls(9), META, "old Kineto", "first").decode()
    before = '"Python id": 4' if where == "args" else '"dur": 5'
    after = f'{before}, "bandwidth": {literal}' if where == "args" else f'"dur": {literal}'
    trace = read(text.replace(before, after, 1).encode())
    assert python_ids(trace) == list(range(9))
    assert (trace.report.tier, trace.report.n_repaired, trace.report.n_lost) == ("repaired", 1, 0)
    assert trace.meta == META


def test_literals_inside_names_are_left_alone() -> None:
    events = calls(3)
    events[1]["name"] = "nan inf N/A -Infinity"
    text = json.dumps(events).replace('"Python id": 1', '"Python id": 1, "x": NaN')
    trace = read(text.encode())
    assert trace.name_of(1) == "nan inf N/A -Infinity"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (b"a\x01b\tc", "a\x01b\tc"),
        (b"caf\xe9", "caf\ufffd"),
        (rb"C:\Users\me\train.py", "C:\\Users\\me\\train.py"),
        (rb"half \ud800 pair", "half \ufffd pair"),
        (rb"bad \u12 escape", "bad \\u12 escape"),
        (b'<module "torch">', '<module "torch">'),
        (b'f("a", "b"): g', 'f("a", "b"): g'),
        (b'ends with "', 'ends with "'),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [TINY, 1 << 18])
def test_names_that_break_the_text(written: bytes, meant: str, chunk_bytes: int) -> None:
    text = document(calls(9), META, "new Kineto", "last").replace(b"train.py(4): step", written)
    trace = read(text, chunk_bytes=chunk_bytes)
    assert python_ids(trace) == list(range(9))
    assert trace.name_of(4) == meant
    assert (trace.report.n_repaired, trace.report.n_lost) == (1, 0)


def test_damage_in_the_metadata_is_mended_or_named() -> None:
    good = document(calls(3), {"a": "b"}, "one line", "between")
    mended = read(good.replace(b'"b"', b"NaN"))
    assert mended.meta == {"a": None}
    assert mended.report.tier == "repaired"
    for place, said in (("last", "before"), ("first", "behind")):
        text = document(calls(3), {"a": "b"}, "one line", place).replace(b'"b"', b'"b" "c"')
        trace = read(text)
        assert python_ids(trace) == [0, 1, 2]
        assert any(said in message for message in trace.report.loss)


# -- losses --------------------------------------------------------------------------------------


ONE = json.dumps({"traceEvents": calls(3)}).encode()


@pytest.mark.parametrize(
    "text",
    [ONE + ONE, ONE.removesuffix(b"}") + b", " + ONE.removeprefix(b"{"), ONE + b"\n" + json.dumps(calls(3)).encode()],
)
def test_events_behind_the_list_are_missed(text: bytes) -> None:
    trace = read(text)
    assert python_ids(trace) == [0, 1, 2]
    assert trace.report.tier == "salvaged"
    assert any("not read" in message for message in trace.report.loss)


# (pattern, replacement): applied once to the text of an event
BREAKS = {
    "no closing quote": (r'step"', "step"),
    "no closing brace": (r"\}\s*$", ""),
    "no colon": (r'"args"\s*:', '"args"'),
    "no value": (r'"dur":\s*5', '"dur":'),
    "extra bracket": (r'"args":\s*\{', '"args": {['),
    "half the event gone": (r'"dur".*$', ""),
    "rubbish inside": (r'"pid"', "\x00\xff<>&"),
    "deep nesting": (r'"dur":\s*5', '"dur": ' + "[" * 3000),
}


WHICH = ([4], [0], [8], [2, 3, 6])


def every_pair() -> list[tuple[str, str, list[int]]]:
    """Return layouts, breaks and places, so that every two of them meet."""
    return [
        (layout, kind, WHICH[(number + other) % len(WHICH)])
        for number, layout in enumerate(LAYOUTS)
        for other, kind in enumerate(BREAKS)
    ]


@pytest.mark.parametrize(("layout", "kind", "which"), every_pair())
def test_k_damaged_events_cost_exactly_k(layout: str, kind: str, which: list[int]) -> None:
    events = calls(9)
    whole = LAYOUTS[layout](events)
    text = whole
    for index in which:
        # each event is the same in a list of its own, up to the brackets
        event = LAYOUTS[layout]([events[index]]).strip()[1:-1].strip()
        assert event in text
        broken, n_broken = re.subn(*BREAKS[kind], event, count=1, flags=re.DOTALL)
        assert n_broken == 1
        text = text.replace(event, broken)
    for chunk_bytes in (TINY, 1 << 18):
        trace = read(f'{{"a": 1, "traceEvents": {text}, "b": 2}}'.encode("latin1"), chunk_bytes=chunk_bytes)
        assert python_ids(trace) == [i for i in range(9) if i not in which]
        assert trace.report.n_lost == len(which)
        assert trace.report.tier == "salvaged"
        assert trace.report.loss
        assert trace.meta == {"a": 1, "b": 2}


def test_rubbish_between_events_costs_none() -> None:
    text = json.dumps(calls(6)).replace('}, {"ph', '} <html>oops</html>, {"ph', 3)
    trace = read(text.encode())
    assert python_ids(trace) == list(range(6))
    assert trace.report.n_lost == 0
    assert trace.report.tier == "repaired"


def test_a_long_list_of_losses_is_told_briefly() -> None:
    text = json.dumps(calls(100)).replace('"pid": 1', '"pid" 1')
    with pytest.raises(TraceFormatError, match="none that can be read"):
        read(text.encode())
    text = text.replace('"pid" 1', '"pid": 1', 1)
    trace = read(text.encode())
    assert trace.report.n_lost == 99
    assert len(trace.report.loss) == 9
    assert trace.report.loss[-1] == "and 91 more"


# -- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk_bytes", [TINY, 1 << 18])
def test_cut_at_every_byte(layout: str, chunk_bytes: int) -> None:
    text = document(calls(3), {"schemaVersion": 1}, layout, "last")
    ends = _event_ends(text)
    assert len(ends) == 3
    for cut in range(len(text)):
        n_whole = sum(end <= cut for end in ends)
        if n_whole == 0:
            with pytest.raises(TraceFormatError):
                read(text[:cut], chunk_bytes=chunk_bytes)
            continue
        trace = read(text[:cut], chunk_bytes=chunk_bytes)
        assert python_ids(trace) == list(range(n_whole))
        rest = text[ends[n_whole - 1] : cut].strip(b" \t\r\n,")
        is_inside = bool(rest) and n_whole < 3
        assert trace.report.n_lost == is_inside
        if cut < len(text) - 2:
            assert trace.report.tier != "strict"
            assert trace.report.loss


def _event_ends(text: bytes) -> list[int]:
    """Offsets behind each event, by counting braces outside strings."""
    ends, depth, in_string, escaped = [], 0, False, False
    for position, byte in enumerate(text):
        char = chr(byte)
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if char == "}" and depth == 2:
                ends.append(position + 1)
    return ends


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9, 0.9999])
def test_a_truncated_gzip_gives_every_event_the_stream_holds(fraction: float) -> None:
    text = document(calls(20_000), META, "indented", "first")
    packed = gzip.compress(text)
    cut = packed[: int(len(packed) * fraction)]
    held = zlib.decompressobj(31).decompress(cut)
    trace = read(cut)
    # the inflater may keep the last byte or two of a stream without an end
    assert len(held) - 4 < trace.report.text_bytes <= len(held)
    n_whole = min(held[: trace.report.text_bytes].count(b"\n  }"), 20_000)
    assert python_ids(trace) == list(range(n_whole))
    assert "the compressed stream ends early" in trace.report.loss[-1]


def test_a_damaged_gzip_gives_what_stands_before_the_damage() -> None:
    text = document(calls(20_000), META, "one line", "first")
    packed = bytearray(gzip.compress(text))
    middle = len(packed) // 2
    packed[middle : middle + 64] = b"\xff" * 64
    trace = read(bytes(packed))
    held = zlib.decompressobj(31).decompress(bytes(packed[:middle]))
    n_held = held.count(b"}, {") // 2
    ids = python_ids(trace)
    assert len(ids) > 0.9 * n_held
    assert ids[: n_held - 600] == list(range(n_held - 600))
    assert trace.report.tier == "salvaged" or "damaged" in trace.report.loss[-1]


def test_a_wrong_checksum_costs_no_event() -> None:
    packed = bytearray(gzip.compress(document(calls(2000), META, "one line", "first")))
    packed[-6] ^= 1
    trace = read(bytes(packed))
    assert python_ids(trace) == list(range(2000))
    assert trace.meta == META


def test_several_gzip_members_with_names_and_padding() -> None:
    text = document(calls(500), META, "one line", "first")
    named = io.BytesIO()
    with gzip.GzipFile("a name", "wb", fileobj=named) as stream:
        stream.write(text[:10_000])
    packed = named.getvalue() + b"\0" * 100 + gzip.compress(text[10_000:]) + b"\0" * 100
    trace = read(packed)
    assert python_ids(trace) == list(range(500))
    assert trace.report.tier == "strict"


# -- time and memory -----------------------------------------------------------------------------

SLOW = {
    "quotes": b'"' * 2_000_000,
    "escaped quotes": b'{"ph": "X", "name": "' + b'\\"' * 1_000_000,
    "braces": b"{" * 1_000_000,
    "objects": b'{"ph":' * 300_000,
    "names": b'{"ph": "X", "name": "' * 50_000,
    "boundaries": b"}, {" * 500_000,
    "brackets": b"[" * 2_000_000,
    "ends": b'{"ph": "X", "a": [{}], "b": [{}]' * 30_000,
    "spaces": b" " * 4_000_000,
    "space between": (b"}" + b" " * 1000) * 2000,
    "nested events": b'{"args": [' * 100_000,
}


@pytest.mark.parametrize("kind", SLOW)
def test_no_text_takes_long(kind: str) -> None:
    head = b'{"traceEvents": [' + json.dumps(calls(1)[0]).encode() + b", "
    begun = time.process_time()
    trace = read(head + SLOW[kind])
    assert python_ids(trace)[0] == 0
    assert time.process_time() - begun < 10


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_mending_twice_changes_nothing_more(text: bytes) -> None:
    once = mend(text)
    assert mend(once) == once
