"""What goes in comes out, whoever writes beside it, is killed, or brings an old or foreign file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import wait_for

from torchtriage.core.database import Schema, open_postgres
from torchtriage.core.errors import MissingExtraError, SampleError, StoreError, UsageError
from torchtriage.core.samples import Machine, Run, Series, Session
from torchtriage.measure.gate import store as stores
from torchtriage.measure.gate.store import MIGRATIONS, open_store

SCHEMA = Schema(MIGRATIONS, "torchtriage_store")
HERE = Path(__file__).parents[3]
LAPTOP = Machine((("cores", "8"), ("cpu", "Fast 9000"), ("host", "lap")))


def run_of(number: int = 0, *, benchmark: str = "bench", branch: str = "main", n: int = 3) -> Run:
    """Return a run that is unlike that of any other number."""
    commit = f"{number:08x}" + "c" * 32
    latency = Series(
        "step",
        "s",
        "lower",
        "latency",
        (
            Session(tuple(0.1 + 0.01 * number + i for i in range(n)), None, 0, 1e9 + number),
            Session((0.2,), (0.19,), None, None),
        ),
    )
    breaks = Series("graph breaks", "1", "lower", "count", (Session((0.0,)),))
    return Run(
        benchmark,
        commit,
        branch,
        f"{number - 1:08x}" if number else None,
        1e9 + number,
        LAPTOP,
        (("python", "3.11"), ("größe", "5 µs\n")),
        (latency, breaks),
    )


def test_what_goes_in_comes_out(place: str) -> None:
    runs = [run_of(number) for number in range(3)]
    with open_store(place) as store:
        assert [store.add(run) for run in runs] == [True, True, True]
    with open_store(place, create=False) as store:
        entries = store.find(benchmark="bench")
        assert [entry.run.recorded_at_s for entry in entries] == [1e9 + 2, 1e9 + 1, 1e9]
        assert store.load(entries) == tuple(reversed(runs))
        (only,) = store.load(entries[:1], metrics=["graph breaks"])
        assert [one.metric for one in only.series] == ["graph breaks"]
        assert store.load(entries[:1], metrics=["no such"])[0].series == ()
        assert store.load(entries[:1], metrics=[])[0].series == ()


def test_values_come_back_to_the_last_bit(place: str) -> None:
    values = (1 / 3, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 123456789.123456789)
    run = replace(run_of(), series=(Series("m", "s", "lower", "latency", (Session(values),)),))
    with open_store(place) as store:
        store.add(run)
        assert store.load(store.find())[0].series[0].sessions[0].values == values


def test_the_same_run_is_stored_once(place: str) -> None:
    with open_store(place) as store:
        assert store.add(run_of())
        assert not store.add(run_of())
        assert store.add(replace(run_of(), recorded_at_s=2e9))
        assert len(store.find()) == 2


def test_the_same_run_stored_by_two_at_once_is_stored_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # as if the other had not been there yet when it was looked for
    monkeypatch.setattr(stores.Store, "_has", lambda _store, _id: False)
    with open_store(place) as store:
        assert store.add(run_of())
        assert not store.add(run_of())
        assert store.load(store.find()) == (run_of(),)


def test_each_filter_holds(place: str) -> None:
    with open_store(place) as store:
        for number, (benchmark, branch) in enumerate([("a", "main"), ("a", "topic"), ("b", "main"), ("b_", "main")]):
            store.add(run_of(number, benchmark=benchmark, branch=branch))

        def found(**filters: object) -> list[float]:
            return [one.run.recorded_at_s - 1e9 for one in store.find(**filters)]  # type: ignore[arg-type]

        assert found() == [3, 2, 1, 0]
        assert found(benchmark="a") == [1, 0]
        assert found(branch="main", benchmark="a") == [0]
        assert found(commit="00000002") == [2]
        assert found(commit=run_of(0).commit) == [0]
        assert found(commit="____") == []
        assert found(branch="main", limit=2) == [3, 2]
        with pytest.raises(UsageError, match="four characters"):
            store.find(commit="0")


def test_unusable_samples_are_not_stored(place: str) -> None:
    bad = replace(run_of(), series=(Series("m", "s", "lower", "latency", (Session((float("nan"),)),)),))
    with open_store(place) as store:
        with pytest.raises(SampleError, match="finite"):
            store.add(bad)
        with pytest.raises(SampleError, match=r"in seconds since 1970, found 1\.7e\+12"):
            store.add(replace(run_of(), recorded_at_s=1.7e12))
        assert store.find() == ()


WRITER = """
import sys
from tests.measure.gate.test_store import run_of
from torchtriage.measure.gate.store import open_store
place, first, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(first, first + n):
    with open_store(place) as store:
        assert store.add(run_of(number))
"""


def writer(place: str, first: int, n: int) -> subprocess.Popen[bytes]:
    """Start a process that writes ``n`` runs, opening the store for each."""
    paths = os.pathsep.join([str(HERE), str(HERE / "src")])
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, place, str(first), str(n)],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
    )


def test_two_writers_at_once_lose_nothing(place: str) -> None:
    # neither finds a store: both want to make it
    both = [writer(place, 0, 25), writer(place, 1000, 25)]
    for one in both:
        _, said = one.communicate(timeout=120)
        assert one.returncode == 0, said.decode()
    with open_store(place, create=False) as store:
        entries = store.find()
        expected = {*range(25), *range(1000, 1025)}
        assert {round(entry.run.recorded_at_s - 1e9) for entry in entries} == expected
        for one in store.load(entries):
            assert one == run_of(round(one.recorded_at_s - 1e9))


@pytest.mark.postgres
def test_two_that_make_the_tables_at_once_wait_for_each_other(postgres: Callable[[], str]) -> None:
    place = postgres()
    first = open_postgres(place, wait_s=60)
    watch = open_postgres(place, wait_s=60)
    failed: list[BaseException] = []

    def open_second() -> None:
        try:
            with open_store(place) as store:
                store.add(run_of(2))
        except BaseException as error:
            failed.append(error)

    second = threading.Thread(target=open_second)
    with first.transaction():
        second.start()
        waiting = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_for(lambda: watch.rows(waiting, [])[0][0])
        SCHEMA.migrate(first)
    second.join(timeout=30)
    assert failed == []
    with open_store(place, create=False) as store:
        assert store.load(store.find()) == (run_of(2),)
    first.close()
    watch.close()


KILLED = """
import os, signal, sqlite3, sys
from dataclasses import replace
from tests.measure.gate.test_store import run_of
from torchtriage.measure.gate import store as stores
from torchtriage.measure.gate.store import open_store
store = open_store(sys.argv[1])
store.add(run_of(1))
big = run_of(2, n=400_000)
big = replace(big, series=tuple(replace(big.series[0], metric=f"m{i}") for i in range(8)))
store._database._connection.execute("PRAGMA cache_size = 10")  # so that pages reach the file early
plain = stores._packed
written = []
def packed(sessions):
    written.append(1)
    if len(written) == 14:  # eight for the id, then half of the rows
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(sessions)
stores._packed = packed
store.add(big)
"""


def test_a_run_killed_while_it_writes_leaves_the_store_whole(tmp_path: Path) -> None:
    path = tmp_path / "gate.db"
    paths = os.pathsep.join([str(HERE), str(HERE / "src")])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], env={**os.environ, "PYTHONPATH": paths}, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    # it really was in the middle: half of the run is in the file, and what undoes it beside
    assert path.stat().st_size > 5_000_000
    assert path.with_name("gate.db-journal").stat().st_size > 0
    with open_store(str(path), create=False) as store:
        assert store.load(store.find()) == (run_of(1),)
        assert store.add(run_of(3))
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        orphans = "SELECT COUNT(*) FROM torchtriage_series WHERE run_id NOT IN"
        query = f"{orphans} (SELECT id FROM torchtriage_run)"
        assert raw.execute(query).fetchone() == (0,)
    raw.close()


@pytest.mark.postgres
def test_a_run_killed_while_it_writes_to_a_server(postgres: Callable[[], str]) -> None:
    place = postgres()
    killed = KILLED.replace("store._database._connection.execute", "len")
    paths = os.pathsep.join([str(HERE), str(HERE / "src")])
    done = subprocess.run(
        [sys.executable, "-c", killed, place], env={**os.environ, "PYTHONPATH": paths}, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with open_store(place, create=False) as store:
        assert store.load(store.find()) == (run_of(1),)
        assert store.add(run_of(3))  # its lock is gone with it


def test_a_store_of_the_first_version_is_migrated(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MIGRATIONS", MIGRATIONS[:1])
    database = open_store(place)
    with database._database.transaction() as execute:
        row = ("old", "bench", "abc123", "main", None, 5.0, "f" * 12, '[["cpu", "x"]]', "[]")
        execute("INSERT INTO torchtriage_run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [row])
        packed = stores._packed((Session((1.5, 2.5)),))
        execute(
            "INSERT INTO torchtriage_series VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [("old", 0, "step", "ms", "lower", "latency", 2, *packed)],
        )
    database.close()
    monkeypatch.undo()
    with open_store(place, create=False) as store:
        (old,) = store.load(store.find())
        assert (old.benchmark, old.commit, old.machine.fields) == ("bench", "abc123", (("cpu", "x"),))
        assert old.series[0].sessions == (Session((1.5, 2.5)),)
        assert store.add(run_of())
        assert SCHEMA.version(store._database) == len(MIGRATIONS)


def test_a_migration_that_fails_changes_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(place) as store:
        store.add(run_of())
    broken = ("CREATE TABLE torchtriage_half (n INTEGER)", "ALTER TABLE torchtriage_none ADD x TEXT")
    monkeypatch.setattr(stores, "MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(StoreError, match="torchtriage_none"):
        open_store(place)
    monkeypatch.undo()
    with open_store(place, create=False) as store:
        assert not store._database.has_table("torchtriage_half")
        assert store.load(store.find()) == (run_of(),)


def test_a_newer_store_is_refused_and_left_alone(place: str) -> None:
    with open_store(place) as store, store._database.transaction() as execute:
        execute("UPDATE torchtriage_store SET version = 99")
    with pytest.raises(StoreError, match="found 99") as told:
        open_store(place)
    assert "newer torchtriage" in told.value.hint


def test_an_empty_place_is_told_not_made(place: str) -> None:
    with pytest.raises(StoreError, match="no samples are stored here yet"):
        open_store(place, create=False)
    if "://" not in place:
        assert not Path(place).exists()


@pytest.mark.parametrize("content", [b"hello, I am text " * 100, bytes(range(255, 0, -1)) * 20, b"SQLite format 3\0"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    with pytest.raises(StoreError) as told:
        open_store(str(path))
    assert str(path) in str(told.value)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE songs (name TEXT)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="table 'songs'"):
        open_store(str(path))
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.touch()
    with open_store(str(path)) as store:
        assert store.add(run_of())


def test_a_truncated_store_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with open_store(str(path)) as store:
        for number in range(40):
            store.add(run_of(number, n=500))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StoreError, match=r"malformed|disk I/O"), open_store(str(path)) as store:
        store.load(store.find())


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder"):
        open_store(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        open_store(str(tmp_path / "file" / "gate.db"))
    with pytest.raises(StoreError, match="expected a path or a postgresql:// URL, found mysql"):
        open_store("mysql://user:hunter2@host/db")


@pytest.mark.postgres
def test_a_writer_that_holds_a_server_too_long_is_told(
    postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgres()
    monkeypatch.setattr(stores, "WAIT_S", 0.2)
    with open_store(place) as store, open_store(place) as other:
        with other._database.transaction(), pytest.raises(StoreError, match="lock timeout") as told:
            store.add(run_of())
        assert "another process" in told.value.hint
        assert store.add(run_of())


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE torchtriage_series SET sample_values = lengths", "damaged"),
        ("UPDATE torchtriage_series SET lengths = sample_values", "damaged"),
        ("UPDATE torchtriage_series SET cpu_values = lengths", "damaged"),
        ("UPDATE torchtriage_series SET kind = 'speed'", "expected kind"),
        ("UPDATE torchtriage_series SET metric = 'same'", "found it twice"),
        ("UPDATE torchtriage_run SET environment = 'x'", "damaged"),
        ("UPDATE torchtriage_run SET machine = '[1]'", "damaged"),
    ],
)
def test_what_somebody_else_wrote_into_it_becomes_no_run(place: str, statement: str, told: str) -> None:
    with open_store(place) as store:
        store.add(run_of())
        with store._database.transaction() as execute:
            execute(statement)
        with pytest.raises(StoreError, match=told):
            store.load(store.find())


def test_nan_in_the_tables_becomes_no_run(place: str) -> None:
    with open_store(place) as store:
        store.add(run_of())
        nan = stores._floats([float("nan")] * 4)
        with store._database.transaction() as execute:
            execute("UPDATE torchtriage_series SET sample_values = ? WHERE metric = 'step'", [(nan,)])
        with pytest.raises(StoreError, match="expected finite numbers"):
            store.load(store.find())
        assert store.load(store.find(), metrics=["graph breaks"])[0].series


def test_who_will_write_has_the_store_before_it_reads(tmp_path: Path) -> None:
    """Two that read first and write then would each wait for the other, and one fail at once."""
    path = tmp_path / "x.db"
    with open_store(str(path)) as store, store._database.transaction():
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()


def test_a_writer_that_holds_the_store_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    open_store(str(path)).close()
    monkeypatch.setattr(stores, "WAIT_S", 0.1)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with open_store(str(path)) as store, pytest.raises(StoreError, match="locked") as told:
        store.add(run_of())
    assert "another process" in told.value.hint
    blocker.close()


def test_the_default_store_is_beside_the_work_and_not_in_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHTRIAGE_STORE", raising=False)
    open_store().close()
    assert (tmp_path / ".torchtriage" / "gate.db").is_file()
    assert (tmp_path / ".torchtriage" / ".gitignore").read_text() == "*\n"
    monkeypatch.setenv("TORCHTRIAGE_STORE", "other.db")
    open_store().close()
    assert (tmp_path / "other.db").is_file()


@pytest.mark.postgres
def test_a_server_that_is_not_there_is_one_line_without_the_password() -> None:
    with pytest.raises(StoreError) as told:
        open_store("postgresql://me:hunter2@127.0.0.1:1/gate?sslpassword=hunter2")
    assert "refused" in str(told.value)
    assert "hunter2" not in str(told.value)
    assert told.value.where.startswith("postgresql://me:***@127.0.0.1:1/gate")


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"torchtriage\[postgres\]"):
        open_store("postgresql://host/gate")


def test_traces_are_kept_beside_the_store(place: str, tmp_path: Path) -> None:
    trace = tmp_path / "out" / "trace.json.gz"
    trace.parent.mkdir()
    trace.write_bytes(b"a trace")
    run = replace(run_of(), traces=(str(trace), str(trace)))
    kept_in = tmp_path / "kept"
    with open_store(place, traces_dir=kept_in) as store:
        assert store.add(run)
        trace.unlink()
        (entry,) = store.find()
        (loaded,) = store.load([entry])
    assert loaded.traces == entry.run.traces
    assert [Path(path).name for path in loaded.traces] == ["0-trace.json.gz", "1-trace.json.gz"]
    for path in map(Path, loaded.traces):
        assert path.read_bytes() == b"a trace"
        assert path.is_relative_to(kept_in)
        assert path.name.endswith("trace.json.gz")
    if "://" not in place:
        with open_store(place) as store:
            assert Path(store.find()[0].run.traces[0]).parts[-3] == "traces"


def test_a_trace_that_is_not_there_is_told_and_nothing_stored(place: str, tmp_path: Path) -> None:
    with open_store(place, traces_dir=tmp_path / "kept") as store:
        with pytest.raises(StoreError, match="trace cannot be stored"):
            store.add(replace(run_of(), traces=(str(tmp_path / "none.json"),)))
        assert store.find() == ()


@pytest.mark.timing
def test_a_check_reads_its_runs_out_of_a_million_samples(tmp_path: Path) -> None:
    values = tuple(0.001 * (i + 1) for i in range(250))
    with open_store(str(tmp_path / "gate.db")) as store:
        for number in range(100):
            series = tuple(Series(f"m{k}", "s", "lower", "latency", (Session(values, values),) * 10) for k in range(4))
            store.add(replace(run_of(number), series=series))
    began_s = time.process_time()
    with open_store(str(tmp_path / "gate.db"), create=False) as store:
        entries = store.find(benchmark="bench")
        (candidate, *_) = store.load(entries[:1])
        runs = store.load(entries, metrics=["m0", "m1", "m2", "m3"])
    assert candidate == runs[0]
    assert sum(run.n_values for run in runs) == 1_000_000
    # all of them, where a check needs a few runs; CPU time, as the machine may be busy
    assert time.process_time() - began_s < 2.0
