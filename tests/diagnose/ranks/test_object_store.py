"""Stores that fail for a while, in the middle, or for good."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from diagnose.ranks.jobs import job, write

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError
from torchtriage.diagnose.ranks import object_store


class Flaky(io.RawIOBase):
    """A stream that breaks after some bytes, as often as it is told to."""

    def __init__(self, text: bytes, fail: Callable[[int], None]) -> None:
        self.inner = io.BytesIO(text)
        self.fail = fail

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.inner.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        self.fail(self.inner.tell())
        return self.inner.read(min(size, 2_000))

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(object_store.time, "sleep", slept.append)
    return slept


def _served(monkeypatch: pytest.MonkeyPatch, texts: dict[str, bytes], fail: Callable[[str, int], None]) -> None:
    """Serve texts under ``memory://run/``; ``fail`` is called before each read, and may raise."""
    store = fsspec.filesystem("memory")
    for name, text in texts.items():
        store.pipe(f"/flaky/{name}", text)
    real = type(store).open

    def opened(self: Any, path: str, *args: Any, **more: Any) -> Any:
        name = Path(path).name
        if "flaky" not in path:
            return real(self, path, *args, **more)
        return Flaky(texts[name], lambda at: fail(name, at))

    monkeypatch.setattr(type(store), "open", opened)


def test_what_breaks_in_the_middle_is_read_on_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    files = write(job(2, late={1: 4000}), tmp_path)
    texts = {file.name: file.read_bytes() for file in files}
    _served(monkeypatch, texts, lambda _name, _at: None)
    calm = tt.analyze_ranks("memory://flaky").to_json()
    broken: set[tuple[str, int]] = set()

    def fail(name: str, at: int) -> None:
        if at > 3_000 and (name, at // 4_000) not in broken:
            broken.add((name, at // 4_000))
            raise ConnectionResetError("reset by peer")

    _served(monkeypatch, texts, fail)
    assert tt.analyze_ranks("memory://flaky").to_json() == calm
    assert len(broken) >= 2
    assert len(waits) == len(broken)


def test_tries_come_later_each_time_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    files = write(job(2), tmp_path)

    def fail(name: str, _at: int) -> None:
        if name == "rank1.json":
            raise TimeoutError("no answer")

    _served(monkeypatch, {file.name: file.read_bytes() for file in files}, fail)
    report = tt.analyze_ranks("memory://flaky")
    assert [result.trace.rank for result in report.results] == [0]
    (error,) = report.unreadable
    assert "rank1.json" in str(error)
    assert "5 times" in str(error)
    assert "no answer" in str(error)
    assert len(waits) == 4
    assert waits == sorted(waits)


def test_what_is_not_there_or_not_allowed_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    def fail(_name: str, _at: int) -> None:
        raise PermissionError("Access Denied")

    _served(monkeypatch, {"rank0.json": b"{}"}, fail)
    with pytest.raises(TraceFormatError, match="Access Denied"):
        tt.analyze_ranks("memory://flaky/rank0.json")
    with pytest.raises(TraceFormatError, match="FileNotFoundError"):
        tt.analyze_ranks("memory://nowhere/rank0.json")
    assert not waits
