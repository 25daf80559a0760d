"""Memory results: who held what at the peak, why reserved memory was free, growth, findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchtriage.core.names import file_name
from torchtriage.core.units import format_bytes, format_count, format_share
from torchtriage.memory.snapshot.result import (
    DeviceMemory,
    Fragmentation,
    Growth,
    Holder,
    MemoryPart,
    MemoryPeak,
    MemoryResult,
    OutOfMemory,
)
from torchtriage.report import blocks as b
from torchtriage.report.documents import findings
from torchtriage.report.page import text

SETTINGS = "MEM050"
N_LINES, N_LINES_ON_PAGE = 8, 30
N_DEVICES, N_PARTS = 8, 10
N_FAILED, N_FAILED_ON_PAGE = 3, 5
N_BARS = 24
ROOM = 50
NO_SCRIPT = "<noscript><p>The pictures need scripts; this page runs only its own.</p></noscript>"


@dataclass(frozen=True)
class MemoryReport:
    """One run of ``torchtriage memory`` over one or more snapshots."""

    schema: str
    version: str
    results: tuple[MemoryResult, ...]


def document(report: MemoryReport, drawn: Iterable[str] = ()) -> b.Document:
    """Return the report of ``torchtriage memory``; ``drawn`` : the pictures that its page holds."""
    results = report.results
    names = [file_name(result.path) for result in results]
    title = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    pictures = frozenset(drawn)
    blocks = [block for i, result in enumerate(results) for block in _result(result, i, pictures, len(results) > 1)]
    return b.Document(title, report.version, report.schema, blocks)


def _result(result: MemoryResult, index: int, drawn: frozenset[str], several: bool) -> Iterator[b.Block]:
    high = any(finding.severity == "high" for finding in result.findings)
    style = "bold red" if high else "bold"
    yield b.Head("torchtriage memory", result.verdict, (style, ""), list(_facts(result)), path=result.path * several)
    facts = _facts_line(result)
    yield b.Lines([b.dim(result.path)], fit=True, on=b.TERMINAL)
    yield b.Lines([b.dim(facts)], tight=True, on=b.TERMINAL)
    yield from map(_growth, result.growth[:N_DEVICES])
    slopes = [_slope(growth, f"{index}-{place}") for place, growth in enumerate(result.growth)]
    yield b.Section("From step to step", slopes, on=b.PAGE)
    for device in result.devices[:N_DEVICES]:
        yield from _device(device)
    if len(result.devices) > N_DEVICES:
        yield b.Lines([b.dim(f"{len(result.devices) - N_DEVICES} more devices are in the JSON")], on=b.TERMINAL)
    for device in result.devices:
        yield from _device_in_markdown(device)
        yield b.Section(device.name.capitalize(), list(_on_page(device, f"{index}-{device.device}", drawn)), on=b.PAGE)
    rest = "" if result.healthy else " in what could be analysed"
    none = [] if result.findings else [b.Span(f"No findings{rest}.", "bold green" if result.healthy else "bold")]
    advice = "" if any(finding.code == SETTINGS for finding in result.findings) else result.advice
    entries = [findings.entry(finding, rank) for rank, finding in enumerate(result.findings, 1)]
    yield b.Section("", entries, on=b.TERMINAL + b.MARKDOWN)
    yield b.Lines(none, indent=0, on=b.TERMINAL)
    yield b.Rows([b.Row("settings", advice)] if advice else [], on=b.TERMINAL)
    clean = f'<div class="{"clean" if result.healthy else "unsure"}"><p>No findings{rest}.</p></div>' if none else ""
    yield b.Section("Findings", [*entries, b.Markup(clean), b.Lines([advice])], name="findings", on=b.PAGE)
    yield b.Lines([result.advice], on=b.MARKDOWN)
    yield b.Notes(result.notes)
    yield b.Lines([b.bold("Not checked")] if result.not_checked else [], indent=0, on=b.TERMINAL)
    yield from findings.unanswered(result.not_checked, result.crashes)
    yield b.Foot(f"{file_name(result.path)}: {facts}, torchtriage {result.version}")


def _facts(result: MemoryResult) -> Iterator[tuple[str, str]]:
    yield "file", f"{file_name(result.path)}, {format_bytes(result.size_bytes)}"
    if result.n_steps is not None:
        yield "watched", format_count(result.n_steps, "step")
        return
    yield "devices", f"{len(result.devices)} of {result.n_devices} with memory"
    yield "history", format_count(result.n_entries, "entry", "entries")
    yield "stacks", format_count(result.n_stacks, "distinct stack")
    yield "allocator settings", result.settings


def _facts_line(result: MemoryResult) -> str:
    if result.n_steps is not None:
        return f"{format_count(result.n_steps, 'step')} watched"
    devices = f"{len(result.devices)} of {format_count(result.n_devices, 'device')} with memory"
    history = format_count(result.n_entries, "entry", "entries") + " of history"
    stacks = format_count(result.n_stacks, "stack")
    return f"{format_bytes(result.size_bytes)}, {devices}, {history}, {stacks}, allocator settings: {result.settings}"


# -- from step to step ---------------------------------------------------------------------------


def _growth(growth: Growth) -> b.Rows:
    """Return what memory did from step to step: one bar per stretch, from its lowest to its highest.

    Bars that say the same everywhere would be noise: level memory has a flat row.
    """
    held = growth.held_bytes
    at = [i * (len(held) - 1) // max(min(len(held), N_BARS) - 1, 1) for i in range(N_BARS)]
    values = [held[i] for i in at if i < len(held)]
    bars = b.Span(b.bars(values, min(values)), "bold red" if growth.is_leak else "dim")
    rows = b.labelled("steps", [bars, f"{growth.name}: {_change(growth)}"])
    areas = [f"{format_bytes(area.values[-1]):>9}  {_fit(area.label)}" for area in growth.areas[:N_LINES]]
    return b.Rows([*rows, *b.labelled("grew", areas)], on=b.TERMINAL)


def _change(growth: Growth) -> str:
    first, last = format_bytes(growth.held_bytes[0]), format_bytes(growth.held_bytes[-1])
    n_steps = format_count(growth.steps[-1] - growth.steps[0] + 1, "step")
    low, high = format_bytes(growth.slope_low_bytes), format_bytes(growth.slope_high_bytes)
    interval = f" ({low} to {high})" if low != high else ""
    slope = f"{format_bytes(growth.slope_bytes)} per step{interval} from step {growth.from_step:,} on"
    return f"{first} to {last} over {n_steps}, {slope}"


def _slope(growth: Growth, name: str) -> b.Markup:
    areas = " Below, what the growing stacks have left behind by each step, from zero." if growth.areas else ""
    steps = f" Steps by {text(growth.steps_by)}." if growth.steps_by else ""
    return b.Markup(
        f"<h3>{text(growth.name[:1].upper() + growth.name[1:])}</h3>"
        f'<p class="sub">{text(_change(growth))}.{steps} The line is the median of the slopes between all pairs of'
        " steps, the wedge its 95&nbsp;% interval; the axis does not begin at zero."
        f'{areas}</p><div id="slope-{name}"></div>{NO_SCRIPT}'
    )


# -- a device ------------------------------------------------------------------------------------


def _accounts(device: DeviceMemory) -> tuple[tuple[str, int | None, str], ...]:
    return (
        ("requested", device.requested_bytes, "what tensors asked for"),
        ("allocated", device.allocated_bytes, "what they got, rounded up"),
        ("active", device.active_bytes, "plus memory that another stream still uses"),
        ("reserved", device.reserved_bytes, "everything taken from the driver"),
    )


def _device(device: DeviceMemory) -> Iterator[b.Block]:
    known = [(label, size, meaning) for label, size, meaning in _accounts(device) if size is not None]
    rows = [b.Row(label, (f"{format_bytes(size):>9}", b.dim(f"  {meaning}"))) for label, size, meaning in known]
    yield b.Entry((b.bold(device.name), b.dim(" at the end")), [b.Rows(rows, indent=0)], indent=2, on=b.TERMINAL)
    for failure in device.out_of_memory[-N_FAILED:]:
        first, *others = failure.sentences
        holders = [f"{_amount(holder)}  {_fit(holder.label)}" for holder in failure.holders[:N_LINES]]
        yield b.Rows(b.labelled("failed", [b.Span(first, "bold red"), *others, *holders]), on=b.TERMINAL)
    if device.peak is not None:
        yield _peak(device.peak)
    free = device.fragmentation
    if free is not None and free.free_bytes and not device.out_of_memory:
        parts = [(f"{format_bytes(part.size_bytes):>9}", b.dim(f"  {part.name}")) for part in free.parts]
        yield b.Rows(b.labelled("free", [_because(free), *parts]), on=b.TERMINAL)


def _peak(peak: MemoryPeak) -> b.Rows:
    reserved = f", {format_bytes(peak.reserved_bytes)} reserved" if peak.reserved_bytes is not None else ""
    entry = f"at entry {peak.entry:,} of {peak.n_entries:,}" if peak.entry >= 0 else "before the first entry"
    when = f" allocated{reserved}, {entry}"
    texts: list[b.Text] = [(b.bold(format_bytes(peak.allocated_bytes)), when)]
    for holder in peak.lines[:N_LINES]:
        tags = f"{_tags(holder)}, from {_callers(holder)}" if _callers(holder) else _tags(holder)
        label = b.Span(_fit(holder.label), "bold" if holder.stack else "")
        texts += [(f"{_amount(holder)}  ", label), b.dim(f"{'':18}{_fit(tags)}")]
    if len(peak.lines) > N_LINES:
        texts.append(b.dim(f"{'':18}{len(peak.lines) - N_LINES} more lines are in the JSON"))
    groups = (("by phase", peak.phases), ("for", peak.categories), ("by module", peak.modules))
    rows = [b.Row(name, parts(group)) for name, group in groups if len(group) > 1]
    return b.Rows([*b.labelled("peak", texts), *rows], on=b.TERMINAL)


def _device_in_markdown(device: DeviceMemory) -> Iterator[b.Block]:
    peak = device.peak
    if peak is None:
        return
    by = "by"
    held: list[tuple[Holder | MemoryPart, str]] = [
        (holder, f"{holder.label}, {_tags(holder)}") for holder in peak.lines
    ]
    if not held:  # the profiler's timeline has no stacks
        by, held = "by purpose", [(part, part.name) for part in peak.categories]
    rows: list[tuple[str | b.Span, ...]] = [
        (format_bytes(holder.size_bytes), format_share(holder.share), name) for holder, name in held[:N_LINES]
    ]
    rows.append((b.bold(format_bytes(peak.allocated_bytes)), "", b.bold("all allocated")))
    yield b.Table((f"held at the peak of {device.name}", "", by), rows, align="rrl", on=b.MARKDOWN)
    free = device.fragmentation
    if free is not None and free.free_bytes:
        yield b.Lines([f"Free: {_because(free)}: {parts(free.parts)}."], on=b.MARKDOWN)


def _on_page(device: DeviceMemory, name: str, drawn: frozenset[str]) -> Iterator[b.Block]:
    yield from map(_failed, device.out_of_memory[-N_FAILED_ON_PAGE:])
    picture = device.picture
    if picture is not None and name in drawn:
        moments = format_count(len(picture.entries), "moment")
        yield b.Markup(
            '<h3>Memory over time</h3><p class="sub">Allocated bytes by who asked for them, at'
            f" {moments} in the order of the history; the highest of each stretch is shown. The dashed line is what was"
            f' reserved, the dotted one the peak.</p><div id="over-{name}"></div>{NO_SCRIPT}'
        )
    elif picture is not None:
        yield b.Lines(["Its pictures are left out to keep the page small."], kind="sub")
    if device.peak is not None:
        yield from _peak_on_page(device.peak)
    if picture is not None and name in drawn and picture.segments:
        left = picture.n_segments_left_out
        also = f" The {left:,} smallest are left out." if left else ""
        when = "when it failed" if device.out_of_memory else "at the peak" if device.peak else "at the snapshot"
        yield b.Markup(
            f'<h3>Segments {when}</h3><p class="sub">One row each, the largest first; widths grow with the square root'
            f' of the size. Colours as above, free memory is empty.{also}</p><div id="map-{name}"></div>'
            '<p class="mkey"><span><i class="free"></i>free</span>'
            '<span><i class="await"></i>freed, another stream still uses it</span>'
            '<span><i class="mixed"></i>several small blocks</span></p>'
        )
    accounts = [
        (label, format_bytes(size) if size is not None else "unknown", meaning)
        for label, size, meaning in _accounts(device)
    ]
    pair = [b.Entry("At the snapshot", [b.Table(("", "", ""), accounts)], kind="part")]
    free = device.fragmentation
    if free is not None and free.free_bytes:
        pair.append(
            b.Entry("Why reserved memory was free", [b.Lines([_because(free)]), _table(free.parts)], kind="part")
        )
    yield b.Entry("", pair, kind="two")


def _failed(failure: OutOfMemory) -> b.Entry:
    first, *others = failure.sentences
    return b.Entry(first, [b.Lines(others), _table(failure.parts)], kind="failed")


def _peak_on_page(peak: MemoryPeak) -> Iterator[b.Block]:
    allocated = format_bytes(peak.allocated_bytes)
    sub = f"{allocated} allocated, after entry {peak.entry:,} of {peak.n_entries:,}. Shares are of that."
    rows = []
    for holder in peak.lines[:N_LINES_ON_PAGE]:
        callers = f" · from {_callers(holder)}" if _callers(holder) else ""
        name = (b.code(holder.label[:300]), b.dim(f"{_tags(holder)}{callers}"))
        rows.append((format_bytes(holder.size_bytes), format_share(holder.share), name))
    held = b.Table(("size", "share", "by"), rows, kind="held")
    yield b.Entry("Held at the peak", [b.Lines([sub], kind="sub"), held], kind="part")
    groups = (("By phase of the step", peak.phases), ("By purpose", peak.categories), ("By module", peak.modules))
    parts = [
        b.Entry(title, [_table(group)], kind="part")
        for title, group in groups
        if len(group) > 1 or (group and group[0].name not in ("unknown", "no stack recorded"))
    ]
    yield b.Entry("", parts, kind="two")


def _table(parts: Sequence[MemoryPart]) -> b.Table:
    """Return a table of parts; it adds up, what has no row of its own is in the last one."""
    rest = parts[N_PARTS:]
    if len(rest) > 1:
        size, share = sum(part.size_bytes for part in rest), sum(part.share for part in rest)
        rest = [MemoryPart(format_count(len(rest), "other"), size, share)]
    rows = [
        (part.name[:300], format_bytes(part.size_bytes), format_share(part.share)) for part in (*parts[:N_PARTS], *rest)
    ]
    return b.Table(("", "", ""), rows)


# -- what the parts say ----------------------------------------------------------------------------


def _amount(holder: Holder | MemoryPart) -> str:
    return f"{format_bytes(holder.size_bytes):>9} {format_share(holder.share):>6}"


def _fit(label: str) -> str:
    """Return a line cut to fit: first its folder goes, then its end."""
    if len(label) > ROOM:
        label = label.split("/", 1)[-1]
    return label if len(label) <= ROOM else label[: ROOM - 1] + "…"


def _tags(holder: Holder) -> str:
    tags = [tag for tag in (holder.phase, holder.category) if tag not in ("", "unknown")]
    return ", ".join([format_count(holder.n_allocations, "allocation"), *tags])


def _callers(holder: Holder) -> str:
    return " < ".join(f"{file_name(frame.file)}:{frame.line}" for frame in holder.stack[1:5])


def parts(rows: Sequence[MemoryPart], limit: int = 6) -> str:
    """Return parts on one line, largest first."""
    texts = [f"{part.name} {format_bytes(part.size_bytes)} ({format_share(part.share)})" for part in rows[:limit]]
    rest = sum(part.size_bytes for part in rows[limit:])
    if rest:
        texts.append(f"{format_count(len(rows) - limit, 'other')} {format_bytes(rest)}")
    return ", ".join(texts)


def _because(free: Fragmentation) -> str:
    share = format_share(free.free_bytes / free.reserved_bytes)
    when = "at the peak" if free.is_seen else "at the snapshot"
    return (
        f"{format_bytes(free.free_bytes)} of {format_bytes(free.reserved_bytes)} reserved ({share}) {when}, the largest"
        f" piece {format_bytes(free.largest_bytes)}"
    )
