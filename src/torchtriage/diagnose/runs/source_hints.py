"""What ``lint`` sees in the files that a run went through, beside what the run showed: told once, at its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtriage.core.errors import TriageError
from torchtriage.core.finding import Finding, Frame
from torchtriage.core.names import file_name
from torchtriage.core.source import Sources
from torchtriage.diagnose.lint import check
from torchtriage.diagnose.lint.base import catalogue
from torchtriage.diagnose.runs.samples import Samples

__all__ = ["with_source"]

NEAR = 3
"""Lines apart that are one place: a statement, or a call and what it is given."""
MAX_FILES = 20
LOADED = ("DAT018", "DAT019", "MEM029")
"""What is seen where batches are fetched or memory grows, and mended where the source says: one place each."""


def with_source(
    findings: Sequence[Finding], samples: Samples, folders: Sequence[str], *, on_device: bool
) -> tuple[Finding, ...]:
    """Return the findings with the source's own: one that both see is certain, and has the line of the source.

    Only files that the looks at the stack went through are read; what did not run is not told. ``on_device`` : the
    run used an accelerator; else nothing is said about the way to one.
    """
    out = list(findings)
    needless = frozenset() if on_device else _of_devices()
    ran = {
        (position.file, line_function)
        for look in samples.looks
        for position in look.stack
        if not position.library
        for line_function in (position.name,)
    }
    files = sorted({file for file, _ in ran})[:MAX_FILES]
    for hint in _hints(files, folders):
        frame = hint.place.frame
        if frame is None or hint.code in needless:
            continue
        same = [finding for finding in out if finding.code == hint.code]
        at = next((finding for finding in same if _one_place(finding, hint)), None)
        if at is None and same and hint.code in LOADED and same[0].place.frame is None:
            at = same[0]
        if at is not None:
            place = at.place if at.place.frame and at.place.frame.exact else replace(at.place, frame=frame)
            certainty = "certain" if at.certainty != "certain" else at.certainty
            out[out.index(at)] = replace(at, place=place, certainty=certainty)
        elif not same or hint.severity != "note":
            near = any(_at(other, frame) for other in out)
            if not near:
                out.append(replace(hint, severity="low" if hint.severity != "note" else "note"))
    return tuple(out)


def _of_devices() -> frozenset[str]:
    return frozenset(
        entry.rule.code for entry in catalogue() if entry.rule.device or entry.rule.family in ("sync", "comm")
    )


def _hints(files: Sequence[str], folders: Sequence[str]) -> list[Finding]:
    sources = Sources(folders)
    found: list[Finding] = []
    for file in files:
        source = next((item for item in sources.find(file) if item.tree is not None), None)
        if source is None:
            continue
        try:
            found += check.lint_text(source.text, file).findings
        except TriageError:
            continue
    return found


def _at(finding: Finding, frame: Frame) -> bool:
    mine = finding.place.frame
    return mine is not None and (file_name(mine.file), mine.line) == (file_name(frame.file), frame.line)


def _one_place(finding: Finding, hint: Finding) -> bool:
    mine, theirs = finding.place.frame, hint.place.frame
    if mine is None or theirs is None or file_name(mine.file) != file_name(theirs.file):
        return False
    return abs(mine.line - theirs.line) <= NEAR or (mine.function == theirs.function and bool(mine.function))
