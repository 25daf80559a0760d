"""What each process group of a job costs: its communication beside computation, exposed, and of that the waiting.

Per step, in the mean over the ranks of the job. Every moment counts once: where several groups communicate at once,
each has an equal part of it, so that groups add up to the communication of the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask, joined
from torchtriage.core.intervals import Spans
from torchtriage.core.names import elide
from torchtriage.core.trace import Trace
from torchtriage.core.trace.link_rates import FASTEST_OTHER_GBPS, Link, link_of
from torchtriage.core.trace.messages import Messages, ProcessGroup
from torchtriage.core.units import format_share
from torchtriage.diagnose.ranks.group_roles import UNKNOWN, Exchanged, Role, layout, role_by_exchange, role_by_name
from torchtriage.diagnose.ranks.group_rows import KINDS, GroupRows, group_rows
from torchtriage.diagnose.ranks.match import GroupMatch, Matches, group_of
from torchtriage.diagnose.ranks.pipeline_rank import messages_of
from torchtriage.diagnose.ranks.rank_record import RankRecord, host_name
from torchtriage.diagnose.ranks.straggler import Waiting
from torchtriage.diagnose.verdict.result import GroupSummary

SMALL_BYTES = 256 << 10
"""A smaller message takes as long as an empty one: some 20 us of latency at 10 GB/s and more."""
MAX_GROUPS = 64
"""Lines; what is beyond them is one."""
MAX_NAME = 200
OVERLAPPED, WAITING, TRANSFER, UNSPLIT, SHARED = range(5)


@dataclass(eq=False)
class _Group:
    """One process group over its recorded ranks.

    ``parts_ns`` : for each member its time in the steady steps, by part.
    """

    group: ProcessGroup
    n_listed: int = 0
    members: list[int] = field(default_factory=list)
    parts_ns: list[Floats] = field(default_factory=list)
    kinds: dict[str, Floats] = field(default_factory=dict)
    forward: dict[str, Floats] = field(default_factory=dict)
    by_rank: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[Ints] = field(default_factory=list)
    n_rows: int = 0
    repeated: int = 0
    phased: bool = True
    carried: Floats = field(default_factory=lambda: np.zeros(3))
    """Bytes, bytes on the bus, and ns of the transfers they took."""


class _Rank(NamedTuple):
    """What is needed of one rank; ``device`` : its name, None for collectives of the host. Spans on its own clock."""

    number: int
    rows: GroupRows
    windows: Spans
    exposed: Spans
    host: str
    device: str | None


def process_groups(
    ranks: Sequence[RankRecord], numbers: Sequence[int], matches: Matches, waits: Waiting
) -> tuple[GroupSummary, ...]:
    """Return the process groups of a job, those of equal role and name as one, the largest exposed time first."""
    steps = waits.step[waits.steady]
    if not len(steps):
        return ()
    found = []
    for record, number in zip(ranks, numbers, strict=True):
        at = np.searchsorted(record.steps.number, steps)
        windows = intervals.spans(record.steps.start_ns[at], record.steps.end_ns[at])
        summary = record.result.summary
        name = summary.devices[0].name if summary is not None and summary.devices else ""
        device = name if record.device else None
        found.append(_Rank(number, record.by_group, windows, record.exposed, record.host, device))
    last, known = _last_starts(ranks, matches)
    table = _table(found, steps, last, known)
    for match in matches.groups:
        if match.group in table and not match.fault:
            table[match.group].carried += _carried(ranks, match, np.isin(match.step, steps) & ~match.begins)
    return _folded(list(table.values()), found, len(steps))


def groups_of_one(trace: Trace) -> tuple[GroupSummary, ...]:
    """Return the process groups as one rank sees them: when the others come is not known."""
    device, steps = trace.devices[0], trace.steps
    rows = device.rows[device.comm]
    if not len(rows):
        return ()
    messages = Messages(trace, rows)
    numbers = np.arange(max(len(steps), 1))
    sent, _ = messages_of(trace, rows, messages.names)
    single = ~np.isin(np.arange(len(rows)), sent)
    found = group_rows(trace, messages, single, numbers, device=True)
    base = trace.origin.base_time_ns or 0
    number = -1 if trace.origin.rank is None else trace.origin.rank
    rank = _Rank(number, found, steps.judged + base, device.comm_only + base, host_name(trace), device.name)
    none = int((found.place >= 0).sum())
    judged = numbers[steps.steady] if len(steps) else numbers
    table = _table([rank], judged, [np.zeros(none, np.int64)], [np.zeros(none, bool)])
    return _folded(list(table.values()), [rank], len(judged))


def _table(
    ranks: Sequence[_Rank], steps: Ints, last: Sequence[Ints], known: Sequence[Mask]
) -> dict[ProcessGroup, _Group]:
    table: dict[ProcessGroup, _Group] = {}
    for position, rank in enumerate(ranks):
        rows = rank.rows
        if not len(rows):
            continue
        steady = np.isin(rows.step, steps)
        parts = _parts(rows, rank.windows, rank.exposed, last[position], known[position])
        for code, named in enumerate(rows.groups):
            key = group_of(named, rank.number) if rank.number >= 0 else named
            group = table.setdefault(key, _Group(key))
            if group.members and group.members[-1] == position:
                group.parts_ns[-1] = group.parts_ns[-1] + parts[code]
            else:
                group.members.append(position)
                group.parts_ns.append(parts[code])
            group.n_listed = max(group.n_listed, len(set(key.ranks)), int(rows.n_members[code]))
            _count(group, rows, (rows.group == code) & steady)
    return {
        key: process_group
        for key, process_group in table.items()
        if process_group.n_rows or np.any(process_group.parts_ns)
    }


def _last_starts(ranks: Sequence[RankRecord], matches: Matches) -> tuple[list[Ints], list[Mask]]:
    """Return for each collective of each rank when the last rank came, on its own clock, and whether that is known."""
    last = [rank.collectives.start_ns.copy() for rank in ranks]
    known = [np.zeros(len(rank.collectives), bool) for rank in ranks]
    for group in matches.groups:
        if group.fault or not len(group):
            continue
        came = group.start_ns.max(axis=1)
        for column, position in enumerate(group.members.tolist()):
            index = group.index[:, column]
            last[position][index] = came - matches.offset_ns[position]
            known[position][index] = ~group.begins
    return last, known


def _parts(rows: GroupRows, windows: Spans, exposed: Spans, last_ns: Ints, known: Mask) -> Floats:
    """Return float64[groups, 5], ns in the windows: beside computation, waiting, transfer, which of both is not known.

    And of all of these, what is at the same time as another group's.
    """
    single = rows.place >= 0
    until = rows.start_ns.copy()
    until[single] = np.where(known, last_ns, until[single])
    until = np.clip(until, rows.start_ns, rows.end_ns)
    told = np.zeros(len(rows), bool)
    told[single] = known
    edges = np.unique(np.concatenate([rows.start_ns, rows.end_ns, until, windows.ravel(), exposed.ravel()]))
    length = np.diff(edges).astype(np.float64)
    begin = edges[:-1]
    length[intervals.owner(windows, begin) < 0] = 0.0
    alone = intervals.owner(exposed, begin) >= 0
    first, at, end = (np.searchsorted(edges, item) for item in (rows.start_ns, until, rows.end_ns))
    order = np.argsort(rows.group, kind="stable")
    borders = np.searchsorted(rows.group[order], np.arange(len(rows.groups) + 1))
    of_group = [order[slice(*pair)] for pair in pairwise(borders.tolist())]
    n = len(length)
    active = [_covered(first[some], end[some], n) for some in of_group]
    together = np.sum(active, axis=0) if active else np.zeros(n, np.int64)
    part = np.divide(length, together, out=np.zeros(n), where=together > 0)
    out = np.zeros((len(rows.groups), 5))
    for code, (some, mine) in enumerate(zip(of_group, active, strict=True)):
        waits = _covered(first[some], at[some], n)
        judged = _covered(first[some][told[some]], end[some][told[some]], n)
        bare = mine & alone
        for column, mask in (
            (OVERLAPPED, mine & ~alone),
            (WAITING, bare & waits),
            (TRANSFER, bare & ~waits & judged),
            (UNSPLIT, bare & ~waits & ~judged),
            (SHARED, mine & (together > 1)),
        ):
            out[code, column] = part[mask].sum()
    return out


def _covered(first: Ints, end: Ints, n: int) -> Mask:
    """Return bool[n]: pieces that any of the ranges of pieces holds."""
    change = np.bincount(first, minlength=n + 1) - np.bincount(end, minlength=n + 1)
    return np.cumsum(change)[:n] > 0


def _count(group: _Group, rows: GroupRows, mask: Mask) -> None:
    """Add what a rank exchanges in the steady steps."""
    kind, forward, size = rows.kind[mask], rows.forward[mask], rows.size_bytes[mask]
    weight = np.maximum(size, 0) if (size > 0).any() else np.ones(len(size))
    for code in np.unique(kind).tolist():
        name = KINDS[code]
        for table, some in ((group.kinds, kind == code), (group.forward, (kind == code) & (forward == 1))):
            table[name] = table.get(name, np.zeros(2)) + np.array([some.sum(), weight[some].sum()], np.float64)
    reduces = np.isin(kind, [KINDS.index("allreduce"), KINDS.index("reducescatter")]) & (forward == 1)
    if reduces.any():
        group.repeated = max(group.repeated, int(np.unique(size[reduces], return_counts=True)[1].max()))
    early = kind[forward == 1]
    group.by_rank.append((int((early == KINDS.index("send")).sum()), int((early == KINDS.index("recv")).sum())))
    group.sizes.append(size[size > 0])
    group.n_rows += int(mask.sum())
    group.phased &= not (forward < 0).any()


def _carried(ranks: Sequence[RankRecord], match: GroupMatch, use: Mask) -> Floats:
    """Return bytes, bytes on the bus, and ns of the transfers of some matches, of those with a known size."""
    tables = [ranks[position].collectives for position in match.members.tolist()]
    if not use.any() or not all(ranks[position].device for position in match.members.tolist()):
        return np.zeros(3)
    index, transfer = match.index[use], match.transfer_ns[use]
    size = np.stack([table.size_bytes[index[:, column]] for column, table in enumerate(tables)], axis=1)
    factor = tables[0].bus_factor[index[:, 0]]
    good = (size > 0).all(axis=1) & np.isfinite(factor) & (transfer > 0)
    mean = size[good].mean(axis=1)
    return np.array([mean.sum(), (mean * factor[good]).sum(), transfer[good].sum()])


# -- groups of equal role ------------------------------------------------------------------------


def _folded(groups: Sequence[_Group], ranks: Sequence[_Rank], n_steps: int) -> tuple[GroupSummary, ...]:
    alike: dict[tuple[Role, str], list[_Group]] = {}
    for group in groups:
        alike.setdefault((_role(group, n_steps), _name(group.group)), []).append(group)
    folds = sorted(
        alike.items(), key=lambda item: -sum(float(np.sum(process_group.parts_ns)) for process_group in item[1])
    )
    if len(folds) > MAX_GROUPS:
        beyond = folds[MAX_GROUPS - 1 :]
        how = f"{len(beyond):,} more kinds of groups, together"
        folds = [
            *folds[: MAX_GROUPS - 1],
            ((Role(UNKNOWN, "", how), ""), [process_group for _, some in beyond for process_group in some]),
        ]
    found = [_summary(role, name, some, ranks, n_steps) for (role, name), some in folds]
    return tuple(sorted(found, key=lambda item: (-item.exposed_ns, -item.overlapped_ns, item.role, item.name)))


def _name(group: ProcessGroup) -> str:
    """Return what the program calls a group; a number, or a stream where there is none, is no name."""
    named = group.what not in ("", "undefined", "default_pg")
    text = group.what if named else group.name if role_by_name(group.name) else ""
    return elide(text, MAX_NAME)


def _role(group: _Group, n_steps: int) -> Role:
    name = _name(group.group)
    if role := role_by_name(name):
        return Role(role, "name", "its name")
    if not group.group.name:
        return Role(UNKNOWN, "", "collectives of the host name no group: it may be several")
    if group.n_listed == 1:
        return Role(UNKNOWN, "", "a group of one rank")
    each = len(group.members) * n_steps
    kinds, forward = (
        {kind: (count / each, size / each) for kind, (count, size) in table.items()}
        for table in (group.kinds, group.forward)
    )
    return role_by_exchange(Exchanged(kinds, forward, group.repeated / n_steps, group.by_rank, group.phased))


def _summary(role: Role, name: str, groups: Sequence[_Group], ranks: Sequence[_Rank], n_steps: int) -> GroupSummary:
    each = len(ranks) * n_steps
    parts = np.sum([np.sum(group.parts_ns, axis=0) for group in groups], axis=0) / each
    overlapped, waiting, transfer, unsplit, shared = (round(item) for item in parts.tolist())
    own = [
        np.sum(group.parts_ns, axis=0)[WAITING : UNSPLIT + 1].sum() / len(group.members) / n_steps for group in groups
    ]
    n_members = [max(group.n_listed, len(group.members) if len(group.members) > 1 else 0) for group in groups]
    sizes = joined([size for group in groups for size in group.sizes])
    n_bytes, on_bus, took_ns = np.sum([group.carried for group in groups], axis=0).tolist()
    bus = on_bus / took_ns if took_ns else None
    links = {_link(group, ranks) for group in groups}
    link, how = links.pop() if len(links) == 1 else (None, "link not recorded: its groups differ")
    of_link = bus / link.gbps if bus is not None and link is not None else None
    if of_link is not None and of_link > 1:
        how = f"{format_share(of_link)} of the peak: reduced inside the switch, or a size or clock is wrong"
        of_link = None
    layouts = {layout(group.group.ranks) for group in groups}
    return GroupSummary(
        role=role.role,
        told_by=role.told_by,
        how=role.how,
        name=name,
        n_groups=len(groups),
        least_ranks=min(n_members),
        most_ranks=max(n_members),
        n_ranks=len({position for group in groups for position in group.members}),
        n_missing=sum(max(n - len(group.members), 0) for n, group in zip(n_members, groups, strict=True)),
        layout=layouts.pop() if len(layouts) == 1 else "",
        n_per_step=round(
            sum(group.n_rows for group in groups) / n_steps / sum(len(group.members) for group in groups), 3
        ),
        # the lower of two: between them lies the size of no message
        median_bytes=int(np.quantile(sizes, 0.5, method="lower")) if len(sizes) else None,
        largest_bytes=int(sizes.max()) if len(sizes) else None,
        small_share=round(float((sizes < SMALL_BYTES).mean()), 6) if len(sizes) else None,
        communication_ns=overlapped + waiting + transfer + unsplit,
        overlapped_ns=overlapped,
        exposed_ns=waiting + transfer + unsplit,
        waiting_ns=waiting,
        transfer_ns=transfer,
        unsplit_ns=unsplit,
        shared_ns=shared,
        least_exposed_ns=round(min(own)),
        most_exposed_ns=round(max(own)),
        algorithm_gbps=round(n_bytes / took_ns, 3) if took_ns else None,
        bus_gbps=round(bus, 3) if bus is not None else None,
        link=link.name if link is not None else "",
        link_gbps=link.gbps if link is not None else None,
        of_link=round(of_link, 6) if of_link is not None else None,
        link_how=how,
    )


def _link(group: _Group, ranks: Sequence[_Rank]) -> tuple[Link | None, str]:
    """Return the link that a group's ranks share, None where the recording does not say, and how it is told."""
    mine = [ranks[position] for position in group.members]
    names = {rank.device for rank in mine}
    if None in names:
        return None, ""
    link = link_of(names.pop() or "") if len(names) == 1 else None
    hosts = {rank.host for rank in mine}
    if len(hosts) > 1:
        return None, "link not recorded: the group spans hosts"
    whole = group.n_listed <= len(mine)
    if hosts != {""} and whole:
        return link, "one host, and the device's name" if link else "link not recorded: the device's name does not say"
    _, on_bus, took_ns = group.carried
    if link is not None and took_ns and link.gbps > FASTEST_OTHER_GBPS < on_bus / took_ns:
        return link, "its bandwidth, more than PCIe and network cards have, and the device's name"
    return None, "link not recorded: " + ("ranks are missing" if hosts != {""} else "no host names")
