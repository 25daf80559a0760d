"""A check or a history as a pull request's comment or step summary, in GitHub's dialect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtriage.gate import words as told
from torchtriage.gate.result import GateResult, HistoryResult, Row, Verdict
from torchtriage.names import visible
from torchtriage.report.gate import words
from torchtriage.report.markdown import code, prose
from torchtriage.units import format_count

__all__ = ["render"]

N_ROWS = 50
_MARK: dict[Verdict, str] = {
    "regression": "🔴",
    "improvement": "🟢",
    "same": "⚪",
    "inconclusive": "🟡",
    "refused": "🟡",
}


def render(result: GateResult | HistoryResult) -> str:
    """Return GitHub Markdown: the verdict, one table, details folded away."""
    blocks = _check(result) if isinstance(result, GateResult) else _history(result)
    return "\n\n".join(blocks) + "\n"


def _check(result: GateResult) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    yield "  \n".join(prose(line) for line in others)
    loud, well, quiet = words.grouped(result.rows)
    many = words.many(result.rows)
    if loud:
        yield "\n".join(_table(loud, many=many))
    if well:
        yield _folded(
            f"{format_count(len(well), 'row')} not worse", "\n".join(_table(well, many=many))
        )
    if quiet:
        yield f"<sub>watched, no answer: {prose(words.left_out(quiet, with_benchmark=many))}</sub>"
    for one in result.culprits:
        lines = [f"**What changed in {code(one.benchmark)}**: {prose(one.sentence)}", ""]
        lines += [f"- {prose(line)}" for line in one.causes]
        lines += [f"- came: {prose(line)}" for line in one.came]
        yield "\n".join(lines)
    yield from _notes(result)
    classic = [
        f"- {prose(told.row_name(one, with_benchmark=many))}: {prose(said)}"
        for one in result.rows
        if (said := words.classic(one))
    ]
    if classic:
        body = (
            "These do not decide: of one value per process, they ignore pairs, how the machine"
            " drifts, and how small a change is.\n\n" + "\n".join(classic[:N_ROWS])
        )
        yield _folded("Welch, Mann-Whitney and Cohen's d", body)
    sides = [
        f"{label} {prose(words.side(one))}"
        for label, one in (("before", result.before), ("after", result.after))
        if one is not None
    ]
    yield f"<sub>{', '.join([*sides, f'torchtriage {prose(visible(result.version))}'])}</sub>"


def _table(rows: Sequence[Row], *, many: bool) -> Iterable[str]:
    yield "| | metric | before | after | change | interval | |"
    yield "|:--|:--|--:|--:|--:|:--|:--|"
    for row in rows[:N_ROWS]:
        name = prose(told.row_name(row, with_benchmark=many))
        before, after = (
            told.amount(one.value, row.unit) if one is not None else ""
            for one in (row.before, row.after)
        )
        change = told.change(row.ratio) if row.ratio is not None else ""
        interval = (
            told.interval(row.low, row.high) if row.low is not None and row.high is not None else ""
        )
        last = "" if row.verdict in ("regression", "same", "improvement") else prose(row.sentence)
        yield (
            f"| {_MARK[row.verdict]} {words.LABEL[row.verdict]} | {name}"
            f" | {before} | {after} | {change} | {interval} | {last} |"
        )
    if len(rows) > N_ROWS:
        yield f"| | {len(rows) - N_ROWS} more are in the JSON | | | | | |"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _notes(result: GateResult | HistoryResult) -> Iterable[str]:
    lines = [
        f"> **{note.level}** {prose(note.message)}"
        + (f". Try: {prose(note.fix)}" if note.fix else "")
        for note in result.notes
    ]
    if lines:
        yield "  \n".join(lines)


def _history(result: HistoryResult) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    yield "  \n".join(prose(line) for line in others)
    rows = [
        f"| {'🔴' if change.worse else '🟢'} | {prose(told.track_name(track))}"
        f" | {prose(told.change_point(track, change))} |"
        for track in result.tracks
        for change in track.changes
    ]
    if rows:
        head = ["| | metric | change of level |", "|:--|:--|:--|"]
        yield "\n".join([*head, *rows[:N_ROWS]])
    yield from _notes(result)
    yield f"<sub>torchtriage {prose(visible(result.version))}</sub>"
