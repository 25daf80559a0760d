"""Deterministic mode fills every new tensor before it is written.

Looks like: ``aten::fill_`` directly inside ``aten::empty`` and its variants (``empty_like``, ``empty_strided``,
    ``resize_``), or with NaN inside another operator, in most steps: what ``torch.use_deterministic_algorithms(True)``
    does by default, and nothing else does.
Slow because: each new tensor is written once more, in full, with values that are never read.
Cost: the time of the fills; at the low end only the part the device can recover because the next kernel is already
    queued. The time of the deterministic algorithms themselves is not counted.
Fix: keep the deterministic algorithms and switch off the filling.
Leave it when: you are looking for a read of uninitialised memory.
Source: PyTorch documentation, ``torch.utils.deterministic.fill_uninitialized_memory``.
"""

import numpy as np

from torchtriage.core.trace.op_inputs import where_inputs
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claims, Fix, Kind, Pattern, Trace

PATTERN = Pattern.of(__name__, "CFG046", "Deterministic mode fills new tensors", order=545, needs="ops work")
FIX = Fix(
    text="Switch the filling off; algorithms stay deterministic.",
    code="""torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False""",
    link="https://docs.pytorch.org/docs/stable/deterministic.html#torch.utils.deterministic.fill_uninitialized_memory",
)

_ASKED = r"^aten::(full|full_like|new_full|fill_?|masked_fill_?|nan_to_num_?)$"
_NEW = r"^aten::(empty(_like|_strided|_permuted|_quantized)?|new_empty(_strided)?|resize_(as_)?)$"


def find(trace: Trace) -> Claims:
    """Yield one claim over all fills."""
    steps = trace.steps
    rows = np.flatnonzero(trace.named("aten::fill_") & (trace.kind == Kind.OP))
    parent = trace.tree.parent[rows]
    fresh = (parent >= 0) & trace.matches(parent, _NEW)
    # operators that take memory of their own fill it without an ``empty``; torch.full is asked to
    inside = (parent >= 0) & (trace.kind[parent] == Kind.OP) & ~trace.matches(parent, _ASKED)
    fresh |= inside & where_inputs(trace, rows, lambda inputs: inputs.value(1) == "nan")
    rows = rows[fresh]
    count = steps.median_count(steps.of_host(rows))
    work = work_of(trace, rows)
    if work is None or not count or not recurs(trace, rows):
        return
    yield work.claim(
        message=f"deterministic mode fills new tensors before they are written, {format_count(count)} {steps.per}:"
        f" {work.text}",
        certainty="certain",
        what="fill",
        method="time of the fills; low: while the next work was already queued",
        evidence={"n_fills_per_step": count},
    )
