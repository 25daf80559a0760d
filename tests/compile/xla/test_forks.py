"""Forked sessions are like fresh ones: their own environment, log and end; torch_xla is an empty module here."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_for

from torchtriage.compile.xla.forks import ForkServer
from torchtriage.compile.xla.python_env import fork_server, session
from torchtriage.core.errors import UsageError
from torchtriage.core.isolate.session_client import SessionClient, SessionError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch_xla is for Linux")


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    (tmp_path / "torch_xla.py").write_text("print('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with fork_server(sys.executable, tmp_path, {}, None) as server:
        yield server


def forked(forks: ForkServer, folder: Path, **environment: str) -> SessionClient:
    folder.mkdir()
    return session(sys.executable, folder, environment, None, forks)


def test_sessions_live_at_once_and_have_their_own_environment(forks: ForkServer, tmp_path: Path) -> None:
    for name, size in (("a.txt", 3), ("b.txt", 5), ("none.0", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
    files = [{"PT_XLA_DEBUG_FILE": str(tmp_path / f"{name}.txt")} for name in "ab"]
    shared = {"XLA_SAVE_TENSORS_FILE": str(tmp_path / "none")}
    with (
        forked(forks, tmp_path / "a", **files[0], **shared) as one,
        forked(forks, tmp_path / "b", **files[1], **shared) as other,
    ):
        assert one.ask("written", 30) == {"debug": 3, "saved": 0}
        assert other.ask("written", 30) == {"debug": 5, "saved": 0}
        assert one.process.pid != other.process.pid
    assert (tmp_path / "log.txt").read_text() == "imported\n"  # once for all of them
    assert (tmp_path / "a" / "log.txt").read_text() == ""
    wait_for(lambda: not Path(f"/proc/{one.process.pid}").exists(), 10)


def test_a_crash_says_the_signal_and_another_session_goes_on(forks: ForkServer, tmp_path: Path) -> None:
    with forked(forks, tmp_path / "a") as one, forked(forks, tmp_path / "b") as other:
        one.ask("warm_up", 30, seconds=0.0)
        os.kill(one.process.pid, signal.SIGSEGV)
        with pytest.raises(SessionError, match="ended by SIGSEGV"):
            one.ask("warm_up", 30, seconds=0.0)
        assert other.ask("warm_up", 30, seconds=0.0)


def test_silence_ends_a_session(forks: ForkServer, tmp_path: Path) -> None:
    with forked(forks, tmp_path / "a") as one:
        one.ask("warm_up", 30, seconds=0.0)
        with pytest.raises(SessionError, match="no answer after 0 s"):
            one.ask("warm_up", 0.3, seconds=60)
        assert one.process.returncode == -signal.SIGKILL
    with forked(forks, tmp_path / "b") as other:
        assert other.ask("warm_up", 30, seconds=0.0)


def test_sessions_end_with_their_server(forks: ForkServer, tmp_path: Path) -> None:
    with forked(forks, tmp_path / "a") as one:
        one.ask("warm_up", 30, seconds=0.0)
        forks.process.kill()
        wait_for(lambda: not Path(f"/proc/{one.process.pid}").exists(), 10)
        with pytest.raises(SessionError, match="ended by SIGKILL"):
            one.ask("warm_up", 30, seconds=0.0)


def test_a_torch_xla_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_xla.py").write_text("raise ImportError('undefined symbol')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        fork_server(sys.executable, tmp_path, {}, None) as server,
        pytest.raises(UsageError, match="ended with exit code 1: ImportError: undefined symbol"),
    ):
        forked(server, tmp_path / "a")
