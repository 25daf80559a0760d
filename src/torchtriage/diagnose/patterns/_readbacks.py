"""Which wait belongs to which pattern: logging, then data-dependent shapes, then plain scalars.

The order is the catalogue's (3.2): the outermost cause decides. Every function here returns
``(index, holder)``: indices into ``trace.waits``, and for each the host row that a fix removes.
"""

import re
from weakref import WeakKeyDictionary

import numpy as np

from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._recurrence import call_sites, frame_around, recurs
from torchtriage.diagnose.patterns.base import Claims, Edit, Ints, Kind, Mask, Trace, aten, given, most_frequent

SCALAR_OPS = aten("item is_nonzero _local_scalar_dense _linalg_check_errors one_hot equal")
SHAPE_OPS = aten("nonzero masked_select _unique2 unique_dim unique_consecutive bincount repeat_interleave")
TRANSFER_OPS = ("aten::to", "aten::_to_copy", "aten::copy_")
# what may not stand before a word after its first letters: five times as fast, and there are thousands of frames
_LOGS = re.compile(
    r"<(?<!.<)built-in function print>|logging(?<![^/]logging)/__init__\.py\(|torch/_tensor_str\.py\("
    r"|torch/_tensor\.py\(\d+\): (?:__format__|__repr__)|tensorboard/(?:writer|summary)\.py\("
    r"|tensorboardX/|wandb(?<![^/]wandb)/|mlflow(?<![^/]mlflow)/|tqdm/std\.py\(\d+\): set_postfix"
)
_SCALER = r"grad_scaler\.py\("
_UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
# what printing a tensor consists of, besides views
_FORMATTING = aten(
    "isfinite masked_select item is_nonzero select slice cat abs ne eq gt lt max min ceil div bitwise_and __and__ "
    "reshape unbind resolve_conj resolve_neg to detach flatten sum"
)
SCALAR_BYTES = 16  # the largest single value, a complex double; more is a tensor
CALL_NS = 20_000  # a copy call that takes no longer than its transfer and this did not wait (catalogue 6)
LONG_NS = 1_000_000  # a transfer that holds the host for this long has a cost of its own
MANY = 10  # in a recording without two steps to compare: no longer a one-off
MIN_BURST = 6  # operators in one print of a tensor; the smallest `str(tensor)` has more (measured)


_LOGGED: WeakKeyDictionary[Trace, tuple[Ints, Ints]] = WeakKeyDictionary()
"""What :func:`log_reads` has found: every other kind of readback leaves them out."""


def log_reads(trace: Trace) -> tuple[Ints, Ints]:
    """Return readbacks made to print or log; the holder is the outermost logging frame."""
    if trace not in _LOGGED:
        _LOGGED[trace] = _find_log_reads(trace)
    return _LOGGED[trace]


def _find_log_reads(trace: Trace) -> tuple[Ints, Ints]:
    waits = trace.waits
    reads = np.flatnonzero((waits.to_host | _scalars(trace)) & ~waits.profiler)
    if trace.has_stacks:
        holder = frame_around(trace, waits.row[reads], trace.matching(_LOGS, Kind.PYTHON), outermost=True)
    else:
        holder = _printing(trace, waits.row[reads])
    found = holder >= 0
    return reads[found], holder[found]


def shape_reads(trace: Trace) -> tuple[Ints, Ints]:
    """Return waits for the size of a result; the holder is the operator that has to know it."""
    rows = trace.waits.row
    ops = trace.named(*SHAPE_OPS)
    index = np.flatnonzero(trace.waits.under(ops))
    index = index[~np.isin(index, log_reads(trace)[0])]
    return index, trace.tree.outermost(rows[index], ops)


def scalar_reads(trace: Trace) -> tuple[Ints, Ints]:
    """Return waits for one value; the holder is the outermost op that reads it."""
    rows = trace.waits.row
    index = np.flatnonzero(_scalars(trace))
    index = index[~np.isin(index, np.concatenate([log_reads(trace)[0], shape_reads(trace)[0]]))]
    index = index[~_scaler_checks(trace, rows[index])]
    return index, trace.tree.outermost(rows[index], trace.named(*SCALAR_OPS, *TRANSFER_OPS))


def bulk_reads(trace: Trace) -> tuple[Ints, Ints]:
    """Return blocking copies of whole tensors to the host; the holder is the copying op."""
    waits = trace.waits
    index = np.flatnonzero(_blocking_copies(trace) & (waits.copy_bytes > SCALAR_BYTES))
    index = index[~np.isin(index, log_reads(trace)[0])]
    return index, trace.tree.outermost(waits.row[index], trace.named(*TRANSFER_OPS))


def claim_reads(
    trace: Trace, index: Ints, holder: Ints, *, message: str, method: str, what: str, whole: bool = True
) -> Claims:
    """Yield the claim on the idle time these waits cause, if they recur and cost anything.

    ``message`` may use the fields ``times``, ``wait``, ``idle`` and ``ops``. ``what`` : what the
    waits are in the evidence, in the plural. ``whole`` : the holders go with the waits, so that
    their time counts at the high end.
    """
    waits, steps = trace.waits, trace.steps
    if not len(index) or not recurs(trace, waits.row[index]):
        return
    begin, end = waits.start_ns.copy(), waits.end_ns.copy()
    if whole:
        begin[index] = np.minimum(begin[index], trace.start_ns[holder])
        end[index] = np.maximum(end[index], trace.end_ns[holder])
    spans, low, high = waits.stake(index, begin, end)
    if not len(spans):
        return
    step_of = steps.of_host(waits.row[index])
    steady = index[steps.in_steady(step_of)]
    n_reads = steps.median_count(step_of)
    wait_ns = int(waits.wait_ns[steady].sum()) / steps.n_steady
    # all that is at stake, later idle time for the lost lead included: no more is promised than is said
    idle_ns = steps.judged_ns(spans) / steps.n_steady
    ops = most_frequent(trace, holder)
    worst = int(index[np.argmax(waits.bubble_ns[index])])
    times = "once" if n_reads == 1 else format_count(n_reads, "time")
    yield host_claim(
        trace,
        message.format(
            times=f"{times} {steps.per}", wait=format_ns(wait_ns), idle=format_ns(idle_ns), ops=", ".join(ops)
        ),
        waits.row[index],
        spans,
        certainty="likely" if steps.n_steady >= 2 or n_reads >= MANY else "hint",
        gain_low=low,
        gain_high=high,
        method=method,
        evidence={
            f"n_{what}_per_step": n_reads,
            "gpu_idle_ms_per_step": ms(idle_ns),
            "wait_ms_per_step": ms(wait_ns),
            "ops": ops,
            **given(call_sites=call_sites(trace, waits.row[index])),
        },
        anchor=int(waits.row[worst]),
        edits=(Edit("unblock", waits.row[index]), *([Edit("shrink", holder, factor=1.0, best=0.0)] if whole else [])),
    )


def _scalars(trace: Trace) -> Mask:
    waits = trace.waits
    read = waits.under(trace.named("aten::_local_scalar_dense")) & ~waits.profiler
    # a value or two by ``.cpu()``, such as the sizes for an exchange
    return read | (_blocking_copies(trace) & (waits.copy_bytes >= 0) & (waits.copy_bytes <= SCALAR_BYTES))


def _blocking_copies(trace: Trace) -> Mask:
    waits = trace.waits
    copies = waits.to_host & waits.under(trace.named(*TRANSFER_OPS))
    transfer_ns = trace.dur_ns[waits.copy]
    # behind an empty queue there is nothing but the transfer to wait for
    copies &= (waits.wait_ns > transfer_ns + CALL_NS) | (transfer_ns >= LONG_NS)
    return copies & ~waits.under(trace.named(*SHAPE_OPS, *SCALAR_OPS)) & ~waits.profiler


def _scaler_checks(trace: Trace, rows: Ints) -> Mask:
    """Return reads by which a gradient scaler decides on the step: one per fp16 step, intended."""
    if trace.has_stacks:
        return frame_around(trace, rows, trace.matching(_SCALER, Kind.PYTHON)) >= 0
    checks = np.zeros(len(rows), dtype=bool)
    unscaled = np.flatnonzero(trace.named(_UNSCALE))
    if len(rows) and len(unscaled):
        following = np.searchsorted(trace.start_ns[rows], trace.end_ns[unscaled])
        checks[following[following < len(rows)]] = True
    return checks


def _printing(trace: Trace, rows: Ints) -> Ints:
    """Return the first operator of the print around each row, -1 outside; for lack of frames.

    ``str(tensor)`` is a run of formatting operators with ``isfinite`` and ``masked_select`` in it.
    """
    found = np.full(len(rows), -1, np.int64)
    finite = trace.named("aten::isfinite")
    if not finite.any() or not len(rows):
        return found
    ops = trace.tree.members[trace.kind[trace.tree.members] == Kind.OP]
    top = ops[trace.tree.nearest(ops, trace.kind == Kind.OP) < 0]
    fits = trace.named(*_FORMATTING)[top]
    first = np.ones(len(top), dtype=bool)
    first[1:] = ~(fits[1:] & fits[:-1] & (trace.lane[top][1:] == trace.lane[top][:-1]))
    run = np.cumsum(first) - 1
    n_runs = int(run[-1]) + 1
    prints = np.bincount(run, minlength=n_runs) >= MIN_BURST
    for name in ("aten::isfinite", "aten::masked_select"):
        prints &= np.bincount(run, weights=trace.named(name)[top], minlength=n_runs) > 0
    outer = trace.tree.outermost(rows, trace.kind == Kind.OP)
    position = np.full(len(trace) + 1, -1, np.int64)
    position[top] = np.arange(len(top))
    at = position[outer]
    inside = (at >= 0) & prints[run[at]]
    found[inside] = top[np.flatnonzero(first)][run[at[inside]]]
    return found
