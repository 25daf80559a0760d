"""A bound on memory changes where columns lie, and nothing else."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.core.trace.layouts import document
from tests.core.trace.test_native import META, assert_equal
from tests.core.trace.test_parallel import mixed

import torchtriage as tt
from torchtriage.api import traces
from torchtriage.cli.main import cli
from torchtriage.core.engine import FILE, READER_VARIABLE, find_engine
from torchtriage.core.errors import UsageError
from torchtriage.core.trace import memory_limit, read_trace
from torchtriage.core.trace.memory_limit import LEAST_BYTES, within

can_bound = pytest.mark.skipif(
    sys.platform != "linux" or not FILE.exists(), reason="needs the native scanner and Linux's files without a name"
)
ROOMY = 4 << 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files lie; small arrays have one, too."""
    monkeypatch.setattr(memory_limit, "spill_folder", lambda: tmp_path)
    monkeypatch.setattr(memory_limit, "LARGE_BYTES", 4096)
    return tmp_path


def lies_in(array: np.ndarray[Any, Any]) -> str:
    """Return the file that an array's memory is a mapping of."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(text, 16) for text in line.split(maxsplit=1)[0].split("-"))
        if first <= address < last:
            return line.partition("/")[2]
    raise AssertionError


@can_bound
@pytest.mark.parametrize("n_threads", [1, 2])
def test_same_columns_trees_and_links(folder: Path, n_threads: int) -> None:
    text = document(mixed(3000), META, "new Kineto", "last")

    def read() -> Any:
        trace = read_trace(io.BytesIO(text), processes=n_threads, chunk_bytes=4096)
        trace.tree, trace.frames, trace.links  # noqa: B018 - made within the bound, or not
        return trace

    expected = read()
    with within(ROOMY):
        found = read()
        for column in (found.start_ns, found.name, found.tree.parent):
            assert lies_in(column).startswith(f"{folder}/"[1:])
    assert_equal(expected, found)


@can_bound
def test_same_report(folder: Path) -> None:
    text = document(mixed(3000), META, "indented", "last")
    expected = tt.analyze(io.BytesIO(text)).to_json()
    assert tt.analyze(io.BytesIO(text), max_memory=ROOMY).to_json() == expected


@can_bound
def test_only_what_is_made_inside_lies_in_files(folder: Path) -> None:
    before = np.zeros(100_000)
    with within(ROOMY):
        inside = np.zeros(100_000)
        small = np.zeros(10)
    after = np.zeros(100_000)
    assert lies_in(inside).startswith(f"{folder}/"[1:])
    assert not any(lies_in(other).startswith(f"{folder}/"[1:]) for other in (before, small, after))
    assert not list(folder.iterdir())
    inside += 1
    assert inside.sum() == 100_000


@can_bound
def test_arrays_grow_shrink_and_are_used_again(folder: Path) -> None:
    with within(ROOMY):
        for size in (5000, 6000, 5500, 100_000, 5000):
            array = np.full(size, 7)
            array.resize(2 * size, refcheck=False)
            assert array[:size].tolist() == [7] * size
            assert not array[size:].any()
            array.resize(600, refcheck=False)
            assert array.tolist() == [7] * 600
            del array
            assert not np.zeros(size).any()


@can_bound
def test_the_smallest_of_nested_bounds_holds_until_it_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = find_engine().library
    limits = []
    set_bound = library.tt_bound
    monkeypatch.setattr(library, "tt_bound", lambda *given: (limits.append(given[0]), set_bound(*given))[1])
    with within(2 * ROOMY):
        with within(ROOMY), within(3 * ROOMY):
            pass
        between = np.zeros(100_000)
    after = np.zeros(100_000)
    assert [limit // ROOMY for limit in limits] == [2, 1, 1, 1, 2, 0]
    assert lies_in(between).startswith(f"{folder}/"[1:])
    assert not lies_in(after).startswith(f"{folder}/"[1:])


@can_bound
def test_a_thread_keeps_its_bound_when_another_ends(folder: Path) -> None:
    began, ended = threading.Event(), threading.Event()
    found = []

    def other() -> None:
        with within(ROOMY):
            began.set()
            assert ended.wait(60)
            found.append(np.zeros(100_000))

    thread = threading.Thread(target=other)
    with within(2 * ROOMY):
        thread.start()
        assert began.wait(60)
    ended.set()
    thread.join()
    assert lies_in(found[0]).startswith(f"{folder}/"[1:])


PEAK = """
import sys
import numpy as np
from torchtriage.core.trace.memory_limit import within
with within(256 << 20):
    many = [np.full(20 << 20, k, np.int64) for k in range(4)]
    total = sum(many[k][k::4].sum() for k in range(4))
assert total == (0 + 1 + 2 + 3) * (5 << 20), total
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) >> 10)
"""


def python(code: str, folder: Path, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return both streams; a process that hangs is killed."""
    try:
        return process.communicate(timeout=120)
    finally:
        process.kill()


@can_bound
def test_more_than_the_bound_is_never_resident(tmp_path: Path) -> None:
    process = python(PEAK, tmp_path)  # four times 160 MB
    out, err = ended(process)
    assert not err
    assert int(out) <= 256


CROWDED = """
import sys
import numpy as np
from torchtriage.core.trace.memory_limit import within
rng = np.random.default_rng(int(sys.argv[1]))
beside = bytearray(200 << 20)
with within(256 << 20):
    arrays = {}
    for k in range(150):
        size = int(rng.integers(1, 60)) << 17
        arrays[int(rng.integers(6))] = np.full(size, k)
        kept = arrays[int(rng.choice([*arrays]))]
        assert kept.sum() == kept[0] * len(kept)
"""


@can_bound
@pytest.mark.parametrize("seed", range(2))
def test_a_bound_that_other_memory_fills_slows_and_ends(seed: int, tmp_path: Path) -> None:
    process = python(CROWDED.replace("sys.argv[1]", str(seed)), tmp_path)
    _, err = ended(process)
    assert not err
    assert process.returncode == 0


WAITS = """
import io, sys, time
from tests.core.trace.layouts import document
from tests.core.trace.test_parallel import mixed
import torchtriage as tt
from torchtriage.core.trace import memory_limit
memory_limit.LARGE_BYTES = 4096
text = document(mixed(3000), {}, "indented", "last")
def wait(*_):
    print("reading", flush=True)
    time.sleep(60)
tt.analyze(io.BytesIO(text), max_memory=1 << 30, progress=wait)
"""


@can_bound
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_nothing_stays_behind_however_it_ends(end: signal.Signals, tmp_path: Path) -> None:
    process = python(WAITS, tmp_path, cwd=Path(__file__).parents[3])
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    links = Path(f"/proc/{process.pid}/map_files").glob("*")
    assert any(str(link.readlink()).startswith(str(tmp_path)) for link in links)
    process.send_signal(end)
    ended(process)
    assert process.returncode != 0
    assert not list(tmp_path.iterdir())


FULL = """
import resource
import numpy as np
from torchtriage.core.trace.memory_limit import within
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
with within(256 << 20):
    np.zeros(1 << 20)
"""


@can_bound
def test_a_file_that_cannot_grow_is_told(tmp_path: Path) -> None:
    _, err = ended(python(FULL, tmp_path))
    assert f"UsageError: expected room for columns in {tmp_path}, found none" in err


@can_bound
def test_a_scanner_without_room_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_engine().library, "tt_out_of_room", lambda: 1)
    text = document(mixed(300), META, "compact", "last")
    with pytest.raises(UsageError, match="expected room for columns"), within(ROOMY):
        read_trace(io.BytesIO(text), processes=1)


FORK = """
import os
import sys
import time
from pathlib import Path
import numpy as np
from torchtriage.core.trace.memory_limit import within

def is_watched():
    names = Path("/proc/self/task").glob("*/comm")
    return "memory bound\\n" in [name.read_text() for name in names]

with within(1 << 30):
    mine = np.full(1 << 20, 7)
    child = os.fork()
    if child == 0:
        del mine
        other = np.full(1 << 20, 9)  # not where the parent's lies
        assert not is_watched()
        with within(1 << 30):
            deadline = time.monotonic() + 60
            while not is_watched():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (mine == 7).all()
    assert is_watched()
    for _ in range(300):  # never while the watching thread holds the lock
        child = os.fork()
        if child == 0:
            np.zeros(1 << 20)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


@can_bound
def test_a_fork_takes_no_array_and_sets_a_bound_of_its_own(tmp_path: Path) -> None:
    process = python("import warnings; warnings.simplefilter('ignore')\n" + FORK, tmp_path)
    _, err = ended(process)
    assert not err
    assert process.returncode == 0


THREAD = """
import time
from contextlib import suppress
from pathlib import Path
import numpy as np
from torchtriage.core.trace.memory_limit import within

def wait_until(watched):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        names = []
        for name in Path("/proc/self/task").glob("*/comm"):
            with suppress(OSError):  # it ends while it is looked at
                names.append(name.read_text())
        if ("memory bound\\n" in names) == watched:
            return
        time.sleep(0.01)
    raise AssertionError(names)

for _ in range(2):
    with within(256 << 20):
        array = np.zeros(1 << 20)
        wait_until(True)
    time.sleep(0.05)
    wait_until(True)
    del array
    wait_until(False)
"""


@can_bound
def test_the_watching_thread_ends_with_the_last_array(tmp_path: Path) -> None:
    _, err = ended(python(THREAD, tmp_path))
    assert not err


def test_a_bound_that_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="at least 128 MiB of memory, found 1"), within(1 << 20):
        pass
    monkeypatch.setenv(READER_VARIABLE, "python")
    with pytest.raises(UsageError, match="needs the native library"), within(LEAST_BYTES):
        pass


@can_bound
def test_a_folder_that_takes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "spill_folder", lambda: Path("/no such folder"))
    with pytest.raises(UsageError, match="room for files"), within(LEAST_BYTES):
        pass


@can_bound
def test_the_command_line_takes_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(document(mixed(300), META, "indented", "last"))
    runs = [
        CliRunner().invoke(cli, ["analyze", str(path), "--json", *more])
        for more in ([], ["--max-memory", "1G"], ["--max-memory", "5M"])
    ]
    assert [run.exit_code for run in runs] == [0, 0, 2]
    assert runs[0].stdout == runs[1].stdout
    assert "expected a bound of at least 128" in runs[2].output


@can_bound
@pytest.mark.parametrize(("version", "known"), [("3.0.0.dev0", {2: 0x02000000}), (np.__version__, {1: 7, 2: 7})])
def test_an_unknown_numpy_is_refused_before_its_table_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, known: dict[int, int]
) -> None:
    memory_limit._numpy_functions.cache_clear()
    monkeypatch.setattr(np, "__version__", version)
    monkeypatch.setattr(memory_limit, "_KNOWN_ABI", known)
    with pytest.raises(UsageError, match=rf"needs numpy 1 or 2, found {version}"), within(ROOMY):
        pass
    assert memory_limit._OPEN == []
    monkeypatch.undo()
    with within(ROOMY):
        assert np.zeros(100_000).sum() == 0


def test_an_analysed_trace_goes_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[weakref.ref[Any]] = []
    load = traces.load
    monkeypatch.setattr(
        traces, "load", lambda *given, **options: (read.append(weakref.ref(made := load(*given, **options))), made)[1]
    )
    gc.disable()
    try:
        assert tt.analyze(traces.sample_path()).findings
        assert [found() for found in read] == [None]
    finally:
        gc.enable()
