"""Samples of other tools as runs: our own JSON, pytest-benchmark, asv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from torchtriage.core.errors import SampleError
from torchtriage.core.samples import Machine, Run
from torchtriage.measure.gate.importers.asv import read_asv
from torchtriage.measure.gate.importers.document import DocumentNode, read_documents
from torchtriage.measure.gate.importers.native import read_metrics, read_run
from torchtriage.measure.gate.importers.pytest_benchmark import read_pytest_benchmark

NOWHERE = Run("", "", "", None, 0.0, Machine(), (), ())
"""What a file does not record, where it is not known to be of here and now."""


@dataclass(frozen=True)
class Imported:
    """What files held: checked runs, and what was left out or assumed, a sentence each."""

    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()


def read_runs(path: str | Path, *, here: Run = NOWHERE) -> Imported:
    """Return the runs of a file of samples, in any of the formats.

    ``path`` : JSON, or JSON of a run or a metric per line. ``here`` : what is taken for what the file does not
    tell: name, commit, branch, machine, time. Its name, where it has one, replaces that of another tool.

    Raises SampleError: it cannot be read, is in no format that is known, or holds what ``Run.check`` refuses.
    """
    documents = read_documents(path)
    if len(documents) == 1 and isinstance(documents[0].value, list):
        documents = documents[0].list()
    notes: list[str] = []
    runs: list[Run] = []
    metrics = [document for document in documents if document.has("metric") and not document.has("series")]
    if metrics and len(metrics) == len(documents):
        series = read_metrics(metrics)
        runs.append(replace(here, benchmark=here.benchmark or Path(path).stem, series=series))
        if here.machine.fields:
            notes.append(f"{path} names no machine: assumed to be measured on this one")
    else:
        for document in documents:
            run, own = _read(document, here, Path(path))
            runs.append(run)
            notes += [note for note in own if note not in notes]
    for run in runs:
        try:
            run.check()
        except SampleError as error:  # noqa: PERF203 - ends the loop
            where = f"{path}: {error.where}" if error.where else str(path)
            raise SampleError(error.message, where=where, hint=error.hint) from error
    if not runs:
        raise SampleError("expected samples, found an empty list", where=str(path))
    return Imported(tuple(runs), tuple(notes))


def read_sessions(paths: Sequence[str | Path], *, here: Run = NOWHERE) -> Imported:
    """Return the runs of several files; those of one benchmark, commit and machine are one run.

    Each file adds its sessions: a file of pytest-benchmark is one process. Runs that were interleaved, or that
    stand in one file, stay apart. Where ``here`` has a time, a file that tells none has that of its writing.
    """
    notes: list[str] = []
    merged: dict[object, Run] = {}
    for number, path in enumerate(paths):
        dated = here
        if here.recorded_at_s and Path(path).is_file():
            # the time of the import would make one measurement several
            dated = replace(here, recorded_at_s=Path(path).stat().st_mtime)
        imported = read_runs(path, here=dated)
        notes += [note for note in imported.notes if note not in notes]
        for place, run in enumerate(imported.runs):
            alone = len(imported.runs) > 1 or dict(run.environment).get("interleaving")
            key: object = (number, place) if alone else (run.benchmark, run.commit, run.branch, run.machine.fingerprint)
            before = merged.get(key)
            merged[key] = run if before is None else _merged(before, run, str(path))
    return Imported(tuple(merged.values()), tuple(notes))


def encode_runs(runs: Sequence[Run]) -> bytes:
    """Return runs as the portable document: one line of JSON for each."""
    encoder = msgspec.json.Encoder()
    return b"".join(encoder.encode(run) + b"\n" for run in runs)


def _read(document: DocumentNode, here: Run, path: Path) -> tuple[Run, list[str]]:
    if document.has("series"):
        run, notes = read_run(document, here), []
        if here.machine.fields and not document.has("machine"):
            notes.append(f"{path} names no machine: assumed to be measured on this one")
        if run.commit and not document.has("commit"):
            notes.append(f"{path} names no commit: assumed to be measured at {run.commit[:10]}")
        return run, notes
    if document.has("benchmarks") and document.has("machine_info"):
        return read_pytest_benchmark(document, here), []
    if document.has("result_columns") and document.has("commit_hash"):
        return read_asv(document, here, path)
    keys = ", ".join(list(document.value)[:6]) if isinstance(document.value, dict) else ""
    if not keys:
        raise document.fail("an object with series, or with metric, unit and values")
    raise SampleError(
        f"expected series, or metric, unit and values; found an object with {keys}",
        where=document.where,
        hint="read are our own format (docs/gate-store.md), pytest-benchmark's and asv's JSON",
    )


def _merged(first: Run, other: Run, path: str) -> Run:
    by_metric = {series.metric: series for series in first.series}
    for new in other.series:
        old = by_metric.get(new.metric)
        if old is None:
            by_metric[new.metric] = new
            continue
        if (old.unit, old.kind, old.better) != (new.unit, new.kind, new.better):
            raise SampleError(
                f"expected {new.metric} in {old.unit} as in the files before, found {new.unit}", where=path
            )
        by_metric[new.metric] = replace(old, sessions=old.sessions + new.sessions)
    newest = max(first.recorded_at_s, other.recorded_at_s)
    return replace(first, series=tuple(by_metric.values()), recorded_at_s=newest)
