"""What grew at every look, and what it is worth: kind, bytes per step, and a way to measure it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from types import FrameType
from typing import Any, Literal

from torchtriage.memory.leaks import process_growth
from torchtriage.memory.leaks.item_weight import weigh_newest
from torchtriage.memory.leaks.object_growth import CodeLine, Key, Measure, SizedObject, find

MIN_LOOKS = 5
MIN_LOOKS_MADE_ANEW = 8
"""Of a tensor or a text that is another at each look: sizes at random rise eight times in a row once in 40,000."""
STEADY = 0.5
"""Of the median rate, in the later looks."""
SLOWER = 1.5
"""Standard errors by which the later looks' rate may be below the earlier ones': what is filled at random, by keys that
come again, is slower by more, unless it is far from full."""
UNEVEN = 0.05
"""Of the rate: what looks between two items make of it."""
FLOOR = {"items": 256.0, "bytes": 256.0, "nodes": 0.0, "hooks": 0.0, "log": 4096.0, "tensors": 1024.0}
"""Bytes per step below which growth is no leak. A loop may log numbers (``log``)."""
CHILD_FLOOR = 8192.0
FIND_S = 0.1
MAX_TRACKS = 500

Kind = Literal[
    "growing list",
    "growing cache",
    "hooks",
    "autograd graph",
    "growing tensor",
    "compiled code",
    "worker processes",
    "tensors kept",
    "device memory",
    "resident memory",
]


class SizeTrack:
    """Sizes at each look, since the growth began."""

    def __init__(self, held: SizedObject, step: int, size: int) -> None:
        self.held = held
        self.points: deque[tuple[int, int]] = deque([(step, size)], maxlen=24)

    def add(self, held: SizedObject, step: int) -> None:
        """Note the size at one more look."""
        self.held = held
        self.points.append((step, held.size))

    @property
    def rate(self) -> float:
        """Return the growth per step over all looks."""
        (first, low), (last, high) = self.points[0], self.points[-1]
        return (high - low) / max(last - first, 1)

    def grows(self, step: int, patience: int) -> bool:
        """Return whether it grew at every look for long enough, and has not slowed down."""
        made_anew = self.held.unit == "bytes" and self.held.key[1] != " children"
        at_least = MIN_LOOKS_MADE_ANEW if made_anew else MIN_LOOKS
        if len(self.points) < at_least or step - self.points[0][0] < patience:
            return False
        points = list(self.points)
        rates = [(b[1] - a[1]) / max(b[0] - a[0], 1) for a, b in pairwise(points)]
        half = points[len(points) // 2]
        late = (points[-1][1] - half[1]) / max(points[-1][0] - half[0], 1)
        steady = late >= STEADY * sorted(rates)[len(rates) // 2] and late >= STEADY * self.rate
        return steady and not (self.held.unit == "items" and _slows(rates))


def _slows(rates: list[float]) -> bool:
    half = len(rates) // 2
    # noise from look to look, which a trend does not enter
    noise = fmean([(b - a) ** 2 for a, b in pairwise(rates)]) / 2
    error = (noise * (1 / half + 1 / (len(rates) - half))) ** 0.5
    drop = fmean(rates[:half]) - fmean(rates[half:])
    return bool(drop > max(SLOWER * error, UNEVEN * fmean(rates)))


class GrowthTracker:
    """Keeps a track of what grew at every look so far, and forgets the others.

    With ``pauses``, a look at which a thing had the same size does not count for it: for looks by
    the clock, between which a loop may have stood still.
    """

    def __init__(self, *, pauses: bool = False) -> None:
        self._pauses = pauses
        self._sizes: dict[Key, int] = {}
        self._tracks: dict[Key, SizeTrack] = {}
        self._last_look = 0

    def follow(self, now: dict[Key, SizedObject], step: int) -> None:
        """Take in what a look found."""
        for key, held in now.items():
            before = self._sizes.get(key)
            if before is None:
                continue
            track = self._tracks.get(key)
            if held.size > before:
                if track is None:
                    if len(self._tracks) >= MAX_TRACKS:
                        continue
                    track = self._tracks[key] = SizeTrack(held, self._last_look, before)
                track.add(held, step)
            elif track is not None and not (self._pauses and held.size == before):
                del self._tracks[key]
        self._tracks = {key: track for key, track in self._tracks.items() if key in now}
        self._sizes = {key: held.size for key, held in now.items()}
        self._last_look = step

    @property
    def growing(self) -> Collection[Key]:
        """Return what has grown at every look since it began to."""
        return self._tracks.keys()

    def steady(self, step: int, patience_steps: int) -> list[SizeTrack]:
        """Return what has grown long and steadily enough, fastest first."""
        steady = [track for track in self._tracks.values() if track.grows(step, patience_steps)]
        return sorted(steady, key=lambda track: -track.rate)


@dataclass
class LeakCandidate:
    """What grows; ``worth`` a report or not.

    ``graph`` : autograd graphs hang on it. ``what`` : the type of its items. ``place`` : the line, where it is
    known without tracing. ``n_objects_per_step`` : small objects that come with it.
    """

    track: SizeTrack
    kind: Kind
    measure: Measure
    bytes_per_step: float
    worth: bool
    graph: bool = False
    what: str = ""
    place: CodeLine | None = None
    n_objects_per_step: float = 0.0


def weigh(track: SizeTrack, frame: FrameType) -> LeakCandidate | None:
    """Return what a growing thing is and costs, None where it is gone by now."""
    held, rate = track.held, track.rate
    _, label, unit = held.key
    if label == " compiled":
        what, place = process_growth.last_compiled()
        return LeakCandidate(
            track, "compiled code", lambda _: process_growth.n_compiled(), 0.0, worth=True, what=what, place=place
        )
    if label == " children":
        worth = rate >= CHILD_FLOOR or unit == "processes"
        note = process_growth.child_report() if worth else None
        place = CodeLine(note["file"], note["line"], note["function"]) if note else None
        what = note["holder"] if note else ""
        return LeakCandidate(track, "worker processes", lambda _: 0, rate, worth, what=what, place=place)
    holder = find(frame, held.key, FIND_S)
    if holder is None:
        return None
    thing, measure = holder
    if unit == "nodes":
        return LeakCandidate(track, "autograd graph", measure, 0.0, worth=True, graph=True)
    if unit == "bytes":
        return LeakCandidate(track, "growing tensor", measure, rate, worth=rate >= FLOOR["bytes"])
    hooks = label == "hooks" or "_hooks" in label
    item = weigh_newest(thing)
    kind: Kind = "hooks" if hooks else "growing list" if isinstance(thing, (list, deque)) else "growing cache"
    # a graph holds more than can be seen of it
    floor = FLOOR["hooks" if hooks else "nodes" if item.graph else "log" if item.log else "items"]
    bounded = _bounded(thing)
    worth = rate * item.size >= floor and not bounded
    # what a cache with a bound takes is no log's: where it fills, the process is waited for
    n_objects = 0.0 if bounded else rate * item.n_objects
    return LeakCandidate(
        track, kind, measure, rate * item.size, worth, item.graph, item.what, n_objects_per_step=n_objects
    )


def _bounded(thing: Any) -> bool:
    # what says itself where it ends is no leak
    maxlen = getattr(thing, "maxlen", None)
    return maxlen is not None or (hasattr(thing, "cache_info") and thing.cache_info().maxsize is not None)
