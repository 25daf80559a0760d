"""Where DataLoader workers are started again, by frames or by the fetches alone."""

from dataclasses import dataclass

import numpy as np

from torchtriage.core import intervals
from torchtriage.diagnose.patterns.base import Kind, Spans, Trace
from torchtriage.diagnose.patterns.data._fetches import Fetches

STOP_NS = 1_000_000  # to find that there are no more batches takes microseconds; to stop workers, milliseconds
_DRAWING = (
    *("aten::empty", "aten::random_", "aten::item", "aten::_local_scalar_dense"),
    *("aten::randperm", "aten::randint", "aten::multinomial", "aten::scalar_tensor"),
    *("aten::resize_", "aten::resolve_conj", "aten::resolve_neg"),
)
"""What a new iterator and its sampler call: a seed for the workers, an order of the samples."""
_NEW_ITERATOR = r"utils/data/dataloader\.py\(\d+\): _get_iterator$"
_STOP = r"utils/data/dataloader\.py\(\d+\): _shutdown_workers$"


@dataclass(frozen=True, eq=False)
class WorkerStarts:
    """How often workers were started, in what, and what may be part of it."""

    n: int
    rows: Spans
    between: Spans


def starts_by_frames(trace: Trace, fetches: Fetches) -> WorkerStarts:
    """Return where an iterator was made or ended its workers, and the first fetch of each."""
    new = np.flatnonzero(trace.matching(_NEW_ITERATOR, Kind.PYTHON))
    new = new[trace.steps.in_steady(trace.steps.of_host(new))]
    if not len(new):
        return WorkerStarts(0, new, intervals.EMPTY)
    order = np.argsort(trace.start_ns[fetches.rows], kind="stable")
    rows = fetches.rows[order]
    following = np.searchsorted(trace.start_ns[rows], trace.end_ns[new])
    first = rows[following[following < len(rows)]]
    stop = np.flatnonzero(trace.matching(_STOP, Kind.PYTHON))
    stop = stop[trace.steps.in_steady(trace.steps.of_host(stop))]
    return WorkerStarts(len(new), np.concatenate([new, first, stop]), intervals.EMPTY)


def starts_by_fetches(trace: Trace, fetches: Fetches) -> WorkerStarts:
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
    return WorkerStarts(int(together.sum()), both, intervals.spans(ends[together], starts[together]))
