"""Write the generated pages again: ``make docs``.

The command line, the columns of a trace and every code are documented where they are defined;
these pages are that text in Markdown, and a test holds them current.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click
from docs.cookbook import QUESTIONS

import torchtriage
from torchtriage.api.catalogue import NUMBERS, Page, count
from torchtriage.api.catalogue import pages as known
from torchtriage.api.tables import TABLES
from torchtriage.cli.main import cli
from torchtriage.core.trace.columns import Detail
from torchtriage.core.trace.schema import CATEGORY_KINDS, COLUMNS, Kind

HERE = Path(__file__).parent
NOTE = "<!-- written by docs/build.py: change the source, then run make docs -->\n"


def pages() -> dict[str, str]:
    """Return the text of every generated page by its path below ``docs``."""
    codes = {code: list(group) for code, group in groupby(known(), key=lambda page: page.code)}
    found = {
        "api.md": _api(),
        "cli.md": _cli(),
        "schema.md": _schema(),
        "tables.md": _tables(),
        "patterns/index.md": _index(codes),
    }
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


# -- the Python names -------


def _api() -> str:
    rows = []
    for name in (one for one in torchtriage.__all__ if one != "__version__"):
        text = " ".join((inspect.getdoc(getattr(torchtriage, name)) or "").split("\n\n")[0].split())
        rows.append((f"`{name}`", _code(re.sub(r":\w+:`~?([\w.]+)`", r"``\1``", text))))
    return "\n\n".join((API_HEAD, _table(("name", "what it is"), rows)))


API_HEAD = """# Python API

```python
import torchtriage as tt

result = tt.analyze("trace.json.gz")
for finding in result.findings:
    print(finding.code, finding.message, finding.cost)
```

These names are stable. `help(tt.NAME)` prints arguments and results in full. Guides:
[record from Python](recording.md), [tables of a trace](tables.md), [monitor a service](monitor.md),
[watch for leaks](leaks.md), [bucketing](bucketing.md)."""


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


# -- tables ------------------------------------------------------------------------------------


def _tables() -> str:
    parts = [TABLES_HEAD]
    for name, table in TABLES.items():
        rows = [(f"`{one.name}`", f"`{one.kind}`", one.meaning) for one in table.columns]
        parts += [f"### {name}", table.meaning, _table(("column", "type", "meaning"), rows)]
    parts.append(COOKBOOK_HEAD)
    for number, (question, sql) in enumerate(QUESTIONS, start=1):
        parts.append(f"{number}. {question}\n\n   ```sql\n   {sql}\n   ```")
    return "\n\n".join(parts)


TABLES_HEAD = """# Tables

A trace is also a handful of tables, for data frames and SQL.

```python
import torchtriage as tt

trace = tt.load("trace.json.gz")
kernels = trace.table("kernels")

pandas.DataFrame.from_arrow(kernels)   # pandas 3; polars.DataFrame(kernels); pyarrow.table(kernels)
duckdb.sql("select name, sum(dur_ns) from kernels group by name")
kernels["dur_ns"]                      # a numpy array, masked where there are nulls
```

They speak Arrow's [PyCapsule interface](https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html),
so nothing else needs to be installed, and numbers are shared, not copied. Texts are dictionary-encoded.

```console
$ torchtriage export trace.json.gz --table kernels --parquet kernels.parquet   # or --csv, --arrow
$ torchtriage query trace.json.gz "select category, sum(dur_ns) / 1e6 as ms from kernels group by category"
$ torchtriage query ranks/ --csv "select rank, step_ns, comm_only_ns from ranks"
```

`--parquet` and `--arrow` need pyarrow (`pip install 'torchtriage[parquet]'`), `query` needs DuckDB
(`pip install 'torchtriage[query]'`). Of a folder of ranks, or of a file into which ranks were merged, tables hold the
rows of all ranks; `rank` says whose. Only tables that a query names are made. With `--max-memory` both keep within the
bound, a quarter of which is DuckDB's.

Both take a part of the recording, as `analyze` and `compare` do:

- `--steps 3-5`: these steps, by the numbers in their names.
- `--window 1.2s-1.8s`: this time, from the first event of the file; in a folder, from each rank's own. It counts as
  one step, so shares are of the window. It holds the host's events and the device's work that start in it.
- `--annotation NAME`: each occurrence of this annotation as a step, from the host's begin until the device has done
  what was enqueued in it. Work from before may still run at its begin.
- `--rank N`, `--device N`: one rank of a job, one device. The others' work is left out, and so are the host rows of
  processes that work on other devices only, and what the allocator did there.

In Python: `tt.analyze(path, selection=tt.Selection(steps="3-5", device=0))`. A part is a choice of steps, and the
steady steps of a report are then the chosen ones, the first too if it is among them. No event is cut: nesting and
launches are those of the whole recording. What does not exist is refused, with what there is. Tables hold what starts
in the chosen steps, and of a device what was launched in them (of a window: what starts in it).

## Columns

Names are promised, and those that measure end in their unit. What is not known is null: where `analyze` refuses a
recording, it has no judged time, and is left out of a table of findings, which is refused where nothing else is in it.
Times are nanoseconds on the trace's own clock; the file's `baseTimeNanoseconds`, where known, makes them dates."""

COOKBOOK_HEAD = """## How far to trust them

Kernels, copies and host rows are those of a slow reading of the JSON, in name, time, device and launch, on ten
recordings of CUDA, ROCm and CPU (a test). HolisticTraceAnalysis 0.5.0 and traceinsight 0.6.1 have the same 172,276 rows
there; they round nanoseconds to whole microseconds, starts up and ends down, and that explains every difference.

A query of the 1 GB recording of [performance](performance.md) takes 1.2 times the processor time of loading it
(kernels by category; DuckDB's start included), 1.3 times where it needs every operator with its own time (medians of
seven runs in turn with the load, 2026-11-27, on a busy machine). With `--max-memory 256M` the highest peak of six
queries and an export was 199 MiB, among them one that sorts all of its 250 thousand host rows.

## Cookbook

Twenty questions, every one run by a test. For one step, add `--steps 3` before the query, which goes by the
number in the step's name. The column `step` counts from 0, whatever the names say:
`where step in (select step from steps where name = 'ProfilerStep#3')`."""


# -- the codes ---------------------------------------------------------------------------------


def _index(found: dict[str, list[Page]]) -> str:
    parts = [
        "# Patterns",
        f"{count()} {NUMBERS}",
        "`torchtriage explain CODE` prints the same pages. A code is seen in a trace"
        " ([`analyze`](../cli.md#torchtriage-analyze)), in source"
        " ([`lint`](../lint.md)), in memory ([snapshots](../memory.md), [leaks](../leaks.md)), in"
        " compile logs ([`compile`](../compile.md)), or in a running service"
        " ([alerts](../detection.md)).",
    ]
    ordered = sorted(found.values(), key=lambda group: (group[0].family, group[0].code))
    for family, groups in groupby(ordered, key=lambda group: group[0].family):
        rows = [
            (
                f"[{group[0].name}]({group[0].code}.md)",
                group[0].code,
                group[0].title,
                ", ".join(page.part for page in group),
                group[0].needs,
            )
            for group in groups
        ]
        head = ("name", "code", "what it finds", "seen in", "needs")
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
        yield f"While this is certain, nothing is said of {others}."


if __name__ == "__main__":
    write()
