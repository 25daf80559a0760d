"""How a place, a comparison with a trace and the totals of lint read, wherever they are shown."""

from __future__ import annotations

from torchtriage.finding import Finding
from torchtriage.lint.result import LintResult
from torchtriage.names import visible
from torchtriage.report.words import count

__all__ = ["place", "summary", "traced"]


def place(one: Finding) -> str:
    """Return ``train.py:31:9``, of a notebook ``demo.ipynb:cell 3 line 5:9``."""
    frame = one.place.frame
    assert frame is not None
    column = one.evidence.get("column", 1)
    if "cell" in one.evidence:
        return f"{visible(frame.file)}:cell {one.evidence['cell']} line {frame.line}:{column}"
    return f"{visible(frame.file)}:{frame.line}:{column}"


def traced(one: Finding) -> str:
    """Return what the trace says about a finding, empty when none was given."""
    said = str(one.evidence.get("trace", ""))
    shared = one.evidence.get("cost_shared_by", 1)
    if said and isinstance(shared, int) and shared > 1:
        said += f"; the saving is that of {shared} places together"
    return said


def summary(result: LintResult) -> list[str]:
    """Return the totals: findings, files, and everything that was left out."""
    looked = result.n_files - result.n_without_torch - len({one.file for one in result.odd})
    first = f"{count(len(result.findings), 'finding')} in {count(max(looked, 0), 'file')}"
    rest = []
    if result.n_without_torch:
        rest.append(f"{count(result.n_without_torch, 'file')} without torch")
    if result.n_tests:
        rest.append(f"{count(result.n_tests, 'test file')} left out (name them to look at them)")
    if result.odd:
        rest.append(f"{count(len(result.odd), 'odd source')} not looked at")
    if result.n_suppressed:
        rest.append(f"{count(result.n_suppressed, 'finding')} allowed by comments")
    if result.n_notes:
        rest.append(f"{count(result.n_notes, 'remark')} not shown (--notes shows them)")
    lines = [first + "."]
    if rest:
        lines.append("; ".join(rest) + ".")
    if result.findings and not result.trace:
        lines.append("Source alone is a hint: --trace TRACE tells what each one costs.")
    return lines
