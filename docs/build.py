"""Write the generated pages again: ``make docs``.

The command line, the columns of a trace and every code are documented where they are defined;
these pages are that text in Markdown, and a test holds them current.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click

from torchtriage.api.catalogue import Page
from torchtriage.api.catalogue import pages as known
from torchtriage.cli.main import cli
from torchtriage.core.trace.columns import Detail
from torchtriage.core.trace.schema import CATEGORY_KINDS, COLUMNS, Kind

HERE = Path(__file__).parent
NOTE = "<!-- written by docs/build.py: change the source, then run make docs -->\n"


def pages() -> dict[str, str]:
    """Return the text of every generated page by its path below ``docs``."""
    codes = {code: list(group) for code, group in groupby(known(), key=lambda page: page.code)}
    found = {"cli.md": _cli(), "schema.md": _schema(), "patterns/index.md": _index(codes)}
    for code, group in codes.items():
        found[f"patterns/{code}.md"] = _pattern(group)
    return {name: f"{NOTE}\n{text.strip()}\n" for name, text in found.items()}


def write(folder: Path = HERE) -> None:
    """Write the pages, and take away those of codes that are gone."""
    found = pages()
    for old in (folder / "patterns").glob("*.md"):
        if f"patterns/{old.name}" not in found:
            old.unlink()
    for name, text in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _code(text: str) -> str:
    """Return docstring text with Markdown's quotes instead of reStructuredText's."""
    return text.replace("``", "`")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, (":--",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# -- the command line --------------------------------------------------------------------------


def _cli() -> str:
    context = click.Context(cli, info_name="torchtriage")
    parts = ["# The command line", inspect.cleandoc(cli.help or ""), cli.epilog or "", _options(cli)]
    for name, command in _commands(cli, context):
        arguments = " ".join(one.make_metavar(context) for one in command.params if isinstance(one, click.Argument))
        parts += [
            f"## torchtriage {name}",
            f"```console\n$ torchtriage {name} [OPTIONS] {arguments}".rstrip() + "\n```",
            _help(command.help or ""),
            _options(command),
        ]
    return "\n\n".join(filter(None, parts))


def _commands(group: click.Group, context: click.Context, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name, those of a group below it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{before}{name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, context, f"{before}{name} ")


def _help(text: str) -> str:
    """Return a command's help; paragraphs whose lines click must keep are examples."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    for at, one in enumerate(paragraphs):
        mark, _, lines = one.partition("\n")
        if mark == "\b":
            examples = "\n".join(f"$ {line}" for line in lines.split("\n"))
            paragraphs[at] = f"```console\n{examples}\n```"
    return "\n\n".join(paragraphs)


def _options(command: click.Command) -> str:
    rows = [
        (f"`{_spelling(one)}`", one.help or "", _default(one))
        for one in command.params
        if isinstance(one, click.Option)
    ]
    return _table(("option", "meaning", "default"), rows) if rows else ""


def _spelling(option: click.Option) -> str:
    value = ""
    if isinstance(option.type, click.Choice):
        value = "|".join(map(str, option.type.choices))
    elif option.metavar:
        value = option.metavar
    return f"{', '.join(option.opts)} {value}".strip()


def _default(option: click.Option) -> str:
    shown = ", ".join(option.default) if isinstance(option.default, tuple) else option.default
    return f"`{shown}`" if option.show_default else ""


# -- the columns -------------------------------------------------------------------------------


def _schema() -> str:
    columns = [(f"`{one.name}`", f"`{one.dtype}`", one.unit, one.meaning) for one in COLUMNS]
    kinds = [
        (f"`{kind.name}`", ", ".join(f"`{cat}`" for cat, one in CATEGORY_KINDS.items() if one is kind)) for kind in Kind
    ]
    details = ", ".join(f"`{name}`" for name in Detail._fields)
    return f"""# The columns of a trace

`torchtriage.load(path)` returns a `Trace`: numpy arrays of equal length, one element per row, and
tables of strings. A row is one complete event (`ph: X`, or a `B`/`E` pair) or one instant that is
not an allocator record. Flow arrows, counters and metadata are counted, and are not rows.

{_table(("column", "dtype", "unit", "meaning"), columns)}

`details` entries hold, as raw JSON text: {details}.
`trace.args(row)` reads all arguments of one row from the file again.

## Kinds

The category says what a row is, whatever its age and vendor called it. Categories that are not
listed become `OTHER`; those that end in `_runtime` or `_driver` become `RUNTIME`. Rows of
MTIA's device are kernels, copies or events by their name, and Ascend's rows, which have no category,
device work or calls by the name of their process.

{_table(("kind", "categories"), kinds)}
"""


# -- the codes ---------------------------------------------------------------------------------


def _index(found: dict[str, list[Page]]) -> str:
    parts = [
        "# Patterns",
        f"{len(found)} codes, by family. `torchtriage explain CODE` prints the same pages. A code"
        " is seen in a trace ([`analyze`](../cli.md#torchtriage-analyze)), in source"
        " ([`lint`](../lint.md)), in memory ([snapshots](../memory.md), [leaks](../leaks.md)), in"
        " compile logs ([`compile`](../compile.md)), or in a running service"
        " ([alerts](../detection.md)).",
    ]
    ordered = sorted(found.values(), key=lambda group: (group[0].family, group[0].code))
    for family, groups in groupby(ordered, key=lambda group: group[0].family):
        rows = [
            (
                f"[{group[0].code}]({group[0].code}.md)",
                group[0].name,
                group[0].title,
                ", ".join(page.part for page in group),
                group[0].needs,
            )
            for group in groups
        ]
        head = ("code", "name", "what it finds", "seen in", "needs")
        parts += [f"## {family}", _table(head, rows)]
    return "\n\n".join(parts)


def _pattern(group: list[Page]) -> str:
    parts = [f"# {group[0].code} {group[0].name}"]
    for page in group:
        if page is not group[0]:
            parts.append(f"## {HEADINGS[page.part]}")
        parts += _page(page)
    return "\n\n".join(parts)


HEADINGS = {
    "trace": "In a trace",
    "source": "In source",
    "run": "In a run",
    "memory": "In memory",
    "logs": "In compile logs",
    "alerts": "In alerts",
}


def _page(page: Page) -> Iterator[str]:
    yield " ".join(_code(page.text.strip().split("\n\n", 1)[0]).split())
    for title in page.titles:
        yield f"**{title}**: {_code(page.section(title))}"
    if page.fix.code:
        yield f"```python\n{page.fix.code}\n```"
    if page.fix.link:
        yield f"More: <{page.fix.link}>"
    if page.part == "source":
        yield f"Family: {page.family}. Found by `torchtriage lint`, in source alone."
        return
    if page.part == "alerts":
        yield f"Family: {page.family}. Told by `monitor.Detection` of a running service."
        return
    yield f"Family: {page.family}. " + (
        f"Needs {page.needs}; without them it is reported as not checked."
        if page.needs
        else "Needs nothing beyond a readable trace."
    )
    if page.suppresses:
        others = ", ".join(page.suppresses)
        yield f"While this is certain, {others} mean nothing and stay silent."


if __name__ == "__main__":
    write()
