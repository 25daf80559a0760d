"""DataLoader workers exist but cannot keep up, or are started again and again.

Looks like: ``enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__`` annotations that take
    5 % of the step or more in 30 % of the steps, the late ones included, while, with GPU rows, the
    device is idle; a loader that keeps up answers in less than 0.2 ms. Respawn: ``_get_iterator``
    frames that start the workers of a new epoch inside the recording, with the wait that follows
    and the stop of the old ones. Without stacks: a fetch that takes 1 ms or more, as stopping
    workers does, and then another one without an operator between that worked on a batch.
Slow because: the main thread waits for the next batch, and the device with it.
Cost: device idle time inside the waits (without a device: the waits). A wait that queued work
    hides costs nothing. The low end is half: more workers help until the cores are used up. Without
    stacks, what lies between two epochs may be the script's own work: it is in the high end only.
Fix: more workers or cheaper transforms; keep workers alive between epochs; prefetch more.
Leave it when: epochs are long and the recording happens to hold the end of one (seen once, this is
    a hint); only the first batches of the recording wait (the workers are still filling the
    queue), or the cores are all busy already: then make the transforms cheaper instead.
Source: PyTorch documentation, torch.utils.data, "Multi-process data loading".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtriage import intervals
from torchtriage.finding import Certainty, Fix
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.patterns.data._loader import MIN_SHARE, Fetches, find_fetches
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, ms

PATTERN = Pattern(
    code="DAT019",
    name="dataloader-starved",
    family="data",
    title="DataLoader workers cannot keep up",
    order=301,
    needs=frozenset({"ops", "steps"}),
)

FIX = Fix(
    text="Add workers or make the transforms cheaper (decode on the GPU, resize at ingest), and"
    " prefetch more.",
    code="""loader = DataLoader(
    dataset, num_workers=16, prefetch_factor=4, persistent_workers=True, pin_memory=True
)""",
    link="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
)

RESPAWN_FIX = Fix(
    text="Create the loader once and keep its workers alive between epochs.",
    code="""loader = DataLoader(dataset, num_workers=8, persistent_workers=True)
for epoch in range(n_epochs):
    for batch in loader: ...""",
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
)

MIN_STEPS = 0.3
"""Share of the steps that wait (catalogue 19)."""
STOP_NS = 1_000_000
"""To find that there are no more batches takes microseconds; to stop workers, milliseconds."""
_DRAWING = (
    *("aten::empty", "aten::random_", "aten::item", "aten::_local_scalar_dense"),
    *("aten::randperm", "aten::randint", "aten::multinomial", "aten::scalar_tensor"),
    *("aten::resize_", "aten::resolve_conj", "aten::resolve_neg"),
)
"""What a new iterator and its sampler call: a seed for the workers, an order of the samples."""
_NEW_ITERATOR = r"utils/data/dataloader\.py\(\d+\): _get_iterator$"
_STOP = r"utils/data/dataloader\.py\(\d+\): _shutdown_workers$"


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim for workers that are too slow, one for workers started again."""
    fetches = find_fetches(trace, "MultiProcessing")
    if fetches is None:
        return
    respawn = _respawn(trace, fetches)
    if respawn is not None:
        yield respawn
        return
    waiting = _waiting_steps(trace, fetches)
    steady = np.flatnonzero(trace.steps.steady)
    late = waiting[waiting >= steady[len(steady) // 2]]
    # waits that end once the queue has filled are the start of an epoch
    if len(waiting) < MIN_STEPS * len(steady) or not len(late):
        return
    yield _claim(
        trace,
        fetches.rows,
        fetches.at_stake,
        fetches,
        f"the main thread waits for DataLoader workers in {len(waiting):,} of"
        f" {format_count(len(steady), 'steady step')}",
        {"n_waiting_steps": len(waiting), "n_steady_steps": len(steady)},
        "workers too slow",
        FIX,
    )


def _waiting_steps(trace: Trace, fetches: Fetches) -> intervals.Spans:
    """Return the steady steps that lose their share to waiting."""
    steps = trace.steps
    spans = intervals.spans(trace.start_ns[fetches.rows], trace.end_ns[fetches.rows])
    lost = intervals.covered(spans, fetches.at_stake)
    per_step = np.bincount(fetches.step_of, weights=lost, minlength=len(steps))
    wall = steps.end_ns - steps.start_ns
    return np.flatnonzero(steps.steady & (per_step >= MIN_SHARE * wall))


def _respawn(trace: Trace, fetches: Fetches) -> Claim | None:
    starts = _by_frames(trace, fetches) if trace.has_stacks else _by_fetches(trace, fetches)
    waits = _held_up(trace, intervals.spans(trace.start_ns[starts.rows], trace.end_ns[starts.rows]))
    at_stake = _held_up(trace, np.concatenate([waits, starts.between]))
    if intervals.length(at_stake) < MIN_SHARE * intervals.length(trace.steps.judged):
        return None
    n_steps = trace.steps.n_steady
    return _claim(
        trace,
        starts.rows,
        at_stake,
        fetches,
        f"DataLoader workers are started {'once' if starts.n == 1 else f'{starts.n:,} times'} in"
        f" {format_count(n_steps, 'steady step')}",
        {"n_worker_starts": starts.n, "n_steady_steps": n_steps},
        "workers started again",
        RESPAWN_FIX,
        between=starts.between,
        sure=intervals.length(waits) / intervals.length(at_stake),
        # epochs may be a thousand times longer than what was recorded
        certainty="likely" if starts.n > 1 else "hint",
    )


@dataclass(frozen=True, eq=False)
class _Starts:
    """How often workers were started, in what, and what may be part of it."""

    n: int
    rows: intervals.Spans
    between: intervals.Spans


def _by_frames(trace: Trace, fetches: Fetches) -> _Starts:
    """Return where an iterator was made or ended its workers, and the first fetch of each."""
    new = np.flatnonzero((trace.kind == Kind.PYTHON) & trace.matching(_NEW_ITERATOR))
    new = new[trace.steps.in_steady(trace.steps.of_host(new))]
    if not len(new):
        return _Starts(0, new, intervals.EMPTY)
    order = np.argsort(trace.start_ns[fetches.rows], kind="stable")
    rows = fetches.rows[order]
    following = np.searchsorted(trace.start_ns[rows], trace.end_ns[new])
    first = rows[following[following < len(rows)]]
    stop = np.flatnonzero((trace.kind == Kind.PYTHON) & trace.matching(_STOP))
    stop = stop[trace.steps.in_steady(trace.steps.of_host(stop))]
    return _Starts(len(new), np.concatenate([new, first, stop]), intervals.EMPTY)


def _by_fetches(trace: Trace, fetches: Fetches) -> _Starts:
    """Return pairs of fetches with no operator between but those that draw a new order.

    The first found no more batches, and took as long as only stopping workers takes.
    """
    order = np.lexsort((trace.start_ns[fetches.rows], trace.lane[fetches.rows]))
    rows = fetches.rows[order]
    ends, starts = trace.end_ns[rows[:-1]], trace.start_ns[rows[1:]]
    together = trace.lane[rows[:-1]] == trace.lane[rows[1:]]
    ops = np.flatnonzero((trace.kind == Kind.OP) & ~trace.named(*_DRAWING))
    ops = ops[np.isin(trace.lane[ops], trace.lane[rows])]
    at = np.sort(trace.start_ns[ops])
    together &= np.searchsorted(at, ends) == np.searchsorted(at, starts)
    together &= trace.dur_ns[rows[:-1]] >= STOP_NS
    both = np.concatenate([rows[:-1][together], rows[1:][together]])
    return _Starts(int(together.sum()), both, intervals.spans(ends[together], starts[together]))


def _held_up(trace: Trace, spans: intervals.Spans) -> intervals.Spans:
    """Return the union of what holds the device up, or of all without a device."""
    spans = intervals.union(spans)
    return intervals.intersect(spans, trace.devices[0].host_late) if trace.devices else spans


def _claim(
    trace: Trace,
    rows: intervals.Spans,
    at_stake: intervals.Spans,
    fetches: Fetches,
    what: str,
    evidence: dict[str, Any],
    kind: str,
    fix: Fix,
    *,
    between: intervals.Spans = intervals.EMPTY,
    sure: float = 1.0,
    certainty: Certainty = "likely",
) -> Claim:
    steps = trace.steps
    edits = [Edit("shrink", rows, factor=0.5, best=0.0)]
    if len(between):
        edits.append(Edit("threads", factor=1.0, best=0.0, spans=between))
    lost_ns = intervals.length(at_stake) / steps.n_steady
    who = "the GPU stands idle" if trace.devices else "the step waits"
    return Claim(
        message=f"{what}, and {who} for {format_ns(lost_ns)} of {format_ns(steps.wall_ns)}"
        f" {steps.per}",
        certainty=certainty,
        rows=rows,
        spans=at_stake,
        gain_low=0.5 * sure if trace.devices or trace.is_host_only else 0.0,
        gain_high=1.0,
        time_class=fetches.time_class,
        method="idle time of the device inside the waits"
        if trace.devices
        else "host time of the waits",
        evidence={
            ("gpu_idle_ms_per_step" if trace.devices else "wait_ms_per_step"): ms(lost_ns),
            **evidence,
            "longest_fetch_ms": ms(int(trace.dur_ns[fetches.rows].max())),
            "median_fetch_ms": ms(float(np.median(trace.dur_ns[fetches.rows]))),
            "n_fetches_per_step": steps.median_count(fetches.step_of),
            "kind": kind,
        },
        anchor=int(rows[np.argmax(trace.dur_ns[rows])]),
        fix=fix,
        edits=tuple(edits),
    )
