"""vLLM and SGLang are profiled and stopped, whatever happens; broken and hostile servers give one line."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from diagnose.attach.fake_servers import engine, raw_server

from torchtriage.cli.main import cli
from torchtriage.core.errors import TriageError, UsageError
from torchtriage.diagnose.attach import captured, serving, web
from torchtriage.diagnose.attach.attach import Wish, attach
from torchtriage.diagnose.attach.captured import Captured, is_whole, wait_for
from torchtriage.diagnose.attach.web import parse_address

WISH = Wish(seconds=0.2, timeout_s=10)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(captured, "STILL_S", 0.4)
    monkeypatch.setattr(captured, "LOOK_S", 0.05)
    monkeypatch.setattr(serving, "PROBE_S", 1.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLLM_TORCH_PROFILER_DIR", raising=False)


def posts(made) -> list[tuple[str, object]]:
    return [(path, body) for method, path, body in made.calls if method == "POST"]


@pytest.mark.parametrize("workers", [1, 2])
def test_vllm_writes_where_it_was_told(tmp_path: Path, workers: int) -> None:
    (tmp_path / "w9.pt.trace.json.gz").write_bytes(b"of another day")
    with engine("vLLM", tmp_path, workers=workers) as made:
        found = attach(made.url, Wish(seconds=0.2, timeout_s=10, folder=tmp_path))
    assert isinstance(found, Captured)
    assert [path.name for path in found.files] == [f"w{n}.pt.trace.json.gz" for n in range(workers)]
    assert posts(made) == [("/start_profile", None), ("/stop_profile", None)]
    assert found.cost.startswith("vLLM profiled itself for 0.2 s; ")


def test_vllm_needs_to_be_told_where_its_traces_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine("vLLM", tmp_path) as made:
        with pytest.raises(TriageError, match="--dir DIR, the torch_profiler_dir"):
            attach(made.url, WISH)
        assert posts(made) == []
        monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", str(tmp_path))
        assert len(attach(made.url, WISH).files) == 1


def test_vllm_without_a_profiler_says_how_to_start_it(tmp_path: Path) -> None:
    with (
        engine("vLLM", tmp_path, profiler=False) as made,
        pytest.raises(TriageError, match="HTTP 404 to /start_profile") as caught,
    ):
        attach(made.url, Wish(folder=tmp_path))
    assert "--profiler-config" in caught.value.hint


@pytest.mark.parametrize("kind", ["vLLM", "SGLang"])
@pytest.mark.parametrize(("wish", "word"), [({"only_stacks": True}, "stacks"), ({"ranks": frozenset((1,))}, "ranks")])
def test_what_cannot_be_kept_starts_no_profile(tmp_path: Path, kind: str, wish: dict, word: str) -> None:
    with engine(kind, tmp_path) as made:
        with pytest.raises(UsageError, match=f"{kind} .*{word}"):
            attach(made.url, Wish(folder=tmp_path, **wish))
        assert posts(made) == []


def test_sglang_stops_by_itself_after_steps(tmp_path: Path) -> None:
    with engine("SGLang", tmp_path / "nowhere", workers=2) as made:
        found = attach(made.url, Wish(steps=7, timeout_s=10, folder=tmp_path))
        assert len(found.files) == 2
        assert posts(made) == [("/start_profile", {"output_dir": str(tmp_path), "num_steps": 7})]
        found = attach(made.url, WISH)  # into a folder of its own
        assert posts(made)[1:] == [
            ("/start_profile", {"output_dir": str(found.files[0].parent.absolute())}),
            ("/stop_profile", None),
        ]
        assert found.files[0].parent.name.startswith("torchtriage-attach-")


def test_a_token_is_sent_and_never_printed(tmp_path: Path) -> None:
    with engine("SGLang", tmp_path, token="geheim") as made:
        with pytest.raises(TriageError, match="asks for a token") as caught:
            attach(made.url, WISH)
        assert "TORCHTRIAGE_TOKEN" in caught.value.hint
        assert len(attach(made.url, Wish(seconds=0.1, folder=tmp_path, token="geheim")).files) == 1
    for text in ("http://user:geheim@localhost:1", "http://localhost:1/?api_key=geheim"):
        with pytest.raises(TriageError) as caught:
            parse_address(text)
        assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("kind", ["vLLM", "SGLang"])
@pytest.mark.parametrize("steps", [None, 5])
def test_an_interrupt_stops_the_profile(tmp_path: Path, kind: str, steps: int | None) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with engine(kind, tmp_path) as made:
        address = parse_address(made.url)
        assert address is not None
        with pytest.raises(KeyboardInterrupt):
            serving.capture(address, kind, tmp_path, seconds=9, steps=steps, timeout_s=9, sleep=interrupted)
        assert posts(made)[-1] == ("/stop_profile", None)
        time.sleep(0.7)
        assert not made.profiling


def test_a_profile_that_runs_already_is_not_ours_to_stop(tmp_path: Path) -> None:
    with engine("SGLang", tmp_path) as made:
        made.profiling = True
        with pytest.raises(TriageError, match="HTTP 500 to /start_profile: Internal Server Error"):
            attach(made.url, WISH)
        assert made.profiling
        assert [path for path, _ in posts(made)] == ["/start_profile"]


def test_an_interrupt_names_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"traceEvents": [')
    calls = iter(range(100))

    def sleep(_: float) -> None:
        if next(calls) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"half.json \(17 B, partial\)"):
        wait_for(tmp_path, {}, 9, sleep=sleep)


def test_a_trace_that_is_never_whole_is_named(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"traceEvents": [')
    with pytest.raises(TriageError, match=r"not complete within 1 s: half.json \(17 B, partial\)"):
        wait_for(tmp_path, {}, 1)
    with pytest.raises(TriageError, match="no trace arrived within"):
        wait_for(tmp_path, captured.traces_in(tmp_path), 0.1)


def test_a_file_is_whole_where_its_json_ends(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "x.json"
    whole = b'{"traceEvents": []}\n'
    for data, expected in (
        (whole, True),
        (whole[:-3], False),
        (gzip.compress(whole), True),
        (gzip.compress(whole)[:-9], False),
        (gzip.compress(whole[:-3]), False),
        (b"", False),
        (b"\x1f\x8bgarbage", False),
    ):
        path.write_bytes(data)
        assert is_whole(path) == expected, data


# -- servers that are something else, broken, or hostile -------------------------------------------


def endless(client: socket.socket, _: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        client.sendall(b"x" * 65536)


def drips(client: socket.socket, _: bytes) -> None:
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Header: 1\r\n" * 10_000:
        client.sendall(bytes((byte,)))
        time.sleep(0.02)


def silent(client: socket.socket, _: bytes) -> None:
    time.sleep(30)


def cut(client: socket.socket, _: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{")


def gone(client: socket.socket, _: bytes) -> None:
    client.close()


def binary(client: socket.socket, _: bytes) -> None:
    client.sendall(b"\x00\x01\x02\x1b[31mred\r\n\r\n")


def headers_without_end(client: socket.socket, _: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000)


def elsewhere(client: socket.socket, _: bytes) -> None:
    client.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n")


def html(client: socket.socket, _: bytes) -> None:
    body = b"<html><body>\x1b[31m502 Bad Gateway</body></html>"
    client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def deep(client: socket.socket, _: bytes) -> None:
    body = b"[" * 500_000
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (endless, "at most 1.00 MiB, found more"),
        (drips, "no complete answer within 1 s"),
        (silent, "no complete answer within 1 s"),
        (cut, "no HTTP answer: IncompleteRead"),
        (gone, "no HTTP answer"),
        (binary, "no HTTP answer"),
        (headers_without_end, "no HTTP answer"),
        (elsewhere, "neither a debug server"),
        (html, "neither a debug server"),
        (deep, "neither a debug server"),
    ],
)
def test_a_broken_or_hostile_server_gives_one_line_in_time(answer, word, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.diagnose.attach.debug_server.PROBE_S", 1.0)
    begun = time.monotonic()
    with raw_server(answer) as port:
        done = CliRunner().invoke(cli, ["attach", f"127.0.0.1:{port}"])
    assert time.monotonic() - begun < 5
    assert done.exit_code == 2
    assert word in done.stderr
    assert done.stderr.isascii()
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_nothing_that_listens_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["attach", "localhost:1"])
    assert done.exit_code == 2
    assert "no HTTP answer" in done.stderr
    assert "refused" in done.stderr


@pytest.mark.parametrize(
    "target", ["http://192.0.2.1:8000", "some.host:25999", "dynolog://192.0.2.1:1778", "0.0.0.0:80"]
)
def test_other_machines_are_asked_only_when_told(target: str) -> None:
    done = CliRunner().invoke(cli, ["attach", target])
    assert done.exit_code == 2
    assert "expected a job on this machine" in done.stderr
    assert "--allow-remote" in done.stderr


@pytest.mark.parametrize("target", ["", "nonsense", "http://[::1", "http://localhost:99999", "host:port", "a/b:80"])
def test_what_is_no_target_says_what_would_be_one(target: str) -> None:
    done = CliRunner().invoke(cli, ["attach", target])
    assert done.exit_code == 2
    assert "expected" in done.stderr
    assert "HOST:PORT" in done.stderr


def test_the_command_analyses_what_came(tmp_path: Path) -> None:
    with engine("SGLang", tmp_path) as made:
        done = CliRunner().invoke(cli, ["attach", made.url, "--steps", "3", "--dir", str(tmp_path / "new"), "--json"])
    assert done.exit_code == 0, done.stderr
    assert '"DAT018"' in done.stdout
    assert "captured: SGLang profiled itself for 3 steps; " in done.stderr
    assert web.parse_address(made.url) is not None
