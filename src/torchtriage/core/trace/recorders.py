"""The profilers, beside PyTorch's, whose recordings are read: what theirs cannot show, and how to record it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["PROGRAMS_LINE", "RECORDERS", "ROCPD", "STEPS_LINE", "XPLANE", "Recorder", "is_xplane"]

XPLANE, ROCPD = "XPlane", "rocpd"
STEPS_LINE, PROGRAMS_LINE = "Steps", "XLA Modules"
"""Lines of a device in an XPlane that say when each step and each program ran there: thread ids of lanes."""


class Recorder(NamedTuple):
    """What a reader of a trace must know of its recorder.

    ``lacks`` : what it cannot show. ``record`` : how to record a trace that answers most. ``hints`` : how to record
    what a pattern needs, by key of its needs; what is not named cannot be recorded.
    """

    what: str
    lacks: str
    record: str
    hints: Mapping[str, str]


_JAX = "with jax.profiler.trace(FOLDER), after a warm-up, and the result waited for (block_until_ready) inside it"
_JAX_STEPS = "with jax.profiler.StepTraceAnnotation('train', step_num=i): around each step"
_JAX_STACKS = "jax.profiler.trace(FOLDER, profiler_options=options) with options.python_tracer_level = 1"
_ROCPROF = "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace -- python train.py"
_ROCTX = "with torch.autograd.profiler.emit_nvtx(): around the steps, and rocprofv3 --marker-trace"
_SHAPES = "emit_nvtx(record_shapes=True) around the steps, and rocprofv3 --marker-trace"
RECORDERS: Mapping[str, Recorder] = {
    ROCPD: Recorder(
        "a database of ROCm's profilers (rocpd)",
        "no Python stacks, no records of PyTorch's allocator, and operators only where their ranges were recorded",
        _ROCPROF,
        {
            **dict.fromkeys(("device", "work", "runtime", "collectives", "sizes"), _ROCPROF),
            "ops": _ROCTX,
            "shapes": _SHAPES,
            "steps": "torch.cuda.nvtx.range('ProfilerStep#%d' % step) around each step, and rocprofv3 --marker-trace",
        },
    ),
    XPLANE: Recorder(
        "an XPlane profile (of JAX, TensorFlow or PyTorch/XLA)",
        "no operators of PyTorch with their inputs and no records of its allocator; the host's rows are those of XLA"
        " and its client",
        _JAX,
        {"device": _JAX, "work": _JAX, "runtime": _JAX, "steps": _JAX_STEPS, "stacks": _JAX_STACKS},
    ),
}

# a list of planes: an id perhaps, then a name that only planes have
_XPLANE = re.compile(
    rb"\n[\x80-\xff]{0,4}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12.(?:/host:|/device:|Task Environment)",
    re.DOTALL,
)


def is_xplane(head: bytes) -> bool:
    """Return whether a file that begins so is an XPlane."""
    return _XPLANE.match(head) is not None
