"""A scripted endpoint on loopback that speaks OpenAI's protocol, well or badly."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers one request by the next step of the script."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked: dict[str, Any] = json.loads(body)
        self.close_connection = True
        with self.server.lock:
            self.server.requests.append((self.path, self.headers, self.asked))
            step = self.server.script.pop(0) if self.server.script else self.server.then
        with contextlib.suppress(OSError):  # the client had enough
            step(self)

    def begin(self, status: int, kind: str, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def piece(self, **fields: Any) -> None:
        """Send one event of a stream."""
        self.raw(f"data: {json.dumps({'id': 'x', 'object': 'chat.completion.chunk', **fields})}\n\n")

    def raw(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Plays a script, then the last step for good. ``over`` : is set when the server goes down."""

    daemon_threads = True

    def __init__(self, script: Sequence[Step], then: Step) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.then = list(script), then
        self.requests: list[tuple[str, Message, dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@contextmanager
def serving(*script: Step, then: Step | None = None) -> Iterator[Server]:
    server = Server(script, then or good())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


# -- steps ---------------------------------------------------------------------------------------


def answer(code: str = "LCH016", ids: Sequence[str] = ("e1",), **fields: Any) -> str:
    told = {"code": code, "confidence": 0.9, "why": list(ids), "against": []}
    return json.dumps({**told, **fields})


def good(code: str = "LCH016", **fields: Any) -> Step:
    return says(answer(code, **fields))


def fits(handler: Handler) -> None:
    """Answer with the first rule that covers a part of the window, or none."""
    lines = dict(re.findall(r"^(e\d+): (.*)$", handler.asked["messages"][1]["content"], re.MULTILINE))
    rules = [(name, re.match(r"rule (\w+) .* covers (\S+ %)", text)) for name, text in lines.items()]
    name, code = next(((name, rule[1]) for name, rule in rules if rule), ("e1", "none"))
    good(code, ids=[name])(handler)


def says(
    text: str, *, usage: tuple[int, int] | None = (1000, 100), finish: str = "stop", refusal: str = "", size: int = 7
) -> Step:
    """Answer with a text, streamed where that is asked for."""

    def step(handler: Handler) -> None:
        told = usage and {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        if not handler.asked.get("stream"):
            message = {"role": "assistant", "content": text, "refusal": refusal or None}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            handler.begin(200, "application/json")
            handler.raw(json.dumps({"id": "x", "choices": [choice], "usage": told}))
            return
        handler.begin(200, "text/event-stream")
        for part in re.findall(f"(?s).{{1,{size}}}", text):
            handler.piece(choices=[{"index": 0, "delta": {"content": part}}])
        if refusal:
            handler.piece(choices=[{"index": 0, "delta": {"refusal": refusal}}])
        handler.piece(choices=[{"index": 0, "delta": {}, "finish_reason": finish}])
        if told:
            handler.piece(choices=[], usage=told)
        handler.raw("data: [DONE]\n\n")

    return step


def status(code: int, message: str = "no", **headers: str) -> Step:
    def step(handler: Handler) -> None:
        handler.begin(code, "application/json", **headers)
        handler.raw(json.dumps({"error": {"message": message, "type": "x", "code": None}}))

    return step


def refuses_option(name: str) -> Step:
    """Refuse a request that has an option, answer others."""

    def step(handler: Handler) -> None:
        if name in handler.asked:
            return status(400, f"Unknown parameter: {name}")(handler)
        return good()(handler)

    return step


def hangs(handler: Handler) -> None:
    """Never answer."""
    handler.server.over.wait(60)


def dribbles(handler: Handler) -> None:
    """Stream a piece now and then, without an end."""
    handler.begin(200, "text/event-stream")
    while not handler.server.over.wait(0.02):
        handler.piece(choices=[{"index": 0, "delta": {"content": " "}}])


def falls_silent(handler: Handler) -> None:
    """Begin a stream, and say nothing more."""
    handler.begin(200, "text/event-stream")
    handler.piece(choices=[{"index": 0, "delta": {"content": '{"code": '}}])
    handler.server.over.wait(60)


def drops(handler: Handler) -> None:
    """Close the connection in the middle of a stream that promised more."""
    handler.begin(200, "text/event-stream", Content_Length="100000")
    handler.piece(choices=[{"index": 0, "delta": {"content": '{"code": '}}])


def giant(pieces: bool) -> Step:
    """Send far more than was asked for, in pieces or as one that never ends."""

    def step(handler: Handler) -> None:
        handler.begin(200, "text/event-stream")
        if not pieces:
            handler.raw("data: ")
        while not handler.server.over.is_set():
            if pieces:
                handler.piece(choices=[{"index": 0, "delta": {"content": "x" * 10_000}}])
            else:
                handler.raw("x" * 100_000)

    return step


def empty(handler: Handler) -> None:
    """Answer without choices."""
    handler.begin(200, "text/event-stream")
    handler.piece(choices=[])
    handler.raw("data: [DONE]\n\n")


def no_json(handler: Handler) -> None:
    """Stream pieces that are no JSON."""
    handler.begin(200, "text/event-stream")
    handler.raw("data: {oops\n\n")


def no_choices(handler: Handler) -> None:
    """Stream a piece of another form."""
    handler.begin(200, "text/event-stream")
    handler.piece(choices=5)


def fails_inside(handler: Handler) -> None:
    """Begin well, then report an error as a piece."""
    handler.begin(200, "text/event-stream")
    handler.piece(choices=[{"index": 0, "delta": {"content": "{"}}])
    handler.raw('data: {"error": {"message": "overloaded"}}\n\n')


def unstreamed(handler: Handler) -> None:
    """Answer a request for a stream with one document."""
    stream, handler.asked["stream"] = handler.asked.get("stream"), False
    assert stream
    good()(handler)


def packed(handler: Handler) -> None:
    """Answer packed, though that was not asked for."""
    import gzip

    handler.begin(200, "text/event-stream", Content_Encoding="gzip")
    handler.wfile.write(gzip.compress(b" " * 100_000))
