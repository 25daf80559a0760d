"""Memory taken from the driver and given back again and again."""

from __future__ import annotations

import numpy as np

from torchtriage.core.finding import Finding, Fix, Place
from torchtriage.core.units import format_bytes, format_count
from torchtriage.memory.findings.allocator_churn import CODE, FIX
from torchtriage.memory.snapshot.attribution import Owners
from torchtriage.memory.snapshot.peak_usage import by_stack
from torchtriage.memory.snapshot.snapshot import Action
from torchtriage.memory.snapshot.timeline import Timeline

MIN_ROUNDS = 4
"""Fewer are changes of phase: loading, warming up, the first step."""
_EMPTIED = Fix(
    "Take torch.cuda.empty_cache() out of the loop: cached segments are given back before a request fails anyway.",
    "# torch.cuda.empty_cache()",
    "https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html",
)

_HOLD_LESS = Fix(
    "Hold less at the peak: the device is full and the allocator makes room, although segments already grow."
)


def find_churn(timeline: Timeline, owners: Owners) -> Finding | None:
    """Return the finding where as much is taken again, in rounds, as is reserved at most."""
    history = owners.snapshot.history
    change = history.reserved_change[timeline.start : timeline.end]
    rows = np.flatnonzero(change)
    if not len(rows):
        return None
    gives = change[rows] < 0
    n_rounds = int((~gives[1:] & gives[:-1]).sum())  # given back, then taken again
    taken, given = int(change[change > 0].sum()), int(-change[change < 0].sum())
    again = int(change[rows[np.cumsum(gives) > 0]].clip(0).sum())
    most = int(timeline.reserved_bytes.max())
    if n_rounds < MIN_ROUNDS or min(again, given) < most:
        return None
    stacks = history.stack[timeline.start + rows[gives]]
    table = owners.snapshot.stacks
    empties = ["empty_cache" in name.lower() or "emptyCache" in name for name in table.functions]
    by_hand = 2 * by_stack(table.having(np.array(empties, np.bool_)), stacks).sum() > len(stacks)
    grows = (history.action[timeline.start + rows] == Action.SEGMENT_UNMAP).any()
    last = int(stacks[-1])
    why = "torch.cuda.empty_cache() was called" if by_hand else "the allocator made room for other sizes"
    return CODE.finding(
        severity="medium",
        certainty="certain",
        message=f"{format_bytes(taken)} were taken from the driver and {format_bytes(given)} given back in"
        f" {format_count(n_rounds, 'round')} on device {timeline.device}, with {format_bytes(most)} reserved at most:"
        f" {why}",
        place=Place(lane=f"device {timeline.device}", frame=owners.user_frame(last), stack=owners.stack(last)),
        evidence={
            "device": timeline.device,
            "taken_bytes": taken,
            "given_bytes": given,
            "n_rounds": n_rounds,
            "n_calls": len(rows),
            "max_reserved_bytes": most,
        },
        fix=_EMPTIED if by_hand else FIX if not grows else _HOLD_LESS,
        n_events=len(rows),
    )
