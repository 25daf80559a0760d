"""Collectives that could have begun earlier: what of them nothing hides, and the computation before them."""

from typing import Any, NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.collective_time import Collectives
from torchtriage.core.units import ms
from torchtriage.diagnose.patterns.base import Claim, Edit, Floats, Ints, Mask, Spans, Trace


class Earlier(NamedTuple):
    """What an earlier begin of some collectives gains; the names are those of :class:`Claim`.

    ``exposed_ns`` and ``hidden_ns``, over the judged time: what nothing hides of them, and what of that the computation
    before them could.
    """

    spans: Spans
    gain_low: Floats
    gain_high: Floats
    edit: Edit
    exposed_ns: int
    hidden_ns: float

    def claim(self, found: Collectives, rows: Ints, message: str, evidence: dict[str, Any], **more: Any) -> Claim:
        """Return the claim of this gain, but for what ``more`` gives otherwise."""
        n_steps = found.trace.steps.n_steady
        own = {
            "exposed_ms_per_step": ms(self.exposed_ns / n_steps),
            "could_hide_ms_per_step": ms(self.hidden_ns / n_steps),
        }
        usual: dict[str, Any] = {
            "certainty": "likely",
            "gain_low": self.gain_low,
            "anchor": found.trace.longest(rows),
            "edits": (self.edit,),
        }
        return Claim(
            message=message,
            rows=rows,
            spans=self.spans,
            gain_high=self.gain_high,
            time_class="host" if found.on_host else "comm",
            evidence=own | evidence,
            **(usual | more),
        )


def usual_ns(found: Collectives) -> Ints:
    """Return int64[k]: the median of equal messages, a collective's own duration where its size is not known.

    What lasts longer waits for a rank that comes late: that is another finding's.
    """
    dur = found.trace.dur_ns[found.rows]
    out = dur.copy()
    for group in np.unique(found.equal[found.equal >= 0]).tolist():
        mine = found.equal == group
        out[mine] = np.minimum(dur[mine], int(np.median(dur[mine])))
    return out


def exposed_of(found: Collectives, pick: Mask) -> tuple[Spans, Ints]:
    """Return the exposed time of the picked collectives without the waiting for late ranks, and whose each piece is."""
    mine = np.flatnonzero(pick[found.source])
    spans, source = found.exposed[mine], found.source[mine]
    from_ns = found.trace.end_ns[found.rows] - usual_ns(found)
    begin = np.maximum(spans[:, 0], from_ns[source])
    some = spans[:, 1] > begin
    return intervals.spans(begin[some], spans[some, 1]), source[some]


def exposed_ns(found: Collectives, pick: Mask) -> Ints:
    """Return int64[k]: how much of each collective is exposed, 0 for those not picked."""
    spans, source = exposed_of(found, pick)
    weights = spans[:, 1] - spans[:, 0]
    return np.bincount(source, weights=weights, minlength=len(found.rows)).astype(np.int64)


def alone_ns(found: Collectives, since_ns: Ints) -> Ints:
    """Return int64[k]: what was computed with no communication beside it from ``since_ns`` until each one began."""
    begin = found.trace.start_ns[found.rows]
    alone = intervals.subtract(found.computing, found.running)
    return intervals.covered(intervals.spans(np.minimum(since_ns, begin), begin), alone)


def earlier(trace: Trace, found: Collectives, pick: Mask, room_ns: Ints) -> Earlier:
    """Return what the picked collectives gain when ``room_ns`` of each runs beside computation before it."""
    spans, source = exposed_of(found, pick)
    own = exposed_ns(found, pick)
    hide = np.minimum(own, room_ns)
    # surely hidden is the transfer alone, on a device: on the host who sends takes cores from who computes
    sure = np.zeros_like(hide) if found.on_host else np.minimum(found.fastest_ns, hide)
    low, high = sure / np.maximum(own, 1), hide / np.maximum(own, 1)
    judged = intervals.covered(spans, trace.steps.judged)
    hidden_ns = float((high[source] * judged).sum())
    if found.on_host:
        edit = Edit("threads", factor=1.0, best=1 - hidden_ns / max(int(judged.sum()), 1), spans=spans)
    else:
        dur = np.maximum(trace.dur_ns[found.rows], 1)
        edit = Edit("overlap", found.rows[pick], factor=(1 - sure / dur)[pick], best=(1 - hide / dur)[pick])
    return Earlier(spans, low[source], high[source], edit, int(judged.sum()), hidden_ns)
