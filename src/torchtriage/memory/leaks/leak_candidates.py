"""What grew at every look, and what it is worth: kind, bytes per step, and a way to measure it."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from types import FrameType, FunctionType
from typing import Any, Literal

from torchtriage.memory.leaks import process_growth
from torchtriage.memory.leaks.object_growth import CodeLine, Key, Measure, SizedObject, find

__all__ = ["FLOOR", "GrowthTracker", "Kind", "LeakCandidate", "SizeTrack", "weigh"]

MIN_LOOKS = 5
STEADY = 0.5
"""Of the median rate, in the later looks."""
FLOOR = {"items": 256.0, "bytes": 1024.0, "nodes": 0.0, "hooks": 0.0, "log": 4096.0}
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
        if len(self.points) < MIN_LOOKS or step - self.points[0][0] < patience:
            return False
        points = list(self.points)
        rates = sorted((b[1] - a[1]) / max(b[0] - a[0], 1) for a, b in pairwise(points))
        half = points[len(points) // 2]
        late = (points[-1][1] - half[1]) / max(points[-1][0] - half[0], 1)
        return late >= STEADY * rates[len(rates) // 2] and late >= STEADY * self.rate


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

    def steady(self, step: int, patience_steps: int) -> list[SizeTrack]:
        """Return what has grown long and steadily enough, fastest first."""
        steady = [track for track in self._tracks.values() if track.grows(step, patience_steps)]
        return sorted(steady, key=lambda track: -track.rate)


@dataclass
class LeakCandidate:
    """What grows; ``worth`` a report or not.

    ``graph`` : autograd graphs hang on it. ``what`` : the type of its items. ``place`` : the line, where it is
    known without tracing.
    """

    track: SizeTrack
    kind: Kind
    measure: Measure
    bytes_per_step: float
    worth: bool
    graph: bool = False
    what: str = ""
    place: CodeLine | None = None


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
    size, log, graph, what = _per_item(thing)
    kind: Kind = "hooks" if hooks else "growing list" if isinstance(thing, (list, deque)) else "growing cache"
    # a graph holds more than can be seen of it
    floor = FLOOR["hooks" if hooks else "nodes" if graph else "log" if log else "items"]
    return LeakCandidate(track, kind, measure, rate * size, rate * size >= floor, graph, what)


def _per_item(thing: Any) -> tuple[float, bool, bool, str]:
    """Return bytes of one of the newest items, whether it is a mere number, holds a graph, what."""
    newest: list[Any]
    if isinstance(thing, dict):
        newest = list(islice(reversed(thing.items()), 3))
    elif isinstance(thing, (list, deque)):
        newest = list(islice(reversed(thing), 3))
    elif hasattr(thing, "cache_info"):
        return 1024.0, False, False, "calls"  # what a C cache holds is not asked for
    else:
        newest = list(islice(thing, 3))
    if not newest:
        return 0.0, True, False, ""
    sizes, logs, graphs = zip(*map(_deep, newest), strict=True)
    last = newest[0][1] if isinstance(thing, dict) else newest[0]
    return sum(sizes) / len(sizes) + 8.0, all(logs), any(graphs), type(last).__name__


def _deep(item: Any) -> tuple[float, bool, bool]:
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    todo, seen, total, log, graph = [item], set[int](), 0.0, True, False
    while todo and len(seen) < 100:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, tensor):
            with suppress(Exception):
                total += thing.untyped_storage().nbytes()
            graph = graph or thing.grad_fn is not None
            # a scalar off the graph is a number
            log = log and thing.numel() <= 1 and thing.grad_fn is None
            continue
        total += sys.getsizeof(thing, 0)
        if isinstance(thing, dict):
            todo += [*thing.keys(), *thing.values()][:50]
        elif isinstance(thing, (list, tuple, set, deque)):
            todo += list(thing)[:50]
        elif not isinstance(thing, (int, float, complex, bool, str, type(None))):
            log = False
            if isinstance(thing, FunctionType):
                for cell in thing.__closure__ or ():
                    with suppress(ValueError):  # not bound yet
                        todo.append(cell.cell_contents)
                todo += thing.__defaults__ or ()
            elif hasattr(thing, "__dict__"):
                todo += list(vars(thing).values())[:50]
        elif isinstance(thing, str) and len(thing) > 200:
            log = False
    return total, log, graph
