"""What lint found as text: one block per finding, or one line each for editors."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from torchtriage.finding import Finding, Severity
from torchtriage.lint.result import LintResult, Patch
from torchtriage.names import visible
from torchtriage.report import words
from torchtriage.report.lint.words import place, summary, traced
from torchtriage.report.terminal import Page

__all__ = ["concise", "render"]

_SEVERITY: dict[Severity, str] = {
    "high": "bold red",
    "medium": "yellow",
    "low": "cyan",
    "note": "dim",
}

Quote = Callable[[str, int], str]


def concise(result: LintResult) -> str:
    """Return one line per finding and odd source, ``path:line:col: CODE message``."""
    lines = [f"{place(one)}: {one.code} {visible(one.message)}" for one in result.findings]
    lines += [f"{visible(one.file)}:{one.line or 1}:1: ODD {visible(one.message)}"
              for one in result.odd]  # fmt: skip
    lines += [f"{visible(one.file)}:{one.line}:1: ALLOW {visible(one.message)}"
              for one in result.unused]  # fmt: skip
    return "".join(f"{line}\n" for line in lines)


def render(
    result: LintResult,
    *,
    width: int | None = None,
    quote: Quote | None = None,
    fixing: bool = False,
) -> Text:
    """Return the report.

    Parameters
    ----------
    result : LintResult
    width : int, optional
        Columns; 80 when not given.
    quote : callable, optional
        Returns a file's source line, empty where it cannot be read. Without it none is shown.
    fixing : bool
        Whether autofixes were to be applied: they are told, not shown as a diff.
    """
    page = Page(width)
    told: set[str] = set()
    for one in result.findings:
        _finding(page, one, quote, told)
        page.blank()
    for patch in result.patches:
        _patch(page, patch, fixing)
        page.blank()
    if result.trace:
        _trace_only(page, result)
    for odd in result.odd:
        where = f"{visible(odd.file)}:{odd.line}" if odd.line else visible(odd.file)
        page.line((f"{where}: ", ""), (visible(odd.message), "yellow"), hang=2)
    for unused in result.unused:
        page.line((f"{visible(unused.file)}:{unused.line}: ", ""), (visible(unused.message), "dim"),
                  hang=2)  # fmt: skip
    page.blank(bool(result.odd or result.unused))
    for index, line in enumerate(summary(result)):
        page.line((line, "bold" if index == 0 else "dim"))
    return page.text


def _finding(page: Page, one: Finding, quote: Quote | None, told: set[str]) -> None:
    page.line(
        (f"{place(one)}: ", "bold"),
        (one.severity.upper(), _SEVERITY[one.severity]),
        (f" {one.code} ", "bold"),
        (visible(one.title), "bold"),
        (f"  {one.certainty}", "italic" if one.certainty == "certain" else "dim"),
        hang=2,
    )
    frame = one.place.frame
    if quote is not None and frame is not None and "cell" not in one.evidence:
        text = quote(frame.file, frame.line).strip()
        if text:
            page.source_line(f"{frame.line} | {visible(text)}")
    page.labelled("what", (visible(one.message), ""))
    if one.cost is not None:
        page.labelled("saves", (words.saving(one.cost), "bold"),
                      (f"  {words.basis(one.cost)}", "dim"))  # fmt: skip
    if said := traced(one):
        page.labelled("trace", (said, ""))
    page.labelled("fix", (visible(one.fix.text), ""))
    key = f"{one.code} {one.fix.code}"
    if key not in told:  # once is enough
        told.add(key)
        link = [(one.fix.link, "dim underline")] if one.fix.link.startswith("https://") else []
        page.verbatim([*((row, "green") for row in one.fix.code.splitlines()), *link])


def _patch(page: Page, patch: Patch, fixing: bool) -> None:
    codes = ", ".join(patch.codes)
    if patch.applied:
        page.line((f"{visible(patch.file)}: ", "bold"), (f"mended {codes}", "green"))
    elif fixing:
        page.line((f"{visible(patch.file)}: ", "bold"), (f"not mended: {codes}", "yellow"))
    else:
        page.line((f"{visible(patch.file)}: ", "bold"), (f"--fix mends {codes}", "green"))
        page.verbatim([(row, _diff_style(row)) for row in patch.diff.split("\n")])
    for code, reason in patch.safe_because.items():
        page.labelled("safe", (f"{code}: {reason}", "dim"))


def _diff_style(row: str) -> str:
    if row.startswith("+"):
        return "green"
    return "red" if row.startswith("-") else "dim"


def _trace_only(page: Page, result: LintResult) -> None:
    for one in result.trace_only:
        where = f" at {words.frame(one.place.frame)}" if one.place.frame is not None else ""
        page.line(
            ("in the trace only: ", "dim"), (f"{one.code} ", "bold"), (visible(one.title), ""),
            (where, ""), hang=2,
        )  # fmt: skip
    page.blank(bool(result.trace_only))
