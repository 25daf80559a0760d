"""Time that the host takes, and the part of it at stake: what the device idles meanwhile."""

from typing import Any, NamedTuple

from torchtriage.core import intervals
from torchtriage.core.units import format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Floats, Ints, Spans, Trace


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
