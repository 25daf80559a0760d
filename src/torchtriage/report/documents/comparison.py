"""A comparison of two runs: the verdict, rows that add up to the change, a waterfall, findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtriage.core.names import elide, file_name, visible
from torchtriage.core.units import format_both_ns, format_bytes, format_change_ns, format_count, format_ns, format_range
from torchtriage.diagnose.compare.findings import STATUS_WORDS
from torchtriage.diagnose.compare.result import ChangeCause, ChangePart, ComparedRun, Comparison, FindingChange
from torchtriage.diagnose.compare.sentences import promise_saved
from torchtriage.diagnose.compare.verdict import SPLIT_WORDS
from torchtriage.report import blocks as b
from torchtriage.report.page import text
from torchtriage.report.words import event_name, judged_step, reach, saving

N_CAUSES = 12
MIN_PART = 0.1
"""Share of a cause's change below which a part is not worth a line."""
BAR = 8
INSIDE = 22
"""Where the lines about the inside of a cause begin on the terminal: names of kernels are long."""
WIDTH, LABELS, AMOUNTS = 1000, 390, 90
HEIGHT, GAP = 22, 10
_STATUS = {"went": "green", "came": "red", "unchecked": "yellow", "stayed": "dim"}


@dataclass(frozen=True)
class ChangeLine:
    """One line of the table; the changes of all lines add up to the total."""

    label: str
    before_ns: int
    after_ns: int
    significant: bool
    cause: ChangeCause | None = None
    small: tuple[ChangeCause, ...] = ()
    """The causes that a remainder is the sum of, largest change first."""

    @property
    def delta_ns(self) -> int:
        """After minus before."""
        return self.after_ns - self.before_ns


def document(result: Comparison) -> b.Document:
    """Return the report of ``torchtriage compare``."""
    sides = (("before", result.before), ("after", result.after))
    total = result.total
    color = "" if total is None or not total.told else " green" if total.delta_ns < 0 else " red"
    style = "bold red" if total is None else f"bold{color}"
    facts: list[tuple[str, b.Text]] = [
        (label, (b.bold(file_name(side.path)), "\n", _run(side))) for label, side in sides
    ]
    rows = [row for label, side in sides for row in (b.Row(label, side.path, fit=True), b.Row("", b.dim(_run(side))))]
    foot = ", ".join(f"{label} {file_name(side.path)} ({_run(side)})" for label, side in sides)
    blocks: list[b.Block] = [
        b.Head("torchtriage compare", result.verdict, (style, ""), facts, hang=0),
        b.Rows(rows, on=b.TERMINAL),
        *(_compared(result) if result.comparable else _refused(result)),
        b.Foot(f"{foot}, torchtriage {result.version}"),
    ]
    remark = "Both traces were read and the page was made locally; it contacts no server."
    title = f"{file_name(result.before.path)} against {file_name(result.after.path)}"
    return b.Document(title, result.version, result.schema, blocks, "comparison.css", remark)


def _refused(result: Comparison) -> Iterator[b.Block]:
    reasons = []
    for reason in result.reasons:
        sides = [b.Row(side, value) for side, value in (("before", reason.before), ("after", reason.after)) if value]
        first = b.Row(reason.code, reason.message, "bold red")
        reasons.append(b.Rows([first, *sides, b.Row("", (b.dim("try: "), b.Span(reason.fix, "green")))]))
    yield b.Section("Why they are not compared", reasons, on=b.TERMINAL + b.PAGE)
    fixes = [
        (b.code(reason.code), f" {reason.message}. {reason.fix[:1].upper()}{reason.fix[1:]}.")
        for reason in result.reasons
    ]
    yield b.Lines(fixes, bullets=True, on=b.MARKDOWN)


def _compared(result: Comparison) -> Iterator[b.Block]:
    total = result.total
    assert total is not None
    lines = table_lines(result)
    step = result.before.per == "step"
    per = "per step" if step else "in the window"
    yield b.Code(_terminal_table(result, lines, per), on=b.TERMINAL, indent=0, fit=True)
    sub = (
        "The mean steady step. Each bar is one cause; together they are the whole change. Pale bars are within the"
        " noise."
        if step
        else "One window each. Each bar is one cause; together they are the whole change. Pale bars are too small to be"
        " significant."
    )
    yield b.Section(
        "From before to after", [b.Markup(_waterfall(lines, total.before_ns, total.after_ns))], sub, on=b.PAGE
    )
    whole = ChangeLine("all causes together", total.before_ns, total.after_ns, significant=True)
    kinds = ["pale" if not line.significant else "less" if line.delta_ns < 0 else "more" for line in lines]
    cells = [*map(_cells, lines), tuple(map(b.bold, _amounts(whole)))]
    columns = (f"change {per}", "before", "after", "cause")
    table = b.Table(columns, cells, align="rrrl", kind="causes", kinds=[*kinds, "sum"])
    yield b.Section("Causes", [table], on=b.MARKDOWN + b.PAGE)
    yield from _split(result)
    yield from _ranks(result)
    yield from _findings(result)
    yield b.Notes(result.limits, label="limit", title="Limits")


def _split(result: Comparison) -> Iterator[b.Block]:
    rows = [
        _amounts(ChangeLine(SPLIT_WORDS[name], change.before_ns, change.after_ns, significant=change.told))
        for name, change in result.split.items()
    ]
    if rows:
        table = b.Table(("change", "before", "after", "part"), rows, align="rrrl")
        yield b.Section("From one device to the other", [table])


def _ranks(result: Comparison) -> Iterator[b.Block]:
    rows = [
        _amounts(ChangeLine(f"rank {item.rank}", item.change.before_ns, item.change.after_ns, item.change.told))
        for item in result.ranks
    ]
    if rows:
        table = b.Table(("change", "before", "after", "rank"), rows, align="rrrl")
        yield b.Section("Rank by rank", [table], "The mean steady step of each rank; the figures above are their mean.")


def _findings(result: Comparison) -> Iterator[b.Block]:
    promise = result.promise
    yield changes(result.findings, on=b.TERMINAL)
    if promise is not None:
        low, high = format_ns(promise.low_ms * 1e6), format_ns(promise.high_ms * 1e6)
        amount = format_range(low, high, from_zero=promise.low_ms <= 0)
        held = b.Span(promise_saved(promise), "green" if promise.holds_within_noise else "yellow")
        row = b.Row("promise", (f"{', '.join(promise.codes)} promised ", b.bold(amount), ", ", held))
        yield b.Rows([row], on=b.TERMINAL + b.PAGE)
    rows = []
    for change in result.findings:
        what = (b.code(change.code), f" {change.title}", "\n", b.dim(change.place))
        rows.append((STATUS_WORDS[change.status], what, _cost(change)))
    kinds = [change.status for change in result.findings]
    table = b.Table(("", "finding", "cost"), rows, align="lll", kinds=kinds)
    yield b.Section("Findings", [table], on=b.MARKDOWN + b.PAGE)


def changes(findings: Sequence[FindingChange], on: str = b.TERMINAL + b.MARKDOWN + b.PAGE) -> b.Rows:
    """Return the findings that are gone, new and still there."""
    rows = []
    for change in findings:
        place = elide(f" at {visible(change.place)}", 60) if change.place else ""
        text = (b.bold(f"{change.code} "), f"{change.title}{place}: ", b.dim(_cost(change)))
        rows.append(b.Row(STATUS_WORDS[change.status], text, _STATUS[change.status]))
    return b.Rows(rows, on=on)


# -- what the lines say ----------------------------------------------------------------------------


def table_lines(result: Comparison, limit: int = N_CAUSES) -> tuple[ChangeLine, ...]:
    """Return the causes that are told apart, then one line for each kind of remainder."""
    large = [cause for cause in result.causes if cause.change.told]
    lines = [
        ChangeLine(visible(cause.label), cause.change.before_ns, cause.change.after_ns, significant=True, cause=cause)
        for cause in large[:limit]
    ]
    more = large[limit:]
    small = [cause for cause in result.causes if not cause.change.told]
    if more:
        lines.append(_sum(format_count(len(more), "more cause"), more, significant=True))
    if small:
        lines.append(_sum(f"{format_count(len(small), 'cause')} within the noise", small, significant=False))
    return tuple(lines)


def _sum(label: str, causes: Sequence[ChangeCause], *, significant: bool) -> ChangeLine:
    before_ns = sum(cause.change.before_ns for cause in causes)
    return ChangeLine(
        label, before_ns, sum(cause.change.after_ns for cause in causes), significant, small=tuple(causes)
    )


def _inside(line: ChangeLine, limit: int = 3) -> tuple[str, ...]:
    cause, least_ns = line.cause, MIN_PART * abs(line.delta_ns)
    if cause is None:
        moved = [small for small in line.small if abs(small.change.delta_ns) >= max(least_ns, 1)]
        return tuple(f"{visible(small.label)} {format_change_ns(small.change.delta_ns)}" for small in moved[:limit])
    if len(cause.parts) == 1 or cause.change.delta_ns == 0:
        return ()
    least_ns = MIN_PART * abs(cause.change.delta_ns)
    return tuple(_part(part) for part in cause.parts if abs(part.after_ns - part.before_ns) >= least_ns)[:limit]


def _part(part: ChangePart) -> str:
    before, after, unit = format_both_ns(part.before_ns, part.after_ns)
    name = event_name(part.name)
    if not part.before_ns:
        return f"{name} new, {after} {unit}"
    return f"{name} {before} to {after} {unit}" if part.after_ns else f"{name} gone, {before} {unit}"


def _run(side: ComparedRun) -> str:
    parts = [side.device] if side.device else []
    parts += [format_bytes(side.size_bytes), format_count(side.n_events, "event")]
    if side.n_steps and side.per == "step":
        parts.append(f"{format_count(side.n_steps, judged_step(side.selection))} of {format_ns(side.mean_ns)}")
    elif side.n_steps:
        parts.append(f"a window of {format_ns(side.mean_ns)}")
    if side.selection:
        parts.append(f"selected: {side.selection}")
    return ", ".join(parts)


def _cost(change: FindingChange) -> str:
    if change.status == "stayed" and change.before and change.after:
        return f"{reach(change.before)} before, {reach(change.after)} after"
    known = (change.before if change.status == "went" else change.after) or change.before or change.after
    cost = saving(known) if known is not None and known.high_ms > 0 else "not costed"
    if change.status == "unchecked":
        cost += f"; not checked in the run {'before' if change.before is None else 'after'}"
    return cost


def _amounts(line: ChangeLine) -> tuple[str, str, str, str]:
    before, after, unit = format_both_ns(line.before_ns, line.after_ns)
    return format_change_ns(line.delta_ns), f"{before} {unit}", f"{after} {unit}", line.label


def _cells(line: ChangeLine) -> tuple[b.Text, ...]:
    change, before, after, label = _amounts(line)
    interval: tuple[str | b.Span, ...] = ()
    if line.cause is not None and line.cause.change.low_ns is not None:
        low, high = line.cause.change.low_ns, line.cause.change.high_ns or 0
        interval = ("\n", b.dim(f"99 %: {format_change_ns(low)} to {format_change_ns(high)}"))
    inside = "; ".join(_inside(line))
    parts = ("\n", b.dim(inside)) if inside else ()
    return (b.Span(change, "bold" if line.significant else ""), *interval), before, after, (label, *parts)


# -- the table on the terminal ---------------------------------------------------------------------


def _terminal_table(result: Comparison, lines: Sequence[ChangeLine], per: str) -> list[tuple[str, str]]:
    total = result.total
    assert total is not None
    what = "mean steady step" if result.before.per == "step" else "the window"
    label = f"{what}, {format_count(len(result.causes), 'cause')}"
    whole = ChangeLine(label, total.before_ns, total.after_ns, significant=True)
    largest = max([abs(line.delta_ns) for line in lines] + [abs(total.delta_ns), 1])

    def row(line: ChangeLine) -> tuple[str, str]:
        before, after, unit = format_both_ns(line.before_ns, line.after_ns)
        cells = max(round(abs(line.delta_ns) / largest * BAR), int(line.delta_ns != 0))
        bar = ("█" if line.significant else "·") * cells
        change = format_change_ns(line.delta_ns)
        style = "dim" if not line.significant else "green" if line.delta_ns < 0 else "red" if line.delta_ns > 0 else ""
        return f"{change:>9}  {bar:{BAR}}  {before:>7} {after:>7} {unit:2}   {line.label}", style

    rows = [(f"{'change':>9}  {'':{BAR}}  {'before':>7} {'after':>7}      {per}", "dim")]
    for line in lines:
        rows.append(row(line))
        rows += [(f"{'':{INSIDE}}{part}", "dim") for part in _inside(line)]
    return [*rows, ("─", "dim"), row(whole)]


# -- the page ------------------------------------------------------------------------------------


def _waterfall(lines: Sequence[ChangeLine], before_ns: int, after_ns: int) -> str:
    """Return bars that lead from the step before to the step after, so that the eye can add up."""
    levels = [before_ns]
    for line in lines:
        levels.append(levels[-1] + line.delta_ns)
    # from zero: a cut axis would make any change look large
    scale = (WIDTH - LABELS - AMOUNTS) / max(*levels, 1)
    bars: list[str] = []

    def bar(place: int, kind: str, low: float, high: float, label: str, amount: str) -> None:
        y = place * (HEIGHT + GAP)
        x, width = LABELS + low * scale, max((high - low) * scale, 1.5)
        bars.append(
            f'<text class="what" x="{LABELS - 12}" y="{y + HEIGHT - 6}">{label}</text>'
            f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}"/>'
            f'<text class="amount" x="{x + width + 8:.1f}" y="{y + HEIGHT - 6}">{amount}</text>'
        )

    bar(0, "whole", 0, before_ns, "before", format_ns(before_ns))
    for place, line in enumerate(lines, 1):
        low, high = sorted(levels[place - 1 : place + 1])
        x, y = LABELS + levels[place - 1] * scale, place * (HEIGHT + GAP)
        bars.append(f'<path class="step-line" d="M{x:.1f} {y - GAP}V{y + HEIGHT}"/>')
        kind = ("less" if line.delta_ns <= 0 else "more") + ("" if line.significant else " pale")
        bar(place, kind, low, high, text(elide(line.label, 54)), format_change_ns(line.delta_ns))
    bar(len(lines) + 1, "whole", 0, after_ns, "after", format_ns(after_ns))
    height = (len(lines) + 2) * (HEIGHT + GAP)
    label = text("; ".join(f"{line.label} {format_change_ns(line.delta_ns)}" for line in lines))
    return (
        f'<div class="scroll"><svg class="waterfall" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f"{''.join(bars)}</svg></div>"
    )
