"""Takes the marks out of a recording, and says when the fault was at work.

What is left must not tell that there were marks: their events go, and the numbers that the profiler
gives out one by one (operators, frames) are given out anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchtriage_benchmark.recording.recording_worker import MARK

Event = dict[str, Any]

# numbers of one kind may stand under several keys
_COUNTED = (("External id",), ("Record function id",), ("Ev Idx",), ("Python id", "Python parent id"))
_OURS = re.compile(r"torchtriage(?:/dataset|_benchmark/recording)/\w+\.py\(\d+\): ")
_MODULE = f"{MARK}module "
_SCRIPT = re.compile(r"train\.py\(\d+\): <module>")
_MARK_CALL = re.compile(r"torch/(autograd/profiler|profiler/\w+)\.py\(\d+\): (__init__|__enter__|__exit__)")


@dataclass(frozen=True)
class Labelled:
    """A recording without marks, and the fault's times in it.

    ``events`` : the trace's events. ``intervals_us`` : when the fault was at work, in the trace's
    own microseconds, apart and in order; operators of the backward pass count by the forward
    operator that asked for them.
    """

    events: list[Event]
    intervals_us: tuple[tuple[float, float], ...]


def label(
    events: list[Event], lines: Iterable[int], modules: tuple[str, ...] = (), names: Iterable[str] = ()
) -> Labelled:
    """Return a recording without its marks, and when the statements at ``lines`` ran.

    ``modules`` : the marks of modules whose class ends so are the fault's, too. ``names`` : and so
    are events with names that these patterns find, with ``OUTER > INNER`` those inside another.
    """
    wanted = {f"{MARK}line {line}" for line in lines}
    marks = [event for event in events if _is_mark(event)]
    inside = [mark for mark in marks if mark["name"].startswith(_MODULE) and mark["name"].endswith(modules)]
    at_work = [_interval(mark) for mark in marks if mark["name"] in wanted]
    at_work += [_interval(item) for item in inside]
    if inside:
        at_work += _backward(events, inside)
    for name in names:
        at_work += _named(events, name)
    kept = _without_frames([event for event in events if not _is_mark(event)])
    for keys in _COUNTED:
        _renumber(kept, *keys)
    return Labelled(kept, tuple(_union(at_work)))


def _is_mark(event: Event) -> bool:
    return str(event.get("name", "")).startswith(MARK)


def _interval(event: Event) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _named(events: list[Event], name: str) -> list[tuple[float, float]]:
    outer, _, inner = name.rpartition(" > ")
    complete = [event for event in events if event.get("ph") == "X"]
    found = [_interval(item) for item in complete if re.search(inner, str(item["name"]))]
    if outer:
        around = _union(_interval(item) for item in complete if re.search(outer, str(item["name"])))
        found = [(a, b) for a, b in found if any(begin < a and b <= end for begin, end in around)]
    return found


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
    return [_interval(candidate) for candidate in candidates if candidate["args"]["Sequence number"] in forward]


def _without_frames(events: list[Event]) -> list[Event]:
    """Return the events without the marks' Python frames, and the script as the outermost one."""
    frames = {event["args"]["Python id"]: event for event in events if event.get("cat") == "python_function"}
    outer: set[int] = set()  # those that the script runs in
    for frame in frames.values():
        if _SCRIPT.fullmatch(frame["name"]):
            number = frame["args"].get("Python parent id")
            while number in frames:
                outer.add(number)
                number = frames[number]["args"].get("Python parent id")
    gone = dict.fromkeys(outer, False)

    def is_gone(number: int | None) -> bool:
        if number is None or number not in frames:
            return False
        if number not in gone:
            frame = frames[number]
            gone[number] = _is_marking(frame["name"]) or is_gone(frame["args"].get("Python parent id"))
        return gone[number]

    kept = []
    for event in events:
        if event.get("cat") == "python_function":
            args = event["args"]
            if args["Python id"] in outer or is_gone(args["Python id"]):
                continue
            if args.get("Python parent id") in outer:
                event = event | {"args": args | {"Python parent id": None}}
        kept.append(event)
    return kept


def _is_marking(frame: str) -> bool:
    """Whether a Python frame belongs to a mark; what it calls does, too."""
    return bool(_MARK_CALL.search(frame) or _OURS.search(frame))


def _renumber(events: list[Event], *keys: str) -> None:
    """Give the numbers under these keys out anew, in their order, without gaps; zero stays."""
    seen = sorted({event["args"][key] for event in events for key in keys if event.get("args", {}).get(key)})
    new = {old: at + 1 for at, old in enumerate(seen)}
    for event in events:
        changed = {key: new[event["args"][key]] for key in keys if event.get("args", {}).get(key)}
        if changed:
            event["args"] = event["args"] | changed
