"""What lint found: one entry per finding, or one line each for editors; and as SARIF."""

from __future__ import annotations

from collections.abc import Callable

from torchtriage.core.finding import Finding
from torchtriage.core.names import visible
from torchtriage.core.units import format_count
from torchtriage.diagnose.lint.result import LintResult, SourcePatch
from torchtriage.report import blocks as b
from torchtriage.report import words
from torchtriage.report.documents.findings import SEVERITY
from torchtriage.report.sarif import log, notification

Quote = Callable[[str, int], str]


def concise(result: LintResult) -> str:
    """Return one line per finding and unreadable source, ``path:line:col: CODE message``."""
    lines = [f"{_place(finding)}: {finding.code} {visible(finding.message)}" for finding in result.findings]
    lines += [f"{visible(odd.file)}:{odd.line or 1}:1: ODD {visible(odd.message)}" for odd in result.odd]
    lines += [f"{visible(note.file)}:{note.line}:1: ALLOW {visible(note.message)}" for note in result.unused]
    return "".join(f"{line}\n" for line in lines)


def sarif(result: LintResult) -> bytes:
    """Return one SARIF run as UTF-8; unreadable sources and idle comments are notifications."""
    notes = [notification("odd-source", "warning", f"{odd.file}:{odd.line}: {odd.message}") for odd in result.odd]
    notes += [notification("allow", "note", f"{note.file}:{note.line}: {note.message}") for note in result.unused]
    notes += [
        notification(finding.code, "note", f"{finding.title}: in the trace only") for finding in result.trace_only
    ]
    findings = [(result.trace, finding) for finding in result.findings]
    return log(result.version, findings, notes, successful=True)


def document(result: LintResult, *, quote: Quote | None = None, fixing: bool = False) -> b.Document:
    """Return the report of ``torchtriage lint``.

    ``quote`` : returns a file's source line, empty where it cannot be read. ``fixing`` : autofixes were to be applied,
    so they are named, not shown as a diff.
    """
    first, *rest = _summary(result)
    fixes: set[str] = set()
    trace_only: list[b.Text] = []
    for finding in result.trace_only:
        where = f" at {words.frame(finding.place.frame)}" if finding.place.frame is not None else ""
        trace_only.append((b.dim("in the trace only: "), b.bold(f"{finding.code} "), finding.title, where))
    odd = [
        (f"{odd.file}:{odd.line}: " if odd.line else f"{odd.file}: ", b.Span(odd.message, "yellow"))
        for odd in result.odd
    ]
    unused = [(f"{note.file}:{note.line}: ", b.dim(note.message)) for note in result.unused]
    blocks: list[b.Block] = [
        b.Head("torchtriage lint", [first, *rest], on=b.PAGE),
        b.Lines([(b.bold("torchtriage lint"), f": {first}")], on=b.MARKDOWN),
        *(_finding(finding, quote, fixes) for finding in result.findings),
        b.Table(
            ("where", "code", "what", "fix"),
            [_cells(finding) for finding in result.findings],
            align="llll",
            on=b.MARKDOWN + b.PAGE,
        ),
        *(_patch(patch, fixing) for patch in result.patches),
        b.Lines(trace_only, indent=0),
        b.Lines([*odd, *unused], indent=0),
        b.Lines([b.bold(first), *map(b.dim, rest)], indent=0, hang=0, on=b.TERMINAL),
        b.Lines(rest, on=b.MARKDOWN),
    ]
    return b.Document("Lint", result.version, result.schema, blocks)


def _finding(finding: Finding, quote: Quote | None, fixes: set[str]) -> b.Entry:
    title = (
        b.bold(f"{_place(finding)}: "),
        b.Span(finding.severity.upper(), SEVERITY[finding.severity]),
        b.bold(f" {finding.code} {finding.title}"),
        b.Span(f"  {finding.certainty}", "italic" if finding.certainty == "certain" else "dim"),
    )
    frame, source = finding.place.frame, ""
    if quote is not None and frame is not None and "cell" not in finding.evidence:
        line = quote(frame.file, frame.line).strip()
        source = f"{frame.line} | {line}" if line else ""
    rows = [b.Row("what", finding.message)]
    if finding.cost is not None:
        rows.append(b.Row("saves", (b.bold(words.saving(finding.cost)), b.dim(f"  {words.basis(finding.cost)}"))))
    if traced := _traced(finding):
        rows.append(b.Row("trace", traced))
    rows.append(b.Row("fix", finding.fix.text))
    blocks: list[b.Block] = [b.Code([(source, "cyan")] if source else [], indent=2, fit=True), b.Rows(rows)]
    key = f"{finding.code} {finding.fix.code}"
    if key not in fixes:  # once is enough
        fixes.add(key)
        link = [(finding.fix.link, "dim underline")] if finding.fix.link.startswith("https://") else []
        blocks.append(b.Code([*((row, "green") for row in finding.fix.code.splitlines()), *link]))
    return b.Entry(title, blocks, hang=2, on=b.TERMINAL)


def _cells(finding: Finding) -> tuple[b.Text, ...]:
    what = finding.message
    if finding.cost is not None:
        what += f"; saves {words.saving(finding.cost)}"
    if traced := _traced(finding):
        what += f"; trace: {traced}"
    link = finding.fix.link
    more = (" (", b.Span("more", link=link), ")") if link.startswith("https://") else ()
    return b.code(_place(finding)), finding.code, what, (finding.fix.text, *more)


def _patch(patch: SourcePatch, fixing: bool) -> b.Entry:
    codes = ", ".join(patch.codes)
    rows: list[tuple[str, str]] = []
    if patch.applied:
        outcome = b.Span(f"fixed {codes}", "green")
    elif fixing:
        outcome = b.Span(f"not fixed: {codes}", "yellow")
    else:
        outcome = b.Span(f"--fix fixes {codes}", "green")
        rows = [
            (row, "green" if row[:1] == "+" else "red" if row[:1] == "-" else "dim") for row in patch.diff.split("\n")
        ]
    safe = [b.Row("safe", b.dim(f"{name}: {reason}")) for name, reason in patch.safe_because.items()]
    return b.Entry((b.bold(f"{patch.file}: "), outcome), [b.Code(rows), b.Rows(safe)], hang=0, on=b.TERMINAL)


def _place(finding: Finding) -> str:
    """Return ``train.py:31:9``, of a notebook ``demo.ipynb:cell 3 line 5:9``."""
    frame = finding.place.frame
    assert frame is not None
    cell = f"cell {finding.evidence['cell']} line " if "cell" in finding.evidence else ""
    return f"{visible(frame.file)}:{cell}{frame.line}:{finding.evidence.get('column', 1)}"


def _traced(finding: Finding) -> str:
    sentence = str(finding.evidence.get("trace", ""))
    shared = finding.evidence.get("cost_shared_by", 1)
    if sentence and isinstance(shared, int) and shared > 1:
        sentence += f"; the saving is that of {shared} places together"
    return sentence


def _summary(result: LintResult) -> list[str]:
    n_files = result.n_files - result.n_without_torch - len({odd.file for odd in result.odd})
    counts = (
        (result.n_without_torch, "file", " without torch"),
        (result.n_tests, "test file", " left out (name them to include them)"),
        (len(result.odd), "unreadable source", ""),
        (result.n_suppressed, "finding", " allowed by comments"),
        (result.n_notes, "remark", " not shown (--notes shows them)"),
    )
    rest = [f"{format_count(number, noun)}{what}" for number, noun, what in counts if number]
    lines = [f"{format_count(len(result.findings), 'finding')} in {format_count(max(n_files, 0), 'file')}."]
    if rest:
        lines.append("; ".join(rest) + ".")
    if result.findings and not result.trace:
        lines.append("Source alone is a hint: --trace TRACE shows what each finding costs.")
    return lines
