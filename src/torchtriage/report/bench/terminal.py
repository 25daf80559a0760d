"""A benchmark as text: the verdict in three lines, the table, what to deploy, what limits it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from torchtriage.bench.result import BenchResult, Row
from torchtriage.names import elide, visible
from torchtriage.report.bench import words
from torchtriage.report.terminal import Page
from torchtriage.units import format_count, format_ms

__all__ = ["render"]

_HEIGHTS = "▁▂▃▄▅▆▇█"
N_BARS = 30
N_PAIRS = 12


def render(result: BenchResult, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    for index, line in enumerate(filter(None, result.verdict)):
        page.line((visible(line), "bold" if index == 0 else ""), hang=2)
    page.blank()
    page.line((f"{elide(visible(result.target), page.width - 2)}", "dim"), indent=2)
    page.line((words.basis(result), "dim"), indent=2, hang=2)
    page.blank()
    for line, style in _table(result.rows, page.width - 2):
        page.text.append(f"  {line}\n", style)  # wider than the page rather than wrapped
    for row in result.rows:
        if row.failure is not None:
            page.line(
                (f"{words.setting(row)} ", "bold red"), (words.failure(row), ""), indent=2, hang=4
            )
    for one in result.advice:
        page.blank()
        at = f", batch {one.batch_size}" if one.batch_size else ""
        page.line((f"{one.need}{at}", "bold"), indent=2)
        page.line((visible(one.line), "green"), indent=4)
        page.line((visible(one.why), ""), indent=4)
    pairs = [one for one in result.comparisons if not one.tie or one.resolved]
    for rank, pair in enumerate(result.comparisons[:N_PAIRS]):
        page.blank(rank == 0)
        style = "" if pair in pairs else "dim"
        page.labelled("" if rank else "order", (words.comparison(pair), style))
    _details(page, result.rows)
    page.notes(result.notes)
    return page.text


def _table(rows: Sequence[Row], width: int) -> list[tuple[str, str]]:
    """Return the table in columns; those that say the same of every row or do not fit are left."""
    table = [words.COLUMNS, *(words.cells(row) for row in rows)]
    shown = [
        at for at in range(len(words.COLUMNS)) if any(line[at] != words.NONE for line in table[1:])
    ]
    widths = {at: max(len(line[at]) for line in table) for at in shown}
    # the way itself gives way last: rate and memory are in the JSON and the page too
    for at in (6, 7, 4, 2):
        if sum(widths[one] + 2 for one in shown) - 2 > width and at in shown:
            shown.remove(at)
    lines = []
    for index, line in enumerate(table):
        first = f"{line[0]:{widths[0]}}"
        rest = "".join(f"  {line[at]:>{widths[at]}}" for at in shown[1:])
        failed = index > 0 and rows[index - 1].failure is not None
        lines.append((f"{first}{rest}".rstrip(), "dim" if index == 0 else "red" if failed else ""))
    return lines


def _details(page: Page, rows: Sequence[Row]) -> None:
    """Say of each row what the table has no room for."""
    for row in rows:
        if row.failure is not None and row.compilation is None:
            continue
        page.blank()
        page.line((words.setting(row), "bold"), indent=2)
        if len(row.warm_up_ms) > 1 and row.n_sessions:
            where = (
                f"steady from step {row.steady_from:,} on"
                if row.steady_from is not None
                else f"steady in {row.n_steady} of {format_count(row.n_sessions, 'session')}"
            )
            page.labelled("warm-up", (_bars(row.warm_up_ms), "dim"), (f"  {where}", ""))
        p50 = next((one for one in row.quantiles if one.name == "P50"), None)
        if p50 is not None and p50.low_ms is not None and p50.high_ms is not None:
            ends = f"{format_ms(p50.low_ms)} to {format_ms(p50.high_ms)}"
            count = (
                f"{format_count(row.n_steps, 'step')} in {format_count(row.n_sessions, 'session')}"
            )
            page.labelled("P50", (f"{ends}, {count}", ""))
        if row.compilation is not None:
            page.labelled("compile", (words.compilation(row.compilation), ""))
        if row.misses is not None:
            page.labelled("deadline", (words.misses(row.misses), ""))
        if row.numerics is not None and (row.setting.mode != "eager" or row.numerics.reason):
            style = "bold red" if row.numerics.verdict == "wrong" else ""
            page.labelled("answers", (words.errors(row.numerics), style))


def _bars(times: Sequence[float]) -> str:
    """Return the first steps as bars: one per step, heights by the logarithm."""
    import math

    shown = [math.log(max(one, 1e-9)) for one in times[:N_BARS]]
    low, span = min(shown), max(max(shown) - min(shown), 1e-9)
    return "".join(_HEIGHTS[int((one - low) / span * (len(_HEIGHTS) - 1))] for one in shown)
