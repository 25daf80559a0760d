"""A session's process: answers, endings and silences; nothing here needs torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from torchtriage.core.isolate.session_client import SessionClient, SessionError
from torchtriage.core.isolate.session_main import ModelSession
from torchtriage.core.isolate.target import TargetError


@pytest.fixture
def worker(tmp_path: Path):  # type: ignore[no-untyped-def]
    with SessionClient(tmp_path / "cache", tmp_path / "logs" / "log.txt", threads=1) as one:
        yield one


def test_steps_are_timed_one_by_one(worker: SessionClient) -> None:
    times = worker.ask("warm_up", 30, seconds=0.01)
    assert len(times) > 100  # an empty step
    assert min(times) >= 1
    block = worker.ask("block", 30, n=50, untimed=True)
    assert len(block["ns"]) == 50
    assert block["wall_ns"] >= sum(block["ns"])
    assert block["cpu_ns"] > 0


def test_a_block_ends_when_its_time_is_up(worker: SessionClient) -> None:
    begun = time.monotonic()
    block = worker.ask("block", 60, n=10**9, untimed=False, most_s=0.05)
    assert 100 < len(block["ns"]) < 10**7
    assert 0.05 <= block["wall_ns"] / 1e9 <= time.monotonic() - begun
    assert len(worker.ask("block", 30, n=5, untimed=False, most_s=0.0)["ns"]) == 1  # one in any case


def test_a_failed_command_does_not_end_the_session(worker: SessionClient) -> None:
    with pytest.raises(SessionError, match="AttributeError") as caught:
        worker.ask("no_such_command", 30)
    assert caught.value.kind == "error"
    assert worker.ask("warm_up", 30, seconds=0.0)


def test_silence_ends_the_session(worker: SessionClient) -> None:
    worker.ask("warm_up", 30, seconds=0.0)
    begun = time.monotonic()
    with pytest.raises(SessionError) as caught:
        worker.ask("warm_up", 0.3, seconds=60)
    assert caught.value.kind == "timeout"
    assert 0.3 <= time.monotonic() - begun < 10
    assert worker.process.poll() == -signal.SIGKILL


def test_a_crash_says_the_signal(worker: SessionClient) -> None:
    worker.ask("warm_up", 30, seconds=0.0)
    os.kill(worker.process.pid, signal.SIGSEGV)
    with pytest.raises(SessionError, match="ended by SIGSEGV") as caught:
        worker.ask("warm_up", 30, seconds=0.0)
    assert caught.value.kind == "crash"
    with pytest.raises(SessionError):  # and stays ended
        worker.ask("warm_up", 5, seconds=0.0)


def test_caches_and_threads_are_its_own(worker: SessionClient, tmp_path: Path) -> None:
    environment = Path(f"/proc/{worker.process.pid}/environ")
    if not environment.exists():
        return
    worker.ask("warm_up", 30, seconds=0.0)
    told = environment.read_bytes().decode().split("\0")
    assert f"TORCHINDUCTOR_CACHE_DIR={(tmp_path / 'cache').resolve()}" in told
    assert "OMP_NUM_THREADS=1" in told


def test_without_torch_it_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    way = {"mode": "eager", "backend": "", "dynamic": None}
    with pytest.raises(TargetError, match="torch is not installed"):
        ModelSession().open("json:dumps", way, False, "", None, None, "")
