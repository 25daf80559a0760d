"""Files made to hurt: they cost themselves, in memory that does not grow with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.core.trace.test_native import needs_library
from tests.core.trace.test_parallel import mixed

from torchtriage.core.engine import READER_VARIABLE
from torchtriage.core.workers import PROCESSES_VARIABLE

GOOD = json.dumps(mixed(300))[1:-1].encode()
MEGABYTE = 1_000_000
SMALL, FULL = 0.03, 1.0
"""Full is what the names say; docs/native.md has its figures."""


class Shape(NamedTuple):
    """What stands between good events: ``size`` times, how often at full size."""

    text: bytes
    times: int
    before: bytes = b""
    behind: bytes = b""


def event(text: bytes) -> bytes:
    return b'{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, ' + text + b"}, "


SHAPES = {
    "200 MB on a single line": Shape(GOOD + b", ", 200 * MEGABYTE // len(GOOD)),
    "a string of 1 GB": Shape(b"n" * MEGABYTE, 1000, b'{"ph": "X", "ts": 1, "dur": 1, "name": "', b'"}, '),
    "200 MB of zero bytes": Shape(b"\0" * MEGABYTE, 200),
    "nested 100,000 deep": Shape(
        event(b'"name": "a", "ts": 1, "args": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), 200
    ),
    "numbers of 10,000 digits": Shape(
        event(b'"name": "a", "ts": 1.%b, "dur": %b' % (b"7" * 10_000, b"9" * 10_000)), 3000
    ),
    "an event of 100 million keys": Shape(
        b',"":1' * 1000, 100_000, b'{"ph": "X", "name": "a", "ts": 1, "pid": 1, "tid": 1', b"}, "
    ),
    "lone surrogates": Shape(event(b'"ts": 1, "dur": 1, "name": "\\ud83d x \\udc00 \\ud800\\ud800"'), 500_000),
}


def pieces(shape: Shape, size: float) -> Iterator[bytes]:
    yield b'{"traceEvents": [' + GOOD + b", " + shape.before
    for _ in range(max(int(shape.times * size), 1)):
        yield shape.text
    yield shape.behind + GOOD + b"]}"


READ = """
import sys
from torchtriage import TriageError, load
try:
    report = load(sys.argv[1]).report
    print(report.n_events, report.n_lost)
except TriageError as error:
    print(0, 0)
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) << 10)
"""


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("name", SHAPES)
def test_memory_is_bounded_and_good_events_survive(name: str, engine: str, tmp_path: Path) -> None:
    size = FULL if "TORCHTRIAGE_HOSTILE_FULL" in os.environ else SMALL
    path = tmp_path / "hostile.json"
    with path.open("wb") as file:
        file.writelines(pieces(SHAPES[name], size))
    done = subprocess.run(
        [sys.executable, "-c", READ, path],
        env={**os.environ, READER_VARIABLE: engine, PROCESSES_VARIABLE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    n_events, n_lost, peak_bytes = map(int, done.stdout.split())
    assert n_events >= 2 * 300
    assert n_lost <= max(SHAPES[name].times, 2)
    # what an event may be at most, decoded, and columns of what there is
    assert peak_bytes < 250 * MEGABYTE + path.stat().st_size // 4
