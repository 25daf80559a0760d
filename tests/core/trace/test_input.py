"""Whatever a user points at: read, or refused in one clear line with something to try."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import read_trace
from torchtriage.core.trace.events import CHUNK_BYTES
from torchtriage.core.trace.input import open_source
from torchtriage.core.units import DEFAULT_MAX_BYTES
from torchtriage.core.workers import PROCESSES_VARIABLE

TRACE = json.dumps(
    {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::é", "ts": 1, "dur": 2}]}, ensure_ascii=False
)


def refusal(path: str | Path | io.BytesIO, **options: int) -> str:
    """Return the message: what was expected and found, where, and a line with what to try."""
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path, **options)
    error = caught.value
    assert error.message.startswith("expected ")
    assert error.where
    assert error.hint
    assert str(error).count("\n") == 1
    assert len(str(error)) < 1200
    return str(error)


def tar_of(text: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("trace.json")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return packed.getvalue()


def zip_of(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            archive.writestr(name, TRACE)
    return packed.getvalue()


def database_of(*tables: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.db"
        with closing(sqlite3.connect(path)) as connection:
            for table in tables:
                connection.execute(f"CREATE TABLE {table} (id INTEGER)")
            connection.commit()
        return path.read_bytes()


FOREIGN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "an empty file"),
    "spaces": (b" \n\t " * 100_000, "only white space"),
    "sqlite": (database_of("books", "authors"), "an SQLite database"),
    "damaged sqlite": (b"SQLite format 3\0" + bytes(100), "expected a database that can be read"),
    "rocpd": (database_of("rocpd_api", "rocpd_op"), "a database of ROCm's profilers (rocpd)"),
    "nvprof": (database_of("StringTable", "CUPTI_ACTIVITY_KIND_KERNEL"), "an export of nvprof"),
    "nsys": (b"NVIDIA Tegra Profiler Report 2026@4@1@191-264138605071v0.\n", "nsys export --type sqlite"),
    "nsys stream": (b"QDSTRM" + bytes(50), "QdstrmImporter"),
    "xplane": (b"\n\x9b\xb5\x10\x08\x02\x12\r/device:TPU:0\x1a\x96", "none that can be read"),
    "execution trace beside it": (b'{"schema": "1.1.0", "pid": 7, "nodes": []}', "in the same run"),
    "rocprofv3's JSON": (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "no event of rocprofv3 (JSON)"),
    "rocprofv3's CSV": (b'"Kind","Agent_Id","Queue_Id"\n', "a table of rocprofv3's traces"),
    "pickle": (pickle.dumps({"segments": []}), "Python pickle"),
    "checkpoint": (zip_of("model/data.pkl", "model/version"), "torch.save checkpoint"),
    "no trace in the zip": (zip_of("readme.txt"), "found 0"),
    "two traces in the zip": (zip_of("rank0.json", "rank1.json"), "found 2 (rank0.json, rank1"),
    "cut zip": (zip_of("a.json")[:80], "cannot be read"),
    "tar": (tar_of(TRACE.encode()), "a tar archive"),
    "tar.gz": (gzip.compress(tar_of(TRACE.encode())), "a tar archive"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(50), "zstd -d"),
    "bz2": (bz2.compress(TRACE.encode()), "bunzip2"),
    "xz": (lzma.compress(TRACE.encode()), "unxz"),
    "gz in a gz": (gzip.compress(gzip.compress(TRACE.encode())), "binary data"),
    "cut gz": (gzip.compress(TRACE.encode())[:8], "ends early"),
    "damaged gz": (b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 50, "damaged"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(50), "a picture"),
    "page": (b"<!DOCTYPE html><html></html>", "an HTML page"),
    "protobuf": (b"\x0a\x1a\x08\x01\x12\x06python\x1a\x00\x05", "binary data"),
    "text": (b"step 1: 34 ms", "text that is no JSON"),
    "log": (b'V1206 15:20:13.926000 15 torch/a.py:1] {"str": 1}\n', "TORCH_TRACE"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "execution trace": (b'{"schema": "1.1.0", "pid": 7, "nodes": [{"id": 1}]}', "execution trace"),
    "notebook": (b'{"cells": [{"cell_type": "code"}], "nbformat": 4}', "notebook"),
    "snapshot": (b'{"segments": [], "device_traces": []}', "memory snapshot"),
    "our report": (b'{"schema": "torchtriage/1", "findings": []}', "torchtriage show"),
    "other JSON": (b'{"a": {"traceEvents": 1}, "b": 2}', "other JSON"),
    "cut JSON": (b'{"schemaVersion": 1, "devi', "cut short"),
    "JSON lines": (b'{"event": 1, "pid": 2}\n{"event": 2, "pid": 3}\n', "other JSON"),
    "number": (b"42", "text that is no JSON"),
    "list of lists": (b"[[1, 2], [3, 4]]", "a JSON list of something else"),
    "no events": (b'{"traceEvents": []}', "an empty list"),
    "empty list": (b"[]", "an empty list"),
    "empty object": (b"{}", "other JSON"),
    "events null": (b'{"traceEvents": null}', "JSON whose traceEvents is no list"),
    "only rubbish": (b'{"traceEvents": [{"ph" "X"}]}', "none that can be read"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_trace_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    data, found = FOREIGN[kind]
    path = tmp_path / "input.json"
    path.write_bytes(data)
    message = refusal(path)
    assert found in message
    assert str(path) in message
    assert found in refusal(io.BytesIO(data))


@pytest.mark.parametrize("key", ["nodes", "cells", "segments"])
def test_a_key_of_the_users_own_makes_a_trace_nothing_else(key: str) -> None:
    text = json.dumps({key: "4", "pg_config": [{"ranks": list(range(512))}] * 512, **json.loads(TRACE)})
    assert len(text) > CHUNK_BYTES
    assert len(read_trace(io.BytesIO(text.encode()))) == len(read_trace(io.BytesIO(TRACE.encode())))


@pytest.mark.parametrize(
    "text", ["SECRET", '["SECRET"]', '{"SECRET": 1}', '{"SECRET', '[{"SECRET" 1}]', '{"traceEvents": [{"SECRET" 1}]}']
)
def test_nothing_of_what_is_no_trace_is_quoted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_text(text)
    assert "SECRET" not in refusal(path)
    with zipfile.ZipFile(tmp_path / "input.zip", "w") as archive:
        archive.writestr("SECRET", text)
    assert "SECRET" not in refusal(tmp_path / "input.zip")


@pytest.mark.data
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("memory/*.pickle", "Python pickle"),
        ("memory/*.json.gz", "a JSON list of something else"),
        ("logs/torch_trace/**/*.log*", "TORCH_TRACE"),
        ("logs/xla/*.txt", "text that is no JSON"),
        ("traces/odd/execution_trace*", "execution trace"),
    ],
)
def test_real_files_of_other_kinds(pattern: str, found: str, recordings: Path) -> None:
    paths = sorted(recordings.parent.glob(pattern))
    assert paths
    for path in paths:
        assert found in refusal(path)


def test_an_nsight_report_of_another_version_is_known_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"\x01\x02unknown" * 10)
    assert "nsys export --type sqlite" in refusal(path)


# -- paths ---------------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


PATHS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "No such file"),
    "folder": (Path.mkdir, "a folder"),
    "named pipe": (os.mkfifo, "a named pipe"),
    "socket": (_socket, "a socket"),
    "symlink loop": (lambda path: path.symlink_to(path), "symbolic links"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "No such file"),
}


@pytest.mark.parametrize("kind", PATHS)
def test_paths_that_lead_to_no_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make, found = PATHS[kind]
    path = Path("x.json")
    make(path)
    message = refusal(path)
    assert found in message
    assert message.startswith("x.json: ")


def test_devices_are_not_read() -> None:
    assert "a character device" in refusal("/dev/zero")


def test_files_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(TRACE)
    path.chmod(0)
    code = (
        "import os, sys\n"
        "from torchtriage.core.trace import read_trace\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"  # root may read everything
        "try:\n"
        "    read_trace(sys.argv[1])\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True)
    assert b"Permission denied" in done.stdout


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "a/" * 3000, "", "a\nb\x1b[31m"])
def test_names_that_cannot_be(path: str) -> None:
    message = refusal(path) if path else refusal_without_where(path)
    assert "\x1b" not in message


def refusal_without_where(path: str) -> str:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    return str(caught.value)


# -- forms that are read -------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("packed", [False, True])
def test_encodings(encoding: str, packed: bool) -> None:
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    data = mark + TRACE.encode(encoding)
    trace = read_trace(io.BytesIO(gzip.compress(data) if packed else data))
    assert trace.names == ("aten::é",)
    assert trace.report.tier == "strict"


def test_a_zip_with_one_trace_among_other_files() -> None:
    for beside in ("readme.txt", "__MACOSX/logs/._rank0.pt.trace.json", "logs/._rank0.pt.trace.json"):
        packed = zip_of(beside, "logs/rank0.pt.trace.json")
        assert len(read_trace(io.BytesIO(packed))) == 1


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_zip_gives_what_is_whole(method: int) -> None:
    # names that compress badly: most damage makes the inflater itself fail
    place = random.Random(5)
    events = [{"ph": "X", "name": f"{place.getrandbits(200):x}", "ts": 10 * i, "dur": 5} for i in range(20_000)]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("a.json", json.dumps(events))
    said = set()
    for _ in range(12):
        data = bytearray(packed.getvalue())
        at = place.randrange(3 * len(data) // 4, len(data) - 2200)
        data[at : at + 2000] = place.randbytes(2000)
        report = read_trace(io.BytesIO(data)).report
        assert report.tier == "salvaged"
        assert len(events) // 8 < report.n_events < len(events)
        said |= {text for text in report.loss if "damaged" in text}
    # not only the archive's own checksum, at the end
    assert any("CRC" not in text for text in said)


def test_a_zip_with_a_damaged_directory_is_refused_by_name(tmp_path: Path) -> None:
    whole = zip_of("a.json")
    first = whole.index(b"PK\x01\x02")
    for place in range(first, len(whole)):
        for bit in (1, 128):
            data = bytearray(whole)
            data[place] ^= bit
            file = tmp_path / "a.zip"
            file.write_bytes(data)
            with suppress(TraceFormatError):
                read_trace(file)


@pytest.mark.parametrize("data", [TRACE.encode(), gzip.compress(TRACE.encode())], ids=["plain", "gz"])
def test_standard_input(data: bytes) -> None:
    code = "from torchtriage.core.trace import read_trace; t = read_trace('-'); print(t.report.path, len(t), t.args(0))"
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout == b"<stdin> 1 {}\n"


def test_a_stream_stays_open_and_is_read_from_its_start() -> None:
    stream = io.BytesIO(TRACE.encode())
    stream.seek(5)
    assert len(read_trace(stream)) == 1
    assert len(read_trace(stream)) == 1
    stream.close()
    assert "a closed one" in str(refusal_of_closed(stream))


def refusal_of_closed(stream: io.BytesIO) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(stream)
    return caught.value


# -- bombs ---------------------------------------------------------------------------------------


def bomb(n_bytes: int, head: bytes, filler: bytes) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as stream:
        stream.write(head)
        block = filler * ((1 << 22) // len(filler))
        for _ in range(n_bytes // len(block)):
            stream.write(block)
    return packed.getvalue()


FIRST = b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}, '


@pytest.mark.parametrize(
    ("head", "filler"),
    [(FIRST, b" "), (FIRST + b'{"ph": "X", "name": "', b"a"), (FIRST, b"["), (b"", b" "), (b'{"a": "', b"b")],
)
def test_a_small_file_that_expands_to_gigabytes_is_refused(head: bytes, filler: bytes) -> None:
    data = bomb(300 << 20, head, filler)
    assert len(data) < 8 << 20
    code = (
        "from pathlib import Path\n"
        "from torchtriage.core.trace import read_trace\n"
        "from torchtriage.core.errors import TriageError\n"
        "try:\n"
        "    read_trace('-', max_bytes=200 << 20)\n"
        "except TriageError as error:\n"
        # not ru_maxrss, which counts the parent's memory before exec
        "    peak = Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]\n"
        "    print(int(peak) >> 10, error)\n"
    )
    begun = time.perf_counter()
    # each thread has blocks of its own: as many on every machine
    environment = {**os.environ, PROCESSES_VARIABLE: "2"}
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True, env=environment)
    assert time.perf_counter() - begun < 30
    megabytes, message = done.stdout.decode().split(" ", 1)
    assert int(megabytes) < 700
    assert "--max-bytes" in message or "found" in message


def test_the_limit_for_what_expands_suspiciously(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.core.trace.input.BOMB_BYTES", 1 << 20)
    data = bomb(8 << 20, FIRST, b" ")
    assert "--max-bytes" in refusal(io.BytesIO(data))
    assert len(read_trace(io.BytesIO(data), max_bytes=DEFAULT_MAX_BYTES - 1)) == 1


def test_the_limit_is_exact() -> None:
    data = TRACE.encode()
    assert len(read_trace(io.BytesIO(data), max_bytes=len(data))) == 1
    assert "--max-bytes" in refusal(io.BytesIO(data), max_bytes=len(data) - 1)


def test_skipping_ahead_in_plain_text_only() -> None:
    for data, skipped in ((b"\xef\xbb\xbf" + TRACE.encode(), 7), (gzip.compress(TRACE.encode()), 0)):
        with open_source(io.BytesIO(data)) as source:
            assert source.skip(7) == skipped
            assert source.read(1 << 20) == TRACE.encode()[skipped:]
