"""Fixes that were tried: what each promised and saved, what is in the patch, and the patch."""

from __future__ import annotations

from torchtriage.core.finding import Cost
from torchtriage.core.units import format_count, format_ms
from torchtriage.measure.fix.result import Attempt, FixResult
from torchtriage.measure.verify.result import Verification
from torchtriage.report import blocks as b
from torchtriage.report import words

STYLES = {"in the patch": "bold green", "results differ": "bold red", "failed": "bold red", "slower": "bold red"}
RESULTS_MATTER = ("in the patch", "faster alone", "results differ", "not compared", "not allowed")
DIFF = {"+": "green", "-": "red", "@": "cyan"}


def document(result: FixResult) -> b.Document:
    """Return the report of ``torchtriage fix``."""
    proved = result.together is not None
    tried = [attempt for attempt in result.attempts if attempt.outcome != "not needed"]
    rows = [b.Row("program", result.command, fit=True), b.Row("results", result.verdict[-1] if proved else "")]
    if result.applied:
        rows.append(b.Row("written", ", ".join(result.applied)))
    blocks: list[b.Block] = [
        b.Head("torchtriage fix", result.verdict[:1], ("bold green" if proved else "bold",), hang=0),
        b.Rows([row for row in rows if b.unfold(row.text)]),
        *(_attempt(number, attempt) for number, attempt in enumerate(tried, start=1)),
        b.Lines([_needless(len(result.attempts) - len(tried))]),
        b.Rows([b.Row("no change", row) for row in _unedited(result)]),
        b.Code([_row(line) for line in result.patch.splitlines()], language="diff"),
        b.Notes(result.notes, label="limit"),
    ]
    return b.Document("Fixes on trial", result.version, result.schema, blocks)


def _attempt(number: int, attempt: Attempt) -> b.Entry:
    style = STYLES.get(attempt.outcome, "yellow")
    change = (b.bold(attempt.what), b.dim(f", for {attempt.code}"))
    title = (b.dim(f"{number}. "), *change, b.Span(f"  ({attempt.outcome})", style))
    rows = [
        b.Row("where", b.code(f"{attempt.file}:{attempt.line}" if attempt.file else "")),
        b.Row("promised", _promise(attempt.promise)),
    ]
    if attempt.trial is not None:
        rows.append(b.Row("measured", attempt.trial.verdict[0]))
        if attempt.outcome in RESULTS_MATTER:
            rows.append(b.Row("results", attempt.trial.verdict[1]))
        rows.append(b.Row("start", _start(attempt, attempt.trial)))
    rows.append(b.Row("changes", attempt.changes))
    rows.append(b.Row("why", attempt.reason))
    return b.Entry(title, [b.Rows([row for row in rows if b.unfold(row.text)], indent=3)], fold=True)


def _needless(n: int) -> str:
    return f"{format_count(n, 'other change')} for the same findings: not needed." if n else ""


def _promise(cost: Cost | None) -> str:
    return "no time" if cost is None or not cost.high_ms else words.saving(cost)


def _start(attempt: Attempt, trial: Verification) -> str:
    if attempt.start_up_ms is None or trial.saved_ms <= 0:
        return ""
    steps = format_count(attempt.start_up_ms / trial.saved_ms, "step")
    return f"{format_ms(attempt.start_up_ms)} more at the start of a run: pays off after {steps}"


def _unedited(result: FixResult) -> list[b.Text]:
    return [
        (
            b.bold(f"{row.code} "),
            f"{row.name}, ",
            b.code(f"{row.file}:{row.line}"),
            f", promised {_promise(row.promise)}",
        )
        for row in result.unedited
    ]


def _row(line: str) -> tuple[str, str]:
    return line, DIFF.get(line[:1], "") if line[:3] not in ("+++", "---") else "bold"
