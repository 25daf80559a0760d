"""``torchtriage show``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from torchtriage.cli.output import check_outputs, print_report, report_part, save
from torchtriage.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command"]


@click.command("show")
@click.argument("path", metavar="RESULT.json", type=click.Path())
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(),
    help="Write the page instead of printing.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown instead.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show the N costliest findings.")
def command(path: str, html: str | None, markdown: bool, top: int | None) -> None:
    """Render a result saved with --json again: on the terminal, as a page, or as Markdown.

    Of analyze, bench, compare, compile, gate, lint, memory, verify or xla; --top is for those of
    analyze.
    """
    from torchtriage.report import json_report

    check_outputs([html], [path])
    data = _read(path)
    other = _other(data)
    if other is not None:
        if top:
            raise UsageError("--top is for results of analyze", where=path)
        _show(other, path, html, markdown=markdown)
        return
    saved = json_report.read(data)
    results, jobs = saved.results, saved.jobs
    if html:
        from torchtriage.report import html_page

        save(html, html_page.render(results, jobs).encode())
    elif markdown:
        from torchtriage.report import markdown as report

        click.echo(report.render(results, jobs=jobs, top=top))
    else:
        print_report(results, jobs=jobs, top=top)


class _Shown(NamedTuple):
    """What a document of another command can be made into."""

    write: Callable[[Console], None]
    markdown: Callable[[], str] | None = None
    html: Callable[[], str] | None = None


ROOMS = {
    "torchtriage-bench": "bench",
    "torchtriage-comparison": "comparison",
    "torchtriage-compile": "compile",
    "torchtriage-gate": "gate",
    "torchtriage-gate-history": "gate",
    "torchtriage-experiment": "rollout",
    "torchtriage-memory": "memory",
    "torchtriage-rollout": "rollout",
    "torchtriage-xla": "xla",
}
"""The folder of ``report`` for each kind of document that has one like the others."""


def _other(data: bytes) -> _Shown | None:
    """Return how a document of another command than analyze is shown; None for one of analyze."""
    kind = _schema(data).partition("/")[0]
    if kind in ROOMS:
        return _of_room(ROOMS[kind], data)
    reader = {"torchtriage-lint": _lint, "torchtriage-verification": _verification}.get(kind)
    return None if reader is None else reader(data)


def _of_room(room: str, data: bytes) -> _Shown:
    reader = report_part(room, "json_report")
    result = (reader.decode_any if room == "gate" else reader.decode)(data)
    return _Shown(
        lambda console: report_part(room, "terminal").write(result, console),
        lambda: report_part(room, "markdown").render(result),
        lambda: report_part(room, "html_page").render(result),
    )


def _lint(data: bytes) -> _Shown:
    from torchtriage.report.lint import json_report, markdown, terminal

    result = json_report.decode(data)
    return _Shown(lambda console: terminal.write(result, console), lambda: markdown.render(result))


def _verification(data: bytes) -> _Shown:
    from torchtriage.report import verification

    result = verification.decode(data)
    return _Shown(lambda console: verification.write(result, console))


def _show(one: _Shown, path: str, html: str | None, *, markdown: bool) -> None:
    make = one.html if html else one.markdown
    if make is None and (html or markdown):
        form = "page" if html else "Markdown"
        raise UsageError(f"a result of this command has no {form}", where=path)
    if html and make:
        save(html, make().encode())
    elif markdown and make:
        click.echo(make().rstrip("\n"))
    else:
        from rich.console import Console

        one.write(Console())


def _schema(data: bytes) -> str:
    import msgspec

    class Head(msgspec.Struct):
        schema: str = ""

    try:
        return msgspec.json.decode(data, type=Head).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""  # the reader says what is wrong


def _read(path: str) -> bytes:
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise UsageError("expected a result file, found a folder, pipe or device", where=path)
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", where=path) from error
