"""Worker processes give what the sequential reader gives, whatever happens to them."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.trace.layouts import LAYOUTS, document
from tests.invariants import check_trace

from torchtriage.core.engine import READER_VARIABLE
from torchtriage.core.errors import UsageError
from torchtriage.core.trace import Trace, parallel, read_trace
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.parallel import count_workers
from torchtriage.core.workers import PROCESSES_VARIABLE, Workers

COLUMNS = ("start_ns", "dur_ns", "name", "cat", "kind", "lane", "key", "value", "detail")
TABLES = ("names", "cats", "lanes", "details", "labels", "meta")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "BLOCK_CHUNKS", 3)
    monkeypatch.setenv(READER_VARIABLE, "python")


def assert_same(one: Trace, other: Trace) -> None:
    for column in COLUMNS:
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
        assert getattr(one, column).dtype == getattr(other, column).dtype
    for table in TABLES:
        assert getattr(one, table) == getattr(other, table)
    assert list(one.labels) == list(other.labels)
    for mine, yours in zip(one.memory, other.memory, strict=True):
        assert np.array_equal(mine, yours)
    assert np.array_equal(one.report.chunks, other.report.chunks)
    for name in one.report.__struct_fields__:
        if name != "chunks":
            assert getattr(one.report, name) == getattr(other.report, name), name


def mixed(n: int) -> list[dict[str, Any]]:
    """Events of all sorts; every table grows all along the file."""
    events: list[dict[str, Any]] = []
    for i in range(n):
        common = {"pid": i % 5, "tid": i * 7 % 11, "ts": 3 * i + 0.5}
        events += [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": f"op {i % 97} {i // 200}",
                "dur": 2,
                **common,
                "args": {"Sequence number": i, "Input Dims": [[i % 13, i // 300]]},
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": f"kernel {i % 50}",
                "dur": 1,
                **common,
                "args": {"correlation": i, "device": i % 2, "stream": i % 3, "grid": [i % 4, 1, 1]},
            },
            {"ph": "i", "name": "[memory]", **common, "args": {"Bytes": i, "Addr": 2 * i}},
            {"ph": "M", "name": "thread_name", **common, "args": {"name": f"thread {i % 40}"}},
            {"ph": "s", "cat": "ac2g", **common},
        ]
        if i % 10 == 0:
            events.append({"ph": "B", "name": "open", **common})
        if i % 10 == 7:
            events.append({"ph": "E", **common, "pid": (i - 7) % 5, "tid": (i - 7) * 7 % 11})
    return events


def read_both(text: bytes, **options: Any) -> Trace:
    options.setdefault("chunk_bytes", 8192)
    one = read_trace(io.BytesIO(text), processes=1, **options)
    other = read_trace(io.BytesIO(text), processes=2, **options)
    assert_same(one, other)
    check_trace(one)
    return one


META = {"schemaVersion": 1, "later": [{"a": 1}, {"b": 2}]}
TEXT = document(mixed(1500), META, "indented", "last")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_result_in_every_layout(layout: str) -> None:
    place = "bare" if layout == "compact" else "first" if layout == "one line" else "last"
    trace = read_both(document(mixed(1000), META, layout, place), chunk_bytes=4096)
    assert trace.report.tier == "strict"


def test_the_workers_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = ColumnBuilder.take
    monkeypatch.setattr(ColumnBuilder, "take", lambda self, part: (taken.append(part), take(self, part))[1])
    monkeypatch.setattr(ColumnBuilder, "add", None)
    trace = read_trace(io.BytesIO(TEXT), processes=2, chunk_bytes=8192)
    assert sum(part._phases["X"] for part in taken) == trace.report.phases["X"] == 3000
    assert len(taken) > 20


def test_same_result_from_gzip() -> None:
    read_both(gzip.compress(document(mixed(1000), META, "indented", "first")))


def test_keys_behind_the_events_longer_than_the_events() -> None:
    meta = {"later": [{"ph": "X", "n": i} for i in range(20_000)]}
    trace = read_both(document(mixed(200), meta, "one line", "first"), chunk_bytes=2048)
    assert len(trace.meta["later"]) == 20_000


def test_blocks_cut_inside_arguments_are_read_again() -> None:
    events = mixed(100)
    for event in events[::50]:
        event["args"] = {"objects": [{"ph": "X", "n": i} for i in range(3000)]}
    trace = read_both(json.dumps(events).encode(), chunk_bytes=2048)
    assert trace.report.tier == "strict"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) * 2 // 3],
        lambda text: text.replace(b'"op 5 ', b'"op "5" '),
        lambda text: text.replace(b'"cat": "kernel", "name": "kernel 7"', b'"cat": "ker'),
        lambda text: text.replace(b'"correlation": 77,', b'"correlation": NaN,'),
        lambda text: text.replace(b"}, {", b"}, "),
        lambda text: text[:30_000] + b"\0" * 30_000 + text[60_000:],
        lambda text: text[:50_000] + b'"' + text[50_000:],
    ],
)
def test_damage_costs_the_same(damage: Any) -> None:
    text = damage(document(mixed(1000), META, "one line", "last"))
    trace = read_both(text, chunk_bytes=4096)
    assert trace.report.tier != "strict"


@pytest.mark.data
@pytest.mark.parametrize("name", ["cv/timesformer_h100_infer", "llm/qwen1.5-0.5b_mi300x", "cv/alexnet_a100_small"])
def test_same_result_from_recordings(name: str, recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recordings / f"{name}.json.gz"
    assert_same(read_trace(path, processes=1), read_trace(path, processes=3))


# -- trouble -------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_replaced_by_reading_here(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Workers.submit
    n_calls = 0

    def submit_and_kill(pool: Any, *task: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 4:
            pool._processes[0].kill()
        return submit(pool, *task)

    monkeypatch.setattr(Workers, "submit", submit_and_kill)
    read_both(TEXT)
    assert n_calls >= 4


@pytest.mark.parametrize("code", ["raise SystemExit", "print('hello')", "import nowhere"])
def test_workers_that_never_work(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def broken(command: list[str], **options: Any) -> Any:
        return popen([command[0], "-c", code], **options)

    monkeypatch.setattr("subprocess.Popen", broken)
    read_both(TEXT)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("subprocess.Popen", BlockingIOError("no more processes")),
        ("threading.Thread.start", RuntimeError("can't start new thread")),
    ],
)
def test_no_more_processes_or_threads_to_be_had(what: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(what, refuse)
    read_both(TEXT)


def test_an_error_here_leaves_no_worker_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = []
    enter = Workers.__enter__
    monkeypatch.setattr(Workers, "__enter__", lambda pool: (pools.append(pool), enter(pool))[1])

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_trace(io.BytesIO(TEXT), processes=2, progress=stop)
    assert all(process.returncode is not None for process in pools[0]._processes)


def test_control_c_while_a_worker_is_started_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    popen, processes, once = subprocess.Popen, [], iter([signal.SIGINT])

    def interrupted(*arguments: Any, **options: Any) -> Any:
        process = popen(*arguments, **options)
        processes.append(process)
        for number in once:  # a second one, of another thread, could end the wait for it, and come in the next test
            signal.raise_signal(number)
        return process

    monkeypatch.setattr("subprocess.Popen", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_trace(io.BytesIO(TEXT), processes=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert processes
    assert all(process.returncode is not None for process in processes)


def test_control_c_ends_everything_quickly(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(document(mixed(60_000), META, "one line", "last"))
    code = (
        "import signal, sys\n"
        "from torchtriage.core.trace import read_trace, parallel\n"
        # a shell that runs the tests in the background makes their children ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "parallel.BLOCK_CHUNKS = 1\n"
        "print('reading', flush=True)\n"
        "while True:\n"
        "    read_trace(sys.argv[1], processes=2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"reading\n"
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    _, trouble = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert trouble.count(b"Traceback") == 1  # ours, and none of the workers'
    with pytest.raises(ProcessLookupError):  # nobody of the session is left
        os.killpg(process.pid, 0)


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(TEXT)
    # a module of the folder that would shadow one of ours
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the wrong numpy')")
    script = tmp_path / "scripts" / "unguarded.py"
    script.parent.mkdir()
    script.write_text(
        "from torchtriage.core.trace import read_trace, parallel\n"
        "parallel.BLOCK_CHUNKS = 1\n"
        "print(len(read_trace('a.json', processes=2)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.split() == [b"3150"]


def test_inside_a_daemon_of_multiprocessing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(TEXT)
    code = (
        "import multiprocessing, sys\n"
        "from torchtriage.core.trace import read_trace\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    queue = context.SimpleQueue()\n"
        "    def child():\n"
        "        queue.put(len(read_trace(sys.argv[1], processes=2)))\n"
        "    process = context.Process(target=child, daemon=True)\n"
        "    process.start()\n"
        "    print(queue.get())\n"
    )
    path = tmp_path / "a.json"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True)
    assert done.stdout.split() == [b"3150"]


# -- how many ------------------------------------------------------------------------------------

HUGE = 1 << 40


def test_small_inputs_use_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROCESSES_VARIABLE, raising=False)
    monkeypatch.setattr(parallel, "n_cores", lambda: 64)
    assert count_workers(1 << 20, None) == 1
    assert count_workers(HUGE, None) == parallel.MAX_WORKERS
    assert count_workers(1 << 20, 3) == 3
    monkeypatch.setattr(parallel, "n_cores", lambda: 1)
    assert count_workers(HUGE, None) == 1


def test_the_environment_decides_unless_the_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROCESSES_VARIABLE, "3")
    assert count_workers(10, None) == 3
    assert count_workers(10, 1) == 1
    monkeypatch.setenv(PROCESSES_VARIABLE, "many")
    with pytest.raises(UsageError, match="many"):
        count_workers(10, None)


@pytest.mark.parametrize("executable", ["", None, "/opt/program/embedding"])
def test_a_program_that_embeds_python_is_not_started_again(
    executable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert count_workers(HUGE, 4) == 1
