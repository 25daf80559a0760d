"""What the doctor says of traces that are no JSON of Kineto: what their format cannot show, and its own advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchtriage.core.finding import Note
from torchtriage.core.trace import Trace
from torchtriage.core.trace.formats import FORMATS, KINETO

__all__ = ["format_notes", "in_its_words"]

_NEED_OF = {"no-steps": "steps", "no-shapes": "shapes", "no-stacks": "stacks", "no-host-rows": "ops"}
"""What a note misses, as patterns call it."""


def format_notes(trace: Trace) -> Iterator[Note]:
    """Yield what the format cannot show."""
    if trace.report.format != KINETO:
        known = FORMATS[trace.report.format]
        yield Note("other-format", "info", f"{known.what}: {known.lacks}. Patterns that need these are not checked")


def in_its_words(notes: list[Note], trace: Trace) -> list[Note]:
    """Advise what the profiler at hand can do, not what PyTorch's can."""
    if trace.report.format == KINETO:
        return notes
    known = FORMATS[trace.report.format]
    needs = [_NEED_OF.get(note.code) for note in notes]
    fixes = [known.record if need is None else known.hints.get(need, "") for need in needs]
    return [replace(note, fix=fix if note.fix else "") for note, fix in zip(notes, fixes, strict=True)]
