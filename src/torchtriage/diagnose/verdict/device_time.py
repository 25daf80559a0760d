"""What the main device spends its time on: by category, kernel, operator, module, annotation or line.

Every instant in which the device is busy is given out once, so the rows of a table add up to the busy time. Where
streams overlap, computation goes first, then communication, then copies (as in the classes of time): what is hidden
behind computation costs nothing. Rows of one kind that run at once share the instant equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.names import short_name
from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.captured_graphs import CapturedGraphs
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.kernel_categories import CATEGORIES, Codes, categories
from torchtriage.core.trace.roofline import Roofline, multiplying, roofline, unchecked
from torchtriage.core.units import format_count, format_share
from torchtriage.diagnose.verdict.kernel_lines import KernelLines
from torchtriage.diagnose.verdict.launch_groups import Groups, grouped, named
from torchtriage.diagnose.verdict.options import CAPTURED, By
from torchtriage.diagnose.verdict.result import DeviceTime, DeviceTimeRow, ModelFlops, PeakShare, RoofRates

N_ROWS = 50
MOSTLY = 0.9
"""Share of a row's counted kernel time, and of the time of all products, whose work must be known."""
SOME = 0.005
"""Share of the busy time from which on a type's dense peak is one of the roofs."""


def device_time(
    trace: Trace,
    by: By = "category",
    places: Locator | None = None,
    captured: CapturedGraphs | None = None,
    compiled: KernelLines | None = None,
) -> tuple[DeviceTime, ...]:
    """Return the main device's time by category and by what else is asked for; empty without a device.

    ``by`` : one of ``options.BYS``. ``places`` : finds the lines of calls in the source files. ``captured`` : the
    launches that kernels of replayed graphs were captured from, whose operators, modules and lines count.
    ``compiled`` : the lines of what compiled graphs launch, which count instead of the line that calls such a graph.
    """
    if not trace.devices:
        return ()
    time = _Time.of(trace.devices[0], captured, compiled)
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
    return reached[len(rows) :] - reached[: len(rows)]


@dataclass(frozen=True, eq=False)
class _Time:
    """The main device's rows, and the part of the judged busy time that each has."""

    device: Device
    category: NDArray[np.int8]
    part_ns: Floats
    launched: Mask
    """Rows that begin in the judged time."""
    busy_ns: int
    captured: CapturedGraphs | None
    compiled: KernelLines | None

    @classmethod
    def of(cls, device: Device, captured: CapturedGraphs | None, compiled: KernelLines | None) -> _Time:
        trace = device.trace
        judged = trace.steps.judged
        busy_ns = intervals.length(intervals.intersect(device.busy, judged))
        launched = intervals.owner(judged, trace.start_ns[device.rows]) >= 0
        return cls(device, categories(device), busy_parts(device, judged), launched, busy_ns, captured, compiled)

    def table(self, by: By, places: Locator | None) -> DeviceTime:
        """Return the table of one key, its largest rows first."""
        trace = self.device.trace
        group, names = self._groups(by, places)
        n = len(names)
        whole = np.bincount(group, weights=self.part_ns, minlength=n)
        launched = np.flatnonzero(self.launched)
        count = np.bincount(group[launched], minlength=n)
        total = np.bincount(group[launched], weights=trace.dur_ns[self.device.rows[launched]], minlength=n)
        of_category = np.bincount(
            group * len(CATEGORIES) + self.category, weights=self.part_ns, minlength=n * len(CATEGORIES)
        ).reshape(n, -1)
        roofs = self._roofs(group, n) if by in ("kernel", "operator") else [{}] * n
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
                **roofs[index],
                lines=self.compiled.by_label.get(names[index], ()) if self.compiled and by == "line" else (),
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
            kernel_ns=trace.steps.judged_ns(self.device.compute),
            peak_unchecked=unchecked(self.device) if by in ("kernel", "operator") else "",
            captured=self._captured(by),
            mfu=_model_flops(self.device, self.category, self._roofline) if by == "category" else None,
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

    def _roofs(self, group: Ints, n: int) -> list[dict[str, Any]]:
        """Return what each row says of its roof, by field; nothing where too little of its time is known."""
        line = self._roofline
        if line is None:
            return [{}] * n
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
            return np.bincount(group[at], weights=values[at], minlength=n).astype(np.float64)

        of_peak, of_roof = shares(line.peak_ns, line.multiplies), shares(line.roof_ns, line.counted)
        everything, computes = total(line.roof_ns, line.counted), total(line.roof_ns, line.computes)
        flop, n_bytes, took = (total(values, line.multiplies) for values in (line.flop, line.n_bytes, dur))
        rows: list[dict[str, Any]] = [{"of_peak": share} for share in of_peak]
        for index, share in enumerate(of_roof):
            if share is not None:
                roof = "compute" if 2 * computes[index] >= everything[index] else "memory"
                rows[index] |= {"of_roof": share, "roof": roof}
            if share is not None and flop[index]:
                rows[index]["flop_per_byte"] = round(flop[index] / n_bytes[index], 3)
                rows[index]["tflops"] = round(flop[index] / took[index] / 1e3, 3)
        return rows

    # -- what the rows of a table are ------------------------------------------------------------

    def _groups(self, by: By, places: Locator | None) -> Groups:
        trace, rows = self.device.trace, self.device.rows
        if by == "category":
            return self.category.astype(np.int64), list(CATEGORIES)
        groups = grouped(trace, trace.links.call[rows], by, places)
        if groups is None:
            group, names = named(trace, rows)
            groups = group, [short_name(name) for name in names]
        elif self.captured is not None and by in CAPTURED and not self._lacking(self.captured, by):
            call = self.captured.call[rows]
            group, names = grouped(self.captured.trace, call, by, places) or groups
            groups = np.where(call >= 0, group + len(groups[1]), groups[0]), groups[1] + names
        if self.compiled is not None and by == "line":
            lines = self.compiled.of[rows]
            groups = np.where(lines >= 0, lines + len(groups[1]), groups[0]), groups[1] + self.compiled.labels
        return _merged(*groups)

    def _captured(self, by: By) -> str:
        notes = []
        if self.captured is not None and by in CAPTURED:
            replays = format_count(self.captured.n_replays, "graph launch", "graph launches")
            where = f"kernels of {self.captured.n_known:,} of {replays} count where they were captured"
            if lacking := self._lacking(self.captured, by):
                where = f"kernels of graphs count where these are launched: the capture was recorded without {lacking}"
            notes.append(where)
        if self.compiled is not None and by == "line":
            graphs_ns = self.part_ns[np.isin(self.device.rows, self.compiled.rows)].sum()
            known_ns = self.part_ns[self.compiled.of[self.device.rows] >= 0].sum()
            share = format_share(known_ns / max(graphs_ns, 1))
            notes.append(f"{share} of the time of compiled graphs counts at the lines that they compute, by their log")
        return "; ".join(notes)

    @staticmethod
    def _lacking(captured: CapturedGraphs, by: By) -> str:
        """Return what a recording of the capture would need to say where its launches are made, empty if it has it."""
        kind, what = (Kind.OP, "operators") if by == "operator" else (Kind.PYTHON, "Python stacks")
        return "" if (captured.trace.kind == kind).any() else what


def _merged(group: Ints, names: list[str]) -> Groups:
    labels, merged = np.unique(np.array(names), return_inverse=True)
    return merged[group], labels.tolist()


def _model_flops(device: Device, category: Codes, line: Roofline | None) -> ModelFlops | None:
    """Return the MFU of a device's steady steps, or why it is not checked; None where nothing multiplies.

    That is what they multiply, over what the device could multiply in their time. Every operation counts that it
    carries out, a recomputed one as often as it runs (some call that HFU); what a causal mask hides does not count.
    Each is held against the dense peak of the type it is computed in.
    ``line`` : the roofs of the device, None where they are not known.
    """
    trace, steps = device.trace, device.trace.steps
    begins = intervals.owner(steps.judged, trace.start_ns[device.rows]) >= 0
    mask = begins & multiplying(device, category)
    if not mask.any():
        return None
    if line is None:
        return ModelFlops(unchecked=unchecked(device))
    if not len(steps):
        return ModelFlops(unchecked="the recording has no marks of steps")
    flop, rate = line.flop, line.rate
    dur = trace.dur_ns[device.rows].astype(np.float64)
    # above its peak nothing runs: the operations were fewer (Winograd), or the type another
    known = mask & (rate > 0) & (flop <= rate * (dur + trace.resolution_ns))
    share = float(dur[known].sum() / max(dur[mask].sum(), 1.0))
    if share < MOSTLY:
        what = f"shapes and types are known for {format_share(share)} of the time of products and attention"
        return ModelFlops(unchecked=f"{what}, {format_share(MOSTLY)} are needed")
    at_peak_ns, total = float((flop[known] / rate[known]).sum()), float(flop[known].sum())
    wall_ns = intervals.length(steps.judged)
    if at_peak_ns > wall_ns:
        return ModelFlops(unchecked="at the peak, the operations would take longer than the steps do")
    peaks = [(each / 1e3, float(flop[known & (rate == each)].sum()) / total) for each in distinct(rate[known]).tolist()]
    return ModelFlops(
        share=round(at_peak_ns / wall_ns, 6),
        flop=round(total / steps.n_steady),
        step_ns=round(wall_ns / steps.n_steady),
        peaks=tuple(PeakShare(round(tflops, 3), round(part, 6)) for tflops, part in reversed(peaks)),
    )
