"""The socket of a sampler: what it lets in, and that the process never notices."""

from __future__ import annotations

import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchtriage as tt
from torchtriage.core.record import attach_socket
from torchtriage.core.record.attach_socket import AttachSocket
from torchtriage.core.record.sample import Sampler
from torchtriage.diagnose.attach import sampler as asking

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # a socket's name has 107 characters
    monkeypatch.setattr(attach_socket, "socket_folder", lambda uid: Path("/tmp") / f"tt-test-{os.getpid()}")
    return attach_socket.socket_folder(0)


@pytest.fixture
def sampler(folder: Path, tmp_path: Path) -> Iterator[Sampler]:
    with tt.sample(tmp_path / "traces", every_s=None, max_overhead=1e-9) as made:
        assert made.stats.failures == {}
        yield made
    assert not list(folder.glob("*.sock"))
    folder.rmdir()


def connect(folder: Path, request: bytes) -> socket.socket:
    (path,) = folder.glob(f"{os.getpid()}-*.sock")
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(20)
    client.connect(str(path))
    client.sendall(request)
    return client


def ask(folder: Path, request: bytes) -> dict[str, Any]:
    with connect(folder, request) as client:
        text = b""
        while part := client.recv(1 << 16):
            text += part
    return json.loads(text) if text else {}


def work(sampler: Sampler, until: threading.Thread | None = None) -> None:
    import torch

    for _ in range(200):
        torch.ones(8) + 1
        sampler.step()
        if until is not None and not until.is_alive():
            return
        time.sleep(0.01)


def in_background(folder: Path, request: bytes) -> tuple[threading.Thread, list[dict[str, Any]]]:
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(ask(folder, request)))
    thread.start()
    time.sleep(0.3)
    return thread, answers


def test_as_many_steps_as_asked_are_captured_above_the_cap(sampler: Sampler, folder: Path) -> None:
    for steps in (3, 5):
        thread, answers = in_background(folder, b'{"do": "capture", "steps": %d}\n' % steps)
        work(sampler, thread)
        thread.join()
        (answer,) = answers
        assert len(tt.load(Path(answer["file"])).steps.names) == steps
        assert 0 < answer["cost_s"] < 60
        assert answer["wall_s"] > 0.01 * steps
    assert sampler.stats.skipped_overhead == 0
    # but its own captures still obey the cap
    sampler.trigger()
    work(sampler)
    assert sampler.stats.skipped_overhead > 0


def test_a_request_is_told_from_steps(sampler: Sampler, folder: Path) -> None:
    thread, answers = in_background(folder, b'{"do": "capture", "steps": 5}\n')
    with sampler.request():
        pass
    thread.join()
    assert answers[0]["steps"] is None


def test_a_client_that_leaves_takes_its_wish_back(sampler: Sampler, folder: Path) -> None:
    connect(folder, b'{"do": "capture", "steps": 3}\n').close()
    time.sleep(0.6)
    work(sampler)
    assert sampler.stats.captures == 0
    # in the middle of a capture, too
    client = connect(folder, b'{"do": "capture", "steps": 900}\n')
    thread = threading.Thread(target=lambda: (time.sleep(0.7), client.close()))
    thread.start()
    time.sleep(0.3)
    work(sampler)
    thread.join()
    assert sampler.stats.captures == 0
    assert sampler.files == []
    assert not sampler.capturing


def test_one_capture_is_asked_for_at_a_time(sampler: Sampler, folder: Path) -> None:
    thread, answers = in_background(folder, b'{"do": "capture", "steps": 2}\n')
    assert "another capture" in ask(folder, b'{"do": "capture", "steps": 2}\n')["error"]
    work(sampler, thread)
    thread.join()
    assert "file" in answers[0]


def test_a_profiler_at_work_is_told(sampler: Sampler, folder: Path) -> None:
    import torch

    thread, answers = in_background(folder, b'{"do": "capture", "steps": 2}\n')
    with torch.profiler.profile():
        work(sampler, thread)
    thread.join()
    assert "another profiler runs" in answers[0]["error"]


def test_the_process_says_where_it_is(sampler: Sampler, folder: Path) -> None:
    threads = ask(folder, b'{"do": "stacks"}\n')["threads"]
    main = next(one for one in threads if one["thread_name"] == "MainThread")
    assert "test_the_process_says_where_it_is" in [frame["name"] for frame in main["frames"]]
    assert not [one for one in threads if one["thread_name"].startswith("torchtriage-")]


def test_the_flight_recorder_is_given_at_once(tmp_path: Path) -> None:
    # in a process of its own, in which no stack has symbols yet
    code = """
import base64, os, pickle, sys, time, torch, torch.distributed as dist
from torchtriage.core.record.attach_socket import _flight
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
begun = time.monotonic()
(dump,) = _flight()["dumps"]
assert pickle.loads(base64.b64decode(dump))["entries"][0]["profiling_name"] == "gloo:all_reduce"
assert time.monotonic() - begun < 3
os._exit(0)  # gloo's threads may end a process that goes down by itself
"""
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "20"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=True, env=env)


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.1\r\n\r\n", b"\n", b"[]\n", b'{"do": "os.system"}\n', b"[" * 4096, b"x" * 4096]
)
def test_what_is_no_request_gets_an_error(sampler: Sampler, folder: Path, request_: bytes) -> None:
    assert "expected one of" in ask(folder, request_)["error"]


@pytest.mark.parametrize("steps", ["-1", "0", "1e9", "10000", '"3"', "null"])
def test_steps_are_bounded(sampler: Sampler, folder: Path, steps: str) -> None:
    assert "expected 1 to" in ask(folder, f'{{"do": "capture", "steps": {steps}}}\n'.encode())["error"]


def test_the_environment_keeps_it_out(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTRIAGE_ATTACH", "0")
    with tt.sample(tmp_path, every_s=None):
        assert not folder.exists()


def test_closing_answers_who_waits(sampler: Sampler, folder: Path) -> None:
    thread, answers = in_background(folder, b'{"do": "capture", "steps": 2}\n')
    sampler.close()
    thread.join()
    assert answers[0]["error"] == "the sampler was closed"


def test_a_folder_that_others_may_enter_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o755)
    try:
        with tt.sample(tmp_path, every_s=None) as made:
            assert list(made.stats.failures) == [f"OSError: {folder} is open to others"]
        assert not list(folder.iterdir())
    finally:
        folder.rmdir()
    folder.symlink_to(tmp_path)
    try:
        with pytest.raises(OSError, match="open to others"):
            AttachSocket(made)
    finally:
        folder.unlink()


def test_sockets_of_the_dead_are_removed_and_those_of_the_living_stay(
    sampler: Sampler, folder: Path, tmp_path: Path
) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    # the pid of a process in another container is nobody's here
    live, full, dead = (folder / f"{child.pid}-{n}.sock" for n in range(3))
    listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    for listener, path in zip(listeners, (live, full, dead), strict=True):
        listener.bind(str(path))
        listener.listen(0)
    waiting.connect(str(full))
    listeners[2].close()
    with tt.sample(tmp_path, every_s=None):
        left = set(folder.glob("*.sock"))
        assert {live, full} < left
        assert dead not in left
        assert len(list(folder.glob(f"{os.getpid()}-*.sock"))) == 2
    for one in (*listeners, waiting):
        one.close()
    live.unlink()
    full.unlink()


def test_a_socket_is_found_by_its_process_alone(
    sampler: Sampler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "socket_folder", lambda uid: folder)
    (mine,) = folder.glob("*.sock")
    others = folder / f"{os.getpid()}-1-0.sock"  # of another container
    others.touch()
    try:
        assert asking.sockets_of(os.getpid()) == [mine]
    finally:
        others.unlink()


def test_equal_pids_of_two_containers_have_names_of_their_own(
    sampler: Sampler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach_socket, "_numbers", itertools.count())
    monkeypatch.setattr(attach_socket, "socket_prefix", lambda pid: f"{pid}-1-")
    one = AttachSocket(sampler)
    monkeypatch.setattr(attach_socket, "_numbers", itertools.count())
    monkeypatch.setattr(attach_socket, "socket_prefix", lambda pid: f"{pid}-2-")
    other = AttachSocket(sampler)
    try:
        assert one.path != other.path
        assert one.path.exists()
    finally:
        one.close()
        other.close()


def test_a_process_without_a_file_to_spare_listens_again(sampler: Sampler, folder: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        (path,) = folder.glob(f"{os.getpid()}-*.sock")
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            client.connect(str(path))
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert ask(folder, b'{"do": "stacks"}\n')["threads"]


def test_what_fails_inside_says_so_itself(sampler: Sampler, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("no such backend")

    monkeypatch.setitem(attach_socket._DO, "flight", fails)
    assert ask(folder, b'{"do": "flight"}\n') == {"error": "ValueError: no such backend"}


def test_a_forked_child_listens_once_it_works(tmp_path: Path) -> None:
    code = """
import os, sys, time, torch, torchtriage as tt
from torchtriage.core.record.attach_socket import socket_folder
torch.set_num_threads(1)
def mine(): return len(list(socket_folder(os.geteuid()).glob(f"{os.getpid()}-*.sock")))
sampler = tt.sample(sys.argv[1], every_s=None)
assert mine() == 1
if os.fork() == 0:
    idle = mine()
    sampler.step()
    working = mine()
    sampler.step()
    sampler.close()
    os._exit(0 if (idle, working, mine(), sampler.stats.captures) == (0, 1, 0, 0) else 9)
assert os.wait()[1] == 0
assert mine() == 1
sampler.close()
assert mine() == 0
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
