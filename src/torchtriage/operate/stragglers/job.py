"""The ranks of a job as one of them reads their notes: which is late, which is not heard of, what a hung one is at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtriage.core.units import format_ns
from torchtriage.operate.stragglers.judge import Judge, Late
from torchtriage.operate.stragglers.summary import PHASE_NAMES, RankNote, WindowTimes

LOST_S = 30.0
"""A rank that has told nothing for so long is not heard of; it tells something each second."""
HUNG_S, HUNG_STEPS = 60.0, 20
"""No step for so long, and for so many usual ones, and the job hangs."""
BEHIND = 3
"""Windows that a rank may be behind before the others are judged without it."""
FEWEST = 0.5
"""Of the ranks, below which nothing is judged."""
MOST_NAMED = 5


@dataclass(frozen=True)
class Lost:
    """A rank that is not heard of any more; ``step`` : the last that it told of."""

    rank: int
    step: int

    def __str__(self) -> str:
        """Return the line for the log."""
        return f"rank {self.rank} has not been heard from since step {self.step}"


@dataclass(frozen=True)
class Hung:
    """A job that makes no step.

    ``at`` : phase and seconds in it of the ranks that do not wait for another. ``lost`` : the ranks that are not heard
    of, whose phase is not known.
    """

    step: int
    for_s: float
    at: dict[int, tuple[str, float]]
    lost: list[Lost] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the line for the log."""
        places = [str(lost) for lost in self.lost] + [
            f"rank {rank} has been in {phase} for {format_ns(since_s * 1e9)}"
            for rank, (phase, since_s) in self.at.items()
        ]
        named = ", ".join(places[:MOST_NAMED]) or "no rank is known to be working"
        more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
        return f"no step for {format_ns(self.for_s * 1e9)} since step {self.step}: {named}{more}"


class JobWatch:
    """Takes the notes of all ranks now and then; says what is new. Keeps a few windows of each."""

    def __init__(self, n_ranks: int, every: int) -> None:
        self.judge = Judge(every)
        self.n_ranks = n_ranks
        self.lost: dict[int, Lost] = {}
        self.ended: set[int] = set()
        self._windows: dict[int, dict[int, WindowTimes]] = {}
        self._newest: dict[int, int] = {}
        self._judged = -1
        self._heard: dict[int, tuple[int, float]] = {}
        self._moved: tuple[int, float] = (0, 0.0)
        self._hung = False

    def update(self, notes: Mapping[int, RankNote], at_s: float) -> list[Late | Lost | Hung]:
        """Take what ranks tell at a moment of a clock that never goes back."""
        for rank in range(self.n_ranks):
            self._heard.setdefault(rank, (-1, at_s))
        for rank, note in notes.items():
            self._take(rank, note, at_s)
        events: list[Late | Lost | Hung] = [*self._find_lost(notes, at_s), *self._find_hung(notes, at_s)]
        for number in sorted(self._windows):
            ranks = self._windows[number]
            if self._is_ready(number, ranks):
                events += self.judge.update(number, ranks)
                self._judged = number
        self._windows = {number: ranks for number, ranks in self._windows.items() if number > self._judged}
        return events

    def _take(self, rank: int, note: RankNote, at_s: float) -> None:
        if note.ended:
            self.ended.add(rank)
        if self._heard[rank][0] != note.beat:
            self._heard[rank] = note.beat, at_s
            self.lost.pop(rank, None)
        for window in note.windows:
            if window.number > self._judged:
                self._windows.setdefault(window.number, {})[rank] = window
        if note.windows:
            self._newest[rank] = note.windows[-1].number

    def _is_ready(self, number: int, ranks: Mapping[int, WindowTimes]) -> bool:
        gone = self.ended | self.lost.keys()
        missing = [rank for rank in range(self.n_ranks) if rank not in ranks and rank not in gone]
        enough = len(ranks) >= max(2, FEWEST * self.n_ranks)
        return enough and (not missing or max(self._newest.values()) >= number + BEHIND)

    def _find_lost(self, notes: Mapping[int, RankNote], at_s: float) -> list[Lost]:
        quiet = [rank for rank, (_, heard_s) in self._heard.items() if at_s - heard_s > LOST_S]
        found = {
            rank: Lost(rank, notes[rank].step if rank in notes else 0)
            for rank in quiet
            if rank not in self.ended | self.lost.keys()
        }
        self.lost |= found
        return [*found.values()]

    def _find_hung(self, notes: Mapping[int, RankNote], at_s: float) -> list[Hung]:
        going = {rank: note for rank, note in notes.items() if rank not in self.ended}
        steps = sum(note.step for note in going.values())
        if steps != self._moved[0] or not going:
            self._moved, self._hung = (steps, at_s), False
            return []
        for_s = at_s - self._moved[1]
        if self._hung or for_s < max(HUNG_S, HUNG_STEPS * self.judge.step_ms / 1e3):
            return []
        self._hung = True
        at = {
            rank: (PHASE_NAMES[note.phase], note.since_s + at_s - self._heard[rank][1])
            for rank, note in going.items()
            if note.phase < len(PHASE_NAMES) and rank not in self.lost
        }
        return [Hung(max(note.step for note in going.values()), for_s, at, [*self.lost.values()])]
