"""Why nothing moves: the dataclasses are the JSON document ``torchtriage-hang/1``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torchtriage.core.finding import Note
from torchtriage.core.version import __version__

HANG_SCHEMA = "torchtriage-hang/1"

WaitKind = Literal["missing", "mismatch", "unfinished", "p2p"]


@dataclass(frozen=True)
class Call:
    """One frame of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose thread stands at the same place.

    ``calls`` : innermost first. ``names`` : what the processes are called: ``rank 0``, or ``pid 17`` without a rank.
    """

    names: tuple[str, ...]
    thread: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class CollectiveWait:
    """A collective that began and does not end, as the flight recorders of the ranks have it.

    ``number`` : of the collective in its process group, from 1. ``arrived`` : ranks that are in it; ``missing`` : those
    that never entered it; ``unknown`` : those without a record that tells. ``at`` : where the ranks in it called it.
    ``calls`` : what each rank called, where they differ.
    """

    kind: WaitKind
    group: str
    number: int
    op: str
    arrived: tuple[int, ...]
    missing: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    at: Call | None = None
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class HangResult:
    """What a job waits for: the collectives, the stacks of its ranks, and what could not be seen."""

    target: str
    verdict: tuple[str, ...]
    waits: tuple[CollectiveWait, ...] = ()
    stacks: tuple[StackGroup, ...] = ()
    notes: tuple[Note, ...] = ()
    version: str = __version__
    schema: str = field(default=HANG_SCHEMA, kw_only=True)


def at_words(call: Call | None) -> str:
    """Return `` at train.py:12``, empty without a call."""
    return f" at {os.path.basename(call.file)}:{call.line}" if call else ""  # noqa: PTH119


def ranks_words(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, or ``ranks 0-6, 9``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(texts)}"
