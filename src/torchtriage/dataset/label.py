"""Takes the marks out of a recording, and says when the fault was at work.

What is left must not tell that there were marks: their events go, and the numbers that the profiler
gives out one by one (operators, frames) are given out anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchtriage.dataset.child import MARK

__all__ = ["Labelled", "label"]

Event = dict[str, Any]

# numbers of one kind may stand under several keys
_COUNTED = (
    ("External id",),
    ("Record function id",),
    ("Ev Idx",),
    ("Python id", "Python parent id"),
)
_OURS = re.compile(r"torchtriage/dataset/child\.py\(\d+\): ([\w<>]+)")
_MARK_CALL = re.compile(
    r"torch/(autograd/profiler|profiler/\w+)\.py\(\d+\): (__init__|__enter__|__exit__)"
)
_RUNS = ("main", "<module>")
"""Functions of ours that the script runs in; all others run inside the script."""


@dataclass(frozen=True)
class Labelled:
    """A recording without marks, and the fault's times in it.

    ``events`` : the trace's events. ``intervals_us`` : when the fault was at work, in the trace's
    own microseconds, apart and in order; operators of the backward pass count by the forward
    operator that asked for them.
    """

    events: list[Event]
    intervals_us: tuple[tuple[float, float], ...]


def label(events: list[Event], lines: Iterable[int], modules: bool) -> Labelled:
    """Return a recording without its marks, and when the statements at ``lines`` ran.

    ``modules`` : the modules' marks are the fault's, too.
    """
    wanted = {f"{MARK}line {line}" for line in lines} | ({f"{MARK}module"} if modules else set())
    marks = [one for one in events if _is_mark(one)]
    at_work = [_interval(one) for one in marks if one["name"] in wanted]
    if modules:
        at_work += _backward(events, [one for one in marks if one["name"] == f"{MARK}module"])
    kept = _without_frames([one for one in events if not _is_mark(one)])
    for keys in _COUNTED:
        _renumber(kept, *keys)
    return Labelled(kept, tuple(_union(at_work)))


def _is_mark(event: Event) -> bool:
    return str(event.get("name", "")).startswith(MARK)


def _interval(event: Event) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    union: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union


def _backward(events: list[Event], marks: list[Event]) -> list[tuple[float, float]]:
    """Return when the backward operators of what ran inside the marks ran."""
    spans = _union(map(_interval, marks))
    forward: set[tuple[int, int]] = set()
    candidates = []
    for event in events:
        args = event.get("args", {})
        if event.get("cat") != "cpu_op" or args.get("Sequence number", -1) < 0:
            continue
        if args.get("Fwd thread id", 0):
            candidates.append(event)
        elif any(begin <= event["ts"] < end for begin, end in spans):
            forward.add(args["Sequence number"])
    return [_interval(one) for one in candidates if one["args"]["Sequence number"] in forward]


def _without_frames(events: list[Event]) -> list[Event]:
    """Return the events without the marks' Python frames; the script's own all stay."""
    frames = {
        one["args"]["Python id"]: one for one in events if one.get("cat") == "python_function"
    }
    gone: dict[int, bool] = {}

    def is_gone(number: int | None) -> bool:
        if number is None or number not in frames:
            return False
        if number not in gone:
            frame = frames[number]
            gone[number] = _is_marking(frame["name"]) or is_gone(
                frame["args"].get("Python parent id")
            )
        return gone[number]

    kept = []
    for event in events:
        if event.get("cat") == "python_function":
            if is_gone(event["args"]["Python id"]) or _OURS.search(event["name"]):
                continue
            parent = event["args"].get("Python parent id")
            while parent in frames and _OURS.search(frames[parent]["name"]):
                parent = frames[parent]["args"].get("Python parent id")
            event = event | {"args": event["args"] | {"Python parent id": parent}}
        kept.append(event)
    return kept


def _is_marking(frame: str) -> bool:
    """Whether a Python frame belongs to a mark; what it calls does, too."""
    ours = _OURS.search(frame)
    return bool(_MARK_CALL.search(frame) or (ours and ours[1] not in _RUNS))


def _renumber(events: list[Event], *keys: str) -> None:
    """Give the numbers under these keys out anew, in their order, without gaps; zero stays."""
    seen = sorted(
        {one["args"][key] for one in events for key in keys if one.get("args", {}).get(key)}
    )
    new = {old: at + 1 for at, old in enumerate(seen)}
    for event in events:
        changed = {key: new[event["args"][key]] for key in keys if event.get("args", {}).get(key)}
        if changed:
            event["args"] = event["args"] | changed
