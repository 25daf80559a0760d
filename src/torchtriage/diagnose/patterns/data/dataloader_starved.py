"""DataLoader workers exist but cannot keep up, or are restarted again and again.

Looks like: ``enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__`` annotations that take at least 5 % of the
    step in 30 % of the steps, the late ones included, while, with GPU rows, the device is idle; a loader that keeps up
    answers in less than 0.2 ms. On a CPU alone, whose cores workers and program share: beyond what every answer takes
    (up to 2 ms), and by more than the rest of the steps varies. Restart: ``_get_iterator`` frames that start the
    workers of a new epoch inside the recording, with the wait that follows and the stop of the old ones. Without
    stacks: a fetch of at least 1 ms, the time it takes to stop workers, then another one with no operator between them
    that worked on a batch.
Slow because: the main thread waits for the next batch, and the device with it.
Cost: device idle time inside the waits (without a device: the waits). A wait hidden by queued work is free. The low
    end is half: more workers help until the cores are used up. Without stacks, the time between two epochs may be the
    script's own work: it is in the high end only.
Fix: more workers or cheaper transforms; keep workers alive between epochs; prefetch more.
Leave it when: epochs are long and the recording happens to contain the end of one (once is a hint); only the first
    batches of the recording wait (the workers are still filling the queue); or the cores are all busy already: then
    make the transforms cheaper instead.
Source: PyTorch documentation, torch.utils.data, "Multi-process data loading".
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns.base import Certainty, Claim, Claims, Edit, Fix, Kind, Pattern, Spans, Trace
from torchtriage.diagnose.patterns.data._fetches import MIN_SHARE, Fetches, find_fetches

PATTERN = Pattern.of(__name__, "DAT019", "DataLoader workers cannot keep up", order=301, needs="ops steps")
FIX = Fix(
    text="Add workers or make the transforms cheaper (decode on the GPU, resize at ingest), and prefetch more.",
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

MIN_STEPS = 0.3  # share of the steps that wait (catalogue 19)
READY_NS = 2_000_000
"""What a batch that lies ready takes at most where workers and program share the cores: 0.8-2.0 ms under the profiler
in 25 of 29 programs whose loaders keep up, on two busy cores."""
STOP_NS = 1_000_000  # to find that there are no more batches takes microseconds; to stop workers, milliseconds
_DRAWING = (
    *("aten::empty", "aten::random_", "aten::item", "aten::_local_scalar_dense"),
    *("aten::randperm", "aten::randint", "aten::multinomial", "aten::scalar_tensor"),
    *("aten::resize_", "aten::resolve_conj", "aten::resolve_neg"),
)
"""What a new iterator and its sampler call: a seed for the workers, an order of the samples."""
_NEW_ITERATOR = r"utils/data/dataloader\.py\(\d+\): _get_iterator$"
_STOP = r"utils/data/dataloader\.py\(\d+\): _shutdown_workers$"


def find(trace: Trace) -> Claims:
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


def _waiting_steps(trace: Trace, fetches: Fetches) -> Spans:
    steps = trace.steps
    spans = trace.spans_of(fetches.rows)
    lost = intervals.covered(spans, fetches.at_stake)
    wall = steps.end_ns - steps.start_ns
    if trace.is_host_only:
        whole = np.bincount(fetches.step_of, weights=lost, minlength=len(steps))
        rest = (wall - whole)[steps.steady]
        lost = lost - min(int(lost.min()), READY_NS)
        # a busy machine holds up the fetches like all else
        if lost.sum() <= (np.median(rest) - rest.min()) * len(rest):
            return np.empty(0, np.int64)
    per_step = np.bincount(fetches.step_of, weights=lost, minlength=len(steps))
    return np.flatnonzero(steps.steady & (per_step >= MIN_SHARE * wall))


def _respawn(trace: Trace, fetches: Fetches) -> Claim | None:
    starts = _starts_by_frames(trace, fetches) if trace.has_stacks else _starts_by_fetches(trace, fetches)
    waits = _held_up(trace, trace.spans_of(starts.rows))
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


def _held_up(trace: Trace, spans: Spans) -> Spans:
    spans = intervals.union(spans)
    return intervals.intersect(spans, trace.devices[0].host_late) if trace.devices else spans


def _claim(
    trace: Trace,
    rows: Spans,
    at_stake: Spans,
    fetches: Fetches,
    what: str,
    evidence: dict[str, Any],
    kind: str,
    fix: Fix,
    *,
    between: Spans = intervals.EMPTY,
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
        message=f"{what}, and {who} for {format_ns(lost_ns)} of {format_ns(steps.wall_ns)} {steps.per}",
        certainty=certainty,
        rows=rows,
        spans=at_stake,
        gain_low=0.5 * sure if trace.devices or trace.is_host_only else 0.0,
        time_class=fetches.time_class,
        method="idle time of the device inside the waits" if trace.devices else "host time of the waits",
        evidence={
            ("gpu_idle_ms_per_step" if trace.devices else "wait_ms_per_step"): ms(lost_ns),
            **evidence,
            "longest_fetch_ms": ms(int(trace.dur_ns[fetches.rows].max())),
            "median_fetch_ms": ms(float(np.median(trace.dur_ns[fetches.rows]))),
            "n_fetches_per_step": steps.median_count(fetches.step_of),
            "kind": kind,
        },
        anchor=trace.longest(rows),
        fix=fix,
        edits=tuple(edits),
    )


@dataclass(frozen=True, eq=False)
class _WorkerStarts:
    """How often workers were started, in what, and what may be part of it."""

    n: int
    rows: Spans
    between: Spans


def _starts_by_frames(trace: Trace, fetches: Fetches) -> _WorkerStarts:
    """Return where an iterator was made or ended its workers, and the first fetch of each."""
    new = np.flatnonzero(trace.matching(_NEW_ITERATOR, Kind.PYTHON))
    new = new[trace.steps.in_steady(trace.steps.of_host(new))]
    if not len(new):
        return _WorkerStarts(0, new, intervals.EMPTY)
    order = np.argsort(trace.start_ns[fetches.rows], kind="stable")
    rows = fetches.rows[order]
    following = np.searchsorted(trace.start_ns[rows], trace.end_ns[new])
    first = rows[following[following < len(rows)]]
    stop = np.flatnonzero(trace.matching(_STOP, Kind.PYTHON))
    stop = stop[trace.steps.in_steady(trace.steps.of_host(stop))]
    return _WorkerStarts(len(new), np.concatenate([new, first, stop]), intervals.EMPTY)


def _starts_by_fetches(trace: Trace, fetches: Fetches) -> _WorkerStarts:
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
    return _WorkerStarts(int(together.sum()), both, intervals.spans(ends[together], starts[together]))
