"""Record ``calls.py``: once with the PyTorch profiler, once with Python's own.

Writes ``calls.json.gz``, what the profiler saw, and ``lines.json.gz``, the line of every call of
every frame in the same order. Usage (needs torch): ``python tests/core/source/data/record.py``.
"""

import gzip
import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import calls  # noqa: E402


class Truth:
    """Notes for each frame of ``calls.py`` what it called, and on which line."""

    def __init__(self):
        self.stack = []
        self.frames = []

    def __call__(self, frame, event, arg):
        stack = self.stack
        if event == "call":
            code = frame.f_code
            if stack and stack[-1][0] is frame.f_back and stack[-1][1] is not None:
                stack[-1][1].append((code.co_name, frame.f_back.f_lineno))
            made = None
            if code.co_filename == calls.__file__:
                made = []
                self.frames.append((code.co_name, frame.f_lineno, made))
            stack.append((frame, made))
        elif event == "c_call":
            if stack and stack[-1][0] is frame and stack[-1][1] is not None:
                stack[-1][1].append((arg.__name__, frame.f_lineno))
            stack.append((arg, None))
        elif event in ("c_return", "c_exception", "return") and stack:
            stack.pop()


def main():
    calls.run()  # what happens once only
    truth = Truth()
    sys.setprofile(truth)
    calls.run()
    sys.setprofile(None)
    with gzip.open(HERE / "lines.json.gz", "wt") as file:
        json.dump(truth.frames, file, separators=(",", ":"))
    with torch.profiler.profile(with_stack=True) as prof:
        calls.run()
    whole = HERE / "whole.json"
    prof.export_chrome_trace(str(whole))
    document = json.loads(whole.read_text())
    whole.unlink()
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("cat") in ("python_function", "cpu_op", "user_annotation")
    ]
    for event in document["traceEvents"]:
        if event["cat"] == "cpu_op":
            event["args"] = {}
        event["name"] = event["name"].replace(str(HERE) + "/", "")
    data = json.dumps(document, separators=(",", ":")).encode()
    (HERE / "calls.json.gz").write_bytes(gzip.compress(data, mtime=0))


main()
