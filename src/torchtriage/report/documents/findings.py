"""Findings, and what was not checked, where a result of any command holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtriage.core.finding import Crash, Finding, NotChecked, Quote
from torchtriage.core.units import format_count
from torchtriage.diagnose.verdict.result import Summary
from torchtriage.report import blocks as b
from torchtriage.report import words

SEVERITY = {"high": "bold red", "medium": "yellow", "low": "cyan", "note": "dim"}


def title(finding: Finding, rank: int | None) -> tuple[b.Span, ...]:
    """Return a finding's line: its place in the order, if it has one, severity, title, code and certainty."""
    return (
        b.dim(f"{rank}. " if rank is not None else ""),
        b.Span(finding.severity.upper(), SEVERITY[finding.severity]),
        b.bold(f" {finding.title} ({finding.code})"),
        b.Span(f"  {finding.certainty}", "dim" if finding.certainty == "hint" else "italic"),
    )


def entry(finding: Finding, rank: int | None, *, summary: Summary | None = None, quote: Quote | None = None) -> b.Entry:
    """Return a finding; ``quote`` gives the source lines below its place."""
    place, fix = finding.place, finding.fix
    rows = []
    if finding.cost is not None and finding.saves:
        rows.append(b.Row("saves", (b.bold(words.saving(finding.cost)), b.dim(f"  {words.basis(finding.cost)}"))))
    rows.append(b.Row("what", finding.message))
    where: list[b.Text] = []
    quoted = [] if place.frame is None else [b.Span(line, "cyan") for line in words.quoted(place.frame, quote)]
    if place.frame is not None:
        where += [b.code(words.frame(place.frame)), *quoted]
    if place.module:
        where.append(b.code(words.event_name(place.module)))
    if place.ops:
        where.append(b.code(" > ".join(map(words.event_name, place.ops))))
    when = (words.steps(place, finding.n_events, summary), words.event_name(place.lane))
    where.append(", ".join(filter(None, when)))
    rows += [
        b.Row("" if below else "where", line, cut=line in quoted) for below, line in enumerate(filter(b.unfold, where))
    ]
    rows += [b.Row("ranks", words.rank_spread(finding)), b.Row("evidence", words.evidence(finding))]
    rows.append(b.Row("fix", fix.text))
    # a link and a line of code stay whole on the terminal
    source = fix.code.replace("\r\n", "\n").split("\n") if fix.code else []
    link = [fix.link] if fix.link.startswith("https://") else []
    whole = [
        *((row, "green") for row in source),
        *((row, f"dim underline{f' link {row}' * b.is_link(row)}") for row in link),
    ]
    blocks = [
        b.Rows([row for row in rows if b.unfold(row.text)], indent=3),
        b.Code(whole, indent=3, on=b.TERMINAL),
        b.Code([(row, "") for row in source], language="python", on=b.MARKDOWN + b.PAGE),
        b.Lines([b.Span("Read more", link=row) for row in link], on=b.MARKDOWN + b.PAGE),
        b.Rows(
            [b.Row("also", f"explains {', '.join(finding.also_explains)}")] if finding.also_explains else [], indent=3
        ),
    ]
    return b.Entry(title(finding, rank), blocks, fold=True)


def unanswered(
    not_checked: Sequence[NotChecked], crashes: Sequence[Crash], without_device: str | None = None
) -> Iterator[b.Block]:
    """Yield what was not checked, grouped by what was missing, and what failed.

    ``without_device`` : a sentence for all patterns that need a device, if there is one; with it, in place of None,
    the terminal names the patterns of a long group by code alone.
    """
    failed: list[b.Block] = []
    if crashes:
        failed = [
            b.Lines([(b.Span("Failed", "bold red"), ", a bug in torchtriage; the others ran")], indent=0),
            b.Lines([(b.bold(f"{crash.code} "), crash.error) for crash in crashes], bullets=True, tight=True),
        ]
    brief = [*_missing(not_checked, without_device), *failed]
    yield b.Section("Not checked", brief, on=b.TERMINAL + b.PAGE, tight=True)
    number = format_count(len(not_checked) + len(crashes), "pattern")
    yield b.Folded(f"{number} without an answer", [*_missing(not_checked, None), *failed], on=b.MARKDOWN)


def _missing(entries: Sequence[NotChecked], without_device: str | None) -> Iterator[b.Block]:
    if without_device:
        yield b.Lines([without_device], tight=True)
        entries = [entry for entry in entries if not words.needs_device(entry)]
    for group in words.missing(entries):
        names = group.patterns if without_device is None else group.brief
        yield b.Lines([(f"{group.what}: ", b.dim(", ".join(names)))], bullets=True, tight=True)
        if "\n" in group.how_to_record:
            yield b.Code([(row, "green") for row in group.how_to_record.split("\n")], tight=True)
        else:
            how = [(b.dim("to check: "), b.code(group.how_to_record))] if group.how_to_record else []
            yield b.Lines(how, indent=4, tight=True)
