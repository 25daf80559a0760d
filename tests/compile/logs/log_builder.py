"""Structured compile logs, written as PyTorch writes them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


class LogBuilder:
    """Collects records; ``bytes()`` is the file."""

    def __init__(self, rank: int | None = None) -> None:
        self.rank = rank
        self.rows: list[bytes] = []
        self.clock_us = 1_700_000_000_000_000.0
        self.files: dict[str, int] = {}

    def record(
        self, kind: str, value: Any = None, payload: str | None = None, compile_id: str = "", attempt: int = 0
    ) -> LogBuilder:
        head: dict[str, Any] = {kind: {} if value is None else value}
        if self.rank is not None:
            head["rank"] = self.rank
        if compile_id:
            frame, _, number = compile_id.partition("/")
            head |= {"frame_id": int(frame), "frame_compile_id": int(number), "attempt": attempt}
        if payload is not None:
            head["has_payload"] = hashlib.md5(payload.encode()).hexdigest()
        line = f"V0524 12:48:44.657000 1401 torch/_dynamo/x.py:19] {json.dumps(head)}\n"
        if payload is not None:
            line += "".join(f"\t{row}\n" for row in payload.split("\n"))
        self.rows.append(line.encode())
        return self

    def raw(self, data: bytes) -> LogBuilder:
        self.rows.append(data)
        return self

    def start(self, compile_id: str, name: str, file: str, line: int) -> LogBuilder:
        if file not in self.files:
            self.files[file] = len(self.files)
            self.record("str", [file, self.files[file]])
        call = {"line": line, "name": name, "filename": self.files[file]}
        return self.record("dynamo_start", {"stack": [call]}, compile_id=compile_id)

    def metrics(self, compile_id: str, name: str | None, file: str | None, line: int | None, **more: Any) -> LogBuilder:
        values = {
            "compile_id": compile_id,
            "co_name": name,
            "co_filename": file,
            "co_firstlineno": line,
            "graph_op_count": 3,
            "guard_count": 7,
            "entire_frame_compile_time_s": 0.5,
            "fail_type": None,
            "fail_reason": None,
            "restart_reasons": [],
            **more,
        }
        return self.record("compilation_metrics", values, compile_id=compile_id)

    def artifact(self, name: str, payload: str, compile_id: str = "0/0") -> LogBuilder:
        value = {"name": name, "encoding": "string"}
        return self.record("artifact", value, payload, compile_id=compile_id)

    def mark(self, name: str, phase: str, after_us: float, compile_id: str = "0/0") -> LogBuilder:
        self.clock_us += after_us
        event = {
            "name": name,
            "ts": self.clock_us,
            "args": {"compile_id": compile_id},
            "ph": phase,
            "cat": "dynamo_timed",
            "tid": 0,
            "pid": 0,
        }
        return self.record("chromium_event", {}, json.dumps(event, indent=0), compile_id)

    def compiled(self, compile_id: str, name: str, line: int, **more: Any) -> LogBuilder:
        """Add one compilation of a function in ``me/train.py``."""
        self.start(compile_id, name, "me/train.py", line)
        return self.metrics(compile_id, name, "me/train.py", line, **more)

    def again(self, compile_id: str, name: str, line: int, *reasons: str) -> LogBuilder:
        """Add a compilation that had reasons."""
        told = reasons[0] if len(reasons) == 1 else json.dumps(list(reasons), indent=0)
        self.artifact("recompile_reasons", told, compile_id)
        return self.compiled(compile_id, name, line)

    def bytes(self) -> bytes:
        return b"".join(self.rows)

    def write(self, file: Path) -> Path:
        file.write_bytes(self.bytes())
        return file


def break_text(kind: str, line: int, *, gb: str = "gb0170", context: str = "jump") -> str:
    """Return what dynamo writes at a graph break in ``me/train.py``."""
    return f"""Graph break in user code at me/train.py:{line}
Graph Break Reason: {kind}
  Explanation: It cannot be traced.
  Hint: Do it otherwise.

  Developer debug context: {context}

 For more details about this graph break, please visit: https://meta-pytorch.github.io/compile-graph-break-site/gb/{gb}.html

User code traceback:
  File "me/main.py", line 3, in <module>
    step(x)
  File "/opt/python/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _call
    return self._call_impl(*args, **kwargs)
  File "me/train.py", line {line}, in step
    if x.sum() > 0:

Traceback (most recent call last):
  File "/opt/python/lib/python3.11/site-packages/torch/_dynamo/symbolic_convert.py", line 1, in w
    return inner_fn(self, inst)
"""
