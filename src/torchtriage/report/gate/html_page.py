"""A check or a history as one page that asks no server and runs no script.

Pictures are SVG written here: intervals of all rows on one axis, the sessions of the rows that want
to be read, the points of a history. Their words stand beside them as text, so that a phone does not
shrink them. Names are escaped text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from torchtriage.gate import words as told
from torchtriage.gate.result import GateResult, HistoryResult, Row, Side, Track
from torchtriage.report.gate import words
from torchtriage.report.page import document, notes, text
from torchtriage.units import format_count, format_share

__all__ = ["render"]

N_ROWS = 300
N_PICTURES = 40
N_TRACKS = 60
WIDE, HIGH = 1000.0, 100.0
LEAST_SPAN = 0.02
MOST_SPAN = 1.0
"""The axis of intervals reaches from 2 % to 100 %; what lies beyond is cut, its numbers are not."""


def render(result: GateResult | HistoryResult) -> str:
    """Return one self-contained HTML page."""
    body = _check(result) if isinstance(result, GateResult) else _history(result)
    return document(
        "gate.css",
        title=f"{result.verdict[0]} · torchtriage",
        version=result.version,
        schema=result.schema,
        note="A session is one fresh process; ratios are after over before.",
        body="\n".join(body),
    )


def _head(result: GateResult | HistoryResult, kicker: str) -> Iterator[str]:
    first, *others = result.verdict
    yield f'<header class="head"><p class="kicker">{kicker}</p><h1>{text(first)}</h1>'
    yield from (f'<p class="lede">{text(line)}</p>' for line in others)


# -- a check -----------------------------------------------------------------------------------


def _check(result: GateResult) -> Iterator[str]:
    word = {"fine": "fine", "regression": "regression", "inconclusive": "undecided"}
    said = word.get(result.outcome, "no verdict")
    yield from _head(result, f'torchtriage gate <b class="{result.outcome}">{said}</b>')
    yield '<dl class="facts">'
    for label, value in _facts(result):
        yield f"<div><dt>{label}</dt><dd>{text(value)}</dd></div>"
    yield "</dl></header>"
    for one in result.culprits:
        yield f'<div class="culprit"><h3>What changed in {text(one.benchmark)}</h3>'
        yield f"<p>{text(one.sentence)}</p><ul>"
        yield from (f"<li>{text(line)}</li>" for line in one.causes)
        yield from (f"<li>came: {text(line)}</li>" for line in one.came)
        yield "</ul>"
        if command := words.compare(one):
            yield f"<p><code>{text(command)}</code></p>"
        yield "</div>"
    loud, well, quiet = words.grouped(result.rows)
    many = words.many(result.rows)
    shown = [*loud, *well, *quiet]
    if shown:
        yield from _forest(shown[:N_ROWS], len(shown) - N_ROWS, many=many)
    pictured = [one for one in [*loud, *well, *quiet] if one.before and one.after][:N_PICTURES]
    if pictured:
        yield (
            '<section><h2>Sessions</h2><p class="sub">One dot is one fresh process, in the order'
            " they ran; dashed, the median of each side. Axes do not begin at zero.</p>"
            '<p class="keys"><span><i class="before"></i>before</span>'
            '<span><i class="after"></i>after</span></p>'
        )
        for row in pictured:
            yield from _sessions(row, many=many)
        yield "</section>"
    yield from notes(result.notes, lead="Try: ")


def _facts(result: GateResult) -> Iterator[tuple[str, str]]:
    if result.rows and not words.many(result.rows):
        yield "benchmark", result.rows[0].benchmark
    for label, side in (("before", result.before), ("after", result.after)):
        if side is not None:
            yield label, words.side(side)
    if result.after is not None:
        yield "machine", words.machine(result.after)
        yield "host", _host(result.before, result.after)
    design = "in turns, compared in pairs" if result.design == "interleaved" else "stored samples"
    yield "sessions", design
    yield "false alarms", f"at most {told.short(result.alpha)} of checks, all rows together"


def _host(*sides: Side | None) -> str:
    hosts = [one.host for one in sides if one is not None]
    state = "noisy" if any(one.noisy for one in hosts) else "no sign of noise"
    off = [one.off_cpu for one in hosts if one.off_cpu is not None]
    return f"{state}, {format_share(max(off))} of the time off the CPU" if off else state


def _forest(rows: Sequence[Row], n_hidden: int, *, many: bool) -> Iterator[str]:
    """Return every row's change and interval on one axis."""
    reach = [LEAST_SPAN]
    for row in rows:
        reach += [abs(one - 1) for one in (row.low, row.high, row.ratio) if one is not None]
        reach.append(row.max_regress)
    span = min(1.08 * max(reach), MOST_SPAN)
    yield (
        '<section><h2>Changes</h2><p class="sub">After over before with the interval that'
        " decides; dashed, the smallest change of interest. Right is more, not always worse."
        '</p><ol class="forest"><li class="scale" aria-hidden="true"><span class="axis">'
        f"<span>{told.change(1 - span)}</span><span>no change</span>"
        f"<span>{told.change(1 + span)}</span></span></li>"
    )
    for row in rows:
        delta = told.change(row.ratio) if row.ratio is not None else ""
        name = told.row_name(row, with_benchmark=many)
        kind = "" if row.decides else '<span class="tag">watched</span>'
        yield (
            f'<li><span class="name"><span class="mark {row.verdict}">{words.LABEL[row.verdict]}'
            f'</span>{text(name)}{kind}</span><span class="delta">{text(delta)}</span>'
            f'{_whisker(row, span)}<p class="what">{text(row.sentence)}</p></li>'
        )
    yield "</ol>"
    if n_hidden > 0:
        yield f'<p class="more">{format_count(n_hidden, "more row")} in the JSON.</p>'
    yield "</section>"


def _whisker(row: Row, span: float) -> str:
    def at(share: float) -> float:
        return round((max(min(share / span, 1.0), -1.0) + 1) / 2 * WIDE, 1)

    parts = [_line(WIDE / 2, 0, WIDE / 2, HIGH, "zero")]
    limit = row.max_regress if row.better == "lower" else -row.max_regress
    if limit:
        parts.append(_line(at(limit), 0, at(limit), HIGH, "limit"))
    if row.low is not None and row.high is not None:
        parts.append(
            _line(
                at(row.low - 1), HIGH / 2, at(row.high - 1), HIGH / 2, f"range-line {row.verdict}"
            )
        )
    if row.ratio is not None:
        parts.append(_line(at(row.ratio - 1), HIGH / 2, at(row.ratio - 1), HIGH / 2, "centre"))
    label = f"{told.row_name(row)}: {row.sentence}"
    return _svg(parts, "whisker", label)


def _sessions(row: Row, *, many: bool) -> Iterator[str]:
    assert row.before is not None
    assert row.after is not None
    sides = (("before", row.before.sessions), ("after", row.after.sessions))
    values = [*row.before.sessions, *row.after.sessions]
    low, high = _ends(values)
    n = max(len(row.before.sessions), len(row.after.sessions))

    def x(place: int, name: str) -> float:
        # one side stands a little to the right of the other
        return round((place + (0.35 if name == "before" else 0.65)) * WIDE / n, 1)

    def y(value: float) -> float:
        return round((high - value) / (high - low) * HIGH, 1)

    parts = []
    if row.paired:
        parts += [
            _line(x(i, "before"), y(one), x(i, "after"), y(other), "pair")
            for i, (one, other) in enumerate(zip(*(side for _, side in sides), strict=False))
        ]
    for name, side in sides:
        middle = y(_median(side))
        parts.append(_line(0, middle, WIDE, middle, f"middle {name}"))
    for name, side in sides:
        parts += [
            _line(x(i, name), y(value), x(i, name), y(value), f"dot {name}",
                  f"{name}, {i + 1}: {told.amount(value, row.unit)}")
            for i, value in enumerate(side)
        ]  # fmt: skip
    name = told.row_name(row, with_benchmark=many)
    yield f'<div class="card"><h3>{text(name)}</h3><p>{text(row.sentence)}</p>'
    if said := words.classic(row):
        yield f'<p class="classic">Not used for the verdict: {text(said)}</p>'
    per = "pair" if row.paired else "session"
    yield from _plot(
        _svg(parts, "dots", f"{told.row_name(row)}, by session"),
        told.amount(high, row.unit),
        told.amount(low, row.unit),
        f"{per} 1",
        f"{per} {n}",
    )
    yield "</div>"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return an axis around values: a tenth of their span beyond them, never empty."""
    low, high = min(values), max(values)
    beyond = (high - low) / 10 or abs(high) / 10 or 1.0
    return (max(low - beyond, 0.0) if low >= 0 else low - beyond), high + beyond


# -- along commits -----------------------------------------------------------------------------


def _history(result: HistoryResult) -> Iterator[str]:
    yield from _head(result, "torchtriage gate history")
    yield "</header><section><h2>Along the commits</h2>"
    yield (
        '<p class="sub">One dot is one commit, in order; the line is the level between changes,'
        " dashed where it changes. Axes do not begin at zero.</p>"
    )
    ordered = sorted(result.tracks, key=lambda one: not one.changes)
    for track in ordered[:N_TRACKS]:
        yield from _track(track)
    if len(ordered) > N_TRACKS:
        n_hidden = len(ordered) - N_TRACKS
        yield f'<p class="more">{format_count(n_hidden, "more track")} in the JSON.</p>'
    yield "</section>"
    yield from notes(result.notes, lead="Try: ")


def _track(track: Track) -> Iterator[str]:
    values = [one.value for one in track.points]
    low, high = _ends(values)
    n = len(values)

    def x(place: float) -> float:
        return round((place + 0.5) * WIDE / n, 1)

    def y(value: float) -> float:
        return round((high - value) / (high - low) * HIGH, 1)

    corners = " ".join(f"{x(i)},{y(value)}" for i, value in enumerate(values))
    parts = [f'<polyline class="curve" points="{corners}"/>']
    edges = [0, *(one.index for one in track.changes), n]
    for begin, end in pairwise(edges):
        if track.changes and end > begin:
            level = y(_median(values[begin:end]))
            parts.append(_line(x(begin - 0.5), level, x(end - 0.5), level, "level"))
    for one in track.changes:
        place = x(one.index - 0.5)
        kind = "change worse" if one.worse else "change"
        parts.append(_line(place, 0, place, HIGH, kind, told.change_point(track, one)))
    parts += [
        _line(x(i), y(one.value), x(i), y(one.value), "point",
              f"{told.commit(one.commit)}: {told.amount(one.value, track.unit)}")
        for i, one in enumerate(track.points)
    ]  # fmt: skip
    yield f'<div class="card"><h3>{text(told.track_name(track))}</h3>'
    if track.refused:
        yield f'<p class="classic">No change was looked for: {text(track.refused)}</p>'
    elif not track.changes:
        yield '<p class="classic">No change.</p>'
    yield '<ul class="changes">'
    for one in track.changes:
        kind, word = ("worse", "worse") if one.worse else ("better", "better")
        said = text(told.change_point(track, one))
        yield f'<li><b class="{kind}">{word}</b> {said}</li>'
    yield "</ul>"
    yield from _plot(
        _svg(parts, "trail", f"{told.track_name(track)}, by commit"),
        told.amount(high, track.unit),
        told.amount(low, track.unit),
        told.commit(track.points[0].commit),
        told.commit(track.points[-1].commit),
    )
    yield "</div>"


# -- drawing -----------------------------------------------------------------------------------


def _plot(svg: str, top: str, bottom: str, first: str, last: str) -> Iterator[str]:
    yield f'<div class="plot"><div class="scale"><span>{text(top)}</span>'
    yield f"<span>{text(bottom)}</span></div>{svg}"
    yield f'<div class="below"><span>{text(first)}</span><span>{text(last)}</span></div></div>'


def _svg(parts: Iterable[str], kind: str, label: str) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {WIDE:g} {HIGH:g}" preserveAspectRatio="none"'
        f' role="img" aria-label="{text(label)}">{"".join(parts)}</svg>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, title: str = "") -> str:
    shape = f'class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f"<line {shape}><title>{text(title)}</title></line>" if title else f"<line {shape}/>"
