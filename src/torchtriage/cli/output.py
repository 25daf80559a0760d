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
    from collections.abc import Callable

    from rich.console import Console

    from torchtriage.report.blocks import Document


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
    """Write a file and say so on stderr; ``-`` is standard output.

    Raises UsageError: it cannot be written.
    """
    if name == "-":
        emit(data, None)
        return
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


def read_input(name: str) -> bytes:
    """Return what is in a file that a command was given.

    Raises UsageError: it cannot be read.
    """
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"expected a readable file, found: {getattr(error, 'strerror', None) or error}",
            where=name,
            hint="check the path and its permissions",
        ) from error


def present(result: Any, given: Mapping[str, Any], *, quote: Callable[..., str] | None = None, **options: Any) -> None:
    """Write a result as its command's options say: a page, a document, or on the terminal.

    ``given`` : those of ``form``, ``output``, ``html`` and ``verbose`` that are options of the command. ``quote`` :
    gives source lines, for this machine's screen and page: the other forms are passed on. ``options`` : of its
    document.

    Raises UsageError: a file cannot be written.
    """
    from torchtriage.report import formats

    if given.get("html"):
        save(given["html"], formats.page(result, quote).encode())
    form, output, known = given["form"], given["output"], formats.format_of(result)
    if form == "json":
        emit(known.encode(result), output)
    elif form == "sarif":
        from torchtriage.report import sarif

        emit(sarif.encode(result.results, result.jobs), output)
    elif form == "markdown":
        from torchtriage.report import markdown

        emit(markdown.render(known.document(result, **options)).encode(), output)
    else:
        options |= {} if quote is None else {"quote": quote}
        options |= {"short": not given["verbose"]} if "verbose" in given else {}
        put_document(known.document(result, **options), output)


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


def screen() -> Console:
    """Return the terminal, on which a closed pipe is no fault."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which means findings here

    return Screen()
