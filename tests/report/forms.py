"""A result in every form, as commands show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from torchtriage.compile.logs.result import CompileResult
from torchtriage.diagnose.verdict.result import Result
from torchtriage.report import formats
from torchtriage.report import markdown as markdown_report
from torchtriage.report import terminal as terminal_report
from torchtriage.report.documents import trace
from torchtriage.report.documents.compile import CompileReport
from torchtriage.report.documents.memory import MemoryReport


def _subject(result: Any) -> Any:
    if isinstance(result, CompileResult):
        return CompileReport("torchtriage-compile/1", result.version, result)
    if isinstance(result, (list, tuple)):
        return MemoryReport("torchtriage-memory/1", result[0].version, tuple(result))
    return result


def traces(results: Sequence[Result], *, width: int | None = None, **options: Any) -> Text:
    """Return the report of traces on the terminal."""
    return terminal_report.render(trace.document(results, **options), width=width)


def doctor(result: Result, *, width: int | None = None) -> Text:
    return terminal_report.render(trace.doctor(result), width=width)


def traces_in_markdown(results: Sequence[Result], **options: Any) -> str:
    return markdown_report.render(trace.document(results, **options))


def terminal(result: Any, *, width: int | None = None) -> Text:
    subject = _subject(result)
    return terminal_report.render(formats.format_of(subject).document(subject), width=width)


def markdown(result: Any) -> str:
    subject = _subject(result)
    return markdown_report.render(formats.format_of(subject).document(subject))


def page(result: Any) -> str:
    return formats.page(_subject(result))


def encode(result: Any) -> bytes:
    subject = _subject(result)
    return formats.format_of(subject).encode(subject)


def decode(data: bytes, *kinds: str) -> Any:
    """Return a result of these commands: ``bench``, ``gate`` ..."""
    value = formats.decode(data, *(f"torchtriage-{kind}/1" for kind in kinds))
    if isinstance(value, CompileReport):
        return value.result
    return list(value.results) if isinstance(value, MemoryReport) else value


def schema(kind: str) -> dict[str, Any]:
    return formats.FORMATS[f"torchtriage-{kind}/1"]().schema()
