"""Deterministic mode fills every new tensor before it is written.

Looks like: ``aten::fill_`` directly inside ``aten::empty`` and its kin (``empty_like``,
    ``empty_strided``, ``resize_``), or with NaN inside another operator, in most steps: what
    ``torch.use_deterministic_algorithms(True)`` does unless told otherwise, and nothing else.
Slow because: each new tensor is written once more, in full, for a value that nobody reads.
Cost: the time of the fills; at the low end only what the device can make up for, because the next
    kernel is waiting. What the deterministic algorithms themselves take is not counted.
Fix: keep the deterministic algorithms and switch off the filling.
Leave it when: you are looking for a read of memory that was never written.
Source: PyTorch documentation, ``torch.utils.deterministic.fill_uninitialized_memory``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchtriage.finding import Fix
from torchtriage.patterns._inputs import inputs_of
from torchtriage.patterns._recurrence import recurs
from torchtriage.patterns._work import work_of
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, format_share

PATTERN = Pattern(
    code="CFG046",
    name="deterministic-fill",
    family="config",
    title="Deterministic mode fills new tensors",
    order=545,
    needs=frozenset({"ops", "work"}),
)

FIX = Fix(
    text="Switch off the filling; the algorithms stay deterministic.",
    code="""torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False""",
    link="https://docs.pytorch.org/docs/stable/deterministic.html#torch.utils.deterministic.fill_uninitialized_memory",
)

_ASKED = r"^aten::(full|full_like|new_full|fill_?|masked_fill_?|nan_to_num_?)$"
_NEW = r"^aten::(empty(_like|_strided|_permuted|_quantized)?|new_empty(_strided)?|resize_(as_)?)$"


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim over all fills."""
    if not trace.devices and not trace.is_host_only:
        return
    steps = trace.steps
    rows = np.flatnonzero(trace.named("aten::fill_") & (trace.kind == Kind.OP))
    parent = trace.tree.parent[rows]
    fresh = (parent >= 0) & trace.matching(_NEW)[parent]
    inputs, which = inputs_of(trace, rows)
    # operators that take memory of their own fill it without an ``empty``; torch.full is asked to
    inside = (parent >= 0) & (trace.kind[parent] == Kind.OP) & ~trace.matching(_ASKED)[parent]
    fresh |= inside & np.array([one.value(1) == "nan" for one in inputs], dtype=bool)[which]
    rows = rows[fresh]
    count = steps.median_count(steps.of_host(rows))
    work = work_of(trace, rows)
    if work is None or not count or not recurs(trace, rows):
        return
    yield Claim(
        message=(
            f"deterministic mode fills new tensors before they are written, {format_count(count)}"
            f" {steps.per}: {format_ns(work.per_step_ns)}, {format_share(work.share)} of {work.of}"
        ),
        certainty="certain",
        rows=work.rows,
        spans=work.spans,
        gain_low=work.free,
        gain_high=1.0,
        time_class=work.time_class,
        basis="bounded",
        method="time of the fills; low: what of it the queue can make up for",
        evidence={**work.evidence("fill"), "n_fills_per_step": count},
        anchor=int(work.op[np.argmax(trace.dur_ns[work.rows])]),
        edits=(Edit("drop", work.gone),),
    )
