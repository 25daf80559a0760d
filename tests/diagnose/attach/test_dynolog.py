"""Dynolog is asked as its own client asks it; a real Kineto understands what is asked."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnose.attach.fake_dynolog import FakeDynolog
from diagnose.attach.fake_servers import raw_server, trace_json
from tests.waiting import wait_for

import torchtriage as tt
from torchtriage.core.errors import TriageError, UsageError
from torchtriage.diagnose.attach import captured
from torchtriage.diagnose.attach.attach import Wish, attach

PROGRAM = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's name has 107 characters
        yield Path(short)


@pytest.fixture
def fake(folder: Path) -> Iterator[FakeDynolog]:
    made = FakeDynolog(folder)
    yield made
    made.close()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("wish", [{"seconds": 0.5}, {"steps": 4}])
def test_kineto_records_what_was_asked_for(fake: FakeDynolog, folder: Path, tmp_path: Path, wish: dict) -> None:
    env = {**os.environ, "KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: child.pid in fake.registered, 90)
        time.sleep(1)
        (path,) = attach(f"dynolog://127.0.0.1:{fake.port}", Wish(folder=tmp_path, timeout_s=40, **wish)).files
    finally:
        child.kill()
        child.wait()
    assert path.name.endswith(f"_{child.pid}.json")
    assert b'"aten::addmm"' in path.read_bytes()
    assert not tt.analyze(path).refused


def test_all_processes_that_record_are_waited_for(
    fake: FakeDynolog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "STILL_S", 0.2)
    fake.registered = {11: "", 12: ""}

    def write() -> None:
        for pid in (11, 12):
            time.sleep(0.6)
            log = dict(line.split("=", 1) for line in fake.configs[0].splitlines())["ACTIVITIES_LOG_FILE"]
            Path(log.replace(".json", f"_{pid}.json")).write_bytes(trace_json())

    threading.Timer(0.3, write).start()
    found = attach(f"dynolog://localhost:{fake.port}", Wish(seconds=0.1, folder=tmp_path, timeout_s=20))
    assert len(found.files) == 2
    request = fake.requests[-1]
    assert (request["pids"], request["job_id"], request["process_limit"]) == ([0], 0, 64)


def test_no_process_and_busy_ones_are_told(fake: FakeDynolog, tmp_path: Path) -> None:
    with pytest.raises(TriageError, match="knows no such process"):
        attach(f"dynolog://localhost:{fake.port}", Wish(folder=tmp_path))
    fake.registered, fake.busy = {11: ""}, True
    with pytest.raises(TriageError, match="being profiled already"):
        attach(f"dynolog://localhost:{fake.port}", Wish(folder=tmp_path))


@pytest.mark.parametrize(("wish", "word"), [({"only_stacks": True}, "stacks"), ({"ranks": frozenset((1,))}, "ranks")])
def test_what_cannot_be_kept_starts_no_profile(fake: FakeDynolog, tmp_path: Path, wish: dict, word: str) -> None:
    fake.registered = {11: ""}
    with pytest.raises(UsageError, match=f"dynolog .*{word}"):
        attach(f"dynolog://localhost:{fake.port}", Wish(folder=tmp_path, seconds=0.1, timeout_s=0.1, **wish))
    assert fake.configs == []


def test_an_answer_of_another_shape_is_told(fake: FakeDynolog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fake, "_answer", lambda request: {"status": 1, "processesMatched": [11], "activityProfilersTriggered": 5}
    )
    with pytest.raises(TriageError, match="expected the recording pids from dynolog"):
        attach(f"dynolog://localhost:{fake.port}", Wish(folder=tmp_path))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x01",
        struct.pack("=i", -1),
        struct.pack("=i", 1 << 30),
        struct.pack("=i", 5) + b"{",
        struct.pack("=i", 4) + b"[[[[",
        struct.pack("=i", 2) + b"[]",
        b"HTTP/1.1 400 Bad",
    ],
)
def test_what_is_no_dynolog_is_told(answer: bytes, tmp_path: Path) -> None:
    with (
        raw_server(lambda client, _: client.sendall(answer)) as port,
        pytest.raises(TriageError, match="expected a dynolog"),
    ):
        attach(f"dynolog://localhost:{port}", Wish(folder=tmp_path))
