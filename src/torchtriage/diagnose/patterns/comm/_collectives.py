"""What patterns of communication share: is this training, and the edit that makes collectives shorter."""

import re

import numpy as np

from torchtriage.core.trace.collective_time import ENGINE, Collectives
from torchtriage.diagnose.patterns.base import Edit, Floats, Mask, Spans, Trace


def shorter(found: Collectives, pick: Mask, spans: Spans, low: Floats | float, high: Floats | float) -> Edit:
    """Return the edit that takes the picked collectives' time away, ``low`` to ``high`` of each.

    ``spans`` : their exposed time; on the host, what the waiting thread gives back.
    """
    left, best = (1 - np.broadcast_to(np.asarray(item, float), len(pick)) for item in (low, high))
    if found.on_host:
        # a thread of its own carries it out: what goes is the wait of the main one
        weight = found.trace.dur_ns[found.rows] * pick
        mean = [float((item * weight).sum() / max(weight.sum(), 1)) for item in (left, best)]
        return Edit("threads", factor=mean[0], best=min(mean), spans=spans)
    return Edit("shrink", found.rows[pick], left[pick], best=np.minimum(left, best)[pick])


def trains(trace: Trace) -> bool:
    """Return whether anything here computes gradients."""
    return bool(trace.matching(rf"{ENGINE}|Backward\d*$|^Optimizer\.").any())


def of_two(label: str) -> bool:
    """Return whether a message goes from one rank to another, or a part of it from each to each."""
    return re.search(r"(?i)send|recv", label) is not None
