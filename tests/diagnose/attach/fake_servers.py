"""vLLM's and SGLang's profile endpoints, and servers that misbehave.

As vllm/entrypoints/serve/profile/api_router.py and sglang/srt/entrypoints/http_server.py have them: 200 and an empty
body or a sentence, 404 of FastAPI where vLLM has no profiler, 422 for a body that does not fit.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TRACE = Path(__file__).parents[3] / "src/torchtriage/cli/sample/sample_cpu_training.json.gz"


class FakeEngine:
    """One engine; its workers write a trace each when a profile ends. ``calls`` : method, path and body, in order."""

    def __init__(
        self, kind: str, folder: Path, *, workers: int = 1, profiler: bool = True, token: str = "", slow_s: float = 0.5
    ) -> None:
        self.kind, self.folder, self.workers, self.profiler, self.token = kind, folder, workers, profiler, token
        self.slow_s = slow_s
        self.calls: list[tuple[str, str, Any]] = []
        self.profiling = False
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.handle(self, None)

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                engine.handle(self, json.loads(raw) if raw else None)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def handle(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        self.calls.append((request.command, request.path, body))
        status, answer = self.answer(request, body)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> tuple[int, Any]:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return 401, {"error": "Unauthorized"}
        path, post = request.path, request.command == "POST"
        if self.kind == "vLLM" and path == "/version":
            return 200, {"version": "0.13.0"}
        if self.kind == "SGLang" and path in ("/model_info", "/get_model_info"):
            return 200, {"model_path": "some/model", "is_generation": True}
        if path == "/start_profile" and post and self.profiler:
            if self.kind == "vLLM" and body is not None:
                return 422, {"detail": [{"type": "extra_forbidden", "loc": ["body"]}]}
            if self.profiling:
                return 500, b"Internal Server Error"
            self.profiling = True
            if body and body.get("num_steps"):
                self.folder = Path(body["output_dir"])
                threading.Timer(0.3, self.stop).start()
            elif body:
                self.folder = Path(body["output_dir"])
            return 200, b"" if self.kind == "vLLM" else b"Start profiling.\n"
        if path == "/stop_profile" and post and self.profiler:
            if not self.profiling:
                return 500, b"Internal Server Error"
            if self.kind == "vLLM":
                self.stop()  # it waits for its workers
                return 200, b""
            threading.Thread(target=self.stop).start()
            return 200, b"Stop profiling. This will take some time.\n"
        return 404, {"detail": "Not Found"}

    def stop(self) -> None:
        self.profiling = False
        data = TRACE.read_bytes()
        names = [
            f"w{n}.pt.trace.json.gz" if self.kind == "vLLM" else f"1-TP-{n}.trace.json.gz" for n in range(self.workers)
        ]
        for name in names:
            with (self.folder / name).open("wb") as file:
                file.write(data[:50_000])
                file.flush()
                time.sleep(self.slow_s)
                file.write(data[50_000:])


@contextmanager
def engine(*args: Any, **options: Any) -> Iterator[FakeEngine]:
    made = FakeEngine(*args, **options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def raw_server(answer: Callable[[socket.socket, bytes], None]) -> Iterator[int]:
    """Serve bytes that need not be HTTP; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(client: socket.socket) -> None:
        with client, suppress(OSError):
            answer(client, client.recv(4096))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def trace_json() -> bytes:
    return gzip.decompress(TRACE.read_bytes())
