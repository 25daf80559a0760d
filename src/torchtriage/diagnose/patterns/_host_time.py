"""Time that the host takes, and the part of it at stake: what the device idles meanwhile."""

from typing import Any, NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.units import format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Floats, Ints, Kind, Spans, Trace


class HostTime(NamedTuple):
    """Time of the host in ``held``; ``spans`` is the part at stake, all of it without a device.

    ``held_ns`` and ``lost_ns`` : both per steady step.
    """

    trace: Trace
    held: Spans
    spans: Spans
    held_ns: float
    lost_ns: float

    @property
    def text(self) -> str:
        """How long it takes of a step, as a message says it."""
        steps = self.trace.steps
        return f"{format_ns(self.held_ns)} of {format_ns(steps.wall_ns)} {steps.per}"

    def idle_text(self, before: str, after: str = "") -> str:
        """Return how long the GPU stands idle for it, between two words; nothing without a device."""
        device = self.trace.origin.device_word
        return f"{before} the {device} stands idle for {format_ns(self.lost_ns)}{after}" if self.trace.devices else ""

    def evidence(self, what: str = "host", *, share: bool = True) -> dict[str, float]:
        """Return the figures under their names; ``what`` says whose the host's time is."""
        return {
            f"{what}_ms_per_step": ms(self.held_ns),
            **({"share_of_step": round(self.held_ns / self.trace.steps.wall_ns, 6)} if share else {}),
            **({"gpu_idle_ms_per_step": ms(self.lost_ns)} if self.trace.devices else {}),
        }


def host_time(trace: Trace, held: Spans) -> HostTime:
    """Return what of some time (a union) in the steady steps is at stake.

    A range that is open when the recording stops has an end that lies behind its step.
    """
    held = intervals.intersect(held, trace.steps.host_judged)
    spans = intervals.intersect(held, trace.devices[0].host_late) if trace.devices else held
    return HostTime(trace, held, spans, *(intervals.length(part) / trace.steps.n_steady for part in (held, spans)))


def with_backward(trace: Trace, first: Ints, last: Ints) -> Spans:
    """Return the time from each ``first`` operator to the end of its ``last``, and of their backward passes."""
    sequence = trace.key
    numbered = np.flatnonzero((trace.kind == Kind.OP) & (sequence >= 0))
    is_backward = trace.matching(f"^{BACKWARD_NODE}")[numbered]
    backward, forward = numbered[is_backward], numbered[~is_backward & (trace.lane[numbered] == trace.steps.lane)]
    step_of = trace.steps.of_host(backward)
    found = []
    for step, begin, end in zip(trace.steps.of_host(first), trace.start_ns[first], trace.end_ns[last], strict=True):
        found.append((begin, end))
        mine = forward[(trace.start_ns[forward] >= begin) & (trace.end_ns[forward] <= end)]
        if not len(mine):
            continue
        of_these = (sequence[backward] >= sequence[mine].min()) & (sequence[backward] <= sequence[mine].max())
        nodes = backward[of_these & (trace.start_ns[backward] >= end) & (step_of == step)]
        if len(nodes):
            found.append((trace.start_ns[nodes].min(), trace.end_ns[nodes].max()))
    return intervals.union(np.array(found, np.int64).reshape(-1, 2))


def host_claim(
    trace: Trace,
    message: str,
    rows: Ints,
    spans: Spans,
    *,
    method: str,
    evidence: dict[str, Any],
    gain: float | Floats = 1.0,
    **more: Any,
) -> Claim:
    """Return the claim on time of the host, which the profiler makes longer: the low end is without that.

    ``gain`` : what part of it goes at the low end. ``more`` : other fields of the claim.
    """
    inflation = trace.origin.inflation
    fields: dict[str, Any] = {
        "certainty": "likely",
        "gain_low": gain / inflation,
        "time_class": "idle" if trace.devices else "host",
    }
    return Claim(
        message=message,
        rows=rows,
        spans=spans,
        method=method,
        evidence={**evidence, "profiler_inflation": inflation},
        **(fields | more),
    )
