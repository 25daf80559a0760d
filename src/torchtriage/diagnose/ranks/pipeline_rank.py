"""What one rank sends, receives and computes between, as a pipeline's schedule needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.messages import Messages, ProcessGroup
from torchtriage.diagnose.ranks.host_activity import ACTIVITIES, PHASES, Pieces

KINDS = "FBIW"
"""Forward, backward, and where it is split: the gradients of the input and of the weights."""
FORWARD, BACKWARD = KINDS.index("F"), KINDS.index("B")
MAX_ROWS = 4000
"""Messages of a rank that are kept, of its last steps."""
NOISE = 0.1
"""Of the usual block of a kind: shorter ones are calls around the passes."""
# torch.distributed.pipelining names what it does: stage, action, micro-batch
_LABEL = re.compile(r"^PP:(\d+)(SEND_|RECV_)?([FBIW])(\d+)$")
_SEND = re.compile(r"i?send\b", re.I)
_BATCH = re.compile(r"^(batch_isend_irecv|p2p\w*|coalesced)\b", re.I)
_POINT_TO_POINT = re.compile(r"^(i?send|i?recv\w*|batch_isend_irecv|p2p\w*|coalesced)\b", re.I)


@dataclass(frozen=True, eq=False)
class RankMessages:
    """The sends and receives of one rank in order; arrays have one element for each.

    ``send`` : whether it sends. ``peer`` : number of the other rank, -1 where it was not recorded. ``kind`` : F for an
    activation, B for a gradient, by the pass that it follows or feeds, -1 where none does. ``nelems`` and ``step``
    as of collectives. ``end_ns`` : when each is done; when it is needed is in the passes around it.
    """

    send: Mask
    peer: Ints
    group: Ints
    nelems: Ints
    step: Ints
    kind: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False)
class RankBlocks:
    """The passes of micro-batches on one rank in order: ``kind`` is a place in ``KINDS``.

    ``stage``, ``micro`` : -1 where nothing names them. ``busy_ns`` : computation between its first and last work.
    """

    step: Ints
    kind: Ints
    stage: Ints
    micro: Ints
    start_ns: Ints
    end_ns: Ints
    busy_ns: Ints

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self.step)


@dataclass(frozen=True, eq=False)
class RankPipeline:
    """What one rank brings to a pipeline.

    ``groups`` : those of the messages; ``configured`` : those the recording lists. ``exposed`` : sending or receiving
    with nothing beside it.
    """

    messages: RankMessages
    blocks: RankBlocks
    groups: tuple[ProcessGroup, ...]
    configured: tuple[ProcessGroup, ...]
    exposed: Spans

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages.send)


def messages_of(trace: Trace, rows: Ints, names: list[str]) -> tuple[Ints, Ints]:
    """Return the messages in some communication called ``names``: places in ``rows``, and rows that describe them.

    A kernel that carries out a batch has no peer of its own: calls before its launch say what it sends and receives.
    """
    alone = [at for at, name in enumerate(names) if _POINT_TO_POINT.match(name)]
    own = np.array(alone, np.int64), rows[alone]
    together = np.array(["SendRecv" in name or bool(_BATCH.match(name)) for name in names], bool)
    if not together.any() or trace.kind[rows[0]] != Kind.KERNEL:
        return own
    calls = trace.kind == Kind.OP
    marks = np.flatnonzero(
        calls & trace.named("record_param_comms") & trace.where_detail("collective", _is_message, calls)
    )
    if not len(marks):
        marks = np.flatnonzero(calls & trace.matching(r"^c10d::(send|recv_)$"))
    marks = marks[np.argsort(trace.start_ns[marks], kind="stable")]
    # the next kernel that may be theirs
    candidates = np.flatnonzero(together | np.isin(np.arange(len(rows)), alone))
    candidates = candidates[np.argsort(trace.links.launched_ns(rows[candidates]), kind="stable")]
    place = np.searchsorted(trace.links.launched_ns(rows[candidates]), trace.start_ns[marks], side="left")
    marks, place = marks[place < len(candidates)], place[place < len(candidates)]
    which = candidates[place]
    batch = together[which]
    which, marks = which[batch], marks[batch]
    rest = ~np.isin(own[0], which)
    which, marks = np.append(which, own[0][rest]), np.append(marks, own[1][rest])
    order = np.argsort(which, kind="stable")
    return which[order], marks[order]


def _is_message(name: object) -> bool:
    return _POINT_TO_POINT.match(str(name)) is not None and not _BATCH.match(str(name))


def rank_pipeline(trace: Trace, pieces: Pieces, rows: Ints, said: Ints, numbers: Ints, base: int) -> RankPipeline:
    """Return what a rank does around its messages: ``rows`` carry them out, those of ``said`` describe them.

    ``numbers`` : of its steps. ``base`` : what its times count from.
    """
    if not len(rows):
        return NOTHING
    device = trace.kind[rows[0]] == Kind.KERNEL
    step = trace.steps.of_work(rows) if device else trace.steps.of_host(rows)
    step = np.where(said != rows, trace.steps.of_host(said), step)
    keep = step >= _first_kept(step)
    rows, said, step = rows[keep], said[keep], step[keep]
    messages = Messages(trace, said)
    groups, group = messages.groups
    src, dst = (_whole(trace, end, said) for end in ("src", "dst"))
    send = np.array([bool(_SEND.match(name.removeprefix("c10d::"))) for name in messages.names], bool)
    launch = trace.links.launched_ns(rows) if device else trace.start_ns[rows]
    launch = np.where(said != rows, trace.start_ns[said], launch)
    until = launch if device else np.where(send, trace.start_ns[rows], trace.end_ns[rows])
    labels = _labels(trace)
    blocks, (host_ns, host_kind) = _blocks(trace, pieces, until, labels, device=bool(device))
    before = np.searchsorted(host_ns, until, side="right") - 1
    place = np.where(send, before, before + 1)
    known = (place >= 0) & (place < len(host_ns))
    kind = np.full(len(rows), -1, np.int64)
    kind[known] = np.minimum(host_kind[place[known]], BACKWARD)
    named = _said(labels, launch)
    kind = np.where(named >= 0, named, kind)
    exposed = intervals.intersect(
        intervals.union(trace.time_of(rows)), trace.devices[0].comm_only if device else pieces.idle
    )
    listed = (
        ProcessGroup(configured.name, configured.ranks, configured.what)
        for configured, _ in messages._configured.values()
    )
    return RankPipeline(
        RankMessages(
            send=send,
            peer=np.where(send, dst, src),
            group=group,
            nelems=messages.nelems,
            step=np.append(numbers, -1)[step],
            kind=kind,
            end_ns=trace.end_ns[rows] + base,
        ),
        _shifted(blocks, numbers, base),
        groups,
        tuple(listed),
        exposed + base,
    )


def _first_kept(step: Ints) -> int:
    """Return the first of the last steps that fit."""
    found, count = np.unique(step, return_counts=True)
    fits = np.cumsum(count[::-1])[::-1] <= MAX_ROWS
    return int(found[fits][0]) if fits.any() else int(found[-1]) + 1


def _whole(trace: Trace, what: str, rows: Ints) -> Ints:
    given = trace.details_of(what, rows)
    return np.array([value if isinstance(value, int) and 0 <= value < 1 << 31 else -1 for value in given], np.int64)


# -- passes --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Labels:
    """What the program names itself: spans on the host, and of each stage, kind, micro-batch; whether it computes."""

    spans: Spans
    stage: Ints
    kind: Ints
    micro: Ints
    computes: Mask


def _labels(trace: Trace) -> _Labels:
    rows = np.flatnonzero(trace.matching(r"^PP:\d") & (trace.kind == Kind.ANNOTATION))
    found = [(row, match) for row in rows.tolist() if (match := _LABEL.match(trace.name_of(row)))]
    rows = np.array([row for row, _ in found], np.int64)
    order = np.argsort(trace.start_ns[rows], kind="stable")
    found = [found[at] for at in order.tolist()]
    return _Labels(
        trace.time_of(rows[order]),
        np.array([int(match[1]) for _, match in found], np.int64),
        np.array([KINDS.index(match[3]) for _, match in found], np.int64),
        np.array([int(match[4]) for _, match in found], np.int64),
        np.array([not match[2] for _, match in found], bool),
    )


def _said(labels: _Labels, at_ns: Ints) -> Ints:
    """Return the kind of message that the program names at each moment, -1 for none."""
    if not (~labels.computes).any():
        return np.full(len(at_ns), -1, np.int64)
    at = intervals.owner(labels.spans[~labels.computes], at_ns)
    return np.append(np.minimum(labels.kind[~labels.computes], BACKWARD), -1)[at]


def _blocks(
    trace: Trace, pieces: Pieces, cuts_ns: Ints, labels: _Labels, *, device: bool
) -> tuple[RankBlocks, tuple[Ints, Ints]]:
    """Return the passes, their steps as indices; and when the host was at each, with its kind."""
    if device:
        main = trace.devices[0]
        rows = main.rows[~main.comm]
        host_ns = trace.links.launched_ns(rows)
        spans = trace.time_of(rows)
        phase = pieces.phase[np.maximum(np.searchsorted(pieces.spans[:, 0], host_ns, side="right") - 1, 0)]
    else:
        works = pieces.activity == ACTIVITIES.index("op")
        spans, phase = pieces.spans[works], pieces.phase[works]
        host_ns = spans[:, 0]
    order = np.argsort(host_ns, kind="stable")
    host_ns, spans, phase = host_ns[order], spans[order], phase[order]
    step = trace.steps.of_time(host_ns)
    if labels.computes.any():
        at = intervals.owner(labels.spans[labels.computes], host_ns)
        good = (at >= 0) & (step >= 0)
        kind, stage, micro = (
            np.append(values[labels.computes], -1)[at] for values in (labels.kind, labels.stage, labels.micro)
        )
        key = at
    else:
        kind = np.select([phase == PHASES.index("forward"), phase == PHASES.index("backward")], [FORWARD, BACKWARD], -1)
        good = (kind >= 0) & (step >= 0)
        good[good] = ~_noise(kind[good], spans[good], host_ns[good], cuts_ns)
        stage = micro = np.full(len(kind), -1, np.int64)
        key = np.searchsorted(np.sort(cuts_ns), host_ns, side="right") * 2 + (kind == BACKWARD)
    host_ns, spans, step, kind, stage, micro, key = (
        values[good] for values in (host_ns, spans, step, kind, stage, micro, key)
    )
    first = np.flatnonzero(_new(key, step))
    if not len(first):
        return NOTHING.blocks, (_NO, _NO)
    end = np.maximum.reduceat(spans[:, 1], first)
    start = np.minimum.reduceat(spans[:, 0], first)
    busy = np.minimum(np.add.reduceat(spans[:, 1] - spans[:, 0], first), end - start)
    blocks = RankBlocks(step[first], kind[first], stage[first], micro[first], start, end, busy)
    return blocks, (host_ns[first], kind[first])


def _new(*keys: Ints) -> Mask:
    """Return bool[k]: where any of some keys changes."""
    out: Mask = np.zeros(len(keys[0]), bool)
    out[:1] = True
    for key in keys:
        out[1:] |= key[1:] != key[:-1]
    return out


def _noise(kind: Ints, spans: Spans, host_ns: Ints, cuts_ns: Ints) -> Mask:
    """Return bool[k]: work in stretches far shorter than the passes of its kind."""
    key = np.searchsorted(np.sort(cuts_ns), host_ns, side="right")
    new = _new(key, kind)
    which = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    if not len(first):
        return np.zeros(0, bool)
    busy = np.add.reduceat(spans[:, 1] - spans[:, 0], first).astype(np.float64)
    short = np.zeros(len(first), bool)
    for direction in (FORWARD, BACKWARD):
        mine = kind[first] == direction
        if busy[mine].sum():
            # weighted by themselves: many short ones do not count
            short |= mine & (busy < NOISE * (busy[mine] ** 2).sum() / busy[mine].sum())
    return short[which]


def _shifted(blocks: RankBlocks, numbers: Ints, base: int) -> RankBlocks:
    return RankBlocks(
        np.append(numbers, -1)[blocks.step],
        blocks.kind,
        blocks.stage,
        blocks.micro,
        blocks.start_ns + base,
        blocks.end_ns + base,
        blocks.busy_ns,
    )


_NO: NDArray[np.int64] = np.empty(0, np.int64)
NOTHING = RankPipeline(RankMessages(np.empty(0, bool), *[_NO] * 6), RankBlocks(*[_NO] * 7), (), (), intervals.EMPTY)
"""Of a rank that sends and receives nothing."""
