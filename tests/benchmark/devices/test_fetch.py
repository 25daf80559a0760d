"""Recordings are downloaded from where they were published, or taken from a folder; only what is meant is kept."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.learn.dataset.recordings import dataset_items
from torchtriage_benchmark.devices.fetch import Outcome, fetch
from torchtriage_benchmark.devices.index import Entry, Source

COMMIT = "c" * 40


def recording(name: str) -> bytes:
    """Return a trace of two kernels, as the profiler writes it."""
    rows = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": 10.0, "args": {"stream": 7}}
        for at in (100.0, 250.0)
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": rows}).encode()


def source(path: str, stored: bytes, raw: bytes, member: str = "") -> Source:
    return Source(
        path, COMMIT, hashlib.sha256(raw).hexdigest(), len(raw), hashlib.sha256(stored).hexdigest(), len(stored), member
    )


def entry(number: int, *files: Source) -> Entry:
    return Entry(f"d{number:04}", "some/where", "MIT", "H100", "a net", "test", files)


class Server:
    """A host with files; ``breaks`` : after so many bytes; ``moved`` : where to; ``ranges`` : what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: int | None = None
        self.moved = ""
        self.resumes = True
        self.ranges: list[str] = []
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.ranges.append(self.headers.get("Range", ""))
                data = outer.files.get(self.path)
                if outer.moved:
                    self.send_response(302)
                    self.send_header("Location", outer.moved)
                    self.end_headers()
                elif data is None:
                    self.send_error(404)
                else:
                    begin = int(outer.ranges[-1].removeprefix("bytes=").rstrip("-") or 0) if outer.resumes else 0
                    self.send_response(206 if begin else 200)
                    self.send_header("Content-Length", str(len(data) - begin))
                    self.end_headers()
                    self.wfile.write(data[begin : outer.breaks])

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def has(self, path: str, data: bytes) -> None:
        self.files[f"/some/where/{COMMIT}/{path}"] = data


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


def only(outcomes: list[Outcome]) -> Outcome:
    assert len(outcomes) == 1
    return outcomes[0]


def test_a_file_is_downloaded_checked_and_a_recording_of_the_benchmark(server: Server, tmp_path: Path) -> None:
    raw = recording("gemm")
    packed = gzip.compress(raw)
    server.has("a%20b/x%23y.json.gz", packed)
    wanted = [entry(0, source("a b/x#y.json.gz", packed, raw))]
    label = {"state": "faulty", "faults": [{"code": "LCH014", "or": ["HST020"], "intervals": [[110_000, 250_000]]}]}
    assert only(fetch(wanted, {"d0000": label}, tmp_path, host=server.host)) == Outcome("d0000")
    item = next(dataset_items(tmp_path))
    assert (item.code, item.about["licence"], item.judged) == ("LCH014", "MIT", True)
    # from the first to the last row of the device, 160 us in 16 windows; all but the kernels are the fault's
    assert item.windows_ns[[0, -1]].tolist() == [[100_000, 110_000], [250_000, 260_000]]
    assert item.faulty.tolist() == [False] + [True] * 14 + [False]
    assert item.document() == json.loads(raw)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["d0000.json", "d0000.recording"]
    assert only(fetch(wanted, {}, tmp_path, host=server.host)) == Outcome("d0000", kept=True)
    assert len(server.asked) == 1


def test_a_download_that_broke_off_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    raw = recording("gemm")
    server.has("x.json", raw)
    wanted = [entry(0, source("x.json", raw, raw))]
    server.breaks = 100
    assert "100 of" in only(fetch(wanted, {}, tmp_path, host=server.host)).failure
    assert not list(tmp_path.glob("*.recording"))
    server.breaks = None
    assert not only(fetch(wanted, {}, tmp_path, host=server.host)).failure
    assert server.ranges == ["", "bytes=100-"]


def test_a_server_that_knows_no_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    raw = recording("gemm")
    server.has("x.json", raw)
    wanted = [entry(0, source("x.json", raw, raw))]
    server.breaks, server.resumes = 100, False
    fetch(wanted, {}, tmp_path, host=server.host)
    server.breaks = None
    assert not only(fetch(wanted, {}, tmp_path, host=server.host)).failure


@pytest.mark.parametrize("sent", [recording("other"), recording("gemm") * 3])
def test_another_content_is_refused_and_not_kept(server: Server, tmp_path: Path, sent: bytes) -> None:
    raw = recording("gemm").replace(b"gemm", b"gemm2")
    server.has("x.json", sent)
    failure = only(fetch([entry(0, source("x.json", raw, raw))], {}, tmp_path, host=server.host)).failure
    assert "some/where x.json cccccccccccc: " in failure
    assert "than the index has" in failure or "more than the" in failure
    assert not list(tmp_path.glob("d0000*"))
    assert all(path.stat().st_size == 0 for path in tmp_path.rglob("*") if path.is_file())


def test_what_cannot_be_had_is_told_and_the_rest_is_fetched(server: Server, tmp_path: Path) -> None:
    raw = recording("gemm")
    server.has("x.json", raw)
    wanted = [entry(0, source("gone.json", raw, raw)), entry(1, source("x.json", raw, raw))]
    gone, there = fetch(wanted, {}, tmp_path, host=server.host)
    assert "HTTP 404" in gone.failure
    assert not there.failure


@pytest.mark.parametrize("moved", ["http://localhost:1/x.json", "file:///etc/passwd", "https://example.invalid/x"])
def test_a_redirect_to_another_host_is_not_followed(server: Server, tmp_path: Path, moved: str) -> None:
    raw = recording("gemm")
    server.moved = moved
    failure = only(fetch([entry(0, source("x.json", raw, raw))], {}, tmp_path, host=server.host)).failure
    assert "another host" in failure or "HTTP 302" in failure


def test_no_server_is_told(tmp_path: Path) -> None:
    raw = recording("gemm")
    failure = only(fetch([entry(0, source("x.json", raw, raw))], {}, tmp_path, host="http://127.0.0.1:9")).failure
    assert "no answer" in failure


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as out:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            out.addfile(about, io.BytesIO(data))
    return stream.getvalue()


def test_a_member_of_an_archive_is_taken_out_and_the_archive_loaded_once(server: Server, tmp_path: Path) -> None:
    first, second = recording("one"), recording("two")
    packed = archive(**{"../../one.json": first, "two.json": gzip.compress(second)})
    server.has("all.tar.gz", packed)
    wanted = [
        entry(0, source("all.tar.gz", packed, first, "../../one.json")),
        entry(1, source("all.tar.gz", packed, second, "two.json")),
    ]
    assert not any(one.failure for one in fetch(wanted, {}, tmp_path / "out", host=server.host))
    assert len(server.asked) == 1
    assert [item.document() for item in dataset_items(tmp_path / "out")] == [json.loads(first), json.loads(second)]
    assert not (tmp_path / "one.json").exists()


def test_a_job_is_one_recording_of_the_rank_its_label_names(server: Server, tmp_path: Path) -> None:
    ranks = [recording(f"rank{number}") for number in range(3)]
    for number, raw in enumerate(ranks):
        server.has(f"{number}.json", raw)
    wanted = [entry(0, *(source(f"{number}.json", raw, raw) for number, raw in enumerate(ranks)))]
    label = {"state": "faulty", "faults": [{"code": "COM036", "rank": 2, "intervals": [[110_000, 250_000]]}]}
    assert not only(fetch(wanted, {"d0000": label}, tmp_path, host=server.host)).failure
    assert next(dataset_items(tmp_path)).document() == json.loads(ranks[2])
    assert sorted(path.name for path in (tmp_path / "d0000").iterdir()) == [f"rank{at}.json.gz" for at in range(3)]


def test_a_folder_may_call_its_files_as_it_likes(tmp_path: Path) -> None:
    raw, second = recording("gemm"), recording("two")
    packed = archive(**{"two.json": second})
    local = tmp_path / "local" / "deep"
    local.mkdir(parents=True)
    (local / "anything").write_bytes(gzip.compress(raw, 1))
    (local / "some.tgz").write_bytes(packed)
    (local / "broken.gz").write_bytes(gzip.compress(raw)[:-9] + len(raw).to_bytes(9, "little"))
    wanted = [
        entry(0, source("x.json", raw, raw)),
        entry(1, source("all.tar.gz", packed, second, "two.json")),
        entry(2, source("y.json", b"y", b"y")),
    ]
    found, member, missing = fetch(wanted, {}, tmp_path / "out", local=tmp_path / "local")
    assert not found.failure
    assert not member.failure
    assert "not in the folder" in missing.failure


def test_the_command_tells_what_is_missing(tmp_path: Path) -> None:
    raw = recording("gemm")
    rows = [
        {
            "id": f"d{number:04}",
            "repository": "some/where",
            "licence": "",
            "device": "T4",
            "workload": "a net",
            "split": "test",
            "files": [vars(source("x.json", data, data))],
        }
        for number, data in enumerate((raw, b"other"))
    ]
    (tmp_path / "index.json").write_text(json.dumps({"items": rows}))
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "x").write_bytes(raw)
    words = [
        "benchmark",
        "dataset",
        "fetch",
        "-q",
        "--index",
        str(tmp_path),
        "--from",
        str(tmp_path / "local"),
        "--dir",
    ]
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "1 fetched, 0 were there, 1 missing" in done.output
    assert "d0001 some/where x.json cccccccccccc: not in the folder" in done.output
    # nobody has labelled it: it is in no figure
    scored = CliRunner().invoke(cli, ["benchmark", "dataset", "score", "rules", "-q", "--dir", str(tmp_path / "out")])
    assert scored.exit_code == 0, scored.output
    assert "d0000" not in scored.output
    assert CliRunner().invoke(cli, [*words, str(tmp_path / "out"), "--from", str(tmp_path / "no")]).exit_code == 2
