"""What commands write: reports, files, and one line for each failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from torchtriage.errors import UsageError
from torchtriage.finding import JobResult, Quote, Result

__all__ = ["check_outputs", "complain", "print_report", "save"]


def complain(message: str) -> None:
    """Print a failure on stderr; nothing in a file's name or text reaches the terminal raw."""
    from torchtriage.names import visible

    lines = "\n".join(visible(line) for line in message.split("\n"))
    click.echo(f"torchtriage: {lines}", err=True)


def check_outputs(names: Iterable[str | None], inputs: Sequence[str | Path] = ()) -> None:
    """Refuse, before any work is done, outputs that cannot be meant.

    Raises
    ------
    UsageError
        An output is an input or another output, a folder, or in a folder that does not exist.
    """
    seen: set[Path] = set()
    for name in names:
        if name is None:
            continue
        target = Path(name)
        try:
            resolved = target.resolve()
            if any(target.exists() and _same(target, one) for one in inputs):
                raise UsageError(
                    "expected another file to write to, found the input itself",
                    where=name,
                    hint="choose a new name",
                )
            if resolved in seen:
                raise UsageError("two outputs have the same name", where=name)
            if target.is_dir():
                raise UsageError("expected a file to write to, found a folder", where=name)
            if not target.parent.is_dir():
                raise UsageError(
                    "cannot be written: the folder does not exist",
                    where=name,
                    hint=f"mkdir -p {target.parent}",
                )
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"cannot be written: {error}", where=name) from error
        seen.add(resolved)


def save(name: str, data: bytes) -> None:
    """Write a file and say so on stderr.

    Raises
    ------
    UsageError
        It cannot be written.
    """
    try:
        Path(name).write_bytes(data)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {error}", where=name) from error
    click.echo(f"wrote {name}", err=True)


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
    from rich.console import Console

    from torchtriage.report import terminal

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which means findings here

    terminal.write(results, Screen(), jobs=jobs, top=top, view=view, quote=quote)
