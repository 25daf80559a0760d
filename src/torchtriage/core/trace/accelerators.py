"""Accelerators whose rows say by name or process what they are, not by category.

MTIA writes kernels, copies and events in one category. Ascend's profiler writes none, and names processes instead:
*Ascend Hardware* holds what its streams did and *CANN* the calls, on the threads of the Python process; arrows lead
from a call to its work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.trace.columns import Lane
from torchtriage.core.trace.event_types import whole
from torchtriage.core.trace.schema import HOST_KINDS, Kind

ASCEND_DEVICE = "Ascend Hardware"
_ASCEND_CALLS = "CANN"
_MTIA = "mtia_ccp_events"
_COPY = re.compile(r"^dma_request$|^(sdma_)?memcpy", re.IGNORECASE)
_NO_WORK = re.compile(r"^(event|notify|capture)[_ ](wait|record)|maintain|place_?holder", re.IGNORECASE)
"""What a stream does for itself: it waits, or marks where it is."""
_MAX_DEPTH = 64
"""Of calls inside calls on one thread."""


class LaunchArrows(NamedTuple):
    """Ends of arrows from calls to their work, arrays of equal length: whose they are, which end, when and where."""

    id: Ints
    starts: Mask
    at_ns: Ints
    lane: Ints


def read_accelerators(
    columns: dict[str, NDArray[Any]],
    kind: NDArray[np.uint8],
    names: Sequence[str],
    cats: Sequence[str],
    lanes: list[Lane],
    labels: Mapping[tuple[str, str, str], str],
    arrows: LaunchArrows,
) -> None:
    """Set kind, lane and key of such rows in place; ``lanes`` too."""
    if _MTIA in cats:
        _classify(kind, columns["name"], columns["cat"] == cats.index(_MTIA), names)
    processes = {pid: text for (what, pid, _), text in labels.items() if what == "process_name"}
    if ASCEND_DEVICE in processes.values():
        _read_ascend(columns, kind, names, lanes, processes, arrows)


def _classify(kind: NDArray[np.uint8], name: NDArray[np.int32], rows: Mask, names: Sequence[str]) -> None:
    """Say which work of a device is a kernel, which a copy, and which no work."""
    of_name = np.full(len(names), Kind.KERNEL, np.uint8)
    for code in distinct(name[rows]).tolist():
        if _COPY.search(names[code]):
            of_name[code] = Kind.MEMCPY
        elif _NO_WORK.search(names[code]):
            of_name[code] = Kind.DEVICE_SYNC
    kind[rows] = of_name[name[rows]]


def _read_ascend(
    columns: dict[str, NDArray[Any]],
    kind: NDArray[np.uint8],
    names: Sequence[str],
    lanes: list[Lane],
    processes: Mapping[str, str],
    arrows: LaunchArrows,
) -> None:
    devices = [pid for pid, text in processes.items() if text == ASCEND_DEVICE]
    host = distinct(columns["lane"][np.isin(kind, HOST_KINDS)]).tolist()
    programs = {lanes[code].pid for code in host}
    threads = {lane.tid: code for code, lane in enumerate(lanes) if lane.pid in programs}
    moved = np.arange(len(lanes))
    on_device, called = np.zeros((2, len(lanes)), dtype=bool)
    for code, (_, pid, tid, *_) in enumerate(lanes):
        process = processes.get(pid)
        if process == ASCEND_DEVICE:
            on_device[code] = True
            lanes[code] = Lane("stream", pid, tid, devices.index(pid), whole(tid))
        elif process == _ASCEND_CALLS:
            called[code] = True
            moved[code] = threads.get(tid, code)
    lane, other = columns["lane"], kind == Kind.OTHER
    work = on_device[lane] & other
    kind[called[lane] & other] = Kind.RUNTIME
    _classify(kind, columns["name"], work, names)
    columns["lane"] = moved[lane].astype(np.int32)
    _link(columns, np.flatnonzero(work), np.flatnonzero(kind == Kind.RUNTIME), arrows._replace(lane=moved[arrows.lane]))


def _link(columns: dict[str, NDArray[Any]], work: Ints, calls: Ints, arrows: LaunchArrows) -> None:
    """Give work the key of the call that its arrow starts in."""
    start_ns, lane, key = columns["start_ns"], columns["lane"], columns["key"]
    end_ns = start_ns + columns["dur_ns"]
    row = np.full(len(arrows.id), -1, np.int64)
    for code in distinct(arrows.lane).tolist():
        mine = np.flatnonzero(arrows.lane == code)
        for at, rows, exact in (
            (mine[~arrows.starts[mine]], work[lane[work] == code], True),
            (mine[arrows.starts[mine]], calls[lane[calls] == code], False),
        ):
            rows = rows[np.argsort(start_ns[rows], kind="stable")]
            at_ns = arrows.at_ns[at]
            place = np.searchsorted(start_ns[rows], at_ns, side="right") - 1
            # the innermost call around the moment
            for _ in range(_MAX_DEPTH):
                past = (place >= 0) & (end_ns[rows[place]] < at_ns) if len(rows) else place > 0
                if exact or not past.any():
                    break
                place[past] -= 1
            inside = place >= 0
            if exact and len(rows):
                inside &= start_ns[rows[place]] == at_ns
            row[at[inside]] = rows[place[inside]]
    begun, ended = np.flatnonzero(arrows.starts & (row >= 0)), np.flatnonzero(~arrows.starts & (row >= 0))
    begun = begun[np.argsort(arrows.id[begun], kind="stable")]
    if not len(begun):
        return
    place = np.minimum(np.searchsorted(arrows.id[begun], arrows.id[ended]), len(begun) - 1)
    same = arrows.id[begun[place]] == arrows.id[ended]
    call, task = row[begun[place[same]]], row[ended[same]]
    key[call] = key[task] = call + 1
