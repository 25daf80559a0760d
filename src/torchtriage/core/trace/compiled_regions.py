"""What torch.compile leaves in a recording: cache look-ups, compiled regions, graph calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import HOST_KINDS

_REGION = re.compile(r"^Torch-Compiled Region(?:: (\d+)/(\d+))?")
_LOOKUP = "TorchDynamo Cache Lookup"
_WRAPPERS = r"^Pregraph bytecode|^AOTDispatcher Runtime Wrapper Prologue"
_GRAPHS = r"^## Call CompiledFxGraph|^CompiledFunction(Backward)?$"
_COMPILES = r"^dynamo$|^entire_frame_compile(_|$| \()|_compile\.compile_inner( \(|$)"


@dataclass(frozen=True, eq=False)
class Regions:
    """Calls of compiled code; masks are bool[n] over the rows of the trace.

    ``rows`` : int64[k], the regions in time order. ``frame``/``version`` : int64[k], the two numbers of
    ``Torch-Compiled Region: frame/version``, -1 in builds that do not write them.
    """

    trace: Trace
    rows: Ints
    frame: Ints
    version: Ints

    @cached_property
    def mask(self) -> Mask:
        """Regions."""
        return self.trace.mask_of(self.rows)

    @cached_property
    def lookups(self) -> Mask:
        """Guard checks that look for a graph that fits."""
        return self.trace.hosts & self.trace.named(_LOOKUP)

    @cached_property
    def wrappers(self) -> Mask:
        """What runs before a graph: bytecode and AOTAutograd's prologue."""
        return self.trace.matching(_WRAPPERS, *HOST_KINDS)

    @cached_property
    def graphs(self) -> Mask:
        """Calls of the graphs themselves."""
        return self.trace.matching(_GRAPHS, *HOST_KINDS)

    @cached_property
    def compiles(self) -> Mask:
        """Compilations of one frame, the outermost row of each."""
        mask = self.trace.matching(_COMPILES, *HOST_KINDS) & ~self.trace.matching(r"_data: ", *HOST_KINDS)
        return mask & ~self.trace.tree.under(mask)

    @cached_property
    def eager(self) -> Mask:
        """Operators that are none of these."""
        ours = self.mask | self.lookups | self.wrappers | self.graphs
        compiling = self.compiles | self.trace.tree.under(self.compiles)
        return (self.trace.kind == Kind.OP) & ~ours & ~compiling

    @cached_property
    def around(self) -> Ints:
        """int64[k]: the region a region lies in, -1 for calls from outside."""
        return self.trace.tree.nearest(self.rows, self.mask)

    def next_of(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return int64[k] each: the first region after each row on its thread and its two numbers, -1 without one."""
        after = next_on_lane(self.trace, rows, self.rows)
        place = np.full(len(self.trace) + 1, -1, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        index = place[after]
        return after, np.append(self.frame, -1)[index], np.append(self.version, -1)[index]

    def time_of(self, mask: Mask) -> Spans:
        """Return the union of the time of some rows."""
        return self.trace.time_of(np.flatnonzero(mask))


def find_regions(trace: Trace) -> Regions:
    """Find the regions and their numbers."""
    rows = np.flatnonzero(trace.matching(_REGION, *HOST_KINDS))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    numbers = np.full((len(trace.names), 2), -1, np.int64)
    for code in distinct(trace.name[rows]).tolist():
        match = _REGION.match(trace.names[code])
        # numbers of a damaged name may have any length
        if match is not None and match[1] and max(len(match[1]), len(match[2])) < 10:
            numbers[code] = int(match[1]), int(match[2])
    return Regions(trace, rows, numbers[trace.name[rows], 0], numbers[trace.name[rows], 1])


def next_on_lane(trace: Trace, rows: Ints, among: Ints) -> Ints:
    """Return for each row the first of ``among`` that starts once it has ended, on its thread.

    Returns int64[k]: rows of ``among``, -1 without one.
    """
    found = np.full(len(rows), -1, np.int64)
    for lane in distinct(trace.lane[rows]).tolist():
        here = np.flatnonzero(trace.lane[rows] == lane)
        mine = among[trace.lane[among] == lane]
        mine = mine[np.argsort(trace.start_ns[mine], kind="stable")]
        index = np.searchsorted(trace.start_ns[mine], trace.end_ns[rows[here]], side="left")
        found[here] = np.append(mine, -1)[index]
    return found
