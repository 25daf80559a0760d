"""A process group whose messages take longer than equal ones of the groups that play the same part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Finding, Place
from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.ranks.job_patterns import RanksTogether, job_finding
from torchtriage.diagnose.ranks.match import GroupMatch
from torchtriage.diagnose.ranks.merge import MAX_NAMED
from torchtriage.diagnose.ranks.rank_record import RankRecord

SLOW_LINK = "COM068"
SLOWER = 1.25
"""Times what the equals take: links of one kind differ by some percent, the transfers of a healthy job by 5 % (two
groups of a public recording, and simulated)."""
MOSTLY = 0.8
"""Of the messages are that slow: one that met traffic is not the link."""
DOUBT = 0.1
"""Share of the saving: what links of one kind differ by."""
MIN_SHARE = 0.01
"""Of the step."""
MAX_ALSO = 3
"""More slow groups that a message names."""

Part = tuple[str, int, tuple[int, ...], int]
Message = tuple[str, int, int]
"""Operation, elements and bytes; -1 where the bytes are not known."""


@dataclass(frozen=True)
class _Slow:
    match: GroupMatch
    messages: list[Message]
    excess_ns: float
    """Per step, of all messages."""
    exposed_ns: float
    sure_ns: float
    """Of the exposed, what goes beyond the slowest of the equals that are not slow."""
    times: float
    n_equal: int


def slow_links(job: RanksTogether) -> list[Finding]:
    """Return the groups that stand out, those that the job waits for at once in one finding, the slowest first."""
    n_steps = len(job.steady)
    if not n_steps or not job.waits.step_ns:
        return []
    least_ns = MIN_SHARE * job.waits.step_ns
    parts: dict[Part, list[tuple[GroupMatch, dict[Message, Ints]]]] = {}
    for group in job.matches.groups:
        part = _part(job.ranks, job.numbers, group)
        if part is not None and (sent := _sent(job.ranks, group, job.steady)):
            parts.setdefault(part, []).append((group, sent))
    found: list[list[_Slow]] = []
    for some in parts.values():
        slow = [link for link in _outliers(job.ranks, some, n_steps) if link.exposed_ns >= least_ns]
        slow.sort(key=lambda link: -link.exposed_ns)
        while slow:
            # groups that share a rank follow each other there
            taken: set[int] = set()
            at_once: list[_Slow] = []
            later: list[_Slow] = []
            for link in slow:
                members = set(link.match.members.tolist())
                (at_once if taken.isdisjoint(members) else later).append(link)
                taken |= members
            found.append(at_once)
            slow = later
    found.sort(key=lambda at_once: -at_once[0].exposed_ns)
    return [_finding(job, *at_once) for at_once in found]


def _part(ranks: Sequence[RankRecord], numbers: Sequence[int], match: GroupMatch) -> Part | None:
    """Return what a group has in common with its equals; None where that is not known."""
    here = [numbers[at] for at in match.members.tolist()]
    if match.fault or match.n_ranks > len(here):
        return None  # the last to come may be among the missing
    hosts = {ranks[at].host for at in match.members.tolist()}
    apart = tuple(np.diff(here).tolist())
    return match.group.what, len(here), apart, 0 if "" in hosts else len(hosts)


def _sent(ranks: Sequence[RankRecord], match: GroupMatch, steps: Ints) -> dict[Message, Ints]:
    """Return the matches of the steady steps by operation and size; all-to-alls have a size for each rank."""
    size = ranks[match.members[0]].collectives.size_bytes[match.index[:, 0]]
    use = np.flatnonzero(np.isin(match.step, steps) & ~match.begins & (match.transfer_ns > 0))
    out: dict[Message, list[int]] = {}
    for at in use.tolist():
        if match.nelems[at] > 0 and "all_to_all" not in match.name[at] and "alltoall" not in match.name[at]:
            out.setdefault((match.name[at], int(match.nelems[at]), int(size[at])), []).append(at)
    return {message: np.array(places, np.int64) for message, places in out.items()}


def _outliers(
    ranks: Sequence[RankRecord], some: list[tuple[GroupMatch, dict[Message, Ints]]], n_steps: int
) -> list[_Slow]:
    out = []
    for match, sent in some:
        slow, excess, exposed, sure, took, usual_all = [], 0.0, 0.0, 0.0, 0.0, 0.0
        n_equal = 0
        for message, places in sent.items():
            others = [float(np.median(o.transfer_ns[s[message]])) for o, s in some if o is not match and message in s]
            if not others:
                continue
            usual = float(np.median(others))
            mine = match.transfer_ns[places]
            if float(np.median(mine)) < SLOWER * usual or (mine > SLOWER * usual).mean() < MOSTLY:
                continue
            more, bare = np.maximum(mine - usual, 0), _exposed(ranks, match, places)
            next_ns = max(other for other in others if other < SLOWER * usual)
            slow.append(message)
            excess += float(more.sum()) / n_steps
            exposed += float(np.minimum(more, bare).sum()) / n_steps
            sure += float(np.clip(mine - next_ns, 0, bare).sum()) / n_steps
            took, usual_all = took + float(mine.sum()), usual_all + usual * len(mine)
            n_equal = max(n_equal, len(others))
        if slow:
            out.append(_Slow(match, slow, excess, exposed, sure, took / usual_all, n_equal))
    return out


def _exposed(ranks: Sequence[RankRecord], match: GroupMatch, places: Ints) -> Ints:
    """Return ns of each transfer with nothing beside it on the rank that has the least of that."""
    least = match.transfer_ns[places].copy()
    for column, at in enumerate(match.members.tolist()):
        end = ranks[at].collectives.end_ns[match.index[places, column]]
        transfer = intervals.spans(end - match.transfer_ns[places], end)
        least = np.minimum(least, intervals.covered(transfer, ranks[at].exposed))
    return least


def _finding(job: RanksTogether, slow: _Slow, *others: _Slow) -> Finding:
    """Return the finding of the slowest of some groups that the job waits for at once."""
    match = slow.match
    members = match.members.tolist()
    # what all of them wait for others would not be saved
    slack = float(job.waits.wait_ns[match.members][:, job.waits.steady].mean(axis=1).min())
    name, nelems, _ = max(slow.messages, key=lambda message: message[1])
    also = [f"{_named(job, link)} ({link.times:.1f} times)" for link in others[:MAX_ALSO]]
    also += [f"{len(others) - MAX_ALSO:,} more"] if len(others) > MAX_ALSO else []
    found = job_finding(
        job,
        SLOW_LINK,
        f"{_named(job, slow)}: {name} of {format_count(nelems, 'element')} takes {slow.times:.1f}"
        f" times as long as in {format_count(slow.n_equal, 'equal group')}, {format_ns(slow.excess_ns)} more per step,"
        f" {format_share(slow.exposed_ns / max(slow.excess_ns, 1.0))} of it exposed"
        f"{'; also slow: ' if also else ''}{', '.join(also)}",
        {
            "group": match.group.name,
            "ranks": [job.numbers[at] for at in members[:MAX_NAMED]],
            "hosts": sorted({job.ranks[at].host for at in members} - {""})[:MAX_NAMED],
            "also_slow": [link.match.group.name for link in others[:MAX_NAMED]],
            "times_as_long": round(slow.times, 3),
            "equal_groups": slow.n_equal,
            "excess_ns": round(slow.excess_ns),
            "exposed_ns": round(slow.exposed_ns),
        },
        [*members, *(at for link in others for at in link.match.members.tolist())],
        ns=(slow.sure_ns * (1 - DOUBT) - slack, slow.exposed_ns * (1 + DOUBT)),
        naive_ns=slow.excess_ns,
        method="transfer beyond the median of equal groups, where nothing is beside it; low end: beyond the slowest of"
        " those that are not slow",
        # of two one may be slow, or the other fast; without hosts the way is known by the ranks' numbers alone
        certainty="likely" if slow.n_equal > 1 else "hint",
    )
    return replace(found, place=Place(ops=(name,), lane=f"process group {visible(match.group.name)}"))


def _named(job: RanksTogether, slow: _Slow) -> str:
    group = slow.match.group
    label = visible(group.label) or "without a name"
    which = f"{label}, group {visible(group.name)}" if label != group.name else f"group {label}"
    here = [job.numbers[at] for at in slow.match.members.tolist()]
    return f"{which} of ranks {_shown(here)}"


def _shown(here: Sequence[int]) -> str:
    return ", ".join(map(str, here)) if len(here) <= 8 else f"{here[0]}, {here[1]}, …, {here[-1]}"
