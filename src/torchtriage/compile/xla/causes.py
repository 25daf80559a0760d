"""Why an HLO graph was compiled: from the marks and operators around it, else from its frames.

With a profile of the step (``bridge_marks.py``) the operator that asked for a compilation is known. From dumps
alone there are the frames, and the sentence that ``PT_XLA_DEBUG`` makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torchtriage.compile.logs.locations import is_library
from torchtriage.compile.xla.dumps import HloModule
from torchtriage.compile.xla.result import Cause, FallbackKind
from torchtriage.core.finding import Fix, Frame


def _operators(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


READS = _operators("_local_scalar_dense item is_nonzero equal")
SHAPES = _operators(
    "nonzero masked_select _unique _unique2 unique_consecutive unique_dim bincount repeat_interleave argwhere"
)
"""Operators whose results have a size that depends on values."""
_MOVES = _operators("_to_cpu _to_copy to copy_ _copy_from _copy_from_and_resize clone contiguous cpu")
"""What moves a tensor, for whichever operator asked."""

_OURS = re.compile(r"[\\/](?:torch_xla|torchtriage[\\/](?:\w+[\\/])?(?:xla|bench|isolate))[\\/]")
_DOCS = "https://docs.pytorch.org/xla/master/learn/troubleshoot.html"
FIXES: dict[Cause, Fix] = {
    "part": Fix(
        "replace the operator with ones that XLA supports, or report it to PyTorch/XLA: without it the FX graph stays"
        " whole",
        link=_DOCS,
    ),
    "probe": Fix("caused by the operator that is not lowered, once at compile time: without it nothing is tried out"),
    "input": Fix(
        "move the operations into the compiled function: what is computed between FX graphs is a graph of its own"
    ),
    "pending": Fix(
        "compiled once, when the FX graph is lowered: compute inputs on the host, the loss inside the compiled function"
    ),
    "outside": Fix(
        "put the loss, and whatever else runs between FX graphs, into the compiled"
        " function; LazyTensor tracing sees the whole step as one graph"
    ),
    "read": Fix("keep the value on the device (torch.where instead of if), or read it every N steps", link=_DOCS),
    "dynamic shape": Fix("use a fixed size: a mask with torch.where, or padding to a bound", link=_DOCS),
    "fallback": Fix("replace the operator with ones that XLA supports, or report it to PyTorch/XLA", link=_DOCS),
    "copy": Fix("copy to the host after torch_xla.sync(), once per step", link=_DOCS),
    "sync": Fix("leave torch_xla.sync() to the end of the step: each one ends a graph"),
    "aliasing": Fix("the same operations, with other inputs donated: let every step keep and release the same tensors"),
    "new sizes": Fix("pad inputs to a few sizes (bucketing): XLA compiles for each size", link=_DOCS),
    "new constants": Fix("pass numbers that change as tensors: Python numbers are constants of the graph"),
    "new operations": Fix(
        "let every step run the same operations: a branch or a loop count that changes makes another graph"
    ),
}


@dataclass(frozen=True)
class CauseReason:
    """A cause, its sentence, and whether the graph is one its route has by right."""

    cause: Cause
    reason: str
    op: str = ""
    fx: int | None = None
    part: int | None = None
    expected: bool = False


def kind_of(name: str) -> FallbackKind:
    """Return why an operator ran on the host: ``read``, ``shape`` or ``not lowered``."""
    base = name.split(".")[0]
    return "read" if base in READS else "shape" if base in SHAPES else "not lowered"


def user_line(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame that is neither a library's nor ours."""
    return next((frame for frame in frames if not is_library(frame.file) and not _OURS.search(frame.file)), None)


def _in_bridge(frame: Frame, *functions: str) -> bool:
    return frame.function in functions and frame.file.endswith("dynamo_bridge.py")


def is_lowering(frames: Sequence[Frame]) -> bool:
    """Return whether dynamo's bridge was compiling an FX graph, which is not run then."""
    return bool(frames) and _in_bridge(frames[0], "extract_graph_helper")


def from_profile(stack: Sequence[str], frames: Sequence[Frame], route: str, fallbacks: Collection[str]) -> CauseReason:
    """Return the cause of a compilation.

    ``stack`` : what was open in the profile at its end, outermost first; our marks begin with ``triage:``.
    ``frames`` : python's, innermost first; may be empty, as in a thread of the backward pass. ``route`` : ``lazy``
    or ``openxla``. ``fallbacks`` : operators that ran on the host in this step.
    """
    marks = [frame.split(":")[1:] for frame in stack if frame.startswith("triage:")]
    fx = next((int(mark[1]) for mark in reversed(marks) if mark[0] == "fx"), None)
    part = next((int(mark[1]) for mark in reversed(marks) if mark[0] in ("part", "run")), None)
    names = [mark[0] for mark in marks]
    ops = [name for name in stack if "::" in name and not name.startswith(("triage:", "autograd::", "torch::"))]
    asked = [name for name in ops if name not in _MOVES]
    op = asked[-1] if asked else ops[0] if ops else ""
    by_sync = bool(frames) and frames[0].function in ("sync", "mark_step")
    if fx is not None:
        if "part" in names and not by_sync:
            return CauseReason("fx graph" if part == 1 else "part", "", op, fx, part, expected=part == 1)
        if "lower" in names:
            return CauseReason("probe" if op else "pending", "", op, fx, part)
        if "run" in names:
            if by_sync or is_lowering(frames):
                return CauseReason("pending" if by_sync else "new sizes", "", "", fx, part)
            return CauseReason("input", "", op, fx, part)
        if op:
            return replace(_by_op(op, fallbacks), fx=fx)
        return CauseReason("input", "", "", fx, part)
    if op and not by_sync:
        return _by_op(op, fallbacks)
    if "end" in names:
        return CauseReason("step", "", expected=True) if route == "lazy" else CauseReason("outside", "")
    if by_sync:
        return CauseReason("sync", "")
    return CauseReason("unknown", "", op)


def _by_op(op: str, fallbacks: Collection[str]) -> CauseReason:
    lists: tuple[tuple[Cause, Collection[str]], ...] = (
        ("read", READS),
        ("dynamic shape", SHAPES),
        ("fallback", {fallback.split(".")[0] for fallback in fallbacks}),
        ("copy", _MOVES),
    )
    return CauseReason(next((cause for cause, names in lists if op.split(".")[0] in names), "unknown"), "", op)


def from_dump(cause: str, frames: Sequence[Frame]) -> CauseReason:
    """Return what frames and the sentence of ``PT_XLA_DEBUG`` say; operators are not in them."""
    first = frames[0] if frames else Frame("", 0, "")
    if "dynamo is compiling" in cause or is_lowering(frames):
        return CauseReason("fx graph", "dynamo lowers an FX graph, or a part of one", expected=True)
    if "dynamo is executing" in cause:
        return CauseReason("fx graph", "dynamo runs a graph it has compiled", expected=True)
    if any(_in_bridge(frame, "run_node") for frame in frames):
        return CauseReason("probe", "dynamo's bridge tries operators out: one is not lowered")
    if "dynamo processing input" in cause:
        return CauseReason("pending", "operations pending when dynamo begins to lower a graph")
    if _in_bridge(first, "optimized_mod"):
        return CauseReason("input", "computed outside every FX graph and needed as an input of one")
    if "parallel loader" in cause:
        return CauseReason("step", "the parallel loader ends a step", expected=True)
    if "StepTrace" in cause:
        return CauseReason("step", "a step of the profiler ends", expected=True)
    if "torch_xla.compile" in cause:
        return CauseReason("step", "a region of torch_xla.compile", expected=True)
    if "user torch_xla.sync" in cause or "user mark_step" in cause or first.function in ("sync", "mark_step"):
        return CauseReason("sync", "torch_xla.sync() at the program's line")
    if "access tensor value" in cause or frames:
        return CauseReason(
            "read",
            "a tensor's value was needed before torch_xla.sync(): item(), print,"
            " a copy to the host or an operator that is not lowered",
        )
    return CauseReason("unknown", "no Python frame: a thread of its own, such as the backward pass")


def again(before: HloModule | None, now: HloModule | None, aliased: tuple[int | None, int | None]) -> Cause:
    """Return how a graph differs from an earlier one of the same place."""
    if before is None or now is None:
        return "unknown"
    if before.shape_free != now.shape_free:
        return "new operations"
    if (before.inputs, before.outputs) != (now.inputs, now.outputs):
        return "new sizes"
    if None not in aliased and aliased[0] != aliased[1]:
        return "aliasing"
    return "new constants"
