"""The device's time as tables: what it goes to, in the steady steps, adding up to its busy time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtriage.core.names import elide, visible
from torchtriage.core.trace.producer import ACCELERATORS
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import DeviceTime, DeviceTimeRow, ModelFlops, Result
from torchtriage.report import blocks as b
from torchtriage.report.words import judged_step

N_CATEGORIES = 8
N_ROWS = 20
WIDTH = 100
"""Characters of a name."""
ALL_BUT = 0.99
"""Of the busy time, below which kernel time is another number."""
LEAST_SHARE = 0.005
"""Of the operations: what is less reads as 0 %."""

_UNNAMED = {
    "operator": "outside operators",
    "module": "outside modules",
    "annotation": "outside annotations",
    "line": "outside the user's code",
}
_HOW = {
    "module": "No module is recorded around a launch: that needs Python stacks.",
    "line": "No line of yours is recorded around a launch: that needs Python stacks.",
    "annotation": "No annotation is recorded around a launch: mark your code with ranges (record_function, NVTX).",
    "operator": "No operator is recorded around a launch.",
}


def tables(times: Sequence[DeviceTime], vendor: str = "", step: str = "steady step") -> Iterator[b.Block]:
    """Return the table by category, then the one that was asked for, and what their times are parts of."""
    for time in times:
        if not time.busy_ns:
            continue
        if [row.name for row in time.rows] == [""]:
            yield b.Lines([_HOW[time.by]])
            continue
        columns = (time.by, "per step" if time.per == "step" else "time", "busy", "launches", "mean", "of roof")
        roof = any(row.of_roof is not None for row in time.rows)
        rows = [row if roof else row[:-1] for row in _rows(time)]
        yield b.Table(columns[: None if roof else -1], rows, align="lrrrrr", drop=(4, 3), fit=True)
        if time is times[0]:
            yield b.Lines([b.dim(words(time, vendor, step))], tight=True)
        if time.captured:
            yield b.Lines([b.dim(f"{time.captured[:1].upper()}{time.captured[1:]}.")], tight=True)
        if time.mfu is not None:
            yield b.Lines([b.dim(mfu(time.mfu))], tight=True)
        if time.peak_unchecked:
            yield b.Lines([b.dim(f"Share of the roof not checked: {time.peak_unchecked}.")], tight=True)


def of_first_rank(job: JobResult, first: Result | None) -> Iterator[b.Block]:
    """Return the table that was asked for of the first rank of a job."""
    if first is None:
        return
    asked = [time for time in first.device_time if time.by != "category"]
    yield b.Lines([b.dim(f"only rank {job.ranks[0].rank}:")] * bool(asked), indent=0)
    yield from tables(asked, first.trace.vendor, judged_step(first.trace.selection))


def words(time: DeviceTime, vendor: str = "", step: str = "steady step") -> str:
    """Return what the times of a table are parts of."""
    device = f"{ACCELERATORS.get(vendor, 'GPU')} {time.device}"
    busy = format_ns(round(time.busy_ns / time.n_steps))
    where = f"per step ({format_count(time.n_steps, step)})" if time.per == "step" else "of the window"
    kernels = (
        f", {format_ns(round(time.kernel_ns / time.n_steps))} of it kernel time, which shares in findings refer to"
    )
    of_it = kernels * (time.kernel_ns < ALL_BUT * time.busy_ns)
    return f"{device} is busy for {busy} {where}{of_it}; overlaps count once."


def mfu(model: ModelFlops) -> str:
    """Return the MFU with its denominator, or why it is not checked."""
    if model.share is None:
        return f"MFU not checked: {model.unchecked}."
    shown = [peak for peak in model.peaks if peak.share >= LEAST_SHARE]
    peaks = [f"{peak.tflops:,.4g} TFLOP/s" for peak in shown]
    if len(shown) > 1:
        peaks = [f"{text} for {format_share(peak.share)}" for text, peak in zip(peaks, shown, strict=True)]
    work = f"{model.flop / 1e12:,.3g} TFLOP in a step of {format_ns(model.step_ns)}"
    return f"MFU {format_share(model.share)}: {work}, over the dense peak of {', '.join(peaks)}."


def named(time: DeviceTime, row: DeviceTimeRow) -> str:
    """Return what a row is called."""
    return visible(row.name) or _UNNAMED.get(time.by, "")


def _rows(time: DeviceTime) -> list[Sequence[b.Text]]:
    limit = N_CATEGORIES if time.by == "category" else N_ROWS
    shown = time.rows[: limit if time.n_rows <= limit else limit - 1]
    out = [_row(time, row) for row in shown]
    if hidden := time.n_rows - len(shown):
        names = ", ".join(row.name for row in time.rows[len(shown) :]) if time.by == "category" else f"{hidden:,} more"
        rest_ns = time.busy_ns - sum(row.busy_ns for row in shown)
        per_step, share = format_ns(round(rest_ns / time.n_steps)), format_share(rest_ns / time.busy_ns)
        out.append((elide(names, WIDTH), per_step, share, "", "", ""))
    return out


def _row(time: DeviceTime, row: DeviceTimeRow) -> Sequence[b.Text]:
    name = elide(named(time, row), WIDTH)
    return (
        b.code(name) if row.name and time.by != "category" else name,
        format_ns(round(row.busy_ns / time.n_steps)),
        format_share(row.share),
        format_count(row.n_launches / time.n_steps),
        format_ns(round(row.mean_ns)) if row.mean_ns is not None else "",
        f"{format_share(row.of_roof)} {row.roof}" if row.of_roof is not None else "",
    )
