"""What the main device spends its time on: by category, kernel, operator, module, annotation or line.

Every instant in which the device is busy is given out once, so the rows of a table add up to the busy time. Where
streams overlap, computation goes first, then communication, then copies (as in the classes of time): what is hidden
behind computation costs nothing. Rows of one kind that run at once share the instant equally.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask
from torchtriage.core.intervals import Spans
from torchtriage.core.names import short_name
from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.frames import frame_label, is_user_frame, user_stack
from torchtriage.core.trace.kernel_categories import CATEGORIES, categories
from torchtriage.core.trace.roofline import Roofline, roofline, unchecked
from torchtriage.diagnose.verdict.model_flops import model_flops
from torchtriage.diagnose.verdict.options import By
from torchtriage.diagnose.verdict.result import DeviceTime, DeviceTimeRow, RoofRates

__all__ = ["busy_parts", "device_time"]

N_ROWS = 50
MOSTLY = 0.9
"""Share of a row's counted kernel time whose work must be known."""
SOME = 0.005
"""Share of the busy time from which on a type's dense peak is one of the roofs."""
_MODULE = "nn.Module: "


class _Roof(NamedTuple):
    """What :class:`DeviceTimeRow` says of a row's roof."""

    of_peak: float | None = None
    of_roof: float | None = None
    roof: Literal["compute", "memory", ""] = ""
    flop_per_byte: float | None = None
    tflops: float | None = None


_UNKNOWN = _Roof()

Groups = tuple[Ints, list[str]]
"""int64[k], the group of each row of a device, and the names of the groups; an empty name is none."""


def device_time(trace: Trace, by: By = "category", places: Locator | None = None) -> tuple[DeviceTime, ...]:
    """Return the main device's time by category and by what else is asked for; empty without a device.

    ``by`` : one of ``options.BYS``. ``places`` : finds the lines of calls in the source files.
    """
    if not trace.devices:
        return ()
    time = _Time.of(trace.devices[0])
    return tuple(time.table(key, places) for key in {"category": None, by: None})


def busy_parts(device: Device, judged: Spans) -> Floats:
    """Return float64[len(device.rows)], ns: the part of the busy time inside ``judged`` that each row has.

    ``judged`` : int64[k, 2], sorted and disjoint. The sum is the length of the union of all rows inside it.
    """
    kind = device.trace.kind[device.rows]
    copies = ~device.comm & (kind == Kind.MEMCPY)
    out = np.zeros(len(device.rows))
    for mask, spans in (
        (~device.comm & ~copies, device.compute),
        (device.comm, device.comm_only),
        (copies, device.copy_only),
    ):
        at = np.flatnonzero(mask)
        if len(at):
            out[at] = _divided(device.trace.spans_of(device.rows[at]), intervals.intersect(spans, judged))
    return out


def _divided(rows: Spans, given: Spans) -> Floats:
    """Return float64[k]: the part of ``given`` each row has where rows that run at once share it equally.

    ``rows`` : int64[k, 2] in order of their starts. ``given`` : sorted and disjoint.
    """
    if not (rows[1:, 0] < rows[:-1, 1]).any():
        return intervals.covered(rows, given).astype(np.float64)
    edges = rows.T.ravel()
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    running = np.cumsum(np.where(order < len(rows), 1, -1))[:-1]
    length = intervals.covered(intervals.spans(edges[:-1], edges[1:]), given)
    until = np.concatenate([[0.0], np.cumsum(length / np.maximum(running, 1))])
    reached = np.empty(len(order))
    reached[order] = until
    parts: Floats = reached[len(rows) :] - reached[: len(rows)]
    return parts


@dataclass(frozen=True, eq=False)
class _Time:
    """The main device's rows, and the part of the judged busy time that each has."""

    device: Device
    category: NDArray[np.int8]
    part_ns: Floats
    launched: Mask
    """Rows that begin in the judged time."""
    busy_ns: int

    @classmethod
    def of(cls, device: Device) -> _Time:
        trace = device.trace
        judged = trace.steps.judged
        busy_ns = intervals.length(intervals.intersect(device.busy, judged))
        launched = intervals.owner(judged, trace.start_ns[device.rows]) >= 0
        return cls(device, categories(device), busy_parts(device, judged), launched, busy_ns)

    def table(self, by: By, places: Locator | None) -> DeviceTime:
        """Return the table of one key, its largest rows first."""
        trace = self.device.trace
        group, names = _GROUPS[by](self, places)
        n = len(names)
        whole = np.bincount(group, weights=self.part_ns, minlength=n)
        launched = np.flatnonzero(self.launched)
        count = np.bincount(group[launched], minlength=n)
        total = np.bincount(group[launched], weights=trace.dur_ns[self.device.rows[launched]], minlength=n)
        of_category = np.bincount(
            group * len(CATEGORIES) + self.category, weights=self.part_ns, minlength=n * len(CATEGORIES)
        ).reshape(n, -1)
        roofs = self._roofs(group, n) if by in ("kernel", "operator") else [_UNKNOWN] * n
        # rounded so that the rows still add up
        until = np.round(np.cumsum(np.append(0.0, whole))).astype(np.int64)
        ns: Ints = until[1:] - until[:-1]
        order = sorted(np.flatnonzero((ns > 0) | (count > 0)).tolist(), key=lambda index: (-ns[index], names[index]))
        busy_ns = int(ns.sum())
        rows = tuple(
            DeviceTimeRow(
                name=names[index],
                category=CATEGORIES[int(of_category[index].argmax())],
                busy_ns=int(ns[index]),
                share=round(int(ns[index]) / max(busy_ns, 1), 6),
                n_launches=int(count[index]),
                mean_ns=round(float(total[index]) / int(count[index]), 3) if count[index] else None,
                **roofs[index]._asdict(),
            )
            for index in order[:N_ROWS]
        )
        return DeviceTime(
            by=by,
            device=str(self.device.index),
            per="step" if len(trace.steps) else "window",
            n_steps=trace.steps.n_steady,
            busy_ns=busy_ns,
            rows=rows,
            n_rows=len(order),
            rest_ns=busy_ns - sum(row.busy_ns for row in rows),
            peak_unchecked=unchecked(self.device) if by in ("kernel", "operator") else "",
            mfu=model_flops(self.device, self.category, self._roofline) if by == "category" else None,
            roofs=self._rates() if by in ("kernel", "operator") else None,
        )

    @cached_property
    def _roofline(self) -> Roofline | None:
        return roofline(self.device, self.category)

    def _rates(self) -> RoofRates | None:
        """Return the memory's bandwidth and the peaks that apply to what the device multiplies."""
        line = self._roofline
        if line is None:
            return None
        at = np.flatnonzero(line.rate > 0)
        rates, which = np.unique(line.rate[at], return_inverse=True)
        part_ns = np.bincount(which, weights=self.part_ns[at], minlength=len(rates))
        return RoofRates(line.peak.memory_tbps, tuple((rates[part_ns >= SOME * self.busy_ns] / 1e3).tolist()))

    def _roofs(self, group: Ints, n: int) -> list[_Roof]:
        """Return how near to its roof each group runs; None where too little of its time is known."""
        line = self._roofline
        if line is None:
            return [_UNKNOWN] * n
        dur = self.device.trace.dur_ns[self.device.rows].astype(np.float64)

        def shares(ideal: Floats, counted: Mask) -> list[float | None]:
            at = np.flatnonzero(self.launched & counted)
            known = at[np.isfinite(ideal[at])]
            whole, took, best = (
                np.bincount(group[rows], weights=values[rows], minlength=n).tolist()
                for rows, values in ((at, dur), (known, dur), (known, ideal))
            )
            out = (
                part / took if took and took >= MOSTLY * whole else None
                for part, took, whole in zip(best, took, whole, strict=True)
            )
            # above it nothing runs: the operations were fewer (Winograd), or the type another
            return [round(share, 4) if share is not None and share <= 1 else None for share in out]

        def total(values: Floats, mask: Mask) -> Floats:
            at = np.flatnonzero(self.launched & mask & np.isfinite(line.roof_ns))
            out: Floats = np.bincount(group[at], weights=values[at], minlength=n).astype(np.float64)
            return out

        of_peak, of_roof = shares(line.peak_ns, line.multiplies), shares(line.roof_ns, line.counted)
        everything, computes = total(line.roof_ns, line.counted), total(line.roof_ns, line.computes)
        flop, n_bytes, took = (total(values, line.multiplies) for values in (line.flop, line.n_bytes, dur))
        return [
            _UNKNOWN._replace(of_peak=of_peak[index])
            if (share := of_roof[index]) is None
            else _Roof(
                of_peak[index],
                share,
                "compute" if 2 * computes[index] >= everything[index] else "memory",
                *(
                    (round(flop[index] / n_bytes[index], 3), round(flop[index] / took[index] / 1e3, 3))
                    if flop[index]
                    else (None, None)
                ),
            )
            for index in range(n)
        ]

    # -- what the rows of a table are ------------------------------------------------------------

    def by_category(self, _places: Locator | None) -> Groups:
        return self.category.astype(np.int64), list(CATEGORIES)

    def by_kernel(self, _places: Locator | None) -> Groups:
        group, names = self._named(self.device.rows)
        labels, merged = np.unique(np.array([short_name(name) for name in names]), return_inverse=True)
        return merged[group], labels.tolist()

    def by_operator(self, _places: Locator | None) -> Groups:
        return self._named(self.device.trace.links.op[self.device.rows])

    def by_annotation(self, _places: Locator | None) -> Groups:
        trace = self.device.trace
        marks = (trace.kind == Kind.ANNOTATION) & ~trace.matching(r"^ProfilerStep#")
        call, which = self._calls
        return self._named(_where(call, lambda calls: trace.tree.nearest(calls, marks))[which])

    def by_module(self, _places: Locator | None) -> Groups:
        trace = self.device.trace
        mask = (trace.kind == Kind.PYTHON) & trace.where_name(lambda name: name.startswith(_MODULE))
        call, which = self._calls
        _, inner = _open_at(trace, call, mask)
        chain = [inner]
        while (chain[-1] >= 0).any():
            chain.append(_where(chain[-1], lambda rows: trace.frames.nearest(rows, mask)))
        names = np.where(np.stack(chain) >= 0, trace.name[np.stack(chain)], -1)
        paths, group = np.unique(names, axis=1, return_inverse=True)
        labels = [
            ".".join(trace.names[name][len(_MODULE) :] for name in reversed(path) if name >= 0)
            for path in paths.T.tolist()
        ]
        return group.ravel()[which], labels

    def by_line(self, places: Locator | None) -> Groups:
        trace = self.device.trace
        mask = (trace.kind == Kind.PYTHON) & trace.where_name(is_user_frame)
        call, which = self._calls
        row, frame = _open_at(trace, call, mask)
        below = _where(row, lambda rows: trace.frames.at(trace.lane[rows], trace.start_ns[rows]))
        while len(climb := np.flatnonzero((below >= 0) & (below != frame) & (trace.frames.parent[below] != frame))):
            below[climb] = trace.frames.parent[below[climb]]
        # calls of one function from one place of another have one line; an operator is what is called, or its name is
        called = np.where(below != frame, trace.name[below], -1 - trace.name[row])
        keys = np.stack([np.where(frame >= 0, trace.name[frame], -1), np.where(frame >= 0, called, -1)])
        _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        labels = [
            _line(trace, item, places) if known >= 0 else ""
            for item, known in zip(row[first].tolist(), frame[first].tolist(), strict=True)
        ]
        lines, merged = np.unique(np.array(labels), return_inverse=True)
        return merged[group.ravel()][which], lines.tolist()

    @cached_property
    def _calls(self) -> tuple[Ints, Ints]:
        """The distinct launch calls, and which of them each row has; -1 among them stands for none."""
        return np.unique(self.device.trace.links.call[self.device.rows].astype(np.int64), return_inverse=True)

    def _named(self, rows: NDArray[np.integer]) -> Groups:
        """Group by the names of some rows, -1 for none."""
        trace = self.device.trace
        code = np.where(rows >= 0, trace.name[rows] + 1, 0)
        seen = np.flatnonzero(np.bincount(code, minlength=1))
        group = np.zeros(len(trace.names) + 1, np.int64)
        group[seen] = np.arange(len(seen))
        return group[code], ["" if item == 0 else frame_label(trace.names[item - 1]) for item in seen.tolist()]


def _where(rows: Ints, look: Callable[[Ints], Ints]) -> Ints:
    """Return what ``look`` finds for rows that are some, -1 for the others."""
    out = np.full(len(rows), -1, np.int64)
    some = rows >= 0
    out[some] = look(rows[some])
    return out


def _open_at(trace: Trace, calls: Ints, mask: Mask) -> tuple[Ints, Ints]:
    """Return for each launch call a host row that stands for it and the innermost frame of ``mask`` around that.

    The host row is the call itself; where it runs in the backward pass, the forward operator it is the gradient of.
    """

    def around(rows: Ints) -> Ints:
        inner = trace.frames.at(trace.lane[rows], trace.start_ns[rows])
        return np.where(mask[inner] | (inner < 0), inner, _where(inner, lambda some: trace.frames.nearest(some, mask)))

    frame = _where(calls, around)
    row = np.where(frame >= 0, calls, _where(calls, lambda some: _forward(trace, some)))
    return row, np.where(frame >= 0, frame, _where(row, around))


def _forward(trace: Trace, calls: Ints) -> Ints:
    """Return the forward operator whose gradient each call computes, -1 where it is in none.

    Autograd gives a backward node the sequence number of its forward operator, and the number of its thread.
    """
    numbered = (trace.kind == Kind.OP) & (trace.key >= 0)
    node = trace.tree.nearest(calls, numbered & (trace.value > 0))
    forward = np.flatnonzero(numbered & (trace.value <= 0))
    forward = forward[np.lexsort((trace.start_ns[forward], trace.key[forward]))]
    if not len(forward):
        return np.full(len(calls), -1, np.int64)
    last = np.searchsorted(trace.key[forward], trace.key[node], side="right") - 1
    before = forward[np.maximum(last, 0)]
    return np.where((node >= 0) & (last >= 0) & (trace.key[before] == trace.key[node]), before, -1)


def _line(trace: Trace, row: int, places: Locator | None) -> str:
    stack = user_stack(trace, row, limit=1) if places is None else places.stack(trace, row)
    return f"{stack[0].file}:{stack[0].line} in {stack[0].function}" if stack else ""


_GROUPS: dict[By, Callable[[_Time, Locator | None], Groups]] = {
    "category": _Time.by_category,
    "kernel": _Time.by_kernel,
    "operator": _Time.by_operator,
    "module": _Time.by_module,
    "annotation": _Time.by_annotation,
    "line": _Time.by_line,
}
