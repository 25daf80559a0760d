"""An overlay is the input, byte for byte, and a track of findings."""

from __future__ import annotations

import errno
import gzip
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.trace import Kind, Trace, overlay
from torchtriage.core.trace.overlay import write_overlay
from torchtriage.report import perfetto

EXTRA: list[dict[str, Any]] = [{"ph": "X", "cat": "torchtriage", "name": "one", "ts": 5, "dur": 1}]

# spelled as no encoder would spell it: the copy has to keep every byte
EVENTS = [
    '{"ph":"X", "cat":"cpu_op",  "name": "aten::mm", "pid": 1, "tid": 1,'
    ' "ts": 1700000000000000.123, "dur": 10.500,'
    ' "args": {"note": "}, {", "u": "\\u00e9 é", "big": 123456789012345678901}}',
    '{ "ts": 1700000000000020.001, "dur": 5e0, "ph": "X", "name": "b", "tid": 1, "pid": 1, "cat": "cpu_op"}',
    '{"ph": "s", "id": 7, "pid": 1, "tid": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"}',
    '{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}',
]
HEAD, TAIL = '"schemaVersion": 1, "deviceProperties": []', '"traceName": "a.json", "n": 1'
OBJECT = f'{{{HEAD},\n "traceEvents": [\n{",".join(EVENTS)}],\n {TAIL}}}'
LIST = f"[{','.join(EVENTS)}]"


def overlaid(tmp_path: Path, data: bytes, name: str = "trace.json", out: str = "out.json") -> bytes:
    (tmp_path / name).write_bytes(data)
    write_overlay(tmp_path / name, tmp_path / out, EXTRA)
    return (tmp_path / out).read_bytes()


def test_events_are_copied_byte_for_byte(tmp_path: Path) -> None:
    found = overlaid(tmp_path, OBJECT.encode())
    for event in EVENTS:
        assert event.encode() in found
    document = json.loads(found)
    assert document["traceEvents"] == [*map(json.loads, EVENTS), *EXTRA]


def test_metadata_before_and_behind_the_events_is_kept(tmp_path: Path) -> None:
    document = json.loads(overlaid(tmp_path, OBJECT.encode()))
    original = json.loads(OBJECT)
    del original["traceEvents"], document["traceEvents"]
    assert document == original


def test_a_bare_list_becomes_an_object(tmp_path: Path) -> None:
    document = json.loads(overlaid(tmp_path, LIST.encode()))
    assert document == {"traceEvents": [*map(json.loads, EVENTS), *EXTRA]}


@pytest.mark.parametrize("out", ["out.json", "out.json.gz"])
@pytest.mark.parametrize("packed", ["plain", "gz", "zip"])
def test_input_and_output_may_be_compressed(tmp_path: Path, packed: str, out: str) -> None:
    data = OBJECT.encode()
    name = f"trace.{packed}"
    if packed == "gz":
        data = gzip.compress(data)
    if packed == "zip":
        with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
            archive.writestr("trace.json", data)
        data = (tmp_path / "made.zip").read_bytes()
    found = overlaid(tmp_path, data, name, out)
    assert (found[:2] == b"\x1f\x8b") == out.endswith(".gz")
    text = gzip.decompress(found) if out.endswith(".gz") else found
    assert len(json.loads(text)["traceEvents"]) == len(EVENTS) + 1


@pytest.mark.parametrize("out", ["out.json", "out.json.gz"])
def test_equal_input_gives_equal_bytes(tmp_path: Path, out: str) -> None:
    first = overlaid(tmp_path, OBJECT.encode(), out=out)
    os.utime(tmp_path / "trace.json", (1, 1))
    assert overlaid(tmp_path, OBJECT.encode(), out=f"again_{out}") == first


def test_nothing_but_metadata_events_is_fine(tmp_path: Path) -> None:
    document = json.loads(overlaid(tmp_path, b'{"traceEvents": [], "a": 1}'))
    assert document == {"traceEvents": EXTRA, "a": 1}


# -- damage ------------------------------------------------------------------------------------


def test_literals_that_json_lacks_are_mended(tmp_path: Path) -> None:
    text = OBJECT.replace('"big": 123456789012345678901', '"rate": NaN')
    document = json.loads(overlaid(tmp_path, text.encode()))
    assert [event["name"] for event in document["traceEvents"]] == ["aten::mm", "b", "ac2g", "process_name", "one"]


def test_a_cut_file_keeps_every_whole_event(tmp_path: Path) -> None:
    text = OBJECT[: OBJECT.index(EVENTS[2]) + 20]
    document = json.loads(overlaid(tmp_path, text.encode()))
    assert [event["name"] for event in document["traceEvents"]] == ["aten::mm", "b", "one"]
    assert document["schemaVersion"] == 1


def test_a_cut_compressed_stream_keeps_every_whole_event(tmp_path: Path) -> None:
    events = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"op{n * n * 7919 % 10007}","ts":{n},"dur":1}}' for n in range(5000)
    )
    packed = gzip.compress(f'{{"traceEvents": [{events}]}}'.encode())
    found = json.loads(overlaid(tmp_path, packed[: len(packed) // 2], "cut.json.gz"))
    n = len(found["traceEvents"]) - 1
    assert 1000 < n < 5000
    assert [event["ts"] for event in found["traceEvents"][:-1]] == list(range(n))


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["same", "symlink", "hardlink", "other spelling"])
def test_the_input_is_never_overwritten(tmp_path: Path, link: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(OBJECT)
    out = tmp_path / "link.json"
    if link == "same":
        out = path
    elif link == "symlink":
        out.symlink_to(path)
    elif link == "hardlink":
        out.hardlink_to(path)
    else:
        (tmp_path / "folder").mkdir()
        out = tmp_path / "folder" / ".." / "trace.json"
    with pytest.raises(UsageError, match="found the input itself"):
        write_overlay(path, out, EXTRA)
    assert path.read_text() == OBJECT


@pytest.mark.parametrize("out", ["missing/out.json", "folder", "nul\0.json"])
def test_an_output_that_cannot_be_written_is_named(tmp_path: Path, out: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "trace.json").write_text(OBJECT)
    with pytest.raises(UsageError, match="cannot be written") as caught:
        write_overlay(tmp_path / "trace.json", str(tmp_path / out), EXTRA)
    assert out.rpartition("/")[2][:3] in caught.value.where


def test_a_full_disk_blames_the_output_and_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "trace.json").write_text(OBJECT)
    write = overlay.write
    monkeypatch.setattr(overlay, "write", lambda stream, text, target: write(_Full(), text, target))

    class _Full:
        write = staticmethod(full)

    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_overlay(tmp_path / "trace.json", tmp_path / "out.json", EXTRA)
    assert caught.value.where.endswith("out.json")
    assert not (tmp_path / "out.json").exists()


def test_an_input_that_is_no_trace_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"nodes": []}')
    with pytest.raises(TraceFormatError, match="execution trace"):
        write_overlay(tmp_path / "trace.json", tmp_path / "out.json", EXTRA)
    assert not (tmp_path / "out.json").exists()


def test_an_input_beyond_the_limit_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(OBJECT)
    with pytest.raises(TraceFormatError, match="limit"):
        write_overlay(tmp_path / "trace.json", tmp_path / "out.json", EXTRA, max_bytes=50)
    assert not (tmp_path / "out.json").exists()


# -- findings as events ------------------------------------------------------------------------


def syncing() -> TraceBuilder:
    """Return steps with four scalar readbacks each, at a clock no double can hold."""
    builder = TraceBuilder()
    for index in range(4):
        at = 1_700_000_000_000_000 + index * 1000
        builder.step(index, at, 1000)
        for read in range(4):
            begin = at + read * 200
            builder.op("aten::item", begin + 100, 80).op("aten::_local_scalar_dense", begin + 101, 78)
            builder.launch(begin + 10, 5, begin + 20, 30, "gemm")
            builder.copy(begin + 102, 70, begin + 160, 2, kind="DtoH (Device -> Pageable)")
    return builder


def test_findings_show_on_a_track_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(syncing().json())
    result = tt.analyze(tmp_path / "trace.json")
    tt.overlay(tmp_path / "trace.json", result, tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    mine = [event for event in events if event["pid"] == perfetto.PROCESS]
    labels = {event["args"].get("name") for event in mine if event["ph"] == "M"}
    assert "torchtriage findings" in labels
    placed = [finding for finding in result.findings if finding.place.intervals_ns or finding.place.examples]
    assert "SYN001" in {one.code for one in placed}
    # a finding without a place in time gets no empty track
    assert labels - {None} == {"torchtriage findings", *(f"{one.code} {one.name}" for one in placed)}
    shown = [event for event in mine if event["ph"] == "X"]
    assert {event["name"].split()[0] for event in shown} == {one.code for one in placed}
    assert all(event["args"]["message"] and event["args"]["fix"] for event in shown)
    # one track each, none of them the recording's
    assert len({event["tid"] for event in shown}) == len(placed)


def test_times_are_exact_text(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(syncing().json())
    result = tt.analyze(tmp_path / "trace.json")
    spans = [span for finding in result.findings for span in finding.place.intervals_ns]
    assert spans
    assert min(spans)[0] > 1 << 60
    texts = [(bytes(event["ts"]), bytes(event["dur"])) for event in perfetto.events(result) if event["ph"] == "X"]
    for start, end in spans:
        assert (us_text(start), us_text(end - start)) in texts
    tt.overlay(tmp_path / "trace.json", result, tmp_path / "out.json")
    again = tt.load(tmp_path / "out.json")
    rows = np.flatnonzero(again.is_kind(Kind.OTHER))
    back = set(zip(again.start_ns[rows].tolist(), again.end_ns[rows].tolist(), strict=True))
    assert set(spans) <= back


def us_text(value_ns: int) -> bytes:
    digits = f"{value_ns:04d}"
    return f"{digits[:-3]}.{digits[-3:]}".encode()


@pytest.mark.parametrize(
    ("value_ns", "text"), [(0, b"0.000"), (7, b"0.007"), (1234567, b"1234.567"), (-1, b"-0.001"), (-1500, b"-1.500")]
)
def test_nanoseconds_become_decimal_microseconds(value_ns: int, text: bytes) -> None:
    assert bytes(perfetto._us(value_ns)) == text


# -- the shared recordings ---------------------------------------------------------------------

SMALL = 1 << 20


def same_rows(left: Trace, right: Trace) -> bool:
    n = len(left)
    return (
        (left.start_ns == right.start_ns[:n]).all()
        and (left.dur_ns == right.dur_ns[:n]).all()
        and (left.kind == right.kind[:n]).all()
        and (left.key == right.key[:n]).all()
        and [left.names[code] for code in left.name.tolist()] == [right.names[code] for code in right.name[:n].tolist()]
    )


@pytest.mark.data
def test_overlays_of_the_shared_recordings_read_back_as_the_same_rows(
    recordings: Path, tmp_path: Path, judge: Callable[[Path], tt.Report]
) -> None:
    n_files = 0
    for path in sorted(recordings.rglob("*.json*")):
        if path.stat().st_size > SMALL:
            continue
        try:
            trace, result = tt.load(path), judge(path)
        except TraceFormatError:
            continue
        out = tmp_path / "out.json.gz"
        tt.overlay(path, result, out)
        again = tt.load(out)
        added = [event for event in perfetto.events(result) if event["ph"] == "X"]
        assert len(again) == len(trace) + len(added), path
        assert same_rows(trace, again), path
        n_files += 1
    assert n_files > 30
