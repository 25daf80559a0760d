"""Every millisecond has one owner.

Claims overlap: a late loader also looks launch-bound, a slow kernel may be two kinds of slow. They
are served in the order of the catalogue, the specific before the generic; each takes what is still
free of the time it points at, so that savings never add up to more than the step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Trace
from torchtriage.diagnose.patterns import Claim, Pattern

MOSTLY = 0.5
"""A claim that loses this much of its time to an owner is explained by it."""


@dataclass(eq=False)
class Share:
    """What one claim owns, in ns over the judged time.

    ``pieces`` : int64[k, 2], disjoint, in time order; ``owned_ns`` : int64[k], the part of each
    piece that was still free; ``taken`` is that time as a union. ``naive_ns`` : the plain sum of
    the claim's spans, for contrast. ``most_ns`` : the part of it that any fix can give back.
    """

    pattern: Pattern
    claim: Claim
    pieces: Spans
    owned_ns: NDArray[np.int64]
    low_ns: float
    high_ns: float
    naive_ns: int
    most_ns: float
    taken: Spans
    also_explains: list[str] = field(default_factory=list)


def share_out(trace: Trace, claims: list[tuple[Pattern, Claim]], *, last: Collection[int] = ()) -> list[Share]:
    """Give the judged time to the claims: by ``pattern.order``, then the larger claim first.

    ``last`` : ``id`` of claims that are served after all others. One share per claim, in the order served:
    ``low_ns <= high_ns <= sum(owned_ns)``, and all ``owned_ns`` add up to at most the judged time.
    """
    judged = trace.steps.judged
    free = judged
    served: list[Share] = []
    ordered = sorted(
        claims,
        key=lambda item: (id(item[1]) in last, item[0].order, -int(np.diff(item[1].spans).sum()), item[1].message),
    )
    fields: dict[str, Spans] = {}
    for pattern, claim in ordered:
        if claim.time_class not in fields:
            fields[claim.time_class] = intervals.intersect(judged, _class_time(trace, claim))
        field_of_play = fields[claim.time_class]
        pieces, source = intervals.disjoint(claim.spans)
        mine = intervals.intersect(intervals.union(pieces), field_of_play)
        taken = intervals.intersect(free, mine)
        owned = intervals.covered(pieces, taken)
        low = np.broadcast_to(np.asarray(claim.gain_low, float), len(claim.spans))[source]
        high = np.broadcast_to(np.asarray(claim.gain_high, float), len(claim.spans))[source]
        high = np.clip(np.maximum(low, high), 0.0, 1.0)
        whole = intervals.covered(claim.spans, judged)
        share = Share(
            pattern,
            claim,
            pieces,
            owned,
            float((owned * np.clip(low, 0.0, 1.0)).sum()),
            float((owned * high).sum()),
            int(whole.sum()),
            float((whole * claim.gain_most).sum()),
            taken,
        )
        total = intervals.length(mine)
        for other in served:
            if not total or other.pattern.code == pattern.code or pattern.code in other.also_explains:
                continue
            if intervals.length(intervals.intersect(mine, other.taken)) >= MOSTLY * total:
                other.also_explains.append(pattern.code)
        free = intervals.subtract(free, taken)
        served.append(share)
    return served


def _class_time(trace: Trace, claim: Claim) -> Spans:
    if claim.time_class == "none":
        return intervals.EMPTY
    if not trace.devices or claim.time_class == "host":
        return trace.steps.judged
    device = trace.devices[0]
    if claim.time_class == "idle":
        return device.idle
    if claim.time_class == "comm":
        return device.communication
    if claim.time_class == "copy":
        # a copy's cost includes the idle time it causes
        return intervals.union(np.concatenate([device.copies, device.idle]))
    return device.busy
