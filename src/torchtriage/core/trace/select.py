"""The part of a recording that is judged, where its reader chooses one: steps, a window, an annotation, a device.

A selection is a choice of steps, so everything that is judged per step is judged in it and no event is cut: rows,
nesting and launch links stay those of the whole recording, and time outside the chosen steps belongs to steps that are
left out. A window counts as one step, each occurrence of an annotation as one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.errors import NoDeviceError, UsageError
from torchtriage.core.selection import Selection
from torchtriage.core.trace.columns import MemoryEvents, Trace
from torchtriage.core.trace.merged_ranks import split_ranks
from torchtriage.core.trace.schema import WORK_KINDS, Kind
from torchtriage.core.trace.steps import (
    NOT_SELECTED,
    Found,
    Steps,
    Window,
    build_steps,
    device_begin,
    find_steps,
    one_lane,
)
from torchtriage.core.units import format_count, format_ns

_SHOWN = 8


def select(trace: Trace, selection: Selection | None) -> Trace:
    """Return the trace with a part of it selected; the trace itself where nothing narrows it.

    Raises UsageError: there is no such rank, device, step or annotation, or the window holds nothing.
    """
    if selection is None or not selection.narrows:
        return trace
    if selection.rank is not None:
        trace = find_rank([trace], selection.rank)
    if selection.device is not None:
        trace = _one_device(trace, selection.device)
    out = replace(trace, selection=selection)
    _ = out.steps  # refused here, before minutes of analysis
    return out


def select_each(traces: Iterable[Trace], selection: Selection | None) -> Iterator[Trace]:
    """Yield the selected part of each trace; ranks without the device that is asked for are left out.

    Raises UsageError: as :func:`select`, and where no trace has the device.
    """
    missing: list[NoDeviceError] = []
    n = 0
    for trace in traces:
        try:
            chosen = select(trace, selection)
        except NoDeviceError as error:
            missing.append(error)
            continue
        n += 1
        yield chosen
    if missing and not n:
        raise missing[0]


def find_rank(traces: Iterable[Trace], rank: int) -> Trace:
    """Return the trace of a rank, taken out of the file into which ranks were merged; no trace is read after it.

    Raises UsageError: there is no such rank.
    """
    seen: set[int | None] = set()
    where = ""
    for trace in traces:
        where = where or trace.report.path
        for part in (trace,) if trace.origin.rank == rank else split_ranks(trace):
            if part.origin.rank == rank:
                return part
            seen.add(part.origin.rank)
    known = sorted(number for number in seen if number is not None)
    there = f"ranks {', '.join(map(str, known))}" if known else "recordings that name no rank"
    raise UsageError(f"expected rank {rank}, found {there}", where=where)


def _one_device(trace: Trace, number: int) -> Trace:
    """Return the trace with the work of other devices, and what enqueued it alone, as rows of no kind.

    That is the calls, and all that processes do which have work on other devices only.
    """
    of_lane = np.array([lane.device for lane in trace.lanes] or [-1], np.int64)
    work = np.flatnonzero(trace.is_kind(*WORK_KINDS, Kind.DEVICE_OTHER))
    devices = of_lane[trace.lane[work]]
    if not (devices == number).any():
        there = f"work on {', '.join(map(str, distinct(devices).tolist()))}" if len(work) else "no work of a device"
        raise NoDeviceError(f"expected work on device {number}, found {there}", where=trace.report.path)
    # the CPU's records name no device
    kept = (trace.memory.device == number) | (trace.memory.device < 0)
    memory = MemoryEvents(*(column[kept] for column in trace.memory))
    others = work[devices != number]
    if not len(others):
        return replace(trace, memory=memory)
    call = trace.links.call
    mine, theirs = (calls[calls >= 0] for calls in (call[work[devices == number]], call[others]))
    kind = trace.kind.copy()
    kind[others] = Kind.OTHER
    kind[np.setdiff1d(theirs, mine)] = Kind.OTHER
    processes = {trace.lanes[lane].pid for lane in distinct(trace.lane[theirs]).tolist()}
    processes -= {trace.lanes[lane].pid for lane in distinct(trace.lane[mine]).tolist()}
    foreign = np.array([lane.kind == "thread" and lane.pid in processes for lane in trace.lanes], bool)
    kind[foreign[trace.lane]] = Kind.OTHER
    return replace(trace, kind=kind, memory=memory)


def selected_steps(trace: Trace, selection: Selection) -> Steps:
    """Return the steps of a trace of which the selected ones alone are judged."""
    if selection.steps is not None:
        return _numbered(trace, selection)
    if selection.window is not None:
        return _window(trace, selection)
    if selection.annotation is not None:
        return _occurrences(trace, selection.annotation)
    return find_steps(trace)


def _numbered(trace: Trace, selection: Selection) -> Steps:
    steps = find_steps(trace)
    if not len(steps):
        raise UsageError(
            f"expected steps {selection.steps}, found a recording without steps",
            where=trace.report.path,
            hint="select a window or an annotation",
        )
    numbers = step_numbers(steps.names)
    first, last = selection.first_and_last()
    chosen = (numbers >= first) & (numbers <= last)
    if not chosen.any() or first < numbers.min() or last > numbers.max():
        raise UsageError(f"expected steps {selection.steps}, found {steps_there(numbers)}", where=trace.report.path)
    return _judging(steps, chosen)


def step_numbers(names: Sequence[str]) -> Ints:
    """Return the number that ends each step's name, or its place where one has none that fits in 64 bits."""
    found = [re.search(r"(?<!\d)(\d{1,18})$", name) for name in names]
    if not all(found):
        return np.arange(len(names))
    return np.array([int(match[1]) for match in found if match], np.int64)


def steps_there(numbers: Ints) -> str:
    """Return which steps a recording has, in words."""
    if not len(numbers):
        return "a recording without steps"
    first, last = int(numbers.min()), int(numbers.max())
    if len(numbers) == last - first + 1:
        return f"steps {first}-{last}" if last > first else f"step {first}"
    few = ", ".join(map(str, np.sort(numbers)[:6].tolist()))
    return f"steps {few}" + f", …, {last}" * (len(numbers) > 6)


def _judging(steps: Steps, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Steps:
    """Return the steps with the chosen ones judged, whatever they are, and the window around them."""
    which = np.flatnonzero(chosen)
    start_ns, end_ns = int(steps.start_ns[which[0]]), int(steps.end_ns[which[-1]])
    if not (steps.end_ns - steps.start_ns)[which].any():
        raise UsageError("expected a part with work in it, found an empty one", where=steps.trace.report.path)
    window = Window(start_ns, end_ns, f"selected of {steps.window.basis}", int(steps.host_start_ns[which[0]]))
    left_out = tuple("" if choice else NOT_SELECTED for choice in chosen.tolist())
    return replace(steps, window=window, left_out=left_out)


def _window(trace: Trace, selection: Selection) -> Steps:
    """Take a window of the wall clock for a step, of the host and of the device."""
    zero = trace.file_start_ns
    start_ns, end_ns = (zero + offset for offset in selection.offsets_ns())
    dated = trace.time_of(np.flatnonzero(trace.hosts | trace.works))
    last_ns = int(dated[-1, 1]) if len(dated) else zero
    lasts = f"the recording lasts {format_ns(last_ns - zero)}"
    if end_ns > last_ns:
        raise UsageError(f"expected a window within it, found {selection.window}: {lasts}", where=trace.report.path)
    if not len(intervals.clip(dated, start_ns, end_ns)):
        raise UsageError(f"expected work in the window {selection.window}, found none", where=trace.report.path)
    name = f"window {selection.window}"
    lane = find_steps(trace).lane
    window = Window(start_ns, end_ns, f"the selected {name}", start_ns)
    start, end = np.array([[start_ns], [end_ns]], np.int64)
    return Steps(trace, window, (name,), start, end, start, end, ("",), lane, by_clock=True)


def _occurrences(trace: Trace, name: str) -> Steps:
    """Take each occurrence of an annotation for a step; what lies between two is in none."""
    ranges = np.flatnonzero(trace.kind == Kind.ANNOTATION)
    rows = one_lane(trace, _outermost(trace, ranges[trace.named(name)[ranges]]))
    if not len(rows):
        codes, counts = np.unique(trace.name[ranges], return_counts=True)
        most = codes[np.argsort(-counts, kind="stable")[:_SHOWN]].tolist()
        known = [trace.names[code] for code in codes.tolist()]
        shown = difflib.get_close_matches(name, known, n=3) or [trace.names[code] for code in most]
        raise UsageError(
            f"expected annotation {name!r}, found {format_count(len(known), 'other name')}",
            where=trace.report.path,
            hint=f"one of {', '.join(map(repr, shown))}" if shown else "the recording has no annotations",
        )
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    # what lies between two is a step only until it is known when the device is done with each
    edges = np.maximum.accumulate(np.stack([start, end], axis=1).ravel())
    names = [part for index in range(len(rows)) for part in (f"{name} {index}", "between")][:-1]
    basis = f"{format_count(len(rows), 'occurrence')} of {name}"
    found = Found(names, edges[:-1], edges[1:], basis, int(trace.lane[rows[0]]))
    steps = build_steps(trace, found, marked=True)
    # one lasts from the host's begin until the device has done what was enqueued in it, or the next one begins
    begin = np.maximum(start, device_begin(trace, int(start[0]), int(end[-1]))[0])
    done = np.minimum(np.maximum(steps.end_ns[::2], begin), np.append(begin[1:], np.iinfo(np.int64).max))
    steps = replace(
        steps,
        names=steps.names[::2],
        host_start_ns=steps.host_start_ns[::2],
        host_end_ns=steps.host_end_ns[::2],
        start_ns=begin,
        end_ns=done,
    )
    return _judging(steps, np.ones(len(rows), bool))


def _outermost(trace: Trace, rows: Ints) -> Ints:
    """Return the rows that lie in no other of them: a range may enter itself."""
    return rows[~trace.tree.under(trace.mask_of(rows))[rows]]
