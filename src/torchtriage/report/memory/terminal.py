"""A memory result as text: the verdict in three lines, who held what at the peak, findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from torchtriage.finding import Finding
from torchtriage.memory.result import Device, Growth, MemoryResult, OutOfMemory, Peak
from torchtriage.names import elide, visible
from torchtriage.report.memory import words
from torchtriage.report.terminal import Page
from torchtriage.units import format_bytes, format_share

__all__ = ["render"]

N_LINES = 8
N_DEVICES = 8
N_FAILED = 3
N_BARS = 24
_HEIGHTS = "▁▂▃▄▅▆▇█"
_SEVERITY = {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "note": "dim"}


def render(results: Sequence[MemoryResult], *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    for index, result in enumerate(results):
        page.blank(index > 0)
        if len(results) > 1:
            page.rule(elide(visible(result.path), page.width))
        _result(page, result)
    return page.text


def _result(page: Page, result: MemoryResult) -> None:
    style = "bold red" if any(one.severity == "high" for one in result.findings) else "bold"
    for index, line in enumerate(result.verdict):
        page.line((visible(line), style if index == 0 else ""), hang=2)
    page.blank()
    page.line((elide(visible(result.path), page.width - 2), "dim"), indent=2)
    page.line((words.facts(result), "dim"), indent=2, hang=2)
    for one in result.growth[:N_DEVICES]:
        _growth(page, one)
    for device in result.devices[:N_DEVICES]:
        _device(page, device)
    hidden = len(result.devices) - N_DEVICES
    if hidden > 0:
        page.blank()
        page.line((f"{hidden} more devices are in the JSON", "dim"), indent=2)
    for rank, finding in enumerate(result.findings, 1):
        page.blank()
        _finding(page, finding, rank)
    if not result.findings:
        page.blank()
        if result.healthy:
            page.line(("No findings.", "bold green"))
        else:
            page.line(("No findings in what could be judged.", "bold"))
    if advice := words.advice(result):
        page.blank()
        page.labelled("settings", (visible(advice), ""))
    page.notes(result.notes)
    if result.not_checked:
        page.blank()
        page.line(("Not checked", "bold"))
    for how, group in words.unchecked(result):
        for line in group:
            code, _, rest = line.partition(" ")
            page.line((f"{code} ", "bold"), (rest, ""), indent=2, hang=2)
        rows = how.split("\n")
        if len(rows) > 1:
            page.verbatim([(row, "green") for row in rows], indent=2)
        elif rows[0]:
            page.line(("to check: ", "dim"), (visible(rows[0]), "green"), indent=4, hang=2)
    for crash in result.crashes:
        page.blank()
        page.line(("Failed", "bold red"), (", a defect of torchtriage; the others ran", ""))
        page.line((f"{crash.code} ", "bold"), (visible(crash.error), ""), indent=2, hang=2)


def _growth(page: Page, one: Growth) -> None:
    """Say what memory did from step to step: one bar per stretch, from its lowest to its highest.

    Bars that say the same everywhere would be noise: level memory has a flat row.
    """
    page.blank()
    held = one.held_bytes
    at = [i * (len(held) - 1) // max(min(len(held), N_BARS) - 1, 1) for i in range(N_BARS)]
    shown = [held[i] for i in at if i < len(held)]
    low, span = min(shown), max(max(shown) - min(shown), 1)
    bars = "".join(_HEIGHTS[(value - low) * (len(_HEIGHTS) - 1) // span] for value in shown)
    page.labelled("steps", (bars, "bold red" if one.is_leak else "dim"))
    page.labelled("", (visible(words.growth(one)), ""))
    for place, area in enumerate(one.areas[:N_LINES]):
        page.labelled(
            "" if place else "grew",
            (f"{format_bytes(area.values[-1]):>9}  ", ""),
            (words.fit(area.label, page.width - 30), ""),
        )


def _device(page: Page, device: Device) -> None:
    page.blank()
    page.line((visible(device.name), "bold"), (" at the end", "dim"), indent=2)
    for name, size, meaning in words.accounts(device):
        if size is not None:
            page.labelled(name, (f"{format_bytes(size):>9}", ""), (f"  {meaning}", "dim"))
    for one in device.out_of_memory[-N_FAILED:]:
        _failed(page, one)
    if device.peak is not None:
        _peak(page, device.peak)
    told = device.fragmentation
    if told is not None and told.free_bytes and not device.out_of_memory:
        page.blank()
        page.labelled("free", (words.because(told), ""))
        for part in told.parts:
            page.labelled(
                "", (f"{format_bytes(part.size_bytes):>9}", ""), (f"  {visible(part.name)}", "dim")
            )


def _peak(page: Page, peak: Peak) -> None:
    page.blank()
    when = f"entry {peak.entry:,} of {peak.n_entries:,}"
    page.labelled(
        "peak",
        (format_bytes(peak.allocated_bytes), "bold"),
        (f" allocated{words.beside(peak)}, at {when}", ""),
    )
    for one in peak.lines[:N_LINES]:
        room = page.width - 30
        label, tags = words.fit(one.label, room), words.tags(one)
        if callers := words.where(one):
            tags = f"{tags}, from {callers}"
        size = f"{format_bytes(one.size_bytes):>9} {format_share(one.share):>6}  "
        page.labelled("", (size, ""), (label, "bold" if one.stack else ""))
        page.labelled("", (f"{'':18}{words.fit(tags, room)}", "dim"))
    hidden = len(peak.lines) - N_LINES
    if hidden > 0:
        page.labelled("", (f"{'':18}{hidden} more lines are in the JSON", "dim"))
    for label, parts in (
        ("by phase", peak.phases),
        ("for", peak.categories),
        ("by module", peak.modules),
    ):
        if len(parts) > 1:
            page.labelled(label, (words.parts(parts), ""))


def _failed(page: Page, one: OutOfMemory) -> None:
    page.blank()
    page.labelled("failed", (visible(one.sentences[0]), "bold red"))
    for line in one.sentences[1:]:
        page.labelled("", (visible(line), ""))
    for holder in one.holders[:N_LINES]:
        page.labelled(
            "",
            (f"{format_bytes(holder.size_bytes):>9} {format_share(holder.share):>6}  ", ""),
            (words.fit(holder.label, page.width - 30), ""),
        )


def _finding(page: Page, finding: Finding, rank: int) -> None:
    page.line(
        (f"{rank}. ", "dim"),
        (finding.severity.upper(), _SEVERITY[finding.severity]),
        (f" {finding.code} ", "bold"),
        (visible(finding.title), "bold"),
        (f"  {finding.certainty}", "italic"),
        hang=3,
    )
    page.labelled("what", (visible(finding.message), ""), indent=3)
    frame = finding.place.frame
    if frame is not None:
        place = f"{visible(frame.file)}:{frame.line} {visible(frame.function)}"
        page.labelled("where", (place, ""), indent=3)
    if finding.fix.text:
        page.labelled("fix", (visible(finding.fix.text), ""), indent=3)
    rows = finding.fix.code.split("\n") if finding.fix.code else []
    link = [finding.fix.link] if finding.fix.link.startswith("https://") else []
    page.verbatim(
        [*((row, "green") for row in rows), *((row, "dim underline") for row in link)], indent=3
    )
