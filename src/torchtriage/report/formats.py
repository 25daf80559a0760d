"""The results that have a document of their own: schema, words for errors, and how each is shown.

The dataclasses of a result are its JSON document. A reader of ``torchtriage-bench/1`` must ignore
fields it does not know; none is renamed, removed or given another meaning without a new schema name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from torchtriage.report.json_report import JsonFormat, schema_name

if TYPE_CHECKING:
    from torchtriage.report.blocks import Document

__all__ = ["FORMATS", "Format", "decode", "format_of", "page"]

T = TypeVar("T")


@dataclass(frozen=True)
class Format(JsonFormat[T]):
    """A JSON document, and how its value is shown to people."""

    document: Callable[[T], Document]


# Schema: what is written, the module of documents that shows it; title, words for errors, command that writes it.
_TABLE = {
    "torchtriage-bench/1": (
        "measure.bench.result.BenchResult",
        "bench",
        ("A benchmark by torchtriage", "a benchmark", "torchtriage bench TARGET --json"),
    ),
    "torchtriage-comparison/1": (
        "diagnose.compare.result.Comparison",
        "comparison",
        ("Comparison of two runs by torchtriage", "a comparison", "torchtriage compare BEFORE AFTER --json"),
    ),
    "torchtriage-compile/1": (
        "report.documents.compile.CompileReport",
        "compile",
        ("Result of torchtriage about compile logs", "a compile result", "torchtriage compile LOG --json"),
    ),
    "torchtriage-experiment/1": (
        "operate.experiment.result.ExperimentResult",
        "rollout",
        ("An experiment of torchtriage", "an experiment", "Experiment.result()"),
    ),
    "torchtriage-gate/1": (
        "measure.gate.result.GateResult",
        "gate",
        ("A check of torchtriage gate", "a check", "torchtriage gate check --json"),
    ),
    "torchtriage-gate-history/1": (
        "measure.gate.result.HistoryResult",
        "gate",
        ("A history of torchtriage gate", "a history", "torchtriage gate history --json"),
    ),
    "torchtriage-lint/1": (
        "diagnose.lint.result.LintResult",
        "lint",
        ("Result of torchtriage lint", "a lint result", "torchtriage lint PATH --json"),
    ),
    "torchtriage-memory/1": (
        "report.documents.memory.MemoryReport",
        "memory",
        ("Result of torchtriage about memory snapshots", "a memory result", "torchtriage memory SNAPSHOT --json"),
    ),
    "torchtriage-review/1": (
        "learn.review.result.ReviewResult",
        "review",
        ("Review of suspicious windows of a trace", "a review", "torchtriage review TRACE --json"),
    ),
    "torchtriage-rollout/1": (
        "operate.rollout.result.RolloutResult",
        "rollout",
        ("A rollout of torchtriage", "a rollout", "torchtriage rollout report --json"),
    ),
    "torchtriage-verification/1": (
        "measure.verify.result.Verification",
        "verification",
        ("A fix on trial by torchtriage", "a verification", "torchtriage verify BEFORE.py AFTER.py --json"),
    ),
    "torchtriage-xla/1": (
        "compile.xla.result.XlaResult",
        "xla",
        ("Models on PyTorch/XLA by torchtriage", "an XLA result", "torchtriage xla TARGET --json"),
    ),
}


def _format(name: str) -> Format[Any]:
    kind, document, words = _TABLE[name]
    module, _, attribute = f"torchtriage.{kind}".rpartition(".")
    documents = import_module(f"torchtriage.report.documents.{document}")
    return Format(getattr(import_module(module), attribute), name, *words, documents.document)


FORMATS: dict[str, Callable[[], Format[Any]]] = {name: partial(_format, name) for name in _TABLE}
"""By schema name; each imports its own result and document alone."""


def format_of(result: Any) -> Format[Any]:
    """Return the format of a result, which its field ``schema`` names."""
    return FORMATS[result.schema]()


def decode(data: bytes, *kinds: str) -> Any:
    """Return the result of a document of one of these schemas, of any without; the first one says what is wrong.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document.
    """
    name = schema_name(data)
    return FORMATS[name if name in (kinds or FORMATS) else kinds[0]]().decode(data)


def page(result: Any) -> str:
    """Return a result as one self-contained HTML page."""
    if result.schema.startswith("torchtriage-memory/"):
        from torchtriage.report.pages import memory

        return memory.render(result)
    from torchtriage.report.page import render

    return render(format_of(result).document(result))
