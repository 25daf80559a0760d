"""Where samples are kept: one SQLite file, or a PostgreSQL database several machines share.

A run is written in one transaction: it is there whole or not at all, whoever is killed when. The values of a metric
are one field of little-endian 64-bit floats, so a million of them are read in a moment. Both databases hold the
same tables, made and changed by ``MIGRATIONS``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.core.database import Database, Schema, open_postgres, open_sqlite, undamaged, without_password
from torchtriage.core.errors import StoreError, UsageError
from torchtriage.core.samples import Machine, Run, Series, Session
from torchtriage.core.whole_files import replacing

DEFAULT_STORE = ".torchtriage/gate.db"
STORE_VARIABLE = "TORCHTRIAGE_STORE"
WAIT_S = 60.0
"""How long a writer waits for others; one run of 100 000 samples is written in some 10 ms."""
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
class StoredRun:
    """A stored run without its samples; ``Store.load`` adds them.

    ``id`` : 32 hex digits over everything that was measured; equal runs have equal ids. ``run`` : its ``series`` is
    empty, its traces are absolute paths.
    """

    id: str
    run: Run


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

    def __exit__(self, *_error: object) -> None:
        """Let go of the database."""
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def add(self, run: Run) -> bool:
        """Write a run, and copy its traces beside the store; False where it was there before.

        Raises SampleError: ``run.check()`` refuses it; StoreError: it cannot be written, or a trace cannot be
        copied.
        """
        run.check()
        id = _id(run)
        if self._has(id):
            return False
        traces = self._copy_traces(run.traces, id)
        with self._database.transaction() as execute:
            added = execute(
                "INSERT INTO torchtriage_run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [
                    (
                        id,
                        run.benchmark,
                        run.commit,
                        run.branch,
                        run.parent,
                        run.recorded_at_s,
                        run.machine.fingerprint,
                        _pairs_text(run.machine.fields),
                        _pairs_text(run.environment),
                    )
                ],
            )
            if not added:
                return False
            execute(
                "INSERT INTO torchtriage_series VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        id,
                        place,
                        series.metric,
                        series.unit,
                        series.better,
                        series.kind,
                        series.n_values,
                        *_packed(series.sessions),
                    )
                    for place, series in enumerate(run.series)
                ),
            )
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
        commit: str | None = None,
        limit: int | None = None,
    ) -> tuple[StoredRun, ...]:
        """Return what is stored, newest first; each filter that is given has to hold.

        ``commit`` : a full commit id, or its first digits (four or more).

        Raises UsageError: a commit is given with fewer than four characters; StoreError: it cannot be read, or a
        run in it is damaged.
        """
        if commit is not None and len(commit) < 4:
            raise UsageError(f"expected four characters or more of a commit, found {commit!r}")
        # a prefix of equal length is exact and uses no pattern characters of the text
        filters = {
            "benchmark = ?": () if benchmark is None else (benchmark,),
            "branch = ?": () if branch is None else (branch,),
            "substr(commit_id, 1, ?) = ?": () if commit is None else (len(commit), commit),
        }
        where = " AND ".join(condition for condition, values in filters.items() if values)
        rows = self._database.rows(
            "SELECT id, benchmark, commit_id, branch, parent, recorded_at_s, machine, environment FROM torchtriage_run"
            + (f" WHERE {where}" if where else "")
            + " ORDER BY recorded_at_s DESC, id"
            + ("" if limit is None else " LIMIT ?"),
            [*itertools.chain(*filters.values()), *(() if limit is None else (limit,))],
        )
        ids = [row[0] for row in rows]
        traces: dict[str, list[str]] = {}
        for id, path in self._by_id(
            "SELECT run_id, path FROM torchtriage_trace WHERE run_id IN ({}) ORDER BY run_id, position", ids
        ):
            traces.setdefault(id, []).append(str(self.traces_dir / path))
        with undamaged(self.name, "a run in it"):
            return tuple(
                StoredRun(
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
                )
                for id, name, commit, on, parent, at_s, machine, environment in rows
            )

    def load(self, entries: Sequence[StoredRun], *, metrics: Iterable[str] | None = None) -> tuple[Run, ...]:
        """Return the runs of these entries with their samples, in the same order.

        ``metrics`` : only these; a run that has none of them comes back without series.

        Raises StoreError: it cannot be read, or a run in it is damaged.
        """
        ids = [entry.id for entry in entries]
        wanted = None if metrics is None else frozenset(metrics)
        chosen = sorted(wanted or ()) if len(wanted or ()) < _AT_ONCE else []
        where = f" AND metric IN ({', '.join('?' * len(chosen))})" if chosen else ""
        series: dict[str, list[Series]] = {}
        if wanted is None or wanted:
            for id, metric, unit, better, kind, *packed in self._by_id(
                "SELECT run_id, metric, unit, better, kind, lengths, rounds, started_s,"
                " sample_values, cpu_values FROM torchtriage_series"
                f" WHERE run_id IN ({{}}){where} ORDER BY run_id, position",
                ids,
                chosen,
            ):
                if wanted is not None and metric not in wanted:
                    continue
                with undamaged(self.name, "a run in it"):
                    sessions = _unpacked(*packed)
                series.setdefault(id, []).append(Series(metric, unit, better, kind, sessions))
        runs = tuple(replace(entry.run, series=tuple(series.get(entry.id, ()))) for entry in entries)
        for run in runs:
            if run.series:
                with undamaged(self.name, "a run in it"):
                    run.check()
        return runs

    def _has(self, id: str) -> bool:
        return bool(self._database.rows("SELECT 1 FROM torchtriage_run WHERE id = ?", [id]))

    def _by_id(self, query: str, ids: Sequence[str], also: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        for begin in range(0, len(ids), _AT_ONCE):
            some = ids[begin : begin + _AT_ONCE]
            yield from self._database.rows(query.format(", ".join("?" * len(some))), [*some, *also])

    def _copy_traces(self, traces: Sequence[str], id: str) -> list[str]:
        """Return where in ``traces_dir`` the copies are.

        A copy has its name only when it is whole; one without a run is left by a process that was killed between
        the two, and does no harm.
        """
        copies = []
        for number, path in enumerate(traces):
            source = Path(path)
            inside = f"{id[:12]}/{number}-{source.name}"
            target = self.traces_dir / inside
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as part:
                    shutil.copyfile(source, part)
            except (OSError, ValueError) as error:
                raise StoreError(f"trace cannot be stored: {error}", where=path) from error
            copies.append(inside)
        return copies


def open_store(where: str | None = None, *, create: bool = True, traces_dir: Path | None = None) -> Store:
    """Open a store, make or migrate its tables where needed.

    ``where`` : path of an SQLite file or URL of a PostgreSQL database (``postgresql://…``); without one the
    variable ``TORCHTRIAGE_STORE``, else ``.torchtriage/gate.db``. ``create`` : whether to make a store where there
    is none. ``traces_dir`` : where traces are kept: ``traces`` beside the file, else ``.torchtriage/traces``.

    Raises StoreError: it cannot be reached, is no store, is damaged, or was made by a newer version;
    MissingExtraError: a PostgreSQL URL without the extra ``postgres``.
    """
    place = where or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", place, re.IGNORECASE)
    name, path = (without_password(place), Path(DEFAULT_STORE)) if scheme else (place, Path(place))
    absent = None
    if not create:
        hint = "torchtriage gate record -- python bench.py, or --store for another place"
        absent = StoreError("no samples are stored here yet", where=name, hint=hint)
    if scheme is None:
        fresh = create and path == Path(DEFAULT_STORE) and not path.exists()
        hint = "TORCHTRIAGE_STORE or --store names another place"
        database = open_sqlite(place, wait_s=WAIT_S, hint=hint, absent=absent)
        if fresh:  # measurements of one machine, not a part of the source
            path.with_name(".gitignore").write_text("*\n", encoding="ascii")
    elif re.fullmatch("postgres(ql)?", scheme[1]):
        database = open_postgres(place, wait_s=WAIT_S)
    else:
        raise StoreError(f"expected a path or a postgresql:// URL, found {scheme[1]}://", where=name)
    try:
        Schema(MIGRATIONS, "torchtriage_store").migrate(database, absent=absent)
    except BaseException:
        database.close()
        raise
    return Store(database, (traces_dir or path.parent / "traces").absolute())


def _id(run: Run) -> str:
    """Return what names a run: equal measurements are one, however often they are imported."""
    digest = hashlib.sha256()
    head = [run.benchmark, run.commit, run.branch, run.parent, run.recorded_at_s, run.machine.fields, run.environment]
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
    if any(session.cpu_values is not None for session in sessions):
        cpu_values = _floats(
            itertools.chain.from_iterable(
                (nan,) * len(session.values) if session.cpu_values is None else session.cpu_values
                for session in sessions
            )
        )
    return (
        np.array([len(session.values) for session in sessions], "<i4").tobytes(),
        np.array([-1 if session.round is None else session.round for session in sessions], "<i4").tobytes(),
        _floats(nan if session.started_s is None else session.started_s for session in sessions),
        _floats(itertools.chain.from_iterable(session.values for session in sessions)),
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
    return json.dumps([list(pair) for pair in pairs], ensure_ascii=False)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in json.loads(text))
