"""The columnar cache beside a trace: the same trace, or none at all."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.core.trace.test_parallel import assert_same, mixed
from tests.invariants import check_trace

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import cache, read_trace
from torchtriage.core.trace.cache import cache_path


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    meta = {"float": 0.1, "deep": [{"a": None}], "é": "}, {"}
    path.write_bytes(gzip.compress(json.dumps({**meta, "traceEvents": mixed(200)}).encode()))
    return path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the traces that were decoded, not taken from a cache."""
    from torchtriage.core.trace import read

    seen: list[str] = []
    real = read.open_source

    def spy(opened: Any, *, name: str, **options: Any) -> Any:
        seen.append(name)
        return real(opened, name=name, **options)

    monkeypatch.setattr(read, "open_source", spy)
    return seen


def test_nothing_is_written_unless_asked(trace_file: Path) -> None:
    read_trace(trace_file)
    assert list(trace_file.parent.iterdir()) == [trace_file]


def test_the_cache_gives_the_same_trace(trace_file: Path, decoded: list[str]) -> None:
    first = read_trace(trace_file, cache=True)
    second = read_trace(str(trace_file), cache=True)
    assert decoded == [str(trace_file)]
    assert_same(first, second)
    assert_same(first, read_trace(trace_file))
    check_trace(second)
    assert second.args(3) == first.args(3)
    assert sorted(p.name for p in trace_file.parent.iterdir()) == ["trace.json.gz", "trace.json.gz.torchtriage-cache"]


@pytest.mark.data
@pytest.mark.parametrize("name", ["llm/bert_small_h100", "distributed/torchrec_a100_rank0_of_16"])
def test_recordings(name: str, recordings: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes((recordings / f"{name}.json.gz").read_bytes())
    assert_same(read_trace(path, cache=True), read_trace(path, cache=True))


def test_a_cache_moves_with_its_trace(trace_file: Path, decoded: list[str], tmp_path: Path) -> None:
    read_trace(trace_file, cache=True)
    moved = tmp_path / "b" / "other.json.gz"
    moved.parent.mkdir()
    trace_file.rename(moved)
    cache_path(trace_file).rename(cache_path(moved))
    trace = read_trace(moved, cache=True)
    assert len(decoded) == 1
    assert trace.report.path == str(moved)


def test_a_changed_trace_is_read_again(trace_file: Path, decoded: list[str]) -> None:
    read_trace(trace_file, cache=True)
    trace_file.write_bytes(gzip.compress(json.dumps(mixed(3)).encode()))
    for _ in range(2):
        assert len(read_trace(trace_file, cache=True)) == len(read_trace(trace_file))
    assert len(decoded) == 2 + 2


class Danger:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a cache"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Danger())),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "another's": lambda path: path.write_bytes(b"ttcache\0" + bytes(100)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_cache_is_as_none(kind: str, trace_file: Path, decoded: list[str]) -> None:
    first = read_trace(trace_file, cache=True)
    DAMAGE[kind](cache_path(trace_file))
    assert_same(first, read_trace(trace_file, cache=True))
    assert len(decoded) == 2
    if kind != "a folder":  # nothing of the user's is removed for a cache
        read_trace(trace_file, cache=True)
        assert len(decoded) == 2


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(mixed(3)))
    first = read_trace(path, cache=True)
    whole = cache_path(path).read_bytes()
    for position in range(0, len(whole), 11):
        broken = bytearray(whole)
        broken[position] ^= 0x55
        cache_path(path).write_bytes(bytes(broken))
        assert_same(first, read_trace(path, cache=True))


def test_another_version_is_read_again(trace_file: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read_trace(trace_file, cache=True)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    read_trace(trace_file, cache=True)
    read_trace(trace_file, cache=True)
    assert len(decoded) == 2


def test_a_folder_that_cannot_be_written_to(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise PermissionError("read only")

    monkeypatch.setattr(cache.tempfile, "mkstemp", refuse)
    assert len(read_trace(trace_file, cache=True)) > 0
    assert list(trace_file.parent.iterdir()) == [trace_file]


def test_a_full_disk_leaves_nothing_behind(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.Path, "replace", fail)
    read_trace(trace_file, cache=True)
    assert list(trace_file.parent.iterdir()) == [trace_file]


def test_numbers_too_large_for_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": mixed(1), "huge": 1 << 80}))
    for _ in range(2):
        assert read_trace(path, cache=True).meta["huge"] == 1 << 80


def test_the_limit_holds_for_a_cached_trace(trace_file: Path) -> None:
    read_trace(trace_file, cache=True)
    with pytest.raises(TraceFormatError, match="at most"):
        read_trace(trace_file, cache=True, max_bytes=1000)


def test_streams_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read_trace(io.BytesIO(json.dumps(mixed(1)).encode()), cache=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TraceFormatError, match="No such file"):
        read_trace("missing.json", cache=True)
