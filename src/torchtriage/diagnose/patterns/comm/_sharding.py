"""What FSDP's ranges say about collectives: whose parameters are gathered, and when."""

from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives
from torchtriage.diagnose.patterns.base import Ints, Kind, Mask, Trace
from torchtriage.diagnose.patterns.comm._gradient_reduces import REDUCES

FSDP = r"^FSDP::|^FullyShardedDataParallel\."
_GATHER = (
    r"^FSDP::all_gather( \(|$)"
    r"|^FullyShardedDataParallel\._(root_pre_forward|pre_forward|pre_backward_hook|(pre|post)_(for|back)ward_prefetch)$"
)
_GATHERS = r"(?i)all_?gather"
_BACKWARD = r"^FullyShardedDataParallel\._(pre_backward_hook|(pre|post)_backward_prefetch)$"
_ROOT = r"^FSDP::root_pre_forward$|^FullyShardedDataParallel\.forward$"
_REDUCE = r"^FSDP::(root_)?post_backward|^FullyShardedDataParallel\._post_backward_hook$"
_FSDP1 = "FullyShardedDataParallel."


class Gathers(NamedTuple):
    """FSDP's all-gathers in the order in which they were enqueued.

    ``at`` : int64[g], indices into the collectives. ``step`` : int64[g]. ``unit`` : int64[g], a code of the module
    whose parameters they gather. ``round`` : int64[g], the micro-batch within the step. ``turn`` : int64[g], how often
    the unit was gathered before in the step. ``within`` : int64[g], FSDP's range around each.
    """

    at: Ints
    step: Ints
    unit: Ints
    round: Ints
    turn: Ints
    within: Ints

    @property
    def follows(self) -> Mask:
        """Whether the one before is of the same step: nothing comes before the first."""
        return np.append(False, self.step[1:] == self.step[:-1])


def find_gathers(trace: Trace, found: Collectives) -> Gathers | None:
    """Return FSDP's all-gathers, None without its ranges."""
    ranges = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.hosts & trace.matching(_GATHER)
    if not ranges.any():
        return None
    op = found.enqueued_by
    known = np.flatnonzero(op >= 0)
    known = known[trace.matching(_GATHERS)[op[known]]]
    around = trace.tree.nearest(op[known], ranges)
    at, around = known[around >= 0], around[around >= 0]
    if not len(at):
        return None
    issued = trace.start_ns[op[at]]
    order = np.argsort(issued, kind="stable")
    at, around, issued = at[order], around[order], issued[order]
    # by who enqueued it: the device may carry it out in the next step
    step = trace.steps.of_host(op[at])
    root = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.hosts & trace.matching(_ROOT)
    roots = np.flatnonzero(root & ~trace.tree.under(root))
    begun = np.searchsorted(np.sort(trace.start_ns[roots]), issued, side="right")
    first = np.zeros(int(step.max(initial=-1)) + 2, np.int64)
    # backwards, so that the first of each step is written last
    first[step[::-1]] = begun[::-1]
    which = begun - first[step]
    unit = trace.name[around].astype(np.int64)
    if trace.name_of(int(around[0])).startswith(_FSDP1):
        unit = _by_order(trace, around, step, which, len(trace.names))
    return Gathers(at, step, unit, which, _turns(step, unit), around)


def gradient_reductions(found: Collectives) -> Mask:
    """Return bool[k]: the collectives with which FSDP reduces gradients."""
    trace, op = found.trace, np.maximum(found.enqueued_by, 0)
    within = trace.tree.nearest(op, trace.hosts & trace.matching(_REDUCE)) >= 0
    return within & (found.enqueued_by >= 0) & trace.matching(REDUCES)[op]


def _by_order(trace: Trace, around: Ints, step: Ints, which: Ints, base: int) -> Ints:
    """Return a code for each gather where units have no names: the backward pass goes through them in reverse."""
    backward = trace.matching(_BACKWARD)[around]
    out = np.zeros(len(around), np.int64)
    for number in distinct(step).tolist():
        for turn in distinct(which[step == number]).tolist():
            mine = (step == number) & (which == turn)
            ahead, back = np.flatnonzero(mine & ~backward), np.flatnonzero(mine & backward)
            out[ahead] = base + np.arange(len(ahead))
            out[back] = base + len(ahead) - 1 - np.arange(len(back))
    return out


def _turns(step: Ints, unit: Ints) -> Ints:
    """Return how many of the same step and unit come before each."""
    key = step * (int(unit.max(initial=0)) + 1) + unit
    order = np.argsort(key, kind="stable")
    same = np.append(False, key[order][1:] == key[order][:-1])
    begin = np.maximum.accumulate(np.where(same, 0, np.arange(len(key))))
    out = np.empty(len(key), np.int64)
    out[order] = np.arange(len(key)) - begin
    return out
