"""What one rank sends and receives, by process group: every row that communicates, and nothing of its trace."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.names import word_list
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.messages import Messages, ProcessGroup

KINDS = word_list("""
    allreduce allgather reducescatter alltoall broadcast reduce send recv sendrecv dispatch other
""")
"""NCCL's operations, sends and receives (``sendrecv``: several at once), and kernels that send tokens to experts."""
_POINT_TO_POINT = re.compile(r"^(i?(?P<kind>send|recv)\w*|batch_isend_irecv|p2p\w*|coalesced)\b", re.I)
_DISPATCH = r"(?i)deep_?ep(?![a-z])|(?<![a-z])ep::(?:inter|intra)node"
_REDUCES = r"(?i)cross_device_reduce|all_?reduce"
"""All-reduces of inference engines, which carry no name of an operation."""
MAX_MEMBERS = 1 << 20  # what a damaged file gives as a size need not be one
MAX_GAP_NS = 200_000
"""From one node of the backward pass to the next."""
_ENGINE = r"^autograd::engine::"
_OPTIMIZER = r"^Optimizer\."


@dataclass(frozen=True, eq=False)
class GroupRows:
    """All rows of a rank that communicate, in order of their start; arrays have one element for each.

    ``group`` : code into ``groups``. ``kind`` : code into :data:`KINDS`. ``forward`` : 1 for what was enqueued in a
    forward pass, 0 for elsewhere, -1 where that is not known. ``place`` : index among the rank's collectives, -1 for
    sends and receives. ``step`` : number of the step that enqueued it, -1 outside. ``size_bytes`` : -1 where not known.
    ``n_members`` : of each group, as recorded; 0 where they were not.
    """

    group: Ints
    kind: np.ndarray
    forward: np.ndarray
    place: Ints
    step: Ints
    start_ns: Ints
    end_ns: Ints
    size_bytes: Ints
    groups: tuple[ProcessGroup, ...]
    n_members: Ints

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.group)


def group_rows(trace: Trace, messages: Messages, single: Mask, step_numbers: Ints, *, device: bool) -> GroupRows:
    """Return the rows of ``messages``.

    ``single`` : bool[n], collectives; the others are sends and receives. ``step_numbers`` : the number of each step.
    """
    rows = messages.rows
    base = trace.origin.base_time_ns or 0
    step_of = trace.steps.of_work(rows) if device else trace.steps.of_host(rows)
    table: dict[ProcessGroup, int] = {}
    # streams are numbered among collectives alone, as matching does
    known, code = Messages(trace, rows[single]).groups
    sent, sent_code = messages.groups
    group = np.empty(len(rows), np.int64)
    group[single] = np.array([table.setdefault(item, len(table)) for item in known], np.int64)[code]
    for at in np.flatnonzero(~single).tolist():
        own = sent[sent_code[at]]
        unnamed = not own.ranks and own.name.startswith("stream ")
        group[at] = table.setdefault(ProcessGroup("sends and receives") if unnamed else own, len(table))
    n_members = np.zeros(len(table), np.int64)
    np.maximum.at(n_members, group, np.where(messages.n_ranks < MAX_MEMBERS, messages.n_ranks, 0))
    return GroupRows(
        group=group,
        kind=_kinds(trace, messages, single),
        forward=_forward(trace, rows, step_of, device=device),
        place=np.where(single, np.cumsum(single) - 1, -1),
        step=np.append(step_numbers, -1)[step_of],
        start_ns=trace.start_ns[rows] + base,
        end_ns=trace.end_ns[rows] + base,
        size_bytes=messages.size_bytes,
        groups=tuple(table),
        n_members=n_members,
    )


def _kinds(trace: Trace, messages: Messages, single: Mask) -> np.ndarray:
    dispatch, reduces = (trace.matching(pattern)[messages.rows] for pattern in (_DISPATCH, _REDUCES))
    out = np.full(len(single), KINDS.index("other"), np.int8)
    for at, (name, kind) in enumerate(zip(messages.names, messages.kinds, strict=True)):
        if not single[at]:
            match = _POINT_TO_POINT.match(name)
            kind = str((match and match["kind"]) or "sendrecv").lower()
        elif dispatch[at]:
            kind = "dispatch"
        out[at] = KINDS.index(kind or ("allreduce" if reduces[at] else "other"))
    return out


def _forward(trace: Trace, rows: Ints, step_of: Ints, *, device: bool) -> np.ndarray:
    """Return for each row whether its call lies before a backward pass of its step, and in none."""
    call = trace.links.call[rows].astype(np.int64) if device else rows
    called = np.where(call >= 0, trace.start_ns[np.maximum(call, 0)], 0)
    ops = trace.is_kind(Kind.OP, Kind.ANNOTATION)
    engine = trace.matching(_ENGINE) & ops
    begun = np.flatnonzero(engine)
    if not len(begun):
        return np.where(call >= 0, 1, -1).astype(np.int8)
    # hooks of the backward pass run on the engine's own thread
    crew = distinct(trace.lane[begun])
    inside = (call >= 0) & np.isin(trace.lane[call], crew[crew != trace.steps.lane])
    outside = np.flatnonzero((call >= 0) & ~inside)
    marks = engine | trace.matching(_OPTIMIZER) & ops
    inside[outside] = trace.tree.nearest(call[outside], marks) >= 0
    if not device:
        # gloo's thread takes over what the backward pass enqueues: it begins while that runs
        running = intervals.union(trace.time_of(begun) + np.array([0, MAX_GAP_NS]))
        inside |= intervals.owner(running, trace.start_ns[rows]) >= 0
    # with several micro-batches, what follows the last backward pass of a step is no forward pass
    last = np.full(len(trace.steps) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, trace.steps.of_host(begun), trace.start_ns[begun])
    out = np.where(inside | (called > last[step_of]), 0, 1)
    return np.where(call >= 0, out, -1).astype(np.int8)
