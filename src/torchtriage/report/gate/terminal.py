"""A check or a history as text: the verdict in three lines, then the rows that want to be read."""

from __future__ import annotations

from rich.text import Text

from torchtriage.gate import words as told
from torchtriage.gate.result import GateResult, HistoryResult, Row, Track, Verdict
from torchtriage.names import visible
from torchtriage.report.gate import words
from torchtriage.report.terminal import Page
from torchtriage.units import format_count

__all__ = ["render"]

N_LOUD = 30
N_WELL = 12
CELLS = 57
_STYLE: dict[Verdict, str] = {
    "regression": "bold red",
    "improvement": "green",
    "same": "dim",
    "inconclusive": "yellow",
    "refused": "yellow",
}
_OUTCOME = {
    "fine": "bold green",
    "regression": "bold red",
    "inconclusive": "bold yellow",
    "infrastructure": "bold yellow",
}
_HEIGHTS = "▁▂▃▄▅▆▇█"


def render(result: GateResult | HistoryResult, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    if isinstance(result, GateResult):
        _check(page, result)
    else:
        _history(page, result)
    page.notes(result.notes)
    return page.text


def _check(page: Page, result: GateResult) -> None:
    for index, line in enumerate(result.verdict):
        page.line((visible(line), _OUTCOME[result.outcome] if index == 0 else ""), hang=2)
    page.blank(bool(result.rows or result.before or result.after))
    many = words.many(result.rows)
    if result.rows and not many:
        page.labelled("benchmark", (visible(result.rows[0].benchmark), "dim"))
    for label, side in (("before", result.before), ("after", result.after)):
        if side is not None:
            page.labelled(label, (words.side(side), "dim"))
    if result.after is not None and result.after.machine:
        page.labelled("machine", (words.machine(result.after), "dim"))
    loud, well, quiet = words.grouped(result.rows)
    for row in loud[:N_LOUD]:
        page.blank()
        _loud(page, row, many=many)
    if len(loud) > N_LOUD:
        page.blank()
        page.line((f"{len(loud) - N_LOUD} more are in the JSON", "dim"), indent=2)
    page.blank(bool(well))
    for row in well[:N_WELL]:
        page.labelled(
            words.LABEL[row.verdict],
            (f"{told.row_name(row, with_benchmark=many)}: ", ""),
            (visible(row.sentence), "dim"),
            style=_STYLE[row.verdict],
        )
    if len(well) > N_WELL:
        page.labelled("", (f"{format_count(len(well) - N_WELL, 'more row')} not worse", "dim"))
    if quiet:
        page.blank()
        page.labelled(
            "watched", (f"no answer on {words.left_out(quiet, with_benchmark=many)}", "dim")
        )
    for one in result.culprits:
        page.blank()
        page.labelled("culprit", (visible(f"{one.benchmark}: {one.sentence}"), "bold"))
        for line in (*one.causes, *(f"came: {found}" for found in one.came)):
            page.labelled("", (visible(line), ""))
        if command := words.compare(one):
            page.labelled("", (command, "green"))


def _loud(page: Page, row: Row, *, many: bool) -> None:
    style = _STYLE[row.verdict]
    page.labelled(
        words.LABEL[row.verdict], (told.row_name(row, with_benchmark=many), "bold"), style=style
    )
    page.labelled("", (visible(row.sentence), ""))
    if bar := _bar(row):
        page.verbatim(bar)
    if said := words.classic(row):
        page.labelled("", (f"not used: {said}", "dim"))


def _bar(row: Row) -> list[tuple[str, str]]:
    """Return the interval on an axis with no change in its middle, and the limit marked."""
    if row.low is None or row.high is None or row.ratio is None:
        return []
    limit = row.max_regress if row.better == "lower" else -row.max_regress
    ends = [row.low - 1, row.high - 1]
    span = 1.1 * max(abs(one) for one in (*ends, limit))
    if span <= 0 or span > 3:
        return []

    def at(share: float) -> int:
        return round((share / span + 1) / 2 * (CELLS - 1))

    cells = ["·"] * CELLS
    cells[at(0)] = "|"
    cells[at(limit)] = ":"
    for place in range(at(ends[0]), at(ends[1]) + 1):
        cells[place] = "─"
    cells[at(row.ratio - 1)] = "█"
    head = f"{'':{at(0)}}0"
    mark = told.change(1 + limit)
    head += f"{mark:>{max(at(limit) - at(0), len(mark) + 1)}}" if limit > 0 else ""
    return [("".join(cells), _STYLE[row.verdict]), (head, "dim")]


# -- along commits -----------------------------------------------------------------------------


def _history(page: Page, result: HistoryResult) -> None:
    worse = any(change.worse for track in result.tracks for change in track.changes)
    for index, line in enumerate(result.verdict):
        style = ("bold red" if worse else "bold") if index == 0 else ""
        page.line((visible(line), style), hang=2)
    for track in result.tracks:
        if track.changes:
            page.blank()
            _track(page, track)
    level = [track for track in result.tracks if not track.changes]
    page.blank(bool(level))
    for track in level[:N_WELL]:
        page.labelled(
            "unjudged" if track.refused else "level",
            (f"{told.track_name(track)}: ", ""),
            (track.refused or _span(track), "dim"),
        )
    if len(level) > N_WELL:
        page.labelled("", (f"{format_count(len(level) - N_WELL, 'more')} without a change", "dim"))


def _track(page: Page, track: Track) -> None:
    page.line((told.track_name(track), "bold"), (f"  {_span(track)}", "dim"), indent=2)
    page.verbatim([(row, "") for row in _sparks(track, page.width - 14)])
    for change in track.changes:
        style = "bold red" if change.worse else "green"
        page.labelled(
            "worse" if change.worse else "better", (told.change_point(track, change), ""),
            style=style,
        )  # fmt: skip


def _span(track: Track) -> str:
    low, high = (f(one.value for one in track.points) for f in (min, max))
    n = format_count(len(track.points), "commit")
    return f"{n}, {told.amount(low, track.unit)} … {told.amount(high, track.unit)}"


def _sparks(track: Track, room: int) -> list[str]:
    values = [one.value for one in track.points]
    step = -(-len(values) // room)
    parts = [values[begin : begin + step] for begin in range(0, len(values), step)]
    shown = [sum(part) / len(part) for part in parts]
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    bars = "".join(_HEIGHTS[round((one - low) / span * (len(_HEIGHTS) - 1))] for one in shown)
    marks = [" "] * len(shown)
    for change in track.changes:
        marks[change.index // step] = "^"
    return [bars, "".join(marks)]
