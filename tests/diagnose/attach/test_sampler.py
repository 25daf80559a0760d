"""What a capture of several processes says, from the answers of their sockets."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from torchtriage.diagnose.attach import sampler
from torchtriage.diagnose.attach.captured import Captured
from torchtriage.diagnose.attach.processes import Process

DONE = {"file": "/traces/sample.json.gz", "cost_s": 0.5, "wall_s": 1.0}


@contextmanager
def sockets(answers: dict[int, dict[str, Any] | None]) -> Iterator[dict[int, list[Path]]]:
    """Listen as processes with these answers do; None: no answer."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's name has 107 characters
        listeners = []
        for pid, answer in answers.items():
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(f"{short}/{pid}")
            listener.listen()
            listeners.append(listener)
            if answer is not None:
                threading.Thread(target=_answer, args=(listener, answer), daemon=True).start()
        yield {pid: [Path(short) / str(pid)] for pid in answers}
        for listener in listeners:
            listener.close()


def _answer(listener: socket.socket, answer: dict[str, Any]) -> None:
    client, _ = listener.accept()
    with client:
        client.recv(4096)
        client.sendall(json.dumps(answer).encode())


def captured(
    monkeypatch: pytest.MonkeyPatch, answers: dict[int, dict[str, Any] | None], *, ranks: bool = True
) -> Captured:
    with sockets(answers) as paths:
        monkeypatch.setattr(sampler, "sockets_of", paths.__getitem__)
        return sampler.capture([Process(pid, pid if ranks else None, {}) for pid in answers], 3, 0.5)


def test_a_rank_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = captured(monkeypatch, {0: DONE, 1: {"error": "disk full"}})
    assert len(found.files) == 1
    assert found.still == ""
    assert found.cost.startswith("3 steps of rank 0, recorded in 1.00 s; ")
    assert found.cost.endswith("; without rank 1: disk full")


def test_a_rank_that_fails_is_named_beside_one_that_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    found = captured(monkeypatch, {0: None, 1: {"error": "disk full"}})
    assert found.still == "no step or request ended within 0.5 s in rank 0; without rank 1: disk full"


def test_a_request_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    request = {**DONE, "steps": None}
    assert captured(monkeypatch, {0: request}, ranks=False).cost.startswith("one request of 1 process, ")
    assert captured(monkeypatch, {0: DONE, 1: request}).cost.startswith("3 steps or one request of ranks 0-1, ")


def test_processes_without_a_rank_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert captured(monkeypatch, {0: DONE}, ranks=False).cost.startswith("3 steps of 1 process, ")
