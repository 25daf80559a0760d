"""Findings out of numbered values: lines whose operators compute again what they, or others, have computed before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from torchtriage.core.finding import Finding, Frame, Place
from torchtriage.core.names import file_name
from torchtriage.core.units import format_share
from torchtriage.diagnose.lint.base import lookup
from torchtriage.diagnose.runs.account import SampledLoop
from torchtriage.diagnose.runs.costs import WORTH, counting_error, severity_of, share_cost
from torchtriage.diagnose.runs.samples import shortened

KEEPS = 0.85
"""What part of the repeated time is surely saved: what is stored must be looked up."""
ALL, MOST_NAMED = 0.99, 4


def repeated_values(
    noted: Sequence[dict[str, Any]], roots: Sequence[str], loop: SampledLoop, step_ms: float
) -> Iterator[Finding]:
    """Yield a finding for each function whose lines compute the same values again; ``noted`` : by the recorder.

    ``roots`` : folders that the looks' files are named from. ``step_ms`` : what costs are of.
    """
    functions: dict[tuple[str, str], dict[int, tuple[float, dict[str, Any]]]] = defaultdict(dict)
    for row in noted:
        file, line = shortened(row["file"], roots), row["line"]
        part = max(row["again_ns"], row["within_ns"]) / max(row["ns"], 1)
        functions[file, row["function"]][line] = loop.operators_at(file, line) * part, row
    for (file, function), lines in functions.items():
        share = sum(at for at, _ in lines.values())
        if share < WORTH:
            continue
        entry, error = lookup("LCH105"), counting_error(share, len(loop.seen))
        longest = sorted(lines, key=lambda line: -lines[line][0])
        rows = [row for _, row in lines.values()]
        again, within = sum(row["again_ns"] for row in rows), sum(row["within_ns"] for row in rows)
        backward = min(share, loop.backward_share) if any(row["needs_grad"] for row in rows) else 0.0
        low, high = KEEPS * max(share - error, 0.0), min(share + error + backward, 1.0)
        before = "the step before" if again >= within else "the same step"
        part = max(again, within) / max(sum(row["ns"] for row in rows), 1)
        frame = Frame(file, longest[0], function, exact=True, lines=tuple(longest))
        yield entry.rule.finding(
            severity=severity_of(low, high),
            certainty="likely",
            message=f"{'all' if part > ALL else format_share(part)} of the operators' work at {file_name(file)}:"
            f"{', '.join(map(str, sorted(longest[:MOST_NAMED])))} has results that {before} had computed already, and"
            f" takes {loop.took(share, step_ms)}",
            place=Place(frame=frame, stack=(frame,)),
            cost=share_cost(low, high, step_ms, share, "repeated values, and their share of stack samples", loop, "B"),
            evidence={"share_of_step": round(share, 6), "repeated": round(part, 4), "before": before},
            fix=entry.fix,
            n_events=len(rows),
        )
