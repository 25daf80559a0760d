"""Equal messages take very different times: a rank arrives late.

Looks like: among five or more collectives of one kind, size and type, the 95th percentile lasts at least three times
    the median. That is all one rank's recording shows; the recordings of all ranks together name the late one.
Slow because: a collective lasts until its last rank arrives; the others wait.
Cost: bounded by the exposed time of these collectives beyond the duration of the fastest equal one. Low is 0: one rank
    cannot distinguish waiting from a slow network.
Fix: give ranks equal work: balance by tokens or shapes, shard evenly, use the same number of loader workers
    everywhere; remove work that only rank 0 does (logging, checkpoints, evaluation).
Leave it when: pipeline stages wait for each other by design.
Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020; measured:
    matching collectives end within 0.3 ms of each other on all ranks.
"""

import numpy as np

from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.units import format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Pattern, Trace
from torchtriage.diagnose.patterns.comm._collectives import of_two, shorter

PATTERN = Pattern.of(__name__, "COM036", "A late rank makes the others wait", order=420, needs="collectives")
FIX = Fix(
    text="Analyse the recordings of all ranks together: the report then names the late one and what it did.",
    code="""# on every rank, same steps
prof.export_chrome_trace(f"traces/rank{torch.distributed.get_rank()}.json.gz")
# then: torchtriage analyze traces/""",
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)

MIN_EQUAL = 5  # messages, before their spread says anything
SPREAD = 3.0  # of the 95th percentile to the median (catalogue 36)


def find(trace: Trace) -> Claims:
    """Yield one hint over all groups of equal collectives with such a spread."""
    found = find_collectives(trace)
    if found is None or trace.origin.world_size == 1:
        return
    spread = _uneven(trace, found) if (found.equal >= 0).any() else {}
    if not spread:
        return
    groups = np.array(list(spread), np.int64)
    mine = np.isin(found.equal, groups)
    spans = found.exposed[mine[found.source]]
    source = found.source[mine[found.source]]
    # the transfer is at the end: before it, everybody waits for the last to come
    until = trace.end_ns[found.rows[source]] - found.fastest_ns[source]
    spans = np.stack([spans[:, 0], np.clip(until, spans[:, 0], spans[:, 1])], axis=1)
    steps = trace.steps
    waiting_ns = steps.judged_ns(spans)
    worst = max(spread, key=lambda group: spread[group][1] / spread[group][0])
    median_ns, high_ns = spread[worst]
    rows = found.rows[found.equal == worst]
    label = found.labels[int(np.flatnonzero(found.equal == worst)[0])]
    # the part of each collective beyond the fastest equal one, 0 if unknown
    waiting = np.where(found.fastest_ns > 0, 1 - found.fastest_ns / np.maximum(trace.dur_ns[found.rows], 1), 0.0)
    yield Claim(
        message=f"equal messages of {label} take {format_ns(median_ns)} at the median and {format_ns(high_ns)} at the"
        " 95th percentile: another rank is late, or the network is uneven"
        f" ({format_ns(waiting_ns / steps.n_steady)} {steps.per})",
        certainty="hint",
        rows=found.rows[mine],
        spans=spans,
        gain_low=0.0,
        time_class="host" if found.on_host else "comm",
        method="exposed time of equal collectives beyond the fastest of them",
        evidence={
            "waiting_ms_per_step": ms(waiting_ns / steps.n_steady),
            "median_ms": ms(median_ns),
            "p95_ms": ms(high_ns),
            "shortest_ms": ms(int(trace.dur_ns[rows].min())),
            "n_equal": len(rows),
            "n_uneven_groups": len(spread),
        },
        anchor=trace.longest(rows),
        edits=(shorter(found, mine, spans, 0.0, waiting),),
    )


def _uneven(trace: Trace, found: Collectives) -> dict[int, tuple[float, float]]:
    """Return median and 95th percentile in ns of each group of equal messages with such a spread.

    Over the steady steps; groups are the codes of ``found.equal``.
    """
    at = np.flatnonzero(trace.steps.in_steady(found.step) & (found.equal >= 0))
    if not len(at):
        return {}
    at = at[np.argsort(found.equal[at], kind="stable")]
    groups, first = np.unique(found.equal[at], return_index=True)
    out = {}
    for group, mine in zip(groups.tolist(), np.split(at, first[1:]), strict=True):
        # between two ranks equal sizes do not mean equal work, and a stage waits for the one before by design
        if len(mine) < MIN_EQUAL or of_two(found.labels[int(mine[0])]):
            continue
        median_ns, high_ns = np.percentile(trace.dur_ns[found.rows[mine]], [50, 95]).tolist()
        if median_ns > 0 and high_ns >= SPREAD * median_ns:
            out[int(group)] = (median_ns, high_ns)
    return out
