"""A fix on trial: the verdict, the rounds of both programs, findings."""

from __future__ import annotations

from torchtriage.core.units import format_count, format_ms
from torchtriage.measure.verify.result import Verification
from torchtriage.report import blocks as b
from torchtriage.report.documents.comparison import changes

CELLS = 40


def document(result: Verification) -> b.Document:
    """Return the report of ``torchtriage verify``."""
    speed = "bold" if not result.told else "bold green" if result.ratio < 1 else "bold red"
    agree = "bold red" if result.answers.status == "differ" else ""
    steps = ""
    if result.per == "step":
        n, n_after = result.n_steps, result.n_steps_after or result.n_steps
        steps = f", {format_count(n, 'timed step')} each" if n == n_after else f", {n:,} and {n_after:,} timed steps"
    programs = [b.Row("before", result.before, fit=True), b.Row("after", result.after, fit=True)]
    blocks: list[b.Block] = [
        b.Head("torchtriage verify", result.verdict, (speed, agree, ""), hang=0),
        b.Rows([*programs, b.Row("rounds", b.dim(f"{len(result.rounds)}, in alternation, no profiler{steps}"))]),
        b.Code(_dots(result)),
        changes(result.findings),
        b.Notes(result.notes, label="limit"),
    ]
    return b.Document("A fix on trial", result.version, result.schema, blocks)


def _dots(result: Verification) -> list[tuple[str, str]]:
    longest = max(max(pair.before_ms, pair.after_ms) for pair in result.rounds)
    rows = []
    for label, times, mean in (
        ("before", [pair.before_ms for pair in result.rounds], result.before_ms),
        ("after", [pair.after_ms for pair in result.rounds], result.after_ms),
    ):
        cells = ["·"] * (CELLS + 1)
        for time in times:
            cells[round(time / longest * CELLS)] = "●"
        rows.append((f"{label:7}{''.join(cells)}  {format_ms(mean)}", ""))
    return [*rows, (f"{'':7}0{format_ms(longest):>{CELLS}}  per {result.per}", "dim")]
