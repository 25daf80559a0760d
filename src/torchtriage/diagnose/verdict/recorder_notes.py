"""What the doctor says of traces of other profilers than PyTorch's: what they cannot show, and advice that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchtriage.core.finding import Note
from torchtriage.core.trace import Trace
from torchtriage.core.trace.recorders import RECORDERS

__all__ = ["in_its_words", "recorder_notes"]

_NEED_OF = {"no-steps": "steps", "no-shapes": "shapes", "no-stacks": "stacks", "no-host-rows": "ops"}
"""What a note misses, as patterns call it."""


def recorder_notes(trace: Trace) -> Iterator[Note]:
    """Yield what the recorder cannot show."""
    known = RECORDERS.get(trace.report.recorder)
    if known is not None:
        yield Note("other-recorder", "info", f"{known.what}: {known.lacks}. Patterns that need these are not checked")


def in_its_words(notes: list[Note], trace: Trace) -> list[Note]:
    """Advise what the profiler at hand can do, not what PyTorch's can."""
    known = RECORDERS.get(trace.report.recorder)
    if known is None:
        return notes
    needs = [_NEED_OF.get(note.code) for note in notes]
    fixes = [known.record if need is None else known.hints.get(need, "") for need in needs]
    return [replace(note, fix=fix if note.fix else "") for note, fix in zip(notes, fixes, strict=True)]
