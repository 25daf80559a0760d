"""Pages as the debug server of torch.distributed makes them, and some that it would not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from diagnose.attach.fake_servers import raw_server

from torchtriage.cli.main import cli
from torchtriage.diagnose.attach import debug_server
from torchtriage.diagnose.attach.attach import Wish, attach
from torchtriage.diagnose.attach.captured import Captured
from torchtriage.diagnose.attach.result import HangResult

WORKS = b'{"traceEvents": [{"cat": "cpu_op"}]}'
IDLE = b'{"traceEvents": []}'


def server(*traces: bytes) -> Callable[[socket.socket, bytes], None]:
    """Answer as a job whose ranks have these traces."""
    ranks = b"".join(
        b"<h2>Rank %d: host</h2><script>function run%d() { var data = %s;\nopenPerfetto(data); }</script>"
        % (rank, rank, trace)
        for rank, trace in enumerate(traces)
    )

    return answering(ranks)


def answering(page: bytes) -> Callable[[socket.socket, bytes], None]:
    def answer(client: socket.socket, request: bytes) -> None:
        body = page if request.startswith(b"GET /profile") else b"Torch Distributed Debug Server"
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    return answer


def test_no_file_of_the_folder_is_replaced_and_no_link_followed(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("mine")
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "rank1.json").symlink_to(tmp_path / "elsewhere")
    with raw_server(server(IDLE, IDLE)) as port:
        assert isinstance(attach(f"localhost:{port}", Wish(seconds=0.1, folder=tmp_path)), HangResult)
    with raw_server(server(WORKS, WORKS)) as port:
        found = attach(f"localhost:{port}", Wish(seconds=0.1, folder=tmp_path))
    assert isinstance(found, Captured)
    assert [path.read_bytes() for path in found.files] == [WORKS, WORKS]
    assert [path.name for path in found.files] == ["rank0.json", "rank1.json"]
    assert (tmp_path / "rank0.json").read_text() == "mine"
    assert (tmp_path / "rank1.json").read_text() == "precious"
    assert (tmp_path / "rank1.json").is_symlink()


def test_a_folder_in_which_nothing_is_captured_does_not_stay(tmp_path: Path) -> None:
    with raw_server(server(IDLE)) as port:
        for target in ("999999999", "localhost:1", f"localhost:{port}"):
            CliRunner().invoke(cli, ["attach", target, "--seconds", "0.1", "--dir", str(tmp_path / "a" / "new")])
            assert not list(tmp_path.iterdir()), target


def test_a_page_that_names_a_rank_twice_gives_its_first_trace(tmp_path: Path) -> None:
    page = b"<h2>Rank 0: a</h2>function run0() { var data = %s;\nopenPerfetto(data);" % WORKS

    with raw_server(answering(2 * page)) as port:
        found = attach(f"localhost:{port}", Wish(seconds=0.1, folder=tmp_path))
    assert isinstance(found, Captured)
    assert len(found.files) == 1


def test_what_a_rank_says_of_its_failure_stays_text(tmp_path: Path) -> None:
    page = (
        b"<h2>Rank 0: a</h2>function run0() { var data = %s;\nopenPerfetto(data);"
        b"<h2>Rank 1: b</h2><p>Failed to fetch: status=500</p><pre>\x1b[31mred</pre>" % WORKS
    )
    with raw_server(answering(page)) as port:
        done = CliRunner().invoke(cli, ["attach", f"localhost:{port}", "--seconds", "0.1", "--dir", str(tmp_path)])
    assert "without rank 1: HTTP 500, \\x1b[31mred" in done.stderr
    assert "\x1b" not in done.stderr


def test_threads_are_read_in_linear_time() -> None:
    begun = time.monotonic()
    assert debug_server._threads("Thread 0x1 [" + "]" * 100_000) == []
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("name", ["MainThread", "worker [3]", ""])
def test_a_thread_has_its_name(name: str) -> None:
    words = f" [{name}]" if name else ""
    text = f'Thread 0x00007f{words} (most recent call first):\n  File "/job/a.py", line 5 in f\n'
    ((thread),) = debug_server._threads(text)
    assert (thread.name, thread.calls[0].line) == (name or "MainThread", 5)


def test_a_line_number_without_end_is_none() -> None:
    text = 'Thread 0x1 (most recent call first):\n  File "a.py", line ' + "1" * 5000 + " in f\n"
    assert debug_server._threads(text) == []
