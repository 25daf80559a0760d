"""Where samples are kept: one SQLite file, or a PostgreSQL database several machines share.

A run is written in one transaction: it is there whole or not at all, whoever is killed when. The
values of a metric are one field of little-endian 64-bit floats, so a million of them are read in
a moment. Both databases hold the same tables, made and changed by ``MIGRATIONS``.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from torchtriage.errors import SampleError, StoreError, UsageError
from torchtriage.gate.database import DEFAULT_STORE, Database, connect, nothing_stored
from torchtriage.samples import Machine, Run, Series, Session

__all__ = ["DEFAULT_STORE", "MIGRATIONS", "STORE_VARIABLE", "Entry", "Store", "open_store"]

STORE_VARIABLE = "TORCHTRIAGE_STORE"
_AT_ONCE = 400  # an old SQLite takes no more than 999 parameters, ids and metrics

# Never change a step that was released: add one. {bytes} is the database's type for raw bytes.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE torchtriage_run (
            id TEXT PRIMARY KEY,
            benchmark TEXT NOT NULL,
            commit_id TEXT NOT NULL,
            branch TEXT NOT NULL,
            parent TEXT,
            recorded_at_s DOUBLE PRECISION NOT NULL,
            fingerprint TEXT NOT NULL,
            machine TEXT NOT NULL,
            environment TEXT NOT NULL
        )""",
        # one row holds all sessions: a gate of 200 metrics stores a value for each, many times
        """CREATE TABLE torchtriage_series (
            run_id TEXT NOT NULL REFERENCES torchtriage_run (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            metric TEXT NOT NULL,
            unit TEXT NOT NULL,
            better TEXT NOT NULL,
            kind TEXT NOT NULL,
            n_values INTEGER NOT NULL,
            lengths {bytes} NOT NULL,
            rounds {bytes} NOT NULL,
            started_s {bytes} NOT NULL,
            sample_values {bytes} NOT NULL,
            cpu_values {bytes},
            PRIMARY KEY (run_id, position)
        )""",
    ),
    (
        """CREATE TABLE torchtriage_trace (
            run_id TEXT NOT NULL REFERENCES torchtriage_run (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            path TEXT NOT NULL,
            PRIMARY KEY (run_id, position)
        )""",
        """CREATE INDEX torchtriage_run_by_benchmark
            ON torchtriage_run (benchmark, recorded_at_s)""",
    ),
)


@dataclass(frozen=True)
class Entry:
    """A stored run without its samples; ``Store.load`` adds them.

    ``id`` : 32 hex digits over everything that was measured; equal runs have equal ids. ``run`` :
    its ``series`` is empty, its traces are absolute paths. ``n_values`` : of all its metrics.
    """

    id: str
    run: Run
    n_values: int


class Store:
    """Samples of runs, by benchmark, commit, branch and machine; made by :func:`open_store`.

    A context manager. One process, one thread; any number of processes may have it open.
    """

    def __init__(self, database: Database, traces_dir: Path) -> None:
        self._database = database
        self.name = database.name
        self.traces_dir = traces_dir

    def __enter__(self) -> Store:
        """Return the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trail: TracebackType | None,
    ) -> None:
        """Let go of the database."""
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def add(self, run: Run) -> bool:
        """Write a run, and copy its traces beside the store; False where it was there before.

        Raises
        ------
        SampleError
            ``run.check()`` refuses it.
        StoreError
            It cannot be written, or a trace cannot be copied.
        """
        run.check()
        id = _id(run)
        if self._has(id):
            return False
        traces = self._keep(run.traces, id)
        with self._database.transaction(write=True) as execute:
            added = execute(
                "INSERT INTO torchtriage_run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                [(
                    id, run.benchmark, run.commit, run.branch, run.parent, run.recorded_at_s,
                    run.machine.fingerprint, _pairs_text(run.machine.fields),
                    _pairs_text(run.environment),
                )],
            )  # fmt: skip
            if not added:
                return False
            execute(
                "INSERT INTO torchtriage_series VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        id, place, one.metric, one.unit, one.better, one.kind, one.n_values,
                        *_packed(one.sessions),
                    )
                    for place, one in enumerate(run.series)
                ),
            )  # fmt: skip
            execute(
                "INSERT INTO torchtriage_trace VALUES (?, ?, ?)",
                [(id, place, path) for place, path in enumerate(traces)],
            )
        return True

    def find(
        self,
        *,
        benchmark: str | None = None,
        branch: str | None = None,
        commits: Iterable[str] | None = None,
        fingerprint: str | None = None,
        before_s: float | None = None,
        limit: int | None = None,
    ) -> tuple[Entry, ...]:
        """Return what is stored, newest first; each filter that is given has to hold.

        Parameters
        ----------
        benchmark, branch, fingerprint : str, optional
            Equal to the run's.
        commits : iterable of str, optional
            Full commit ids, or their first digits (four or more).
        before_s : float, optional
            Recorded before this, seconds since the epoch.
        limit : int, optional
            No more than so many.

        Raises
        ------
        UsageError
            A commit is given with fewer than four characters.
        StoreError
            It cannot be read, or a run in it is damaged.
        """
        wanted: list[str] = []
        given: list[Any] = []
        for column, value in (
            ("benchmark", benchmark), ("branch", branch), ("fingerprint", fingerprint),
        ):  # fmt: skip
            if value is not None:
                wanted.append(f"{column} = ?")
                given.append(value)
        if commits is not None:
            starts = list(commits)
            short = next((one for one in starts if len(one) < 4), None)
            if short is not None:
                raise UsageError(f"expected four characters or more of a commit, found {short!r}")
            if not starts:
                return ()
            # a range is exact and uses no pattern characters of the text
            wanted.append(f"({' OR '.join(['substr(commit_id, 1, ?) = ?'] * len(starts))})")
            for one in starts:
                given += [len(one), one]
        if before_s is not None:
            wanted.append("recorded_at_s < ?")
            given.append(before_s)
        query = (
            "SELECT id, benchmark, commit_id, branch, parent, recorded_at_s, machine, environment"
            " FROM torchtriage_run"
            + (f" WHERE {' AND '.join(wanted)}" if wanted else "")
            + " ORDER BY recorded_at_s DESC, id"
        )
        if limit is not None:
            query += " LIMIT ?"
            given.append(limit)
        rows = self._database.rows(query, given)
        ids = [row[0] for row in rows]
        sizes = dict(
            self._by_id(
                "SELECT run_id, SUM(n_values) FROM torchtriage_series WHERE run_id IN ({})"
                " GROUP BY run_id",
                ids,
            )
        )
        traces: dict[str, list[str]] = {}
        for id, path in self._by_id(
            "SELECT run_id, path FROM torchtriage_trace WHERE run_id IN ({})"
            " ORDER BY run_id, position",
            ids,
        ):
            traces.setdefault(id, []).append(str(self.traces_dir / path))
        with self._undamaged():
            return tuple(
                Entry(
                    id=id,
                    run=Run(
                        benchmark=name,
                        commit=commit,
                        branch=on,
                        parent=parent,
                        recorded_at_s=at_s,
                        machine=Machine(_pairs(machine)),
                        environment=_pairs(environment),
                        series=(),
                        traces=tuple(traces.get(id, ())),
                    ),
                    n_values=int(sizes.get(id, 0)),
                )
                for id, name, commit, on, parent, at_s, machine, environment in rows
            )

    def load(
        self, entries: Sequence[Entry], *, metrics: Iterable[str] | None = None
    ) -> tuple[Run, ...]:
        """Return the runs of these entries with their samples, in the same order.

        ``metrics`` : only these; a run that has none of them comes back without series.

        Raises
        ------
        StoreError
            It cannot be read, or a run in it is damaged.
        """
        ids = [one.id for one in entries]
        kept = None if metrics is None else frozenset(metrics)
        chosen = sorted(kept or ()) if len(kept or ()) < _AT_ONCE else []
        where = f" AND metric IN ({', '.join('?' * len(chosen))})" if chosen else ""
        series: dict[str, list[Series]] = {}
        if kept is None or kept:
            for id, metric, unit, better, kind, *packed in self._by_id(
                "SELECT run_id, metric, unit, better, kind, lengths, rounds, started_s,"
                " sample_values, cpu_values FROM torchtriage_series"
                f" WHERE run_id IN ({{}}){where} ORDER BY run_id, position",
                ids,
                chosen,
            ):
                if kept is not None and metric not in kept:
                    continue
                with self._undamaged():
                    sessions = _unpacked(*packed)
                series.setdefault(id, []).append(Series(metric, unit, better, kind, sessions))
        runs = tuple(replace(one.run, series=tuple(series.get(one.id, ()))) for one in entries)
        for run in runs:
            if run.series:
                with self._undamaged():
                    run.check()
        return runs

    def benchmarks(self) -> tuple[str, ...]:
        """Return the names of all benchmarks that have runs, sorted."""
        rows = self._database.rows("SELECT DISTINCT benchmark FROM torchtriage_run", [])
        return tuple(sorted(row[0] for row in rows))

    @contextlib.contextmanager
    def _undamaged(self) -> Iterator[None]:
        """Tell what somebody else wrote into the tables: it must not become a verdict."""
        try:
            yield
        except (ValueError, TypeError, IndexError, SampleError) as error:
            raise StoreError(f"a run in it is damaged: {error}", where=self.name) from error

    def _has(self, id: str) -> bool:
        return bool(self._database.rows("SELECT 1 FROM torchtriage_run WHERE id = ?", [id]))

    def _by_id(
        self, query: str, ids: Sequence[str], also: Sequence[str] = ()
    ) -> Iterator[tuple[Any, ...]]:
        for begin in range(0, len(ids), _AT_ONCE):
            some = ids[begin : begin + _AT_ONCE]
            yield from self._database.rows(query.format(", ".join("?" * len(some))), [*some, *also])

    def _keep(self, traces: Sequence[str], id: str) -> list[str]:
        """Copy trace files beside the store and return their paths in ``traces_dir``.

        The copy has its name only when it is whole; one without a run is left by a process that was
        killed between the two, and does no harm.
        """
        kept = []
        for number, path in enumerate(traces):
            source = Path(path)
            inside = f"{id[:12]}/{number}-{source.name}"
            target = self.traces_dir / inside
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f"{target.name}.{os.getpid()}.part")
                shutil.copyfile(source, part)
                part.replace(target)
            except (OSError, ValueError) as error:
                raise StoreError(f"trace cannot be kept: {error}", where=path) from error
            kept.append(inside)
        return kept


def open_store(
    where: str | None = None, *, create: bool = True, traces_dir: Path | None = None
) -> Store:
    """Open a store, make or migrate its tables where needed.

    Parameters
    ----------
    where : str, optional
        Path of an SQLite file or URL of a PostgreSQL database (``postgresql://…``); without one
        the variable ``TORCHTRIAGE_STORE``, else ``.torchtriage/gate.db``.
    create : bool
        Whether to make a store where there is none.
    traces_dir : Path, optional
        Where traces are kept: ``traces`` beside the file, else ``.torchtriage/traces``.

    Raises
    ------
    StoreError
        It cannot be reached, is no store, is damaged, or was made by a newer version.
    MissingExtraError
        A PostgreSQL URL without the extra ``postgres``.
    """
    place = where or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
    database, beside = connect(place, create=create)
    try:
        _migrate(database, create=create)
    except BaseException:
        database.close()
        raise
    return Store(database, (traces_dir or beside / "traces").absolute())


def _migrate(database: Database, *, create: bool) -> None:
    before = _version(database)
    if before == len(MIGRATIONS):
        return
    if not before and not create:
        raise nothing_stored(database.name)
    with database.transaction(write=True) as execute:
        # others may have done it while this one waited for its turn
        version = _version(database)
        if version > len(MIGRATIONS):
            raise StoreError(
                f"expected a store of version {len(MIGRATIONS)} or before, found {version}",
                where=database.name,
                hint="it was written by a newer torchtriage: pip install -U torchtriage",
            )
        if not version:
            database.check_ours()
            execute("CREATE TABLE torchtriage_store (version INTEGER NOT NULL)")
            execute("INSERT INTO torchtriage_store VALUES (0)")
        for step in MIGRATIONS[version:]:
            for statement in step:
                execute(statement.format(bytes=database.bytes_type))
        execute(f"UPDATE torchtriage_store SET version = {len(MIGRATIONS)}")


def _version(database: Database) -> int:
    """Return the version of the tables; 0 where there are none yet."""
    if not database.has_table("torchtriage_store"):
        return 0
    rows = database.rows("SELECT version FROM torchtriage_store", [])
    return int(rows[0][0]) if rows else 0


def _id(run: Run) -> str:
    """Return what names a run: equal measurements are one, however often they are imported."""
    digest = hashlib.sha256()
    head = [
        run.benchmark, run.commit, run.branch, run.parent, run.recorded_at_s, run.machine.fields,
        run.environment,
    ]  # fmt: skip
    digest.update(json.dumps(head).encode())
    for series in run.series:
        row = [series.metric, series.unit, series.better, series.kind]
        digest.update(json.dumps(row).encode())
        for part in _packed(series.sessions):
            digest.update(part or b"")
    return digest.hexdigest()[:32]


def _packed(sessions: Sequence[Session]) -> tuple[bytes | None, ...]:
    """Return lengths, rounds, times of start, values and CPU times of all sessions as bytes.

    NaN stands for a CPU time or a start that is not known, -1 for no round: samples have neither.
    """
    nan = math.nan
    cpu_values: bytes | None = None
    if any(one.cpu_values is not None for one in sessions):
        cpu_values = _floats(
            itertools.chain.from_iterable(
                (nan,) * len(one.values) if one.cpu_values is None else one.cpu_values
                for one in sessions
            )
        )
    return (
        np.array([len(one.values) for one in sessions], "<i4").tobytes(),
        np.array([-1 if one.round is None else one.round for one in sessions], "<i4").tobytes(),
        _floats(nan if one.started_s is None else one.started_s for one in sessions),
        _floats(itertools.chain.from_iterable(one.values for one in sessions)),
        cpu_values,
    )


def _floats(values: Iterable[float]) -> bytes:
    return np.fromiter(values, "<f8").tobytes()


def _unpacked(
    lengths: bytes, rounds: bytes, started_s: bytes, values: bytes, cpu_values: bytes | None
) -> tuple[Session, ...]:
    flat = np.frombuffer(values, "<f8").tolist()
    cpu = None if cpu_values is None else np.frombuffer(cpu_values, "<f8").tolist()
    if cpu is not None and len(cpu) != len(flat):
        raise ValueError(f"{len(cpu)} CPU times of {len(flat)} values")
    out = []
    begin = 0
    for n, round, at_s in zip(
        np.frombuffer(lengths, "<i4").tolist(),
        np.frombuffer(rounds, "<i4").tolist(),
        np.frombuffer(started_s, "<f8").tolist(),
        strict=True,
    ):
        end = begin + n
        known = cpu is not None and not math.isnan(cpu[begin])
        out.append(
            Session(
                values=tuple(flat[begin:end]),
                cpu_values=tuple(cpu[begin:end]) if cpu is not None and known else None,
                round=None if round < 0 else round,
                started_s=None if math.isnan(at_s) else at_s,
            )
        )
        begin = end
    if begin != len(flat):
        raise ValueError(f"{len(flat)} values in sessions of {begin}")
    return tuple(out)


def _pairs_text(pairs: tuple[tuple[str, str], ...]) -> str:
    return json.dumps([list(one) for one in pairs], ensure_ascii=False)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in json.loads(text))
