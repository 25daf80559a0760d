"""Labels of windows, and the history of who changed which, when, and on what evidence.

A history is a file of JSON lines that is only ever appended to. What the labels are now is what was
recorded first with every line of the history applied in turn; a veto takes one change back, and
from then on the window is a person's to judge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec

from torchtriage.core.errors import UsageError
from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage.learn.review.reviewer import NONE
from torchtriage_benchmark.training.human_reviewer import is_person

HISTORY = "labels.jsonl"
"""In the folder of recordings."""

Labels = dict[str, tuple[str, ...]]
"""A code, or ``none``, for each window of each recording."""


def recorded_labels(items: Sequence[DatasetItem]) -> Labels:
    """Return the labels that the recordings came with."""
    return {item.id: tuple(item.code if faulty else NONE for faulty in item.faulty.tolist()) for item in items}


@dataclass(frozen=True)
class Sentence:
    """A person's words, or a former reviewer's, and the ids of the lines of evidence they rest on."""

    text: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One line of the history.

    ``number`` : of the line, from 1. ``at`` : UTC. ``who`` : a reviewer's or a person's name.
    ``window`` : of the recording ``item``, from 0. ``why`` : with the ids of ``cited``, which is
    the evidence word by word; ``digest`` is that of all evidence that was shown. ``vetoes`` : the
    number of the change that is taken back; 0 for a change of its own.
    """

    number: int
    at: str
    who: str
    item: str
    window: int
    before: str
    after: str
    confidence: float = 1.0
    why: tuple[Sentence, ...] = ()
    cited: tuple[tuple[str, str], ...] = ()
    digest: str = ""
    round: int = 0
    vetoes: int = 0

    @property
    def action(self) -> Literal["relabel", "veto"]:
        """What was done."""
        return "veto" if self.vetoes else "relabel"


@dataclass
class History:
    """The changes in a file, and more to come. ``damaged`` : lines that are none, cut off."""

    path: Path
    changes: list[Change] = field(default_factory=list)
    damaged: tuple[int, ...] = ()

    @classmethod
    def read(cls, path: Path) -> History:
        """Read a history; one that does not exist is empty.

        Raises UsageError: it cannot be read.
        """
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
        lines = [_change(number, line) for number, line in enumerate(data.splitlines(), 1)]
        damaged = tuple(number for number, line in enumerate(lines, 1) if line is None)
        return cls(path, [line for line in lines if line is not None], damaged)

    def append(self, **told: Any) -> Change:
        """Write a change down, now, and return it; ``number`` and ``at`` are given.

        Raises UsageError: the file cannot be written.
        """
        last = max((change.number for change in self.changes), default=0)
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        change = Change(max(last, *self.damaged, 0) + 1, at, **told)
        line = json.dumps(asdict(change), ensure_ascii=False).encode("utf-8", "backslashreplace")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line + b"\n" if _ends(self.path) else b"\n" + line + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}", where=str(self.path)) from error
        self.changes.append(change)
        return change

    def apply(self, labels: Labels) -> Labels:
        """Return labels with all changes made; those of other recordings do not matter."""
        found = {item: list(codes) for item, codes in labels.items()}
        for change in self.changes:
            codes = found.get(change.item)
            if codes is not None and 0 <= change.window < len(codes):
                codes[change.window] = change.after
        return {item: tuple(codes) for item, codes in found.items()}

    @property
    def closed(self) -> frozenset[tuple[str, int]]:
        """Windows that a person has judged: no reviewer may change them again."""
        return frozenset(
            (change.item, change.window) for change in self.changes if change.vetoes or is_person(change.who)
        )

    @property
    def standing(self) -> Iterator[Change]:
        """The changes that were not taken back."""
        gone = {change.vetoes for change in self.changes}
        return (change for change in self.changes if not change.vetoes and change.number not in gone)

    def veto(self, number: int, *, who: str, why: str) -> Change:
        """Take a change back.

        Raises UsageError: there is no such change, it was taken back already, or a later one has
        replaced it.
        """
        known = {change.number: change for change in self.changes if not change.vetoes}
        change = known.get(number)
        if change is None:
            raise UsageError(
                f"expected the number of a change, found {number}",
                where=str(self.path),
                hint="torchtriage benchmark learn audit lists them",
            )
        place = change.item, change.window
        later = [item for item in self.changes[self.changes.index(change) + 1 :] if (item.item, item.window) == place]
        if later:
            last = later[-1]
            raise UsageError(
                f"change {number} was {'taken back' if last.vetoes else 'replaced'} by {last.number}",
                where=str(self.path),
            )
        return self.append(
            who=who,
            item=change.item,
            window=change.window,
            before=change.after,
            after=change.before,
            why=(Sentence(why, ()),),
            vetoes=number,
        )


def _change(number: int, line: bytes) -> Change | None:
    """Return a line of the file, None for one that was cut off as it was written."""
    try:
        return replace(msgspec.json.decode(line, type=Change), number=number)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _ends(path: Path) -> bool:
    """Return whether a file ends with a line's end."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        if not file.tell():
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
