"""What operators and kernels cost, and how much of it may go away before the device waits."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.device import Device
from torchtriage.core.units import format_ns, format_share, ms
from torchtriage.diagnose.patterns.base import Certainty, Claim, Edit, Fix, Floats, Ints, Spans, Trace

SHORT_NS = 50_000  # the profiler adds about a microsecond per operator: it matters to shorter ones (measured)


class Work(NamedTuple):
    """Device work, or operators where a CPU works alone; arrays have one element per row.

    ``rows`` : device rows, or op rows. ``op`` : the operator each belongs to, -1 without one.
    ``free`` : float64, the part of the row, 0-1, whose going makes the step shorter for sure.
    ``per_step_ns`` : their time in the judged steps, as a union, over the number of steps.
    ``share`` : of the kernel time (:func:`kernel_time_ns`), on a CPU of the steps.
    ``gone`` : what goes when the work is not done: the rows, with the operators that were asked
    for, or else with the calls that launched them.
    """

    trace: Trace
    rows: Ints
    op: Ints
    free: Floats
    per_step_ns: float
    share: float
    spans: Spans
    time_class: Literal["compute", "host"]
    gone: Ints

    @property
    def of(self) -> str:
        """What ``share`` is a share of."""
        return "the kernel time" if self.time_class == "compute" else "the step"

    @property
    def text(self) -> str:
        """The time per step and its share, as a message says it."""
        return f"{format_ns(self.per_step_ns)}, {format_share(self.share)} of {self.of}"

    @property
    def n_per_step(self) -> float:
        """The number of rows per step."""
        steps = self.trace.steps
        return steps.mean_count(steps.of_work(self.rows) if self.trace.devices else steps.of_host(self.rows))

    def claim(
        self,
        message: str,
        what: str,
        *,
        method: str,
        evidence: dict[str, Any],
        low: float | Floats | None = None,
        high: float | Floats = 1.0,
        most: float | Floats = 1.0,
        anchor: int | None = None,
        certainty: Certainty = "likely",
        fix: Fix | None = None,
    ) -> Claim:
        """Return the claim that the work need not be done, or that ``low`` to ``high``, never ``most``, of it can go.

        The low end counts no more than what the queue cannot make up for. Without an ``anchor`` the
        operator of the longest row stands for the finding.
        """
        gain_low: float | Floats = self.free
        if low is None:
            edit = Edit("drop", self.gone)
        else:
            gain_low = np.minimum(low, self.free) if np.any(low) else 0.0
            edit = Edit("shrink", self.rows, factor=1 - low, best=1 - high)
        if anchor is None:
            longest = np.argmax(self.trace.dur_ns[self.rows])
            anchor = int(self.op[longest] if self.op[longest] >= 0 else self.rows[longest])
        return Claim(
            message=message,
            certainty=certainty,
            rows=self.rows,
            spans=self.spans,
            gain_low=gain_low,
            gain_high=high,
            gain_most=most,
            time_class=self.time_class,
            basis="bounded" if low is None else "modelled",
            method=method,
            evidence={**self.evidence(what), **evidence},
            anchor=anchor,
            fix=fix,
            edits=(edit,),
        )

    def evidence(self, what: str) -> dict[str, float]:
        """Return both figures under their names; ``what`` says whose."""
        share = "share_of_kernel_time" if self.time_class == "compute" else "share_of_step"
        return {f"{what}_ms_per_step": ms(self.per_step_ns), share: round(self.share, 6)}


def kernel_time_ns(trace: Trace) -> int:
    """Return the kernel time: computation on the main device in the judged steps.

    The union of kernels that are not communication, and of sets: the class ``compute``.
    """
    return trace.steps.judged_ns(trace.devices[0].compute)


def work_of(trace: Trace, ops: Ints) -> Work | None:
    """Return what some operators (none inside another) cost; None where nothing can be said.

    That is a trace of a device without its rows, operators that did nothing there, and steps
    without a time to compare with.
    """
    inside = trace.mask_of(ops)
    if not trace.devices:
        if not trace.is_host_only or not len(ops):
            return None
        rows = np.flatnonzero(inside & (trace.lane == trace.steps.lane))
        short = trace.dur_ns[rows] < SHORT_NS
        free = np.where(short, 1 / trace.origin.inflation, 1.0)
        whole_ns = intervals.length(trace.steps.judged)
        return _work(trace, rows, rows, free, whole_ns, "host", rows)
    device = trace.devices[0]
    call = trace.links.call[device.rows]
    at = np.flatnonzero((call >= 0) & ~device.comm)
    op = trace.tree.nearest(call[at], inside)
    return work_at(trace, at[op >= 0], op[op >= 0])


def work_at(trace: Trace, at: Ints, op: Ints | None = None) -> Work | None:
    """Return what some work of the main device, by its positions in ``devices[0].rows``, costs.

    ``op`` : the operator each belongs to, else the innermost one around its launch.
    """
    device = trace.devices[0]
    rows = device.rows[at]
    call = trace.links.call[rows]
    # a call that launches a graph launches other kernels too
    call = call[(call >= 0) & (trace.links.n_enqueued[call] == 1)]
    gone = distinct(np.concatenate([rows, call if op is None else op]))
    op = trace.links.op[rows].astype(np.int64) if op is None else op
    free = queued_share(trace, device, at)
    return _work(trace, rows, op, free, kernel_time_ns(trace), "compute", gone)


def _work(
    trace: Trace, rows: Ints, op: Ints, free: Floats, whole_ns: int, time_class: Literal["compute", "host"], gone: Ints
) -> Work | None:
    spans = trace.spans_of(rows)
    took_ns = trace.steps.judged_ns(spans)
    if not took_ns or not whole_ns:
        return None
    per_step_ns = took_ns / trace.steps.n_steady
    return Work(trace, rows, op, free, per_step_ns, took_ns / whole_ns, spans, time_class, gone)


def queued_share(trace: Trace, device: Device, at: NDArray[np.integer]) -> Floats:
    """Return the part (0-1) of each kernel, from its end, in which the next work was already enqueued.

    Shortening the kernel by more than that frees nothing: the device would wait for the launch. 0 where the next
    launch came after the end, 1 for the last work. ``at`` : positions in ``device.rows``.
    """
    rows = device.rows
    following = rows[np.minimum(at + 1, len(rows) - 1)]
    call = trace.links.call[following]
    enqueued = np.where(call >= 0, trace.end_ns[call], trace.start_ns[following])
    end, dur = trace.end_ns[rows[at]], np.maximum(trace.dur_ns[rows[at]], 1)
    share = np.clip((end - enqueued) / dur, 0.0, 1.0)
    return np.where(device.followed_in_time[at], np.where(at + 1 < len(rows), share, 1.0), 0.0)
