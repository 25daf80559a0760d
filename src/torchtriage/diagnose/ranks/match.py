"""Which collective of one rank is which of another's, and whether their clocks agree.

Collectives of one process group are the same when their sequence numbers are equal, or, where those
were not recorded, when they are the same in order within the same step. A true match ends
everywhere at once (within 0.3 ms, measured), and nobody is done before the last has come: where
that fails, the match or a clock is wrong, and the group is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, distinct, joined
from torchtriage.core.trace.messages import ProcessGroup
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.ranks.rank_record import RankRecord

END_SKEW_NS = 300_000
"""True matches end within this on a device (measured)."""
HOST_CLOCK_NS = 2_000_000
"""Host collectives end when a thread wakes up, on busy machines milliseconds apart (measured): only
larger differences are the clocks'."""
MAX_ACAUSAL = 0.1
"""Share of a group's matches in which one rank is done before another has come."""
_ENDS_TOGETHER = ("reduce", "gather", "all", "barrier")
_UNEVEN = ("alltoall", "all_to_all", "_v", "allgather_into_tensor_coalesced")


@dataclass(frozen=True, eq=False)
class GroupMatch:
    """The matched collectives of one process group.

    ``members`` : positions of the ranks in the job, ascending. ``n_ranks`` : how many the group has, as recorded: more
    where some are not among the job's. ``index`` : int64[matches, members],
    places in each rank's collectives. ``start_ns``, ``end_ns`` : the same shape, on the job's
    clock. ``step``, ``name``, ``nelems`` : one for each match. ``fault`` : why the group cannot be
    judged, empty where it can. ``uneven_steps`` : numbers of those in which nothing is matched, as a rank lacks some.
    """

    group: ProcessGroup
    members: Ints
    n_ranks: int
    index: Ints
    start_ns: Ints
    end_ns: Ints
    step: Ints
    name: tuple[str, ...]
    nelems: Ints
    n_unmatched: int
    unmatched: tuple[str, ...]
    end_skew_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    fault: str = ""
    uneven_steps: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        """Return the number of matches."""
        return len(self.index)

    @cached_property
    def late(self) -> Ints:
        """int64[matches]: the column of the rank that came last."""
        return self.start_ns.argmax(axis=1)

    @cached_property
    def last_two_ns(self) -> Ints:
        """int64[matches, 2]: when the second to last and the last rank started."""
        return np.partition(self.start_ns, -2, axis=1)[:, -2:]

    @cached_property
    def transfer_ns(self) -> Ints:
        """int64[matches]: what is left when the last rank has come.

        By that rank's own clock where all end at once, else to the last end: a sender may be done before.
        """
        rows = np.arange(len(self))
        own = (self.end_ns - self.start_ns)[rows, self.late]
        whole = self.end_ns.max(axis=1) - self.start_ns.max(axis=1)
        return np.where(np.isin(rows, _together(self)), own, whole)

    @cached_property
    def begins(self) -> NDArray[np.bool_]:
        """bool[matches]: the first collective after a profiler started, on some rank."""
        return (self.index == 0).any(axis=1)


@dataclass(frozen=True, eq=False)
class Matches:
    """All groups, and the same as flat arrays: the seam for a replay across ranks.

    ``rank``, ``row``, ``match_id`` : int64[k], for each matched collective the position of its rank
    in the job, its row in that rank's trace, and the match it belongs to. ``offset_ns`` : what to
    add to each rank's clock.
    """

    groups: tuple[GroupMatch, ...]
    rank: Ints
    row: Ints
    match_id: Ints
    offset_ns: Ints
    alone: tuple[ProcessGroup, ...]
    """Groups of which one recorded rank took part: nothing to compare."""


def has_own_sizes(name: str) -> bool:
    """Return whether each rank, and each call, of a collective has a size of its own."""
    return any(text in name for text in _UNEVEN)


def match(ranks: Sequence[RankRecord], numbers: Sequence[int]) -> Matches:
    """Match the collectives of a job's ranks; their rank numbers ascend."""
    raw, alone = [], []
    by_group = _by_group(ranks, numbers)
    for group, members in by_group.items():
        if len(members) < 2:
            alone.append(group)
            continue
        raw.append(_match_group(ranks, numbers, group, members))
    offset = _clocks(ranks, numbers, raw)
    groups = tuple(_judged(ranks, item, offset) for item in raw)
    rank, row, match_id, first = [], [], [], 0
    for matched in groups:
        for column, position in enumerate(matched.members.tolist()):
            rank.append(np.full(len(matched), position, np.int64))
            row.append(ranks[position].collectives.row[matched.index[:, column]])
            match_id.append(np.arange(first, first + len(matched)))
        first += len(matched)
    return Matches(groups, joined(rank), joined(row), joined(match_id), offset, tuple(alone))


def _by_group(ranks: Sequence[RankRecord], numbers: Sequence[int]) -> dict[ProcessGroup, list[int]]:
    found: dict[ProcessGroup, list[int]] = {}
    for position, rank in enumerate(ranks):
        used = distinct(rank.collectives.group).tolist()
        for code in used:
            group = group_of(rank.collectives.groups[code], numbers[position])
            found.setdefault(group, []).append(position)
    return found


def group_of(group: ProcessGroup, number: int) -> ProcessGroup:
    """Return a group as a rank of this number is in it.

    Members are listed by global rank; another numbering would match strangers.
    """
    return group if not group.ranks or number in group.ranks else ProcessGroup(group.name, (), group.what)


def _match_group(
    ranks: Sequence[RankRecord], numbers: Sequence[int], group: ProcessGroup, members: list[int]
) -> GroupMatch:
    keys, places = [], []
    for position in members:
        table = ranks[position].collectives
        here = [
            code
            for code, item in enumerate(table.groups)
            if item == group or (item.name, item.what) == (group.name, group.what)
        ]
        at = np.flatnonzero(np.isin(table.group, here))
        places.append(at)
        keys.append(_keys(table.seq[at], table.step[at]))
    if any(key[0] != keys[0][0] for key in keys):
        # sequence numbers on some ranks only
        keys = [
            _keys(np.full(len(at), -1), ranks[position].collectives.step[at])
            for position, at in zip(members, places, strict=True)
        ]
    n_here = sum(map(len, places))
    by_seq = keys[0][0]
    pairs = [key[1] for key in keys]
    unmatched: list[str] = []
    uneven = np.empty(0, np.int64)
    if not by_seq:
        recorded = [ranks[position].steps.number for position in members]
        keep, uneven, unmatched, odd = _same_counts(pairs, recorded, [numbers[position] for position in members])
        if not len(keep) and 0 < len(odd) < len(members) - 1:
            # cut in every step: the others can still be matched
            rest = [position for column, position in enumerate(members) if column not in odd]
            matched = _match_group(ranks, numbers, group, rest)
            return replace(matched, unmatched=(*unmatched, *matched.unmatched), n_unmatched=n_here - matched.index.size)
        masks = [np.isin(pair[:, 0], keep) for pair in pairs]
        pairs = [pair[mask] for pair, mask in zip(pairs, masks, strict=True)]
        places = [at[mask] for at, mask in zip(places, masks, strict=True)]
    packed = [pair[:, 0] * (1 << 32) + pair[:, 1] for pair in pairs]
    common = reduce(np.intersect1d, packed)
    index = np.empty((len(common), len(members)), np.int64)
    for column, (key, at) in enumerate(zip(packed, places, strict=True)):
        order = np.argsort(key, kind="stable")
        index[:, column] = at[order[np.searchsorted(key[order], common)]] if len(common) else 0
    n_unmatched = n_here - index.size
    first = ranks[members[0]].collectives
    # equal order is not enough: the operation must be the same
    same = np.ones(len(common), bool)
    for column, position in enumerate(members[1:], start=1):
        table = ranks[position].collectives
        code = {name: at for at, name in enumerate(first.names)}
        mine = np.array([code.get(name, -1) for name in table.names], np.int64)
        same &= mine[table.name[index[:, column]]] == first.name[index[:, 0]]
        varies = np.array([has_own_sizes(name) for name in first.names], bool)
        sizes = table.nelems[index[:, column]], first.nelems[index[:, 0]]
        equal = (sizes[0] == sizes[1]) | (sizes[0] < 0) | (sizes[1] < 0)
        same &= equal | varies[first.name[index[:, 0]]]
    n_unmatched += int((~same).sum()) * len(members)
    if not same.all():
        unmatched.append(f"{int((~same).sum())} of {len(same)} differ in operation or size")
    index = index[same]
    order = np.argsort(first.start_ns[index[:, 0]], kind="stable")
    index = index[order]
    tables = [ranks[position].collectives for position in members]
    start = np.stack([t.start_ns[index[:, c]] for c, t in enumerate(tables)], axis=1)
    end = np.stack([t.end_ns[index[:, c]] for c, t in enumerate(tables)], axis=1)
    names = [first.names[code] for code in first.name[index[:, 0]].tolist()]
    said = [int(table.n_ranks[index[:, column]].max(initial=0)) for column, table in enumerate(tables)]
    return GroupMatch(
        group=group,
        members=np.array(members, np.int64),
        n_ranks=max(len(set(group.ranks)), len(members), *said),
        index=index,
        start_ns=start,
        end_ns=end,
        step=first.step[index[:, 0]],
        name=tuple(names),
        nelems=first.nelems[index[:, 0]],
        n_unmatched=n_unmatched,
        unmatched=tuple(unmatched),
        uneven_steps=uneven - 1,
    )


def _keys(seq: Ints, step: Ints) -> tuple[bool, Ints]:
    """Return whether sequence numbers serve, and int64[n, 2]: (0, seq) or (step + 1, ordinal)."""
    if len(seq) and (seq >= 0).all() and len(distinct(seq)) == len(seq):
        return True, np.stack([np.zeros_like(seq), seq], axis=1)
    order = np.argsort(step, kind="stable")
    ordered = step[order]
    first = np.searchsorted(ordered, ordered, side="left")
    ordinal = np.empty_like(step)
    ordinal[order] = np.arange(len(step)) - first
    return False, np.stack([step + 1, ordinal], axis=1)


def _same_counts(
    pairs: list[Ints], recorded: list[Ints], numbers: list[int]
) -> tuple[Ints, Ints, list[str], list[int]]:
    """Return steps in which every rank has the same number of collectives, and others, what is said of those, of whom.

    Order alone cannot say which one is missing. Outside the steps nothing is matched, unless there
    are no steps at all.
    """
    steps = distinct(np.concatenate([pair[:, 0] for pair in pairs]))
    counts = np.stack(
        [
            np.bincount(np.searchsorted(steps, pair[:, 0]), minlength=len(steps))
            if len(pair)
            else np.zeros(len(steps), np.int64)
            for pair in pairs
        ]
    )
    everywhere = (counts == counts[0]).all(axis=0)
    inside = (steps > 0) | (steps == 0) & (len(steps) == 1)
    unmatched: list[str] = []
    odd = np.empty(0, np.int64)
    known = np.stack([np.isin(steps - 1, some) for some in recorded])
    uneven = inside & ~everywhere & known.all(axis=0)
    if uneven.any():
        # who has another number than most; where there is no most, than in its own other steps, or than the largest
        usual = np.median(counts[:, uneven], axis=0)
        other = counts[:, uneven] != usual
        if other.any(axis=1).sum() * 2 >= len(numbers):
            even = inside & everywhere & (counts[0] > 0)
            whole = np.median(counts[:, even], axis=1)[:, None] if even.any() else counts[:, uneven].max(axis=0)
            other = counts[:, uneven] != whole
        odd = np.flatnonzero(other.any(axis=1))
        who = ", ".join(str(numbers[item]) for item in odd[:8].tolist())
        unmatched.append(
            f"different numbers of collectives in {int(uneven.sum())} of {int(inside.sum())} steps"
            f" (rank{'s' if len(odd) > 1 else ''} {who})"
        )
    return steps[everywhere & inside], steps[uneven], unmatched, odd.tolist()


# -- clocks ------------------------------------------------------------------------------------


def _clocks(ranks: Sequence[RankRecord], numbers: Sequence[int], groups: Sequence[GroupMatch]) -> Ints:
    """Return what to add to each clock: nothing on one host, or where clocks agree."""
    hosts = {rank.host for rank in ranks}
    if len(hosts) == 1 and "" not in hosts and len({rank.has_base_time for rank in ranks}) == 1:
        return np.zeros(len(ranks), np.int64)
    ends = [(group.members, group.end_ns[together]) for group in groups if len(together := _together(group))]
    device = all(rank.device for rank in ranks if len(rank.collectives))
    offset = _align(len(ranks), [*ends, *(_messages(ranks, numbers, ends) if device else ())])
    # all or none: of many hosts some are off by a little less to either side, and together by more
    return offset if np.ptp(offset) > (END_SKEW_NS if device else HOST_CLOCK_NS) else np.zeros_like(offset)


def _align(n_ranks: int, ends: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Return int64[ranks], ns to add to each rank's clock; 0 where clocks agree.

    Base times bring clocks together; what is left shows in what ends on several ranks at once, whose
    median difference to the first rank is taken off. Ranks that share nothing with a placed one
    keep their clock.

    ``ends`` : positions of ranks, and int64[k, ranks], by their own clocks.
    """
    offset = np.zeros(n_ranks, np.int64)
    placed = np.zeros(n_ranks, bool)
    waiting = list(ends)
    while waiting:
        near = [at for at, (members, _) in enumerate(waiting) if placed[members].any()] or [0]
        members, end = waiting.pop(max(near, key=lambda at: waiting[at][1].shape[::-1]))
        if not placed[members].any():
            placed[members[0]] = True
        known = np.flatnonzero(placed[members])
        end = end + offset[members]
        middle = np.median(end[:, known], axis=1)
        for column in np.flatnonzero(~placed[members]).tolist():
            offset[members[column]] = -round(float(np.median(end[:, column] - middle)))
            placed[members[column]] = True
    return offset


def _messages(
    ranks: Sequence[RankRecord], numbers: Sequence[int], ends: Sequence[tuple[Ints, Ints]]
) -> Iterator[tuple[Ints, Ints]]:
    """Yield pairs of ranks that send to each other and that no collectives join, and one moment on both clocks.

    No message is received before it is sent: what one rank sends says how far the other's clock can be behind, what it
    receives how far ahead, and in the middle it is.
    """
    place = {number: position for position, number in enumerate(numbers)}
    group = np.arange(len(ranks))
    for members, _ in ends:
        group[np.isin(group, group[members])] = members[0]
    for here, rank in enumerate(ranks):
        for peer in distinct(rank.pipeline.messages.peer).tolist():
            there = place.get(peer, -1)
            if there <= here or group[there] == group[here]:
                continue
            ahead = _last(rank, peer, ranks[there], numbers[here])
            back = _last(ranks[there], numbers[here], rank, peer)
            if ahead is not None and back is not None:
                yield np.array([here, there]), np.array([[0, (ahead - back) // 2]])
                group[group == group[there]] = group[here]


def _last(source: RankRecord, target_number: int, target: RankRecord, source_number: int) -> int | None:
    """Return the least ns from when one rank has sent until another has received, over messages matched by order."""
    sends, receives = source.pipeline.messages, target.pipeline.messages
    out, into = sends.send & (sends.peer == target_number), ~receives.send & (receives.peer == source_number)
    least = [
        int((receives.end_ns[into & (receives.step == step)] - sends.end_ns[out & (sends.step == step)]).min())
        for step in distinct(sends.step[out]).tolist()
        if (out & (sends.step == step)).sum() == (into & (receives.step == step)).sum()
    ]
    return min(least, default=None)


def _together(matched: GroupMatch) -> Ints:
    """Return the matches that end on all ranks at once: not those with one sender or receiver."""
    good = [
        any(word in name.lower() for word in _ENDS_TOGETHER) and name.lower() not in ("reduce",)
        for name in matched.name
    ]
    return np.flatnonzero(np.array(good, bool))


def _judged(ranks: Sequence[RankRecord], matched: GroupMatch, offset_ns: Ints) -> GroupMatch:
    device = all(ranks[position].device for position in matched.members.tolist())
    start, end = matched.start_ns + offset_ns[matched.members], matched.end_ns + offset_ns[matched.members]
    pick = _together(matched)
    skew = end[pick].max(axis=1) - end[pick].min(axis=1) if len(pick) else np.empty(0, np.int64)
    fault = ""
    if not len(matched):
        fault = matched.unmatched[0] if matched.unmatched else "no collective could be matched"
    elif len(pick):
        acausal = (start[pick].max(axis=1) > end[pick].min(axis=1) + END_SKEW_NS).mean()
        if acausal > MAX_ACAUSAL:
            fault = (
                f"in {format_share(float(acausal))} of its {len(pick)} matches one rank is done"
                " before another has come: other collectives, or clocks that drift"
            )
        elif device and float(np.median(skew)) > END_SKEW_NS:
            fault = f"its matched ends lie {format_ns(float(np.median(skew)))} apart at the median"
    return replace(matched, start_ns=start, end_ns=end, end_skew_ns=skew, fault=fault)
