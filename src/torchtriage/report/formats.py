"""The results that have a document of their own: schema, words for errors, and how each is shown.

The dataclasses of a result are its JSON document. A reader of ``torchtriage-bench/1`` must ignore
fields it does not know; none is renamed, removed or given another meaning without a new schema name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def _bench() -> Format[Any]:
    from torchtriage.measure.bench.result import BENCH_SCHEMA, BenchResult
    from torchtriage.report.documents.bench import document

    command = "torchtriage bench TARGET --json"
    return Format(BenchResult, BENCH_SCHEMA, "A benchmark by torchtriage", "a benchmark", command, document)


def _comparison() -> Format[Any]:
    from torchtriage.diagnose.compare.result import COMPARISON_SCHEMA, Comparison
    from torchtriage.report.documents.comparison import document

    title, command = "Comparison of two runs by torchtriage", "torchtriage compare BEFORE AFTER --json"
    return Format(Comparison, COMPARISON_SCHEMA, title, "a comparison", command, document)


def _compile() -> Format[Any]:
    from torchtriage.compile.logs.result import COMPILE_SCHEMA
    from torchtriage.report.documents.compile import CompileReport, document

    title, command = "Result of torchtriage about compile logs", "torchtriage compile LOG --json"
    return Format(CompileReport, COMPILE_SCHEMA, title, "a compile result", command, lambda it: document(it.result))


def _experiment() -> Format[Any]:
    from torchtriage.operate.experiment.result import EXPERIMENT_SCHEMA, ExperimentResult
    from torchtriage.report.documents.rollout import document

    title = "An experiment of torchtriage"
    return Format(ExperimentResult, EXPERIMENT_SCHEMA, title, "an experiment", "Experiment.result()", document)


def _gate() -> Format[Any]:
    from torchtriage.measure.gate.result import GATE_SCHEMA, GateResult
    from torchtriage.report.documents.gate import document

    title, command = "A check of torchtriage gate", "torchtriage gate check --json"
    return Format(GateResult, GATE_SCHEMA, title, "a check", command, document)


def _history() -> Format[Any]:
    from torchtriage.measure.gate.result import HISTORY_SCHEMA, HistoryResult
    from torchtriage.report.documents.gate import document

    title, command = "A history of torchtriage gate", "torchtriage gate history --json"
    return Format(HistoryResult, HISTORY_SCHEMA, title, "a history", command, document)


def _lint() -> Format[Any]:
    from torchtriage.diagnose.lint.result import SCHEMA, LintResult
    from torchtriage.report.documents.lint import document

    title, command = "Result of torchtriage lint", "torchtriage lint PATH --json"
    return Format(LintResult, SCHEMA, title, "a lint result", command, document)


def _memory() -> Format[Any]:
    from torchtriage.memory.snapshot.result import MEMORY_SCHEMA
    from torchtriage.report.documents.memory import MemoryReport, document

    title, command = "Result of torchtriage about memory snapshots", "torchtriage memory SNAPSHOT --json"
    return Format(MemoryReport, MEMORY_SCHEMA, title, "a memory result", command, document)


def _review() -> Format[Any]:
    from torchtriage.learn.review.result import REVIEW_SCHEMA, ReviewResult
    from torchtriage.report.documents.review import document

    title, command = "Review of suspicious windows of a trace", "torchtriage review TRACE --json"
    return Format(ReviewResult, REVIEW_SCHEMA, title, "a review", command, document)


def _rollout() -> Format[Any]:
    from torchtriage.operate.rollout.result import ROLLOUT_SCHEMA, RolloutResult
    from torchtriage.report.documents.rollout import document

    command = "torchtriage rollout report --json"
    return Format(RolloutResult, ROLLOUT_SCHEMA, "A rollout of torchtriage", "a rollout", command, document)


def _verification() -> Format[Any]:
    from torchtriage.measure.verify.result import VERIFICATION_SCHEMA, Verification
    from torchtriage.report.documents.verification import document

    title, command = "A fix on trial by torchtriage", "torchtriage verify BEFORE.py AFTER.py --json"
    return Format(Verification, VERIFICATION_SCHEMA, title, "a verification", command, document)


def _xla() -> Format[Any]:
    from torchtriage.compile.xla.result import XLA_SCHEMA, XlaResult
    from torchtriage.report.documents.xla import document

    title, command = "Models on PyTorch/XLA by torchtriage", "torchtriage xla TARGET --json"
    return Format(XlaResult, XLA_SCHEMA, title, "an XLA result", command, document)


FORMATS: dict[str, Callable[[], Format[Any]]] = {
    "torchtriage-bench/1": _bench,
    "torchtriage-comparison/1": _comparison,
    "torchtriage-compile/1": _compile,
    "torchtriage-experiment/1": _experiment,
    "torchtriage-gate/1": _gate,
    "torchtriage-gate-history/1": _history,
    "torchtriage-lint/1": _lint,
    "torchtriage-memory/1": _memory,
    "torchtriage-review/1": _review,
    "torchtriage-rollout/1": _rollout,
    "torchtriage-verification/1": _verification,
    "torchtriage-xla/1": _xla,
}
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
