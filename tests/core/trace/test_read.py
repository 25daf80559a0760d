"""Columns against a plain reading of the same JSON."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.trace.layouts import LAYOUTS, document
from tests.core.trace.plain import events_of, parse, plain_meta, plain_phases, plain_rows, read_file
from tests.invariants import check_trace

from torchtriage.core.trace import Kind, Trace, read_trace

TINY = 64
PLACES = ("first", "last", "between", "bare")
INT64 = range(-(1 << 63), 1 << 63)

# what `key` and `value` are read from, by category
KEYS = {
    "cpu_op": ("Sequence number", "Fwd thread id"),
    "user_annotation": ("Sequence number", "Fwd thread id"),
    "python_function": ("Python id", "Python parent id"),
}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync"}
DETAILS = {
    "dims": "Input Dims",
    "types": "Input type",
    "concrete": "Concrete Inputs",
    "strides": "Input Strides",
    "collective": "Collective name",
}


def read_text(text: bytes, **options: Any) -> Trace:
    return read_trace(io.BytesIO(text), **options)


def whole(value: Any) -> int:
    return value if isinstance(value, int) and value in INT64 else -1


def assert_as_plain(trace: Trace, text: bytes) -> None:
    """Hold every column against the document."""
    doc = parse(text)
    rows = plain_rows(doc)
    assert len(trace) == len(rows)
    assert trace.start_ns.tolist() == [row.start_ns for row in rows]
    assert trace.dur_ns.tolist() == [row.dur_ns for row in rows]
    assert [trace.names[code] for code in trace.name] == [row.name for row in rows]
    assert [trace.cats[code] for code in trace.cat] == [row.cat for row in rows]
    assert trace.meta == plain_meta(json.loads(text))
    assert trace.report.phases == dict(sorted(plain_phases(doc).items()))
    assert trace.report.n_events == len(events_of(doc))
    assert trace.report.tier == "strict"
    for index, row in enumerate(rows):
        lane = trace.lanes[trace.lane[index]]
        key, value = KEYS.get(row.cat, ("correlation", "bytes"))
        assert trace.key[index] == whole(row.args.get(key, -1))
        assert trace.value[index] == whole(row.args.get(value, -1))
        if row.cat in DEVICE:
            device = row.args.get("device", row.pid)
            stream = row.args.get("stream", row.tid)
            assert (lane.kind, lane.pid, lane.tid) == ("stream", str(device), str(stream))
        else:
            assert (lane.kind, lane.pid, lane.tid) == ("thread", row.pid, row.tid)
        if row.cat == "cpu_op" and row.args.get("Input Dims") is not None:
            detail = trace.details[trace.detail[index]]
            for name, written in DETAILS.items():
                raw = getattr(detail, name)
                assert (json.loads(raw) if raw else None) == row.args.get(written)


# -- arbitrary traces ----------------------------------------------------------------------------

# text that looks like the file's own structure
NASTY = st.sampled_from(
    ["}, {", '"}, {"ph": "X"', '"traceEvents": [', "}\n,\n{", "]}", "\\", '\\"', "]", "é", "\0\x1f"]
)
TEXTS = st.lists(NASTY | st.text(max_size=8), max_size=3).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.fixed_dictionaries({"ph": TEXTS, "x": VALUES}), max_size=3)
IDS = st.integers(-5, 1 << 40) | st.integers()
ARGS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": IDS,
        "Sequence number": IDS,
        "Fwd thread id": IDS,
        "Python id": IDS,
        "Python parent id": IDS | st.none(),
        "bytes": IDS,
        "device": st.integers(0, 9),
        "stream": st.integers(0, 9) | st.just("queue 1"),
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=3),
        "Input type": st.lists(TEXTS, max_size=2),
        "Collective name": TEXTS,
        "objects": OBJECTS,
        "other": VALUES,
    },
)
# Kineto's times: at most three decimals, up to epoch microseconds
TIMES = st.integers(0, 1 << 53).map(lambda ns: ns / 1000) | st.integers(0, 2 * 10**15)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXifsMC")},
    optional={
        "cat": st.sampled_from([*KEYS, *DEVICE, "cuda_runtime", "overhead", "new kind"]),
        "name": TEXTS,
        "pid": st.integers(0, 3) | st.just("Spans"),
        "tid": st.integers(0, 3) | st.just("7"),
        "ts": TIMES,
        "dur": TIMES,
        "args": ARGS,
    },
)
META = st.dictionaries(
    TEXTS.filter(lambda key: key not in ("nodes", "cells", "segments", "traceEvents")), VALUES, max_size=3
)


@settings(max_examples=200, deadline=None)
@given(
    events=st.lists(EVENT, min_size=1, max_size=12),
    meta=META,
    layout=st.sampled_from(sorted(LAYOUTS)),
    place=st.sampled_from(PLACES),
    chunk_bytes=st.sampled_from([1, TINY, 300, 1 << 18]),
)
@example(  # an instant with a duration, beside times that a double does not hold
    events=[
        {"ph": "X", "name": "", "dur": 8796093022208.0, "cat": "cpu_op"},
        {"ph": "i", "name": "", "tid": "7", "ts": 0.0, "cat": "cpu_op", "dur": 0.001},
    ],
    meta={},
    layout="compact",
    place="first",
    chunk_bytes=1 << 18,
)
def test_any_valid_trace_reads_as_json_does(
    events: list[dict[str, Any]], meta: dict[str, Any], layout: str, place: str, chunk_bytes: int
) -> None:
    text = document(events, meta, layout, place)
    assert_as_plain(read_text(text, chunk_bytes=chunk_bytes), text)


# -- layouts -------------------------------------------------------------------------------------


def calls(n: int, **args: Any) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"aten::op_{i % 7}",
            "pid": 1,
            "tid": i % 3,
            "ts": 1000 + i + 0.125,
            "dur": 0.5,
            "args": {"Sequence number": i, **args},
        }
        for i in range(n)
    ]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk_bytes", [1, TINY, 1000, 1 << 20])
def test_every_layout(layout: str, place: str, chunk_bytes: int) -> None:
    text = document(calls(50), {"schemaVersion": 1, "last": [{}, {}]}, layout, place)
    assert_as_plain(read_text(text, chunk_bytes=chunk_bytes), text)


@pytest.mark.parametrize("chunk_bytes", [TINY, 1 << 18])
def test_boundaries_inside_arguments_and_strings_fool_nobody(chunk_bytes: int) -> None:
    events = calls(
        20, objects=[{"ph": "X", "n": i} for i in range(40)], text='}, {"ph": "X", "name": "no"}, {"ph"' * 20
    )
    text = json.dumps({"header": '"traceEvents": [{"ph": "X"}]}', "traceEvents": events}).encode()
    assert_as_plain(read_text(text, chunk_bytes=chunk_bytes), text)


def test_a_key_named_trace_events_deeper_down_is_not_the_list() -> None:
    inner = {"traceEvents": [{"ph": "X", "name": "no"}]}
    text = json.dumps({"x": inner, "y": [inner], "traceEvents": calls(3), "z": inner}).encode()
    assert_as_plain(read_text(text, chunk_bytes=TINY), text)


@pytest.mark.parametrize("n_objects", [3, 30_000])
def test_an_event_longer_than_a_chunk(n_objects: int) -> None:
    events = [*calls(3), *calls(1, objects=[{"ph": "X", "x": "y"}] * n_objects), *calls(3)]
    text = json.dumps(events).encode()
    assert_as_plain(read_text(text, chunk_bytes=TINY), text)


def test_a_string_longer_than_a_chunk() -> None:
    text = json.dumps({"traceEvents": calls(5, text="x" * 3_000_000)}).encode()
    assert_as_plain(read_text(text), text)


def test_results_do_not_depend_on_the_chunk_size() -> None:
    text = document(calls(500), {}, "indented", "first")
    small, large = read_text(text, chunk_bytes=TINY), read_text(text)
    assert small.names == large.names
    assert small.lanes == large.lanes
    assert small.details == large.details
    assert np.array_equal(small.lane, large.lane)
    assert len(small.report.chunks) > len(large.report.chunks)


# -- times ---------------------------------------------------------------------------------------


def decimal(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


@pytest.mark.parametrize("base", [0, 4_458_676_522_690, 8_796_093_022_207, 1_712_170_298_123_456])
@settings(max_examples=60, deadline=None)
@given(ns=st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_times_are_exact_to_the_nanosecond(base: int, ns: list[int]) -> None:
    want = [base * 1000 + value for value in ns]
    events = ", ".join(
        f'{{"ph": "X", "name": "a", "ts": {decimal(start)}, "dur": {decimal(dur)}}}'
        for start, dur in zip(want, ns, strict=True)
    )
    trace = read_text(f"[{events}]".encode())
    assert trace.start_ns.tolist() == want
    assert trace.dur_ns.tolist() == ns


def test_integer_epoch_microseconds_stay_exact() -> None:
    trace = read_text(b'[{"ph": "X", "name": "a", "ts": 1623142623685891, "dur": 23}]')
    assert trace.start_ns.tolist() == [1_623_142_623_685_891_000]
    assert trace.dur_ns.tolist() == [23_000]


def test_odd_times_cost_nothing_but_themselves() -> None:
    odd = [
        '"12.5"',
        "1e3",
        "-4",
        "1E400",
        "9" * 40,
        '"x"',
        "null",
        "true",
        "[1]",
        "1e-999999999",
        '"1712170298123456.789"',
        '"inf"',
        '"nan"',
    ]
    text = ",".join(f'{{"ph": "X", "name": "{index}", "ts": {ts}, "dur": 1}}' for index, ts in enumerate(odd))
    trace = read_text(f"[{text}]".encode())
    assert len(trace) == len(odd)
    assert trace.report.n_lost == 0
    # without a time that can be: where the trace begins
    assert trace.start_ns.tolist()[:4] == [12_500, 1_000_000, -4_000, -4_000]
    assert trace.start_ns[10] == 1_712_170_298_123_456_789


def test_missing_and_negative_durations_are_counted() -> None:
    trace = read_text(
        b'[{"ph": "X", "name": "a", "ts": 1}, {"ph": "X", "name": "b", "ts": 1, "dur": -2},'
        b' {"ph": "X", "name": "c", "ts": 1, "dur": 3}]'
    )
    assert trace.dur_ns.tolist() == [0, 0, 3000]
    assert (trace.report.n_no_dur, trace.report.n_negative_dur) == (1, 1)


# -- events that are no complete events ----------------------------------------------------------


def test_begin_and_end_become_one_row() -> None:
    events = [
        {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 10},
        {"ph": "X", "name": "call", "pid": 1, "tid": 1, "ts": 11, "dur": 1},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 12},
        {"ph": "B", "name": "empty", "pid": 1, "tid": 1, "ts": 13},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 13},
        {"ph": "B", "name": "elsewhere", "pid": 1, "tid": 2, "ts": 13},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 14},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 20},
        {"ph": "E", "pid": 9, "tid": 9, "ts": 21},
    ]
    for chunk_bytes in (TINY, 1 << 18):
        trace = read_text(json.dumps(events).encode(), chunk_bytes=chunk_bytes)
        assert [trace.name_of(row) for row in range(len(trace))] == ["outer", "call", "inner", "empty", "elsewhere"]
        assert trace.dur_ns.tolist() == [10_000, 1000, 2000, 0, 0]
        assert trace.report.n_unpaired == 2  # no end for one, no begin for another


def test_allocator_records_are_columns_of_their_own() -> None:
    args = {
        "Bytes": -512,
        "Addr": 140_000_000_000_000,
        "Total Allocated": 7,
        "Total Reserved": 9,
        "Device Type": 1,
        "Device Id": 0,
    }
    record = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 5.001, "args": args}
    huge = {**record, "args": {**args, "Addr": 1 << 64}}
    trace = read_text(json.dumps([*calls(2), record, huge, {**record, "ph": "I"}]).encode())
    assert len(trace) == 2
    assert [column.tolist() for column in trace.memory] == [
        [5001] * 3,
        [-512] * 3,
        [140_000_000_000_000, -1, 140_000_000_000_000],
        [7] * 3,
        [9] * 3,
        [1] * 3,
        [0] * 3,
    ]


def test_labels() -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": "7", "args": {"name": 7}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 5}},
        {"ph": "M", "name": "odd", "args": [1]},
        *calls(1),
    ]
    assert read_text(json.dumps(events).encode()).labels == {
        ("process_name", "1", "0"): "python",
        ("process_labels", "0", "0"): "GPU 0",
        ("thread_name", "1", "7"): "7",
    }


def test_lanes_with_ids_as_numbers_and_as_text_are_one() -> None:
    events = calls(2)
    events[0].update(pid="1", tid="0")
    events[1].update(pid=1, tid=0)
    trace = read_text(json.dumps(events).encode())
    assert len(trace.lanes) == 1
    assert trace.lane.tolist() == [0, 0]


def test_fields_of_unexpected_types_do_not_lose_the_event() -> None:
    odd: list[Any] = [None, 1, 1.5, True, "text", [1], {"a": 1}]
    events = [
        {"ph": "X", "name": n, "cat": c, "pid": p, "tid": p, "ts": 1, "dur": 2, "args": a}
        for n, c, p, a in zip(odd, odd, odd, odd, strict=True)
    ]
    events += [{"ph": ph, "name": "x"} for ph in odd]
    args = {key: [None] for key in ("correlation", "stream", "device", "bytes", "Bytes")}
    events.append({"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": args})
    for chunk_bytes in (TINY, 1 << 18):
        trace = read_text(json.dumps(events).encode(), chunk_bytes=chunk_bytes)
        assert trace.report.n_lost == 0
        assert trace.report.n_events == len(events)
        assert len(trace) == 8
        assert trace.names[trace.name[1]] == "1"
        check_trace(trace)


def test_an_event_reads_alike_whatever_stands_beside_it() -> None:
    args = '{"correlation": 7, "stream": 1, "device": 0, "grid": [1, 2,  3], "Python id": 1e400}'
    odd = '{"ph": "X", "cat": "kernel", "name": 5, "ts": 1, "dur": 2, "args": {"stream": []}}'
    event = f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": 9, "dur": 2, "pid": 0, "tid": 1, "args": {args}}}'
    alone, beside = (
        read_text(f'{{"traceEvents": [{", ".join(texts)}]}}'.encode()) for texts in ([event], [odd, event])
    )
    at = int(np.flatnonzero(beside.named("k"))[0])
    assert (alone.key[0], beside.key[at]) == (7, 7)
    assert alone.lanes[alone.lane[0]] == beside.lanes[beside.lane[at]]
    assert alone.details[alone.detail[0]] == beside.details[beside.detail[at]]


@pytest.mark.parametrize("tids", [("1", "true"), ("true", "1")])
def test_true_is_no_number_of_a_thread(tids: tuple[str, str]) -> None:
    rows = [f'{{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 2, "tid": {tid}}}' for tid in tids]
    trace = read_text(f'{{"traceEvents": [{", ".join(rows)}]}}'.encode())
    assert {lane.tid for lane in trace.lanes} == {"1", "True"}


def test_numbers_as_text_are_read() -> None:
    args = {"correlation": 4, "bytes": "4096"}
    events = [{"ph": "X", "cat": "gpu_memcpy", "name": "c", "ts": "7.5", "dur": "1", "args": args}]
    trace = read_text(json.dumps(events).encode())
    assert (trace.start_ns[0], trace.dur_ns[0], trace.value[0]) == (7500, 1000, 4096)


def test_a_category_never_seen_is_kept_as_other() -> None:
    events = calls(2)
    events[1]["cat"] = "quantum_op"
    trace = read_text(json.dumps(events).encode())
    assert trace.kind.tolist() == [Kind.OP, Kind.OTHER]
    assert trace.cats == ("cpu_op", "quantum_op")


def test_progress_is_told() -> None:
    text = json.dumps(calls(1000)).encode()
    seen: list[tuple[int, int]] = []
    read_text(text, chunk_bytes=1000, progress=lambda *at: seen.append(at))
    assert seen[-1] == (len(text), len(text))
    assert len(seen) > 10


# -- the shared recordings -----------------------------------------------------------------------


def shared_files() -> list[Path]:
    from tests.conftest import DATA

    return [
        path
        for path in sorted((DATA / "traces").rglob("*.json.gz"))
        # half nanoseconds and text times are tested above; the largest take too long in Python
        if path.parent.name != "odd"
        and path.name != "ascend_npu_trace_view.json.gz"
        and path.stat().st_size < 1_500_000
    ]


@pytest.mark.data
@pytest.mark.parametrize("path", shared_files(), ids=lambda path: path.name)
def test_shared_recordings_read_as_json_does(path: Path) -> None:
    doc = read_file(path)
    trace = read_trace(path, processes=1)
    rows = plain_rows(doc)
    assert trace.start_ns.tolist() == [row.start_ns for row in rows]
    assert trace.dur_ns.tolist() == [row.dur_ns for row in rows]
    assert trace.report.phases == dict(sorted(plain_phases(doc).items()))
    assert trace.report.tier == "strict"
    assert [trace.names[code] for code in trace.name] == [row.name for row in rows]
    for index in range(0, len(rows), max(len(rows) // 200, 1)):
        key, _ = KEYS.get(rows[index].cat, ("correlation", ""))
        if rows[index].cat in (*KEYS, *DEVICE):
            assert trace.key[index] == rows[index].args.get(key, -1)


@pytest.mark.data
def test_gzip_plain_and_zip_give_the_same(recordings: Path, tmp_path: Path) -> None:
    import zipfile

    packed = recordings / "small" / "simple_add_a100.json.gz"
    text = gzip.decompress(packed.read_bytes())
    plain = tmp_path / "a.json"
    plain.write_bytes(text)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/trace.json", text)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("trace.json.gz", packed.read_bytes())
    first = read_trace(packed)
    for path in (plain, tmp_path / "a.zip", tmp_path / "b.zip"):
        other = read_trace(str(path))
        assert np.array_equal(first.start_ns, other.start_ns)
        assert first.names == other.names
        assert first.report.text_bytes == other.report.text_bytes
