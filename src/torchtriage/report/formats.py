"""The results that have a document of their own: schema, words for errors, and how each is shown.

The dataclasses of a result are its JSON document. A reader of ``torchtriage-bench/1`` must ignore
fields it does not know; none is renamed, removed or given another meaning without a new schema name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torchtriage.core.finding import Quote
from torchtriage.report.json_report import TRACES, Format, JsonReport, schema_name

if TYPE_CHECKING:
    from torchtriage.report.blocks import Document

# Title of the published schema, words for errors, and the command that writes it.
_WORDS = {
    "bench": ("A benchmark by torchtriage", "a benchmark", "torchtriage bench TARGET --json"),
    "comparison": ("Comparison of two runs by torchtriage", "a comparison", "torchtriage compare BEFORE AFTER --json"),
    "compile": ("Result of torchtriage about compile logs", "a compile result", "torchtriage compile LOG --json"),
    "experiment": ("An experiment of torchtriage", "an experiment", "Experiment.result()"),
    "fix": ("Fixes on trial by torchtriage", "a fix result", "torchtriage fix SCRIPT.py --json"),
    "gate": ("A check of torchtriage gate", "a check", "torchtriage gate check --json"),
    "gate-history": ("A history of torchtriage gate", "a history", "torchtriage gate history --json"),
    "hang": ("Why a job does not move, by torchtriage", "a hang result", "torchtriage attach TARGET --json"),
    "lint": ("Result of torchtriage lint", "a lint result", "torchtriage lint PATH --json"),
    "memory": ("Result of torchtriage about memory snapshots", "a memory result", "torchtriage memory SNAPSHOT --json"),
    "records": (
        "Collected records of requests, by torchtriage",
        "a report of records",
        "torchtriage monitor report LOG --json",
    ),
    "review": ("Review of suspicious windows of a trace", "a review", "torchtriage review TRACE --json"),
    "rollout": ("A rollout of torchtriage", "a rollout", "torchtriage rollout report --json"),
    "verification": ("A fix on trial by torchtriage", "a verification", "torchtriage verify BEFORE.py AFTER.py --json"),
    "xla": ("Models on PyTorch/XLA by torchtriage", "an XLA result", "torchtriage xla TARGET --json"),
}


def _parts(kind: str) -> tuple[type, Callable[..., Document]]:
    """Return the dataclass of a kind of result, and what shows it: only these two are imported."""
    if kind == "bench":
        from torchtriage.measure.bench.result import BenchResult
        from torchtriage.report.documents import bench

        return BenchResult, bench.document
    if kind == "comparison":
        from torchtriage.diagnose.compare.result import Comparison
        from torchtriage.report.documents import comparison

        return Comparison, comparison.document
    if kind == "compile":
        from torchtriage.report.documents import compile as compiler

        return compiler.CompileReport, compiler.document
    if kind in ("experiment", "rollout"):
        from torchtriage.operate.experiment.result import ExperimentResult
        from torchtriage.operate.rollout.result import RolloutResult
        from torchtriage.report.documents import rollout

        return ExperimentResult if kind == "experiment" else RolloutResult, rollout.document
    if kind == "fix":
        from torchtriage.measure.fix.result import FixResult
        from torchtriage.report.documents import fix

        return FixResult, fix.document
    if kind in ("gate", "gate-history"):
        from torchtriage.measure.gate.result import GateResult, HistoryResult
        from torchtriage.report.documents import gate

        return GateResult if kind == "gate" else HistoryResult, gate.document
    if kind == "hang":
        from torchtriage.diagnose.attach.result import HangResult
        from torchtriage.report.documents import hang

        return HangResult, hang.document
    if kind == "lint":
        from torchtriage.diagnose.lint.result import LintResult
        from torchtriage.report.documents import lint

        return LintResult, lint.document
    if kind == "memory":
        from torchtriage.report.documents import memory

        return memory.MemoryReport, memory.document
    if kind == "records":
        from torchtriage.operate.collected.result import RecordsReport
        from torchtriage.report.documents import records

        return RecordsReport, records.document
    if kind == "review":
        from torchtriage.learn.review.result import ReviewResult
        from torchtriage.report.documents import review

        return ReviewResult, review.document
    if kind == "verification":
        from torchtriage.measure.verify.result import Verification
        from torchtriage.report.documents import verification

        return Verification, verification.document
    from torchtriage.compile.xla.result import XlaResult
    from torchtriage.report.documents import xla

    return XlaResult, xla.document


def _format(kind: str) -> Format[Any]:
    return Format(*_parts(kind), f"torchtriage-{kind}/1", *_WORDS[kind])


FORMATS: dict[str, Callable[[], Format[Any]]] = {
    TRACES.name: lambda: TRACES,
    **{f"torchtriage-{kind}/1": partial(_format, kind) for kind in _WORDS},
}
"""By schema name; each imports its own result and document alone."""


def format_of(result: Any) -> Format[Any]:
    """Return the format of a result, which its field ``schema`` names."""
    return FORMATS[result.schema]()


def decode(data: bytes, *kinds: str) -> Any:
    """Return the result of a document of one of these schemas, of any without; the first one says what is wrong.

    Raises TraceFormatError: ``data`` is no such document.
    """
    known = kinds or tuple(FORMATS)
    name = schema_name(data)
    return FORMATS[name if name in known else known[0]]().decode(data)


def page(result: Any, quote: Quote | None = None) -> str:
    """Return a result as one self-contained HTML page; ``quote`` : gives source lines, of a trace's findings alone."""
    if isinstance(result, JsonReport):
        from torchtriage.report.pages import trace

        return trace.render(result.results, result.jobs, quote=quote)
    if result.schema.startswith("torchtriage-memory/"):
        from torchtriage.report.pages import memory

        return memory.render(result)
    from torchtriage.report.page import render

    return render(format_of(result).document(result))
