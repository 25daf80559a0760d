"""Our own format of samples: whole runs, or one metric at a time as a benchmark prints them.

A run is the document ``torchtriage-samples/1``; only ``benchmark`` and ``series`` are needed, and a session may be
a plain list of numbers. A metric alone is an object with ``metric``, ``unit`` and ``values`` or ``value``; all of a
file or of a process are one session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

from torchtriage.core.errors import SampleError
from torchtriage.core.samples import SAMPLES_SCHEMA, Better, Kind, Machine, Run, Series, Session
from torchtriage.measure.gate.importers.document import DocumentNode

TIMES = frozenset({"s", "ms", "us", "µs", "μs", "ns", "seconds", "min", "h"})
SIZES = frozenset({"B", "kB", "KB", "MB", "GB", "KiB", "MiB", "GiB", "bytes"})


def kind_of(unit: str) -> tuple[Kind, Better] | None:
    """Return what a unit says about a metric; None where it says nothing."""
    if unit in TIMES:
        return "latency", "lower"
    if unit.endswith("/s"):
        return "throughput", "higher"
    if unit in SIZES:
        return "memory", "lower"
    if unit == "1":
        return "count", "lower"
    return None


def read_run(document: DocumentNode, here: Run) -> Run:
    """Return the run of a document; what it does not record is taken from ``here``.

    Raises SampleError: it is of another schema, or a field is of another type.
    """
    schema = document.get("schema").text(SAMPLES_SCHEMA)
    if schema != SAMPLES_SCHEMA:
        raise SampleError(
            f"expected schema {SAMPLES_SCHEMA}, found {schema!r}",
            where=document.where,
            hint="written by a newer torchtriage? pip install -U torchtriage",
        )
    run = here
    if document.has("commit") and document.get("commit").text() != here.commit:
        # of another commit: neither branch nor parent are known from here
        run = replace(run, commit=document.get("commit").text(), branch="", parent=None)
    readers: dict[str, Callable[[DocumentNode], Any]] = {
        "branch": DocumentNode.text,
        "parent": DocumentNode.text,
        "recorded_at_s": DocumentNode.number,
        "machine": lambda node: Machine(_pairs(node.get("fields") if node.has("fields") else node)),
        "environment": _pairs,
        "traces": lambda node: tuple(member.text() for member in node.list()),
    }
    fields = {name: read(document.get(name)) for name, read in readers.items() if document.has(name)}
    if "machine" in fields:
        # what is known of here is known of this machine only
        fields.setdefault("environment", ())
    return replace(
        run,
        **fields,
        benchmark=document.get("benchmark").text(here.benchmark),
        series=tuple(read_series(node) for node in document.get("series").list()),
    )


def read_series(node: DocumentNode) -> Series:
    """Return one metric with all its sessions."""
    metric, unit, kind, better = _head(node)
    sessions = tuple(_session(member) for member in node.get("sessions").list())
    return Series(metric, unit, better, kind, sessions)


def read_metrics(
    nodes: Iterable[DocumentNode], *, round: int | None = None, started_s: float | None = None
) -> tuple[Series, ...]:
    """Return metrics that one process handed over, each as a series of one session.

    Objects of the same metric add their values, in order.
    """
    by_metric: dict[str, Series] = {}
    for node in nodes:
        metric, unit, kind, better = _head(node)
        values = (node.get("value").number(),) if node.has("value") else node.get("values").numbers()
        cpu = node.get("cpu_values").numbers() if node.has("cpu_values") else None
        before = by_metric.get(metric)
        if before is None:
            session = Session(values, cpu, round, started_s)
            by_metric[metric] = Series(metric, unit, better, kind, (session,))
            continue
        if (before.unit, before.kind, before.better) != (unit, kind, better):
            raise SampleError(
                f"expected {metric} in {before.unit} ({before.kind}, {before.better} is better) as"
                f" before, found {unit} ({kind}, {better})",
                where=node.where,
            )
        session = before.sessions[0]
        both = session.cpu_values + cpu if session.cpu_values is not None and cpu is not None else None
        session = replace(session, values=session.values + values, cpu_values=both)
        by_metric[metric] = replace(before, sessions=(session,))
    return tuple(by_metric.values())


def _head(node: DocumentNode) -> tuple[str, str, Kind, Better]:
    metric, unit = node.get("metric").text(), node.get("unit").text()
    known = kind_of(unit)
    kind: Any = _choice(node.get("kind"), get_args(Kind), known and known[0])
    default = known[1] if known and known[0] == kind else None
    if default is None and node.has("kind"):
        default = "higher" if kind in ("throughput", "accuracy") else "lower"
    better: Any = _choice(node.get("better"), get_args(Better), default)
    return metric, unit, kind, better


def _choice(node: DocumentNode, known: Sequence[str], default: str | None) -> str:
    if node.value is None and default is not None:
        return default
    if node.value not in known:
        words = ", ".join(known)
        hint = "the unit does not say which; units that do: s, ms, us, ns, …/s, B, MiB, 1"
        raise node.fail(f"one of {words}", hint if node.value is None else "")
    return str(node.value)


def _session(node: DocumentNode) -> Session:
    if isinstance(node.value, list):
        return Session(node.numbers())
    return Session(
        values=node.get("values").numbers(),
        cpu_values=node.get("cpu_values").numbers() if node.has("cpu_values") else None,
        round=node.get("round").whole() if node.has("round") else None,
        started_s=node.get("started_s").number() if node.has("started_s") else None,
    )


def _pairs(node: DocumentNode) -> tuple[tuple[str, str], ...]:
    """Return names and values of an object, or of a list of pairs."""
    if isinstance(node.value, dict):
        return tuple((name, member.text()) for name, member in node.items())
    pairs = []
    for member in node.list():
        pair = [word.text() for word in member.list()]
        if len(pair) != 2:
            raise member.fail("a name and a value")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)
