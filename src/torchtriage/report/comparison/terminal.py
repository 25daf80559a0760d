"""A comparison as text: the verdict in three lines, then the causes, largest change first."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from torchtriage.finding import Comparison, FindingChange
from torchtriage.names import elide, visible
from torchtriage.report.comparison.rows import Row, cost, inside, notes, per, rows, run
from torchtriage.report.terminal import Page
from torchtriage.report.words import count
from torchtriage.units import format_both_ns, format_change_ns, format_ns

__all__ = ["add_changes", "render"]

BAR = 8
INSIDE = 22
"""Where the lines about the inside of a cause begin: names of kernels are long."""
_STATUS = {"went": "green", "came": "red", "stayed": "dim"}


def render(result: Comparison, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    for index, line in enumerate(result.verdict):
        page.line((visible(line), _style(result) if index == 0 else ""))
    page.blank()
    for label, side in (("before", result.before), ("after", result.after)):
        page.labelled(label, (elide(visible(side.path), page.width - 14), ""))
        page.labelled("", (run(side), "dim"))
    if not result.comparable:
        _reasons(page, result)
        return page.text
    _table(page, result)
    _findings(page, result)
    for level, message, fix in notes(result):
        page.blank()
        page.note(level, message, fix, label="limit" if level == "warn" else "note")
    return page.text


def _style(result: Comparison) -> str:
    total = result.total
    if total is None:
        return "bold red"
    if not total.told:
        return "bold"
    return "bold green" if total.delta_ns < 0 else "bold red"


def _reasons(page: Page, result: Comparison) -> None:
    for reason in result.reasons:
        page.blank()
        page.labelled(reason.code, (visible(reason.message), ""), style="bold red")
        if reason.before or reason.after:
            page.labelled("", (f"{visible(reason.before) or '-'}  |  ", "dim"))
            page.labelled("", (visible(reason.after) or "-", "dim"))
        page.labelled("", ("try: ", "dim"), (visible(reason.fix), "green"))


def _table(page: Page, result: Comparison) -> None:
    total = result.total
    assert total is not None
    shown = rows(result)
    what = "mean steady step" if result.before.per == "step" else "the window"
    label = f"{what}, {count(len(result.causes), 'cause')}"
    whole = Row(label, total.before_ns, total.after_ns, told=True)
    largest = max([abs(row.delta_ns) for row in shown] + [abs(total.delta_ns), 1])
    lines = [(f"{'change':>9}  {'':{BAR}}  {'before':>7} {'after':>7}      {per(result)}", "dim")]
    for row in shown:
        lines.append((_line(row, largest, page.width), _row_style(row)))
        room = page.width - INSIDE - 2
        lines += [(f"{'':{INSIDE}}{elide(one, room)}", "dim") for one in inside(row)]
    lines.append(("─" * (page.width - 2), "dim"))
    lines.append((_line(whole, largest, page.width), _row_style(whole)))
    page.blank()
    page.verbatim(lines, indent=0)


def _line(row: Row, largest: int, width: int) -> str:
    before, after, unit = format_both_ns(row.before_ns, row.after_ns)
    cells = round(abs(row.delta_ns) / largest * BAR)
    bar = ("█" if row.told else "·") * max(cells, int(row.delta_ns != 0))
    amounts = f"{before:>7} {after:>7} {unit:2}"
    change = format_change_ns(row.delta_ns)
    return elide(f"{change:>9}  {bar:{BAR}}  {amounts}   {row.label}", width - 2)


def _row_style(row: Row) -> str:
    if not row.told:
        return "dim"
    return "green" if row.delta_ns < 0 else "red" if row.delta_ns > 0 else ""


def add_changes(page: Page, findings: Iterable[FindingChange]) -> None:
    """Add the findings that went, came and stayed."""
    for change in findings:
        place = f" at {visible(change.place)}" if change.place else ""
        page.labelled(
            change.status,
            (f"{visible(change.code)} ", "bold"),
            (f"{visible(change.title)}{elide(place, 60)}: ", ""),
            (cost(change), "dim"),
            style=_STATUS[change.status],
        )


def _findings(page: Page, result: Comparison) -> None:
    page.blank(bool(result.findings))
    add_changes(page, result.findings)
    promise = result.promise
    if promise is None:
        return
    page.blank()
    page.labelled(
        "promise",
        (f"{', '.join(promise.codes)} promised ", ""),
        (f"{format_ns(promise.low_ms * 1e6)} to {format_ns(promise.high_ms * 1e6)}", "bold"),
        (f", saved {format_ns(promise.measured_ms * 1e6)}: ", ""),
        (
            "kept"
            if promise.holds
            else "kept within the noise"
            if promise.holds_within_noise
            else "not kept",
            "green" if promise.holds_within_noise else "yellow",
        ),
    )
