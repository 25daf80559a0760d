"""Optimizers that use foreach operators where a fused form exists."""

import re
from dataclasses import replace

import numpy as np

from torchtriage.core import fixes, intervals
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim, host_time
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claim, Edit, Fix, Ints, Spans, Trace

MIN_SHARE_FOREACH = 0.05  # share of the step from which the fused form is worth naming (catalogue 16, second level)
MIN_FOREACH = 2  # foreach calls per step; a single one reads and writes no more than a fused kernel
FOREACH_GAIN = (0.25, 0.6)  # tensors read and written: SGD with momentum 8 by foreach and 5 fused, Adam 18 and 7
_FUSED = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})
_GROUPED = frozenset({"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"})
_HAS_FUSED = re.compile(rf"#({'|'.join(sorted(_FUSED))})\.")


def optimizer_name(trace: Trace, rows: Ints) -> str:
    """Return the class of an optimizer by its annotation, ``Optimizer.step#AdamW.step``."""
    name = trace.name_of(int(rows[0])).partition("#")[2]
    return name.rpartition(".")[0] or name


def fix_of(name: str, *, grouped: bool = False) -> Fix | None:
    """Return the fix that keeps the optimizer: its class with the fused form, or with foreach where none is fused.

    None for a class of the user's, whose arguments are not known. ``grouped`` : it uses foreach operators already.
    """
    if name not in _FUSED | _GROUPED:
        return None
    how = "fused" if name in _FUSED else "foreach"
    text = f"Use the {how} form of the optimizer." if grouped or how == "foreach" else fixes.FUSE_OPTIMIZER.text
    code = f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, {how}=True)"
    return replace(fixes.FUSE_OPTIMIZER, text=text, code=code)


def claim_foreach(trace: Trace, rows: Ints, held: Spans, calls: Ints) -> Claim | None:
    """Return the claim on an optimizer whose foreach form could be fused; ``held`` : the time of its own work."""
    steps = trace.steps
    time = host_time(trace, held)
    if (
        _HAS_FUSED.search(trace.name_of(int(rows[0]))) is None
        or len(calls) < MIN_FOREACH * len(rows)
        or time.held_ns < MIN_SHARE_FOREACH * steps.wall_ns
    ):
        return None
    name, count = optimizer_name(trace, rows), round(len(calls) / steps.n_steady, 2)
    least, most = FOREACH_GAIN
    work = work_of(trace, calls) if trace.devices else None
    claim = host_claim(
        trace,
        f"{name}.step works through its tensors in {format_count(count, 'foreach call')} {steps.per},"
        f" {format_ns(time.held_ns)} of {format_ns(steps.wall_ns)} on the host; its fused form needs one",
        rows,
        time.spans,
        gain=least,
        basis="modelled",
        method="tensors read and written by the foreach form against the fused one",
        evidence={
            "host_ms_per_step": ms(time.held_ns),
            "share_of_step": round(time.held_ns / steps.wall_ns, 6),
            "n_foreach_calls_per_step": count,
            "optimizer": name,
        },
        anchor=trace.longest(rows),
        fix=fix_of(name, grouped=True),
        title="The optimizer has a fused form, which is not used",
        edits=(Edit("threads", factor=1 - least / trace.origin.inflation, best=0.0, spans=time.held),),
    )
    if work is not None and work.per_step_ns * steps.n_steady > intervals.length(time.spans):
        return replace(
            claim,
            spans=work.spans,
            gain_low=np.minimum(least, work.free),
            gain_high=most,
            time_class="compute",
            evidence={**claim.evidence, "kernel_ms_per_step": ms(work.per_step_ns)},
            edits=(Edit("shrink", work.rows, factor=1 - least, best=1 - most),),
        )
    return claim if len(time.spans) else None
