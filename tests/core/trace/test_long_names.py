"""Text of a trace is bounded, so that what quotes it stays small."""

from __future__ import annotations

import io

import pytest
from builder import HOST, MAIN, TraceBuilder
from tests.core.trace.test_native import needs_library

import torchtriage as tt
from torchtriage.core.engine import READER_VARIABLE
from torchtriage.core.names import LONGEST
from torchtriage.core.trace import read_trace

LONG = "n" * 2_000_000
BOUND = 400_000


def recorded() -> bytes:
    """Return a recording whose every name is long: of ops, kernels, frames, threads, devices."""
    builder = TraceBuilder(device=LONG, host_name=LONG)
    for index in range(4):
        at = 10_000 * index
        builder.step(index, at, 10_000).annotation(f"{LONG}{index}", at + 10, 9000)
        builder.frame(f"train.py(3): {LONG}", at + 20, 8000)
        for read in range(4):
            builder.op("aten::_local_scalar_dense", at + 1000 * read + 100, 800)
            builder.sync(at + 1000 * read + 110, 700)
        builder.op(f"aten::{LONG}", at + 5000, 1000)
        builder.launch(at + 5100, 10, at + 5200, 3000, f"kernel<{LONG}>")
    builder.events.append({"ph": "M", "name": "thread_name", "pid": HOST, "tid": MAIN, "args": {"name": LONG}})
    return builder.json()


@pytest.mark.parametrize("engine", ["python", pytest.param("native", marks=needs_library)])
def test_what_quotes_long_names_stays_small(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, engine)
    text = recorded()
    trace = read_trace(io.BytesIO(text))
    assert max(map(len, trace.names)) == LONGEST
    assert max(map(len, trace.labels.values())) <= LONGEST
    assert all("…" in name for name in trace.names if len(name) == LONGEST)
    assert trace.args(len(trace) - 1) is not None
    report = tt.analyze(io.BytesIO(text))
    assert report.findings
    assert len(report.to_json()) < BOUND
    short = tt.analyze(io.BytesIO(text.replace(LONG.encode(), b"n")))
    assert len(report.to_html()) < len(short.to_html()) + BOUND
