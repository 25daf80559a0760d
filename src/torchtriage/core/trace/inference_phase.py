"""The part of a recording that runs forward only."""

from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Mask
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.schema import Kind

_BACKWARD = r"^autograd::engine|Backward\d*$"
_TRAINING = r"^Optimizer\.|^DistributedDataParallel\.|^FullyShardedDataParallel\.|^FSDP::"
_LOSS = (
    r"^aten::(\w+_loss|\w+_loss_forward|cross_entropy_loss|nll_loss\w*|ctc_loss|kl_div"
    r"|binary_cross_entropy\w*)$"
)


class InferencePhase(NamedTuple):
    """Host rows of inference.

    ``rows`` : bool[n], host rows of it. ``whole`` : the recording holds nothing else.
    ``n_steps`` : steps it covers, 0 without steps.
    """

    rows: Mask
    whole: bool
    n_steps: int


def inference_phase(trace: Trace) -> InferencePhase | None:
    """Return the forward-only part of a recording, None when there is none to be sure of.

    The whole recording, if it has neither backward nodes nor an optimizer nor a training wrapper; else the steps
    without any, as long as training goes on after them. A recording that lost events or shows one forward pass up to a
    loss may be cut before its backward pass: no verdict.
    """
    host = trace.is_kind(Kind.OP, Kind.ANNOTATION)
    trains = trace.matching(f"{_BACKWARD}|{_TRAINING}", Kind.OP, Kind.ANNOTATION)
    steps = trace.steps
    if not trains.any():
        cut = trace.report.n_lost > 0 or bool(trace.report.loss)
        one_loss = len(steps) < 2 and bool(trace.matching(_LOSS, Kind.OP, Kind.ANNOTATION).any())
        return None if cut or one_loss else InferencePhase(host, True, len(steps))
    if len(steps) < 3:
        return None
    training = np.zeros(len(steps), dtype=bool)
    of_training = steps.of_host(np.flatnonzero(trains))
    training[of_training[of_training >= 0]] = True
    if not training.any():
        return None
    # the recording may end between a last forward pass and its backward pass
    training[np.flatnonzero(training)[-1] :] = True
    if training.all():
        return None
    rows = np.flatnonzero(host)
    step_of = steps.of_host(rows)
    inside = trace.mask_of(rows[(step_of >= 0) & ~training[step_of]])
    return InferencePhase(inside, False, int((~training).sum()))
