"""The user's lines that compiled graphs compute: what they run in a trace beside their code in a log.

The calls of a graph name its key, which the log has too. In one call the kernels of one name run in the order in which
the code calls them. Where that cannot be said a name counts if all that it stands for is of the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.errors import LogError
from torchtriage.core.finding import Frame
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.frames import parse_frame
from torchtriage.core.units import format_count

if TYPE_CHECKING:
    from torchtriage.compile.logs.kernel_lines import GraphCode

_GRAPH = re.compile(r"^## Call CompiledFxGraph (?:None|(\w+)) ##$")
_WRITTEN = re.compile(r"^triton_")
_NUMBERED = re.compile(r"^graph_\d+_(?=cpp_)")
"""What Inductor calls the rows of its kernels on the CPU (``cpp.enable_kernel_profile``)."""
_NO_LINES: tuple[Frame, ...] = ()


@dataclass(frozen=True, eq=False)
class KernelLines:
    """``of`` : int64[n], which of ``lines`` a row computes, or all that it launches; -1 for none.

    ``rows`` : the device rows that compiled graphs launch. ``lines`` : each first things first.
    """

    trace: Trace
    of: Ints
    rows: Ints
    lines: tuple[tuple[Frame, ...], ...]

    @cached_property
    def labels(self) -> list[str]:
        """What a table calls each of ``lines``: the first, and how many more are fused with it there."""
        fused = self._fused
        return [
            f"{_text(lines[0])} and {format_count(len(fused[lines[0]]) - 1, 'more line')}"
            if len(lines) > 1
            else _text(lines[0])
            for lines in self.lines
        ]

    @cached_property
    def by_label(self) -> dict[str, tuple[str, ...]]:
        """All lines of a label."""
        return {
            label: tuple(map(_text, self._fused[lines[0]] if len(lines) > 1 else lines))
            for label, lines in zip(self.labels, self.lines, strict=True)
        }

    @cached_property
    def _fused(self) -> dict[Frame, dict[Frame, None]]:
        fused: dict[Frame, dict[Frame, None]] = {}
        for lines in self.lines:
            if len(lines) > 1:
                fused.setdefault(lines[0], {}).update(dict.fromkeys(lines))
        return fused

    def at(self, row: int) -> tuple[Frame, ...]:
        """Return the lines of a device row, or of the host row around one; empty where they are not known."""
        index = int(self.of[row])
        if index < 0 and self.trace.hosts[row]:
            above = int(self.trace.tree.nearest(np.array([row]), self.of >= 0)[0])
            index = int(self.of[above]) if above >= 0 else -1
        return self.lines[index] if index >= 0 else _NO_LINES


def find_kernel_lines(trace: Trace, codes: Sequence[GraphCode]) -> KernelLines:
    """Return the lines of what these graphs run in a trace.

    Raises LogError: the trace calls none of them.
    """
    graphs = trace.hosts & trace.where_name(lambda name: bool(_GRAPH.match(name)))
    called = {match[1] or "" for name in _names(trace, graphs) if (match := _GRAPH.match(name))}
    known_keys = {code.key for code in codes}
    written = trace.works & trace.where_name(lambda name: bool(_WRITTEN.match(name)))
    if not (called & known_keys or (not called and written.any())):
        raise LogError(
            f"expected the log of the program in the trace, found that of {format_count(len(codes), 'graph')}, of which"
            " it calls none",
            where=trace.report.path,
            hint="pass the log of the recorded process: TORCH_TRACE=/some/folder python train.py",
        )
    # of kernels without a recorded launch names alone tell: not where there are graphs that the log has not
    alone = [code for code in codes if not called or code.key in called] if called <= known_keys else []

    rows = np.flatnonzero(trace.works)
    outer = trace.links.call[rows].astype(np.int64)
    graph = np.where(outer >= 0, trace.tree.nearest(outer, graphs), -1)
    some = (graph >= 0) | written[rows]
    rows, outer, graph = rows[some], np.where(graph >= 0, outer, -1)[some], graph[some]
    # the outermost row inside of the graph
    while len(climb := np.flatnonzero((outer >= 0) & (trace.tree.parent[outer] != graph))):
        outer[climb] = trace.tree.parent[outer[climb]]
    # what an operator launches is one call
    of_op = (outer >= 0) & (trace.kind[outer] == Kind.OP)
    ops = np.flatnonzero((trace.kind == Kind.OP) & np.append(graphs, False)[trace.tree.parent])
    unit = np.concatenate([ops, rows[~of_op]])
    within = np.concatenate([trace.tree.parent[ops], graph[~of_op]])
    launch = np.concatenate([ops, outer[~of_op]])
    order = np.lexsort((trace.start_ns[unit], trace.start_ns[launch], within))
    unit, within = unit[order], within[order]

    known: dict[tuple[Frame, ...], int] = {}
    of = np.full(len(trace), -1, np.int64)
    resolved: dict[tuple[int, bytes], list[int]] = {}
    for first, last in _runs(within):
        name = int(trace.name[within[first]]) if within[first] >= 0 else -1
        labels = trace.name[unit[first:last]]
        key = (name, labels.tobytes())
        if key not in resolved:
            match = _GRAPH.match(trace.names[name]) if name >= 0 else None
            mine = alone if match is None else [code for code in codes if code.key == (match[1] or "")]
            named = [_NUMBERED.sub("", trace.names[code]) for code in labels.tolist()]
            found = _resolve(named, mine, in_order=match is not None)
            resolved[key] = [known.setdefault(lines, len(known)) if lines else -1 for lines in found]
        of[unit[first:last]] = resolved[key]
    of[rows[of_op]] = of[outer[of_op]]
    _give(of, outer[~of_op], of[rows[~of_op]])
    return KernelLines(trace, of, rows, tuple(_named_as_recorded(trace, list(known))))


def _names(trace: Trace, mask: Mask) -> list[str]:
    """Return the distinct names of some rows."""
    return [trace.names[code] for code in distinct(trace.name[mask]).tolist()]


def _runs(values: Ints) -> Iterator[tuple[int, int]]:
    """Yield where each run of equal values begins and ends."""
    edges = np.flatnonzero(np.diff(values)) + 1
    yield from pairwise([0, *edges.tolist(), len(values)] if len(values) else [])


def _resolve(labels: list[str], codes: list[GraphCode], *, in_order: bool) -> list[tuple[Frame, ...]]:
    """Return the lines of each call that one call of a graph makes."""
    out = [_NO_LINES] * len(labels)
    for name in dict.fromkeys(labels):
        at = [index for index, label in enumerate(labels) if label == name]
        ways = {tuple(call.lines for call in code.calls if call.name == name) for code in codes} - {()}
        lines = {lines for way in ways for lines in way}
        if len(lines) == 1:
            found = [*lines] * len(at)
        elif in_order and len(ways) == 1 and len(way := next(iter(ways))) == len(at):
            found = [*way]
        else:
            continue
        for index, item in zip(at, found, strict=True):
            out[index] = item
    return out


def _give(of: Ints, outer: Ints, index: Ints) -> None:
    """Give host rows the lines of what they launch, where that is one."""
    order = np.lexsort((index, outer))
    outer, index = outer[order], index[order]
    for first, last in _runs(outer):
        if outer[first] >= 0 and index[first] == index[last - 1]:
            of[outer[first]] = index[first]


def _named_as_recorded(trace: Trace, found: list[tuple[Frame, ...]]) -> Iterator[tuple[Frame, ...]]:
    """Yield lines with files called as the trace calls them: without the folder that they were imported from."""
    frames = map(parse_frame, _names(trace, trace.kind == Kind.PYTHON))
    recorded = {frame.file for frame in frames if frame is not None}
    files = {line.file for lines in found for line in lines}
    short = {file: max((f for f in recorded if f"/{file}".endswith(f"/{f}")), key=len, default=file) for file in files}
    for _, same in groupby(sorted(files, key=short.__getitem__), short.__getitem__):
        if len(both := list(same)) > 1:
            short.update((file, file) for file in both)
    for lines in found:
        yield tuple(replace(line, file=short[line.file]) for line in lines)


def _text(line: Frame) -> str:
    return f"{line.file}:{line.line} in {line.function}"
