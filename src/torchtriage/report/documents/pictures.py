"""Where time went as bars: of a device, of ranks, of steps, and of a script's lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtriage.core.names import file_name, visible
from torchtriage.core.trace.producer import ACCELERATORS
from torchtriage.core.units import format_count, format_ms, format_ns, format_range, format_share
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.runs.result import AccountLine, AccountPart, RunAccount, StepAccount
from torchtriage.diagnose.verdict.result import DeviceSummary
from torchtriage.report import blocks as b
from torchtriage.report import words

BAR = 40
RANK_BAR = 24
MIN_ACCOUNT_SHARE = 0.005
MIN_RUN_SHARE = 0.05
MUCH_OF_RUN = 0.25

_RANK_MARKS = {
    "compute_ns": ("█", "green"),
    "comm_ns": ("▓", "blue"),
    "wait_ns": ("░", "red"),
    "copy_ns": ("▒", "magenta"),
    "idle_ns": ("·", "yellow"),
}
# Time of a device by class: field, word, mark, colour. The marks differ without colour too.
_BUSY = (
    ("compute_ns", "compute", "█", "green"),
    ("comm_only_ns", "communication", "▓", "blue"),
    ("copy_only_ns", "copies", "▒", "magenta"),
)
_IDLE = (
    ("idle_host_late_ns", "host late", "·", "red"),
    ("idle_queued_ns", "queued", "·", "yellow"),
    ("idle_unknown_ns", "cause unknown", "·", "bright_black"),
)
_ACCOUNT_MARKS = {
    "operators": ("█", "green"),
    "Python": ("▓", "red"),
    "files": ("▒", "yellow"),
    "compilation": ("▒", "magenta"),
    "the loop": ("█", "green"),
}
_OTHER_MARK = ("░", "blue")


def label(summary: DeviceSummary, vendor: str) -> str:
    """Return what a device is called: ``GPU 0``."""
    return f"{ACCELERATORS.get(vendor, 'GPU')} {summary.device}"


def device(summary: DeviceSummary, vendor: str, over: str = "") -> b.Rows:
    """Return how a device's time is spent; without ``over``, what it is given over, no numbers."""
    name = label(summary, vendor)
    if summary.classes is None:
        return b.Rows(b.labelled(name, [b.dim("busy and idle time not known")]), on=b.TERMINAL)
    wall_ns = summary.classes.wall_ns
    if wall_ns <= 0:
        return b.Rows([])
    shares = {field: int(getattr(summary.classes, field)) / wall_ns for field, *_ in _BUSY + _IDLE}
    bar = b.share_bar([(shares[field], mark, style) for field, _, mark, style in _BUSY + _IDLE], BAR)
    if not over:
        drawn = "".join(span.text for span in bar)
        legend = [(b.Span(f"  {mark} ", style), word) for _, word, mark, style in _BUSY if mark in drawn]
        legend += [(b.Span("  · ", "red"), "idle")] * ("·" in drawn)
        return b.Rows([b.Row(name, (*bar, *(span for pair in legend for span in pair)))], on=b.TERMINAL)
    busy = [
        span
        for field, word, mark, style in _BUSY
        if shares[field] or field == "compute_ns"
        for span in (b.Span(f"{mark} ", style), b.Span(f"{word} {format_share(shares[field])}  "))
    ]
    causes = ", ".join(f"{word} {format_share(shares[field])}" for field, word, *_ in _IDLE if shares[field])
    idle = f"idle {format_share(sum(shares[field] for field, *_ in _IDLE))}{': ' if causes else ''}{causes}"
    texts = [(*bar, b.dim(f" {format_ns(wall_ns)} {over}")), tuple(busy), (b.Span("· ", "red"), idle)]
    return b.Rows(b.labelled(name, texts), on=b.TERMINAL)


def steps(walls: Sequence[int]) -> b.Rows:
    """Return the steps' times as bars."""
    reach = format_range(format_ns(min(walls)), format_ns(max(walls)), from_zero=False)
    more = f", the first {BAR} of {len(walls):,}" if len(walls) > BAR else ""
    return b.Rows([b.Row("steps", (b.Span(b.bars(walls[:BAR]), "green"), f" {reach}", b.dim(more)))], on=b.TERMINAL)


def ranks(job: JobResult, limit: int, *, shares: bool = True) -> b.Rows:
    """Return a bar for each rank: those that make others wait first, then those that wait most."""
    longest = max(max(rank.wall_ns for rank in job.ranks), 1)
    shown = sorted(job.ranks, key=lambda rank: (-rank.caused_wait_ns, -rank.wait_ns, rank.rank))[:limit]
    rows = []
    for rank in sorted(shown, key=lambda rank: rank.rank):
        parts = [(int(getattr(rank, field)) / longest, *mark) for field, mark in _RANK_MARKS.items()]
        bar = b.share_bar(parts, RANK_BAR)
        pad = " " * (RANK_BAR - sum(len(span.text) for span in bar))
        rows.append(b.Row(f"rank {rank.rank}", (*bar, f"{pad} {words.rank_line(rank)}")))
    if hidden := len(job.ranks) - len(shown):
        rows.append(b.Row("", b.dim(f"{format_count(hidden, 'more rank')} not shown")))
    legend = [
        span
        for field, word, share in words.rank_parts(job)
        for mark, style in [_RANK_MARKS[field]]
        for span in (b.Span(f"{mark} ", style), f"{word} {format_share(share)}  " if shares else f"{word}  ")
    ]
    return b.Rows([*rows, b.Row("", tuple(legend))], on=b.TERMINAL)


def account(account: StepAccount, limit: int) -> Iterator[b.Block]:
    """Yield where a step's time goes: by kind, then at most ``limit`` of the user's lines."""
    what = f"{format_ms(account.of_ms)} per {account.per}"
    steps = f"{format_count(account.n_steps, 'step')}, " if account.n_steps else ""
    rests = f"  {steps}{format_count(account.n_looks, 'stack sample')}"
    yield b.Rows(
        b.labelled(account.per, [(*_account_bar(account), f" {what}", b.dim(rests)), _account_parts(account.parts)]),
        indent=0,
    )
    yield b.Rows(b.labelled("body", _spelled(_worth(account.body, limit))), indent=0, tight=True)
    yield b.Rows(b.labelled("lines", _spelled(_worth(account.lines, limit))), indent=0, tight=True)
    yield b.Rows(b.labelled("gradients", _spelled(_worth(account.gradients, limit))), indent=0, tight=True)


def run_account(run: RunAccount, limit: int) -> Iterator[b.Block]:
    """Yield where a run's time goes: by kind, then at most ``limit`` of the user's lines outside the loop."""
    yield b.Rows([b.Row("run", (f"{format_ms(run.of_ms)}: ", _account_parts(run.parts)))], indent=0)
    yield b.Rows(b.labelled("", _spelled(_worth(run.lines, limit, MIN_RUN_SHARE))), indent=0, tight=True)


def account_in_brief(account: StepAccount, run: RunAccount | None, limit: int) -> list[b.Row]:
    """Return the same in two rows, and a third where much of the run is outside the loop: what most of that is."""
    rows = [b.Row(account.per, (*_account_bar(account), f"  {_account_parts(account.parts)}"))]
    if body := _worth(account.body, limit):
        rows.append(b.Row("body", _in_a_row(body)))
    if lines := _worth(account.lines, limit):
        rows.append(b.Row("lines", _in_a_row(lines)))
    if gradients := _worth(account.gradients, limit):
        rows.append(b.Row("gradients", _in_a_row(gradients)))
    if run is not None:
        beside = sorted((part for part in run.parts if part.kind != "the loop"), key=lambda part: -part.share)
        share = sum(part.share for part in beside)
        if share >= MUCH_OF_RUN:
            most = _account_parts([part for part in beside if part.share >= MUCH_OF_RUN] or beside[:1])
            # without shares: a line may take parts of several kinds
            at = f" (at {', '.join(map(_line, lines))})" if (lines := _worth(run.lines, limit, MUCH_OF_RUN)) else ""
            rows.append(
                b.Row("run", f"{format_ms(run.of_ms)}, {format_share(share)} of it outside the loop: {most}{at}")
            )
    return rows


def _account_bar(account: StepAccount) -> list[b.Span]:
    return b.share_bar(((part.share, *_ACCOUNT_MARKS.get(part.kind, _OTHER_MARK)) for part in account.parts), BAR)


def _worth(lines: Sequence[AccountLine], limit: int, least: float = MIN_ACCOUNT_SHARE) -> list[AccountLine]:
    return [line for line in lines if line.share >= least][:limit]


def _spelled(lines: Sequence[AccountLine]) -> list[b.Text]:
    room = max((len(format_share(line.share)) for line in lines), default=0)
    return [
        (
            b.bold(format_share(line.share).rjust(room)),
            f"  {_line(line)} in {visible(line.function)}",
            b.dim(f", {line.kind}"),
        )
        for line in lines
    ]


def _in_a_row(lines: Sequence[AccountLine]) -> str:
    return ", ".join(f"{_line(line)} {format_share(line.share)}" for line in lines)


def _line(line: AccountLine) -> str:
    return f"{visible(file_name(line.file))}:{line.line}"


def _account_parts(parts: Sequence[AccountPart]) -> str:
    return ", ".join(f"{part.kind} {format_share(part.share)}" for part in parts if part.share >= MIN_ACCOUNT_SHARE)
