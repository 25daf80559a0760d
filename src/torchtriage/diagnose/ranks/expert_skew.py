"""COM064: a rank whose experts got more tokens comes last to the all-to-all that gives back what they made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Finding
from torchtriage.core.stats.median import median_interval
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.ranks.host_activity import CELLS
from torchtriage.diagnose.ranks.job_patterns import MIN_SHARE, RanksTogether, job_finding
from torchtriage.diagnose.ranks.match import GroupMatch

UNEVEN = 1.15
"""Elements of the fullest rank over the mean of its group."""
MIN_EXPLAINED = 0.5
"""Of the lateness has to be products that it computed for longer than the median of the others."""
MIN_BLAMED = 0.5
"""Of all such waiting has to be for the rank with the most elements."""
VARIES = 0.02
"""Of its elements, from step to step: tokens are routed anew, tables stay as large as they are. Where nothing is called
experts, that is what tells them apart."""
MAX_SHOWN = 8
"""Ranks with hot experts that the message names."""


def expert_skew(job: RanksTogether) -> Finding | None:
    """Return the skew of the experts, None where there is none."""
    steps = job.steady
    # several groups wait at the same time: each rank has its own sum
    saved, most = np.zeros((2, len(job.ranks), len(steps)))
    blamed = total = 0.0
    counts = np.zeros(len(job.ranks), np.int64)
    hottest: set[int] = set()
    ratios: list[float] = []
    for group in job.matches.groups:
        if group.fault or len(group.members) < group.n_ranks:
            continue  # the fullest may be among the missing
        exchanges = np.array(["alltoall" in name.lower().replace("_", "") for name in group.name], bool)
        use = np.flatnonzero(np.isin(group.step, steps) & ~group.begins & exchanges)
        if not len(use):
            continue
        nelems, products, computed = _of_members(job, group, use)
        uneven = nelems.max(axis=1) >= UNEVEN * np.maximum(nelems.mean(axis=1), 1)
        experts = any(rank.work.experts for rank in job.ranks)
        known = (nelems >= 0).all(axis=1) & uneven & (experts | _routed(nelems, group.step[use]))
        late = group.late[use]
        start = group.start_ns[use]
        rows = np.arange(len(use))
        # as even work would let all come at the mean
        gain = start.max(axis=1) - start.mean(axis=1)
        longer = products[rows, late] - np.median(products, axis=1)
        fullest = (nelems.argmax(axis=1) == late) & (longer >= MIN_EXPLAINED * gain)
        # what lies around the products grows with the tokens, too
        more = np.maximum(longer, computed[rows, late] - np.median(computed, axis=1))
        total += float(gain[known].sum())
        hit = known & fullest
        blamed += float(gain[hit].sum())
        at, members, n = np.searchsorted(steps, group.step[use]), group.members[:, None], len(group.members)
        np.add.at(saved, (members, at[hit]), np.minimum(gain, more)[hit])
        # the others need not get what this one loses
        np.add.at(most, (members, at[hit]), np.minimum(gain * n / (n - 1), more)[hit])
        # an exchange lasts as long as the fullest rank's part of it
        spare = group.transfer_ns[use] * (1 - nelems.mean(axis=1) / np.maximum(nelems.max(axis=1), 1))
        np.add.at(most, (members, at[known]), spare[known])
        here = np.bincount(group.members[late[hit]], minlength=len(counts))
        counts += here
        if here.any():
            hottest.add(int(here.argmax()))
        ratios += (nelems.max(axis=1) / np.maximum(nelems.mean(axis=1), 1))[hit].tolist()
    if not total or blamed < MIN_BLAMED * total:
        return None
    low, middle, _ = median_interval(saved.max(axis=0).astype(np.int64))
    if middle < MIN_SHARE * job.waits.step_ns:
        return None
    hot = sorted(hottest)
    share = float(counts[hot].sum() / counts.sum())
    named = ", ".join(str(job.numbers[at]) for at in hot[:MAX_SHOWN]) + ", …" * (len(hot) > MAX_SHOWN)
    who = f"of ranks {named}, one in each group, mostly," if len(hot) > 1 else f"of rank {named}, mostly,"
    if share < 0.6:
        who = "of one rank or another"
    return job_finding(
        job,
        "COM064",
        f"before {len(ratios)} all-to-alls the experts {who} have {np.median(ratios):.2f} times the mean number of"
        f" elements at the median, and come last after computing for longer; the others wait: {format_ns(middle)} of"
        f" {format_ns(job.waits.step_ns)} per step, {format_share(middle / job.waits.step_ns)}",
        {
            "hot_rank": job.numbers[int(counts.argmax())],
            "share_of_hot_rank": round(share, 6),
            "elements_over_mean": round(float(np.median(ratios)), 4),
            "n_all_to_alls": len(ratios),
        },
        np.flatnonzero(counts).tolist() if share < 0.6 else hot,
        ns=(low / 2, median_interval(most.max(axis=0).astype(np.int64))[2]),
        method="from the mean to the last start of all-to-alls to which the fullest rank comes last, of the group that"
        " waits longest, median over steps; low end: half of it; high end: as from the mean of the others, and"
        " exchanges as short as even ones",
        certainty="likely" if len(steps) > 2 else "hint",
    )


def _of_members(job: RanksTogether, group: GroupMatch, use: Ints) -> tuple[Ints, Ints, Ints]:
    """Return int64[matches, members] each: elements put in, and products and all computed since the one before."""
    nelems, products, computed = [], [], []
    for column, position in enumerate(group.members.tolist()):
        record, at = job.ranks[position], group.index[use, column]
        before = np.maximum(at - 1, 0)
        cells = [("", "device")] if record.device else [cell for cell in CELLS if cell[1] == "op"]
        spent = record.collectives.spent_ns[:, [CELLS.index(cell) for cell in cells]].sum(axis=1)
        nelems.append(record.collectives.nelems[at])
        products.append(record.work.product_ns[at] - record.work.product_ns[before])
        computed.append(spent[at] - spent[before])
    return np.stack(nelems, axis=1), np.stack(products, axis=1), np.stack(computed, axis=1)


def _routed(nelems: Ints, step: Ints) -> NDArray[np.bool_]:
    """Return bool[matches]: whether what ranks put in at this place of the step changes from step to step.

    That is not known of a step with more or fewer matches than most have: its places are others.
    """
    _, first, count = np.unique(step, return_index=True, return_counts=True)
    usual = int(np.bincount(count).argmax())
    at = first[count == usual][:, None] + np.arange(usual)
    places = nelems[at]
    spread = (places.max(axis=0) - places.min(axis=0)) / np.maximum(places.mean(axis=0), 1)
    out = np.zeros(len(step), bool)
    out[at] = (spread > VARIES).any(axis=1)
    return out
