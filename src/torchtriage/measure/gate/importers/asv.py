"""Results of airspeed velocity: ``.asv/results/<machine>/<commit>-<environment>.json``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchtriage.core.errors import SampleError
from torchtriage.core.samples import Better, Kind, Machine, Run, Series, Session
from torchtriage.measure.gate.importers.document import DocumentNode, read_documents
from torchtriage.measure.gate.importers.native import kind_of

UNITS = {"seconds": "s", "bytes": "B", "unit": "1"}


def read_asv(document: DocumentNode, here: Run, path: Path) -> tuple[Run, list[str]]:
    """Return a run with a metric for each benchmark and combination of parameters, and notes.

    Samples are there with ``asv run --record-samples``; without, the one result of a benchmark, a median, is its
    one value. Units are those of ``benchmarks.json`` in the folder above.

    Raises SampleError: another version of the format, or a field of another type.
    """
    version = document.get("version").value
    if version != 2:
        raise document.get("version").fail("results of asv of format version 2", "asv update")
    columns = [column.text() for column in document.get("result_columns").list()]
    known = _benchmarks(path)
    series: list[Series] = []
    failed, skipped, medians = 0, 0, 0
    started: list[float] = []
    for name, row in document.get("results").items():
        # trailing columns without a value are left out
        cells = dict(zip(columns, row.list(), strict=False))
        if "started_at" in cells and cells["started_at"].value is not None:
            started.append(cells["started_at"].number() / 1e3)
        labels = list(_labels(name, cells.get("params"), known.get(name, {})))
        results = _cells(cells.get("result"), len(labels))
        samples = _cells(cells.get("samples"), len(labels))
        for label, result, values in zip(labels, results, samples, strict=True):
            if result.value is None:
                failed += 1
            elif math.isnan(result.number()):
                skipped += 1
            else:
                numbers = values.numbers() if values.value is not None else (result.number(),)
                medians += values.value is None
                unit, kind, better = _meaning(name, known.get(name, {}), numbers)
                session = Session(numbers, None, None, None)
                series.append(Series(label, unit, better, kind, (session,)))
    notes = []
    if failed or skipped:
        notes.append(f"asv: left out {failed} that failed and {skipped} that were skipped")
    if medians:
        notes.append(f"asv: {medians} have only a median, one value: asv run --record-samples keeps them all")
    params = document.get("params")
    environment = {
        "asv environment": document.get("env_name").text(""),
        "committed_at_s": f"{document.get('date').number() / 1e3:.0f}",
        "python": document.get("python").text(""),
        "tool": "asv",
    }
    commit = document.get("commit_hash").text()
    of_here = commit == here.commit
    run = replace(
        here,
        benchmark=here.benchmark or "asv",
        commit=commit,
        branch=here.branch if of_here else "",
        parent=here.parent if of_here else None,
        recorded_at_s=max(started, default=here.recorded_at_s),
        machine=_machine(params),
        environment=tuple(environment.items()),
        series=tuple(series),
    )
    return run, notes


def _machine(params: DocumentNode) -> Machine:
    system, _, release = params.get("os").text("").partition(" ")
    ram = params.get("ram").text("")
    fields = {
        "architecture": params.get("arch").text(""),
        "cores": params.get("num_cpu").text(""),
        "cpu": params.get("cpu").text(""),
        "host": params.get("machine").text(""),
        "kernel": release,
        "memory": f"{round(int(ram) / 2**30)} GiB" if ram.isdigit() else "",
        "os": system,
    }
    return Machine(tuple((name, text) for name, text in fields.items() if text))


def _labels(name: str, params: DocumentNode | None, about: dict[str, Any]) -> Iterator[str]:
    """Yield ``name(n=10, how='a')`` for each combination, the last parameter fastest, as asv."""
    if params is None or not params.value:
        yield name
        return
    values = [[value.text() for value in axis.list()] for axis in params.list()]
    names = about.get("param_names")
    names = names if isinstance(names, list) else []
    for row in itertools.product(*values):
        words = [f"{names[place]}={value}" if place < len(names) else value for place, value in enumerate(row)]
        yield f"{name}({', '.join(words)})"


def _cells(node: DocumentNode | None, n: int) -> list[DocumentNode]:
    """Return a value for each combination; null for a whole benchmark that failed."""
    if node is None or node.value is None:
        where = node.where if node else ""
        return [DocumentNode(None, where)] * n
    cells = node.list()
    if len(cells) != n:
        raise node.fail(f"a list of {n}, one for each combination of parameters")
    return cells


def _meaning(name: str, about: dict[str, Any], values: tuple[float, ...]) -> tuple[str, Kind, Better]:
    declared = about.get("unit")
    if not isinstance(declared, str) or not declared:
        stem = name.rpartition(".")[2]
        declared = "s" if stem.startswith("time") else "B" if "mem_" in stem else "unit"
    unit = UNITS.get(declared, declared)
    kind: Kind = (kind_of(unit) or ("accuracy", "lower"))[0]
    # "unit" is what asv calls any number, which may be whole by chance at one commit
    if kind == "count" and (declared == "unit" or any(value < 0 or value % 1 for value in values)):
        kind = "accuracy"
    return unit, kind, "lower"  # asv knows one direction only


def _benchmarks(path: Path) -> dict[str, dict[str, Any]]:
    """Return what is known about benchmarks; nothing where the file was moved away from it."""
    beside = path.absolute().parent.parent / "benchmarks.json"
    try:
        (document,) = read_documents(beside)
    except (SampleError, ValueError):
        return {}
    value = document.value if isinstance(document.value, dict) else {}
    return {name: facts for name, facts in value.items() if isinstance(facts, dict)}
