"""Findings, and what was not checked, where a result of any command holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtriage.core.finding import Crash, Finding, NotChecked
from torchtriage.report.blocks import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Block,
    Code,
    Entry,
    Lines,
    Markup,
    Row,
    Rows,
    Section,
    Span,
    Text,
    bold,
    code,
    dim,
)
from torchtriage.report.page import fix, text
from torchtriage.report.page import lines as code_lines

__all__ = ["SEVERITY", "card", "code_and_link", "comment", "entry", "title", "unanswered"]

SEVERITY = {"high": "bold red", "medium": "yellow", "low": "cyan", "note": "dim"}


def title(finding: Finding, rank: int) -> tuple[Span, ...]:
    """Return a finding's line: its place in the order, severity, code, title and certainty."""
    return (
        dim(f"{rank}. "),
        Span(finding.severity.upper(), SEVERITY[finding.severity]),
        bold(f" {finding.code} {finding.title}"),
        Span(f"  {finding.certainty}", "dim" if finding.certainty == "hint" else "italic"),
    )


def code_and_link(finding: Finding) -> list[tuple[str, str]]:
    """Return the lines of a fix that stay whole: its code, and a link to open."""
    rows = finding.fix.code.replace("\r\n", "\n").split("\n") if finding.fix.code else []
    link = [finding.fix.link] if finding.fix.link.startswith("https://") else []
    return [*((row, "green") for row in rows), *((row, "dim underline") for row in link)]


def entry(finding: Finding, rank: int) -> Entry:
    """Return a finding on the terminal."""
    frame = finding.place.frame
    rows = [
        Row("what", finding.message),
        *([Row("where", f"{frame.file}:{frame.line} {frame.function}")] if frame is not None else ()),
        *([Row("fix", finding.fix.text)] if finding.fix.text else ()),
    ]
    return Entry(title(finding, rank), [Rows(rows, indent=3), Code(code_and_link(finding), indent=3)], on=TERMINAL)


def comment(finding: Finding) -> Section:
    """Return a finding in Markdown."""
    lines: list[Text] = [
        (code(finding.code), bold(f" {finding.title}"), f" ({finding.severity})"),
        finding.message,
        f"Fix: {finding.fix.text}",
    ]
    rows = [(row, "") for row in finding.fix.code.split("\n")] if finding.fix.code else []
    return Section("", [Lines(lines), Code(rows, language="sh")], on=MARKDOWN)


def card(finding: Finding) -> str:
    """Return a finding as HTML."""
    frame = finding.place.frame
    where = (
        f"<p><code>{text(f'{frame.file}:{frame.line} {frame.function}', 300)}</code></p>" if frame is not None else ""
    )
    return (
        f'<div class="finding"><h3>{text(finding.title)}</h3><p class="meta">'
        f'<span class="sev {finding.severity}">{finding.severity}</span> {text(finding.code)}, {finding.certainty}</p>'
        f'<p class="message">{text(finding.message)}</p>{where}<div>Fix: {fix(finding.fix)}</div></div>'
    )


def unanswered(not_checked: Sequence[NotChecked], crashes: Sequence[Crash]) -> Iterator[Block]:
    """Yield what was not checked, grouped by how to record it, and what failed."""
    groups: dict[str, list[NotChecked]] = {}
    for item in not_checked:
        groups.setdefault(item.how_to_record, []).append(item)
    blocks: list[Block] = []
    cards = []
    for how, items in groups.items():
        lines = [(bold(f"{item.code} "), f"{item.name}: no {', '.join(item.missing)}") for item in items]
        blocks.append(Lines(lines))
        if "\n" in how:
            blocks.append(Code([(row, "green") for row in how.split("\n")]))
        elif how:
            blocks.append(Lines([(dim("to check: "), Span(how, "green"))], indent=4))
        sentences = [f"{item.code} {item.name}: no {', '.join(item.missing)}" for item in items]
        names = "".join(f"<p>{text(sentence)}</p>" for sentence in sentences)
        record = f"<pre>{code_lines(how)}</pre>" if "\n" in how else f'<p class="how">{text(how)}</p>' if how else ""
        cards.append(f'<li class="warn">{names}{record}</li>')
    yield Section("Not checked", blocks, heading="Not checked", on=TERMINAL)
    missing = [
        ("Not checked: ", code(item.code), f" {item.name}, no {', '.join(item.missing)}") for item in not_checked
    ]
    yield Lines(missing, bullets=True, on=MARKDOWN)
    failed = [(bold(f"{crash.code} "), crash.error) for crash in crashes]
    heading = (Span("Failed", "bold red"), ", a defect of torchtriage; the others ran")
    yield Section("Failed", [Lines(failed)], heading=heading, on=TERMINAL)
    yield Lines([("Failed: ", code(crash.code), f" {crash.error}") for crash in crashes], bullets=True, on=MARKDOWN)
    cards += [f'<li class="refuse"><p>{text(f"{crash.code}: {crash.error}")}</p></li>' for crash in crashes]
    markup = f'<ul class="notes">{"".join(cards)}</ul>' if cards else ""
    yield Section("Not checked", [Markup(markup)], on=PAGE)
