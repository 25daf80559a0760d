"""Dropout or batch norm runs in train mode although nothing is trained.

Looks like: a recording (or validation steps) without backward nodes and optimizer, in which ``aten::batch_norm``
    computes batch statistics although running ones exist, or dropout with p > 0 is active (``aten::native_dropout``,
    or ``aten::dropout`` with train "True").
Slow because: dropout draws random numbers and batch norm reads its input twice; above all, the outputs are wrong:
    noisy, and dependent on the other samples in the batch.
Cost: the time of the dropouts, which disappear; at the low end only the part the device can recover because the next
    kernel is already queued. Batch norm is not counted. Correctness comes first here.
Fix: call ``model.eval()`` before the loop, and ``model.train()`` after it.
Leave it when: the noise is wanted (Monte-Carlo dropout), statistics are being recalibrated, or a teacher network
    follows the batch on purpose.
Source: PyTorch documentation, ``torch.nn.Module.eval``.
"""

from typing import Any

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.inference_phase import inference_phase
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Kind, Mask, Pattern, Trace, aten, given

PATTERN = Pattern.of(__name__, "CFG042", "Dropout or batch norm in train mode during inference", order=600, needs="ops")
FIX = Fix(
    text="Switch the model to evaluation mode before the loop; results change, as they should.",
    code="model.eval()\nwith torch.inference_mode():\n    outputs = model(inputs)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",
)

_DROPOUTS = aten("dropout dropout_ feature_dropout alpha_dropout feature_alpha_dropout")
_TRAINING_KERNEL = r"bn_fw_tr_|batch_norm_collect_statistics|BatchNormFwdTrain"


def find(trace: Trace) -> Claims:
    """Yield one claim over all modules in train mode."""
    phase = inference_phase(trace)
    if phase is None:
        return
    ops = phase.rows & (trace.kind == Kind.OP)
    norms = np.flatnonzero(ops & _norms(trace))
    drops = np.flatnonzero(ops & _drops(trace))
    rows = distinct(np.concatenate([norms, drops]))
    if not len(rows):
        return
    parts, wrong = [], []
    if len(norms):
        parts.append(format_count(len(norms), "batch norm"))
        wrong.append("batch norm takes its statistics from each batch and changes the stored ones")
    if len(drops):
        parts.append(format_count(len(drops), "dropout"))
        wrong.append("dropout makes outputs random")
    work = work_of(trace, drops)
    cost: dict[str, Any] = {}
    if work is not None:
        cost = {
            "spans": work.spans,
            "gain_low": work.free,
            "time_class": work.time_class,
            "edits": (Edit("drop", work.gone),),
        }
    yield Claim(
        message=(
            f"results may be wrong: {' and '.join(parts)} {'runs' if len(rows) == 1 else 'run'} in train mode although"
            " nothing is trained"
            + ("" if phase.whole else f" in {format_count(phase.n_steps, 'step')} of the recording")
            + f"; {' and '.join(wrong)}"
        ),
        certainty="certain" if phase.whole else "likely",
        rows=rows,
        anchor=int(rows[0]),
        method="time of the dropouts" if work is not None else "configuration visible in the recording",
        evidence={
            "n_batch_norms": len(norms),
            "n_dropouts": len(drops),
            **(work.evidence("dropout") if work is not None else {}),
            **given(n_steps=phase.n_steps),
            "seen_by": "inputs" if trace.has_shapes else "operators and kernels that only train",
        },
        always=True,
        **cost,
    )


def _norms(trace: Trace) -> Mask:
    """Return bool[n]: outermost batch norms that use batch statistics though running ones exist."""
    norm = trace.named("aten::batch_norm")
    if trace.has_shapes:
        norm = trace.where_detail("concrete", lambda inputs: _is_true(inputs, 5), norm)
        # without running statistics a batch norm has no other choice (track_running_stats=False)
        norm = trace.where_detail("dims", lambda dims: len(dims) > 4 and bool(dims[3]), norm)
    else:
        trains = np.flatnonzero(trace.matching(_TRAINING_KERNEL) & (trace.links.op >= 0))
        op = trace.links.op[trains].astype(np.int64)
        above = trace.tree.nearest(op, norm)
        used = np.where(norm[op], op, above)
        norm = trace.mask_of(used[used >= 0])
    return norm & ~trace.tree.under(trace.named("aten::instance_norm"))


def _drops(trace: Trace) -> Mask:
    """Return bool[n]: outermost dropouts that drop."""
    dropout, native = trace.named(*_DROPOUTS), trace.named("aten::native_dropout")
    if trace.has_shapes:
        either = dropout | native
        known = trace.where_detail("concrete", lambda inputs: len(inputs) > 2 and inputs[2] != "", either)
        on = trace.where_detail("concrete", lambda inputs: _is_true(inputs, 2) and _is_positive(inputs, 1), either)
        active = (dropout & on) | (native & (on | ~known))
    else:
        # in evaluation mode dropout returns its input and calls nothing
        active = native | (dropout & trace.tree.above(native | trace.named("aten::bernoulli_")))
    return active & ~trace.tree.under(active)


def _is_true(inputs: Any, index: int) -> bool:
    return isinstance(inputs, list) and len(inputs) > index and inputs[index] == "True"


def _is_positive(inputs: Any, index: int) -> bool:
    try:
        return float(inputs[index]) > 0
    except (IndexError, TypeError, ValueError):
        return False
