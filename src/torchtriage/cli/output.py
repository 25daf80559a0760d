"""What commands write: reports, files, and one line for each failure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from torchtriage.core.finding import Quote
    from torchtriage.diagnose.ranks.result import JobResult
    from torchtriage.diagnose.verdict.result import Result
    from torchtriage.report.blocks import Document

__all__ = ["check_outputs", "complain", "emit", "encode", "present", "print_report", "put_document", "save", "screen"]


def complain(message: str) -> None:
    """Print a failure on stderr; nothing in a file's name or text reaches the terminal raw."""
    from torchtriage.core.names import visible

    lines = "\n".join(visible(line) for line in message.split("\n"))
    click.echo(f"torchtriage: {lines}", err=True)


def check_outputs(names: Iterable[str | None], inputs: Sequence[str | Path] = ()) -> None:
    """Refuse, before any work is done, outputs that cannot be meant.

    Raises UsageError: an output is an input or another output, a folder, or in a folder that does
    not exist.
    """
    seen: set[Path] = set()
    for name in names:
        if name is None:
            continue
        target = Path(name)
        try:
            resolved = target.resolve()
            if any(target.exists() and _same(target, path) for path in inputs):
                raise UsageError(
                    "expected another file to write to, found the input itself", where=name, hint="choose a new name"
                )
            if resolved in seen:
                raise UsageError("two outputs have the same name", where=name)
            if target.is_dir():
                raise UsageError("expected a file to write to, found a folder", where=name)
            if not target.parent.is_dir():
                raise UsageError(
                    "cannot be written: the folder does not exist", where=name, hint=f"mkdir -p {target.parent}"
                )
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"cannot be written: {error}", where=name) from error
        seen.add(resolved)


def save(name: str, data: bytes) -> None:
    """Write a file and say so on stderr.

    Raises UsageError: it cannot be written.
    """
    try:
        Path(name).write_bytes(data)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {error}", where=name) from error
    click.echo(f"wrote {name}", err=True)


def emit(data: bytes, name: str | None) -> None:
    """Write a document to the file of this name, or to standard output without one.

    Raises UsageError: the file cannot be written.
    """
    if name:
        save(name, data)
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def present(result: Any, given: Mapping[str, Any]) -> None:
    """Write a result as its command's options say: a page, a document, or on the terminal.

    ``given`` : those of ``form``, ``output`` and ``html`` that are options of the command.

    Raises UsageError: a file cannot be written.
    """
    from torchtriage.report import formats

    if given.get("html"):
        save(given["html"], formats.page(result).encode())
    form, output, known = given["form"], given["output"], formats.format_of(result)
    if form == "json":
        emit(known.encode(result), output)
    elif form == "markdown":
        from torchtriage.report import markdown

        emit(markdown.render(known.document(result)).encode(), output)
    else:
        put_document(known.document(result), output)


def put_document(document: Document, name: str | None = None) -> None:
    """Print a document, or write it as text to the file of this name.

    Raises UsageError: the file cannot be written.
    """
    from torchtriage.report import terminal

    if name:
        save(name, (terminal.render(document).plain + "\n").encode())
    else:
        terminal.put(partial(terminal.render, document), screen())


def _same(target: Path, other: str | Path) -> bool:
    return other != "-" and Path(other).exists() and target.samefile(other)


def print_report(
    results: Sequence[Result],
    *,
    jobs: Sequence[JobResult] = (),
    top: int | None = None,
    view: str = "report",
    quote: Quote | None = None,
) -> None:
    """Print results in the terminal's width and colours."""
    from torchtriage.report.documents import trace

    if view == "doctor":
        for result in results:
            put_document(trace.doctor(result))
    else:
        put_document(trace.document(results, jobs, top=top, quote=quote))


def screen() -> Console:
    """Return the terminal, on which a closed pipe is no fault."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which means findings here

    return Screen()


def encode(
    results: Sequence[Result], jobs: Sequence[JobResult], form: str | None, *, top: int | None, quote: Quote | None
) -> bytes:
    """Return results in a form (``json``, ``sarif``, ``markdown``), as plain text without one.

    Source lines are quoted in plain text alone: the other forms are passed on.
    """
    if form == "json":
        from torchtriage.report import json_report

        return json_report.encode(results, jobs)
    if form == "sarif":
        from torchtriage.report import sarif

        return sarif.encode(results, jobs)
    from torchtriage.report import markdown, terminal
    from torchtriage.report.documents.trace import document

    if form == "markdown":
        return markdown.render(document(results, jobs, top=top)).encode()
    return (terminal.render(document(results, jobs, top=top, quote=quote)).plain + "\n").encode()
