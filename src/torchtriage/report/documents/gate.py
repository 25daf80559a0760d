"""A check or a history of the gate: the verdict, the rows that want to be read, pictures of all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from statistics import median

from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_share
from torchtriage.measure.gate import formatting
from torchtriage.measure.gate.result import Culprit, GateResult, HistoryResult, MetricRow, RowVerdict, Side, Track
from torchtriage.report import blocks as b
from torchtriage.report.page import HIGH, WIDE, svg, svg_line, text, whisker

MAX_ANNOTATIONS = 10
"""GitHub shows ten of a kind for each step and drops the others in silence."""
N_LOUD, N_WELL, N_IN_MARKDOWN = 30, 12, 50
N_ROWS, N_PICTURES, N_TRACKS = 300, 40, 60
CELLS, SPARKS = 57, 66
MIN_SPAN, MAX_SPAN = 0.02, 1.0
"""The axis of intervals reaches from 2 % to 100 %; what lies beyond is cut, its numbers are not."""
_WORDS: dict[RowVerdict, tuple[str, str, str]] = {
    "regression": ("worse", "bold red", "🔴"),
    "improvement": ("better", "green", "🟢"),
    "same": ("same", "dim", "⚪"),
    "inconclusive": ("undecided", "yellow", "🟡"),
    "refused": ("refused", "yellow", "🟡"),
}
"""A verdict's label, style and mark."""
_OUTCOME = {"fine": ("fine", "bold green"), "regression": ("regression", "bold red")}
_FILE = re.compile(r"^([\w./\\-]+\.\w+)(?::(\d+))?(?:::|\s|$)")


def document(result: GateResult | HistoryResult) -> b.Document:
    """Return the report of ``torchtriage gate check`` or ``gate history``."""
    blocks = list(_check(result) if isinstance(result, GateResult) else _history(result))
    remark = "A session is one fresh process; ratios are after over before."
    return b.Document(result.verdict[0], result.version, result.schema, blocks, "gate.css", remark)


def workflow_commands(result: GateResult) -> str:
    """Return a check as workflow commands that GitHub shows beside the code, one per line."""
    lines = []
    worse = [row for row in result.rows if row.verdict == "regression"]
    for row in worse[:MAX_ANNOTATIONS]:
        file, line = _place(result, row)
        causes = "".join(f". {culprit.sentence}" for culprit in result.culprits if culprit.benchmark == row.benchmark)
        lines.append(_command("error", f"{formatting.row_name(row)} is worse", f"{row.sentence}{causes}", file, line))
    if len(worse) > MAX_ANNOTATIONS:
        lines.append(_command("error", "and more", f"{len(worse) - MAX_ANNOTATIONS} more are worse"))
    if result.outcome in ("inconclusive", "infrastructure"):
        lines.append(_command("warning", result.verdict[0], result.verdict[1]))
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, title: str, message: str, file: str = "", line: int = 0) -> str:
    def data(value: str) -> str:
        # what ends a command or starts another must not come from a name
        return visible(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    given = [("file", file), ("line", str(line) if line else ""), ("title", title)]
    properties = [f"{name}={data(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in given if value]
    return f"::{level} {','.join(properties)}::{data(message)}"


def _place(result: GateResult, row: MetricRow) -> tuple[str, int]:
    """Return file and line that a row is about, as far as they are known; ``("", 0)`` else.

    A benchmark named like a test (``tests/bench.py::test_step``) names its file; a culprit's
    finding names a line.
    """
    places = [culprit.place for culprit in result.culprits if culprit.benchmark == row.benchmark]
    for name in (*places, row.benchmark):
        if match := _FILE.match(name):
            return match[1].replace("\\", "/"), int(match[2] or 0)
    return "", 0


# -- a check -----------------------------------------------------------------------------------


def _check(result: GateResult) -> Iterator[b.Block]:
    many = len({row.benchmark for row in result.rows}) > 1
    word, style = _OUTCOME.get(
        result.outcome, ("undecided" if result.outcome == "inconclusive" else "no verdict", "bold yellow")
    )
    sides = [(label, side) for label, side in (("before", result.before), ("after", result.after)) if side is not None]
    benchmark = [("benchmark", result.rows[0].benchmark)] if result.rows and not many else []
    about = [*benchmark, *((label, _side(side)) for label, side in sides)]
    machine = [("machine", _machine(result.after))] if result.after is not None else []
    facts = [
        *about,
        *machine,
        *([("host", _host([side for _, side in sides]))] if result.after is not None else ()),
        ("sessions", "in alternation, compared in pairs" if result.design == "interleaved" else "stored samples"),
        ("false alarms", f"at most {formatting.short(result.alpha)} of checks, all rows together"),
    ]
    yield b.Head("torchtriage gate", result.verdict, (style, ""), facts, (word, result.outcome))
    known = machine if result.after is not None and result.after.machine else []
    yield b.Rows([b.Row(label, b.dim(line)) for label, line in (*about, *known)], on=b.TERMINAL)

    well = [row for row in result.rows if row.verdict in ("same", "improvement")]
    others = [row for row in result.rows if row.verdict not in ("same", "improvement")]
    loud = [row for row in others if row.decides or row.verdict == "regression"]
    quiet = [row for row in others if not (row.decides or row.verdict == "regression")]

    def name(row: MetricRow) -> str:
        return formatting.row_name(row, with_benchmark=many)

    yield from (_loud(row, name(row)) for row in loud[:N_LOUD])
    if len(loud) > N_LOUD:
        yield b.Lines([b.dim(f"{len(loud) - N_LOUD} more are in the JSON")], on=b.TERMINAL)
    rows = [
        b.Row(_WORDS[row.verdict][0], (f"{name(row)}: ", b.dim(row.sentence)), _WORDS[row.verdict][1])
        for row in well[:N_WELL]
    ]
    if len(well) > N_WELL:
        rows.append(b.Row("", b.dim(f"{format_count(len(well) - N_WELL, 'more row')} not worse")))
    yield b.Rows(rows, on=b.TERMINAL)
    yield _markdown_table(loud, many)
    if well:
        yield b.Folded(f"{format_count(len(well), 'row')} not worse", [_markdown_table(well, many)], on=b.MARKDOWN)
    if quiet:
        names = list(dict.fromkeys(map(name, quiet)))
        listed = "; ".join(names[:4]) + (f"; {len(names) - 4} more" if len(names) > 4 else "")
        yield b.Rows([b.Row("watched", b.dim(f"no verdict on {listed}"))], on=b.TERMINAL)
        yield b.Foot(f"watched, no verdict: {listed}")
    for culprit in result.culprits:
        yield from _culprit(culprit)
    ordered = [*loud, *well, *quiet]
    yield b.Markup("".join(_forest(ordered[:N_ROWS], len(ordered) - N_ROWS, many=many)), on=b.PAGE)
    yield b.Markup(
        "".join(_pictures([row for row in ordered if row.before and row.after][:N_PICTURES], many=many)), on=b.PAGE
    )
    yield b.Notes(result.notes)
    tests = [f"{name(row)}: {_classic(row)}" for row in result.rows if _classic(row)]
    if tests:
        why = (
            "These do not decide the verdict: from one value per process, they ignore pairs, drift of the machine, and"
            " how small a change is."
        )
        parts = [b.Lines([why]), b.Lines(tests[:N_IN_MARKDOWN], bullets=True)]
        yield b.Folded("Welch, Mann-Whitney and Cohen's d", parts, on=b.MARKDOWN)
    yield b.Foot(", ".join([*(f"{label} {_side(side)}" for label, side in sides), f"torchtriage {result.version}"]))


def _loud(row: MetricRow, name: str) -> b.Block:
    label, style, _ = _WORDS[row.verdict]
    rows = b.Rows([b.Row(label, b.bold(name), style), b.Row("", row.sentence)])
    tests = [b.Row("", b.dim(f"not used: {_classic(row)}"))] if _classic(row) else []
    return b.Section("", [rows, b.Code(_bar(row), tight=True), b.Rows(tests, tight=True)], on=b.TERMINAL)


def _culprit(culprit: Culprit) -> Iterator[b.Block]:
    lines = [*culprit.causes, *(f"new: {line}" for line in culprit.came)]
    differs = culprit.before != culprit.after
    compare = f"torchtriage compare {culprit.before} {culprit.after}" if differs else ""
    texts: list[b.Text] = [b.bold(f"{culprit.benchmark}: {culprit.sentence}"), *lines]
    if compare:
        texts.append(b.Span(compare, "green"))
    command = b.Lines([b.code(compare)] if compare else [])
    parts = [b.Lines([culprit.sentence]), b.Lines(lines, bullets=True), command]
    title = ("What changed in ", b.code(culprit.benchmark))
    yield b.Rows(b.labelled("culprit", texts), on=b.TERMINAL)
    yield b.Entry(title, parts, kind="culprit", on=b.MARKDOWN + b.PAGE)


def _bar(row: MetricRow) -> list[tuple[str, str]]:
    if row.low is None or row.high is None or row.ratio is None:
        return []
    limit = row.max_regress if row.better == "lower" else -row.max_regress
    low, high = row.low - 1, row.high - 1
    span = 1.1 * max(abs(end) for end in (low, high, limit))
    if span <= 0 or span > 3:
        return []

    def at(share: float) -> int:
        return round((share / span + 1) / 2 * (CELLS - 1))

    cells = ["·"] * CELLS
    cells[at(0)] = "|"
    cells[at(limit)] = ":"
    cells[at(low) : at(high) + 1] = "─" * (at(high) + 1 - at(low))
    cells[at(row.ratio - 1)] = "█"
    head, mark = f"{'':{at(0)}}0", formatting.change(1 + limit)
    if limit > 0:
        head += f"{mark:>{max(at(limit) - at(0), len(mark) + 1)}}"
    return [("".join(cells), _WORDS[row.verdict][1]), (head, "dim")]


def _markdown_table(rows: Sequence[MetricRow], many: bool) -> b.Table:
    cells = []
    for row in rows:
        label, _, mark = _WORDS[row.verdict]
        before, after = (
            formatting.amount(side.value, row.unit) if side is not None else "" for side in (row.before, row.after)
        )
        change = formatting.change(row.ratio) if row.ratio is not None else ""
        interval = formatting.interval(row.low, row.high) if row.low is not None and row.high is not None else ""
        last = "" if row.verdict in ("regression", "same", "improvement") else row.sentence
        name = formatting.row_name(row, with_benchmark=many)
        cells.append((f"{mark} {label}", name, before, after, change, interval, last))
    columns = ("", "metric", "before", "after", "change", "interval", "")
    return b.Table(columns, cells, align="llrrrll", limit=N_IN_MARKDOWN, on=b.MARKDOWN)


def _side(side: Side) -> str:
    parts = [side.label]
    commits = [commit[:10] for commit in side.commits if commit[:4] not in side.label]
    if commits:
        parts.append(commits[0] if len(commits) == 1 else format_count(len(commits), "commit"))
    if side.n_runs > 1:
        parts.append(format_count(side.n_runs, "run"))
    if side.recorded_to_s > 0:
        parts.append(datetime.fromtimestamp(side.recorded_to_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    return ", ".join(parts)


def _machine(side: Side) -> str:
    machine = dict(side.machine)
    parts = [machine[name] for name in ("cpu", "gpu", "os") if machine.get(name)]
    if machine.get("cores"):
        parts.insert(1, f"{machine['cores']} cores")
    return ", ".join(parts) if parts else f"fingerprint {side.fingerprint}"


def _host(sides: Sequence[Side]) -> str:
    state = "noisy" if any(side.host.noisy for side in sides) else "no sign of noise"
    off_cpu = [side.host.off_cpu for side in sides if side.host.off_cpu is not None]
    return f"{state}, {format_share(max(off_cpu))} of the time off the CPU" if off_cpu else state


def _classic(row: MetricRow) -> str:
    tests = row.classic
    if tests is None:
        return ""
    parts = [
        f"{name} {f'{p:.2g}' if p >= 0.001 else '< 0.001'}"
        for name, p in (("Welch's p", tests.welch_p), ("Mann-Whitney p", tests.mann_whitney_p))
        if p is not None
    ]
    return ", ".join([*parts, *([f"Cohen's d {tests.cohen_d:.2f}"] if tests.cohen_d is not None else ())])


# -- along commits -----------------------------------------------------------------------------


def _history(result: HistoryResult) -> Iterator[b.Block]:
    worse = any(change.worse for track in result.tracks for change in track.changes)
    yield b.Head("torchtriage gate history", result.verdict, ("bold red" if worse else "bold", ""))
    changed = [track for track in result.tracks if track.changes]
    level = [track for track in result.tracks if not track.changes]
    for track in changed:
        changes = []
        for change in track.changes:
            word, style = ("worse", "bold red") if change.worse else ("better", "green")
            changes.append(b.Row(word, formatting.change_point(track, change), style))
        title = (b.bold(formatting.row_name(track)), b.dim(f"  {_range(track)}"))
        yield b.Entry(title, [b.Code(_sparks(track), indent=0), b.Rows(changes, indent=0)], indent=2, on=b.TERMINAL)
    rows = []
    for track in level[:N_WELL]:
        line = (f"{formatting.row_name(track)}: ", b.dim(track.refused or _range(track)))
        rows.append(b.Row("refused" if track.refused else "level", line))
    if len(level) > N_WELL:
        rows.append(b.Row("", b.dim(f"{format_count(len(level) - N_WELL, 'more')} without a change")))
    yield b.Rows(rows, on=b.TERMINAL)
    cells = [
        ("🔴" if change.worse else "🟢", formatting.row_name(track), formatting.change_point(track, change))
        for track in result.tracks
        for change in track.changes
    ]
    yield b.Table(("", "metric", "change of level"), cells, align="lll", limit=N_IN_MARKDOWN, on=b.MARKDOWN)
    ordered = [*changed, *level]
    parts: list[b.Block] = [b.Markup("".join(map(_track, ordered[:N_TRACKS])))]
    if len(ordered) > N_TRACKS:
        parts.append(b.Lines([f"{format_count(len(ordered) - N_TRACKS, 'more track')} in the JSON."], kind="more"))
    sub = (
        "One dot is one commit, in order; the line is the level between changes, dashed where it changes. Axes do not"
        " begin at zero."
    )
    yield b.Section("Commit by commit", parts, sub, on=b.PAGE)
    yield b.Notes(result.notes)
    yield b.Foot(f"torchtriage {result.version}")


def _range(track: Track) -> str:
    values = [point.value for point in track.points]
    low, high = (formatting.amount(value, track.unit) for value in (min(values), max(values)))
    return f"{format_count(len(values), 'commit')}, {low} … {high}"


def _sparks(track: Track) -> list[tuple[str, str]]:
    values = [point.value for point in track.points]
    step = -(-len(values) // SPARKS)
    parts = [values[begin : begin + step] for begin in range(0, len(values), step)]
    means = [sum(part) / len(part) for part in parts]
    marks = [" "] * len(means)
    for change in track.changes:
        marks[change.index // step] = "^"
    return [(b.bars(means, min(means)), ""), ("".join(marks), "")]


# -- the pictures of a page ----------------------------------------------------------------------


def _forest(rows: Sequence[MetricRow], n_hidden: int, *, many: bool) -> Iterator[str]:
    if not rows:
        return
    reach = [MIN_SPAN, *(row.max_regress for row in rows)]
    reach += [abs(end - 1) for row in rows for end in (row.low, row.high, row.ratio) if end is not None]
    span = min(1.08 * max(reach), MAX_SPAN)
    yield (
        '<section><h2>Changes</h2><p class="sub">After over before with the interval that decides; dashed, the smallest'
        " change that matters. Right is more, not always worse."
        '</p><ol class="forest"><li class="scale" aria-hidden="true"><span class="axis">'
        f"<span>{formatting.change(1 - span)}</span><span>no change</span>"
        f"<span>{formatting.change(1 + span)}</span></span></li>"
    )
    for row in rows:
        delta = formatting.change(row.ratio) if row.ratio is not None else ""
        name = formatting.row_name(row, with_benchmark=many)
        tag = "" if row.decides else '<span class="tag">watched</span>'
        yield (
            f'<li><span class="name"><span class="mark {row.verdict}">{_WORDS[row.verdict][0]}'
            f'</span>{text(name)}{tag}</span><span class="delta">{text(delta)}</span>'
            f'{_whisker(row, span)}<p class="what">{text(row.sentence)}</p></li>'
        )
    more = f'<p class="more">{format_count(n_hidden, "more row")} in the JSON.</p>' if n_hidden > 0 else ""
    yield f"</ol>{more}</section>"


def _whisker(row: MetricRow, span: float) -> str:
    limit = row.max_regress if row.better == "lower" else -row.max_regress
    known = row.low is not None and row.high is not None
    return whisker(
        "whisker",
        f"{formatting.row_name(row)}: {row.sentence}",
        row.verdict,
        limit=limit / span if limit else None,
        low=((row.low or 0.0) - 1) / span if known else None,
        high=((row.high or 0.0) - 1) / span,
        centre=(row.ratio - 1) / span if row.ratio is not None else None,
    )


def _pictures(rows: Sequence[MetricRow], *, many: bool) -> Iterator[str]:
    if rows:
        yield (
            '<section><h2>Sessions</h2><p class="sub">One dot is one fresh process, in the order they ran; dashed, the'
            ' median of each side. Axes do not begin at zero.</p><p class="keys"><span><i class="before"></i>before'
            '</span><span><i class="after"></i>after</span></p>'
        )
        yield from (_sessions(row, many=many) for row in rows)
        yield "</section>"


def _sessions(row: MetricRow, *, many: bool) -> str:
    assert row.before is not None
    assert row.after is not None
    sides = {"before": row.before.sessions, "after": row.after.sessions}
    low, high = _ends([value for side in sides.values() for value in side])
    n = max(map(len, sides.values()))

    def x(place: int, side: str) -> float:
        # one side stands a little to the right of the other
        return round((place + (0.35 if side == "before" else 0.65)) * WIDE / n, 1)

    def y(value: float) -> float:
        return round((high - value) / (high - low) * HIGH, 1)

    parts = []
    if row.paired:
        pairs = zip(sides["before"], sides["after"], strict=False)
        parts += [
            svg_line(x(i, "before"), y(before), x(i, "after"), y(after), "pair")
            for i, (before, after) in enumerate(pairs)
        ]
    parts += [
        svg_line(0, y(median(values)), WIDE, y(median(values)), f"middle {side}") for side, values in sides.items()
    ]
    for side, values in sides.items():
        for i, value in enumerate(values):
            title = f"{side}, {i + 1}: {formatting.amount(value, row.unit)}"
            parts.append(svg_line(x(i, side), y(value), x(i, side), y(value), f"dot {side}", title))
    classic = f'<p class="classic">Not used for the verdict: {text(_classic(row))}</p>' if _classic(row) else ""
    per = "pair" if row.paired else "session"
    picture = svg(parts, "dots", f"{formatting.row_name(row)}, by session")
    plot = _plot(picture, formatting.amount(high, row.unit), formatting.amount(low, row.unit), f"{per} 1", f"{per} {n}")
    name = formatting.row_name(row, with_benchmark=many)
    return f'<div class="card"><h3>{text(name)}</h3><p>{text(row.sentence)}</p>{classic}{plot}</div>'


def _track(track: Track) -> str:
    values = [point.value for point in track.points]
    low, high = _ends(values)
    n = len(values)

    def x(place: float) -> float:
        return round((place + 0.5) * WIDE / n, 1)

    def y(value: float) -> float:
        return round((high - value) / (high - low) * HIGH, 1)

    corners = " ".join(f"{x(i)},{y(value)}" for i, value in enumerate(values))
    parts = [f'<polyline class="curve" points="{corners}"/>']
    for begin, end in pairwise([0, *(change.index for change in track.changes), n]):
        if track.changes and end > begin:
            level = y(median(values[begin:end]))
            parts.append(svg_line(x(begin - 0.5), level, x(end - 0.5), level, "level"))
    items = []
    for change in track.changes:
        place, sentence = x(change.index - 0.5), formatting.change_point(track, change)
        parts.append(svg_line(place, 0, place, HIGH, "change worse" if change.worse else "change", sentence))
        word = "worse" if change.worse else "better"
        items.append(f'<li><b class="{word}">{word}</b> {text(sentence)}</li>')
    for i, point in enumerate(track.points):
        title = f"{formatting.commit(point.commit)}: {formatting.amount(point.value, track.unit)}"
        parts.append(svg_line(x(i), y(point.value), x(i), y(point.value), "point", title))
    why = f"Not analysed: {text(track.refused)}" if track.refused else "" if track.changes else "No change."
    plot = _plot(
        svg(parts, "trail", f"{formatting.row_name(track)}, by commit"),
        formatting.amount(high, track.unit),
        formatting.amount(low, track.unit),
        formatting.commit(track.points[0].commit),
        formatting.commit(track.points[-1].commit),
    )
    return (
        f'<div class="card"><h3>{text(formatting.row_name(track))}</h3>'
        + (f'<p class="classic">{why}</p>' if why else "")
        + f'<ul class="changes">{"".join(items)}</ul>{plot}</div>'
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    beyond = (high - low) / 10 or abs(high) / 10 or 1.0
    return (max(low - beyond, 0.0) if low >= 0 else low - beyond), high + beyond


def _plot(picture: str, top: str, bottom: str, first: str, last: str) -> str:
    return (
        f'<div class="plot"><div class="scale"><span>{text(top)}</span><span>{text(bottom)}</span></div>{picture}'
        f'<div class="below"><span>{text(first)}</span><span>{text(last)}</span></div></div>'
    )
