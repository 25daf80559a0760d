"""Why an HLO graph was compiled: from the marks and operators around it, else from its frames.

With a profile of the step (``watch.py``) the operator that asked for a compilation is known. From
dumps alone there are the frames, and the sentence that ``PT_XLA_DEBUG`` makes of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torchtriage.compile.places import is_library
from torchtriage.finding import Fix, Frame
from torchtriage.xla.dumps import Module
from torchtriage.xla.result import Cause

__all__ = [
    "FIXES",
    "READS",
    "SHAPES",
    "Told",
    "again",
    "from_dump",
    "from_profile",
    "is_lowering",
    "kind_of",
    "user_line",
]

READS = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"})
SHAPES = frozenset({
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2",
    "aten::unique_consecutive", "aten::unique_dim", "aten::bincount",
    "aten::repeat_interleave", "aten::argwhere",
})  # fmt: skip
"""Operators whose results have a size that depends on values."""
_MOVES = frozenset({
    "aten::_to_cpu", "aten::_to_copy", "aten::to", "aten::copy_", "aten::_copy_from",
    "aten::_copy_from_and_resize", "aten::clone", "aten::contiguous", "aten::cpu",
})  # fmt: skip
"""What moves a tensor, for whichever operator asked."""

_DOCS = "https://docs.pytorch.org/xla/master/learn/troubleshoot.html"
FIXES: dict[Cause, Fix] = {
    "part": Fix("replace the operator by ones that XLA knows, or report it to PyTorch/XLA: without"
                " it the FX graph stays whole", link=_DOCS),
    "probe": Fix("comes of the operator that is not lowered, once at compile time: without it"
                 " nothing is tried out"),
    "input": Fix("move the operations into the compiled function: what is computed between FX"
                 " graphs is a graph of its own"),
    "pending": Fix("compiled once, when the FX graph is lowered: compute inputs on the host, the"
                   " loss inside the compiled function"),
    "outside": Fix("put the loss, and whatever else is between FX graphs, into the compiled"
                   " function; LazyTensor tracing sees the whole step as one graph"),
    "read": Fix("keep the value on the device (torch.where instead of if), or read it every N"
                " steps", link=_DOCS),
    "dynamic shape": Fix("use a fixed size: a mask with torch.where, or padding to a bound",
                         link=_DOCS),
    "fallback": Fix("replace the operator by ones that XLA knows, or report it to PyTorch/XLA",
                    link=_DOCS),
    "copy": Fix("copy to the host after torch_xla.sync(), once per step", link=_DOCS),
    "sync": Fix("leave torch_xla.sync() to the end of the step: each one ends a graph"),
    "aliasing": Fix("the same operations, with other inputs donated: let every step keep and"
                    " release the same tensors"),
    "new sizes": Fix("pad inputs to a few sizes (bucketing): XLA compiles for each size",
                     link=_DOCS),
    "new constants": Fix("pass numbers that change as tensors: Python numbers are constants of the"
                         " graph"),
    "new operations": Fix("let every step run the same operations: a branch or a loop count that"
                          " changes is another graph"),
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """A cause, its sentence, and whether the graph is one its route has by right."""

    cause: Cause
    reason: str
    op: str = ""
    fx: int | None = None
    part: int | None = None
    expected: bool = False


def kind_of(name: str) -> str:
    """Return why an operator ran on the host: ``read``, ``shape`` or ``not lowered``."""
    base = name.split(".")[0]
    return "read" if base in READS else "shape" if base in SHAPES else "not lowered"


def user_line(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame that is neither a library's nor ours."""
    return next((one for one in frames if not is_library(one.file) and not _ours(one.file)), None)


def _ours(file: str) -> bool:
    path = file.replace("\\", "/")
    return any(f"/{one}/" in path for one in ("torch_xla", "torchtriage/xla", "torchtriage/bench"))


def _in_bridge(frame: Frame, *functions: str) -> bool:
    return frame.function in functions and frame.file.endswith("dynamo_bridge.py")


def is_lowering(frames: Sequence[Frame]) -> bool:
    """Return whether dynamo's bridge was compiling an FX graph, which is not run then."""
    return bool(frames) and _in_bridge(frames[0], "extract_graph_helper")


def from_profile(
    stack: Sequence[str], frames: Sequence[Frame], route: str, fallbacks: Collection[str]
) -> Told:
    """Return the cause of a compilation.

    Parameters
    ----------
    stack : sequence of str
        What was open in the profile at its end, outermost first; our marks begin with ``triage:``.
    frames : sequence of Frame
        Python's, innermost first; may be empty, as in a thread of the backward pass.
    route : str
        ``lazy`` or ``openxla``.
    fallbacks : collection of str
        Operators that ran on the host in this step.
    """
    marks = [one.split(":")[1:] for one in stack if one.startswith("triage:")]
    fx = next((int(one[1]) for one in reversed(marks) if one[0] == "fx"), None)
    part = next((int(one[1]) for one in reversed(marks) if one[0] in ("part", "run")), None)
    names = [one[0] for one in marks]
    op = _asking([one for one in stack if _is_op(one)])
    by_sync = bool(frames) and frames[0].function in ("sync", "mark_step")
    if fx is not None:
        if "part" in names and not by_sync:
            return Told("fx graph" if part == 1 else "part", "", op, fx, part, expected=part == 1)
        if "lower" in names:
            if op:
                return Told("probe", "", op, fx, part)
            return Told("pending", "", "", fx, part)
        if "run" in names:
            if by_sync:
                return Told("pending", "", "", fx, part)
            if is_lowering(frames):
                return Told("new sizes", "", "", fx, part)
            return Told("input", "", op, fx, part)
        if op:
            return replace(_by_op(op, fallbacks), fx=fx)
        return Told("input", "", "", fx, part)
    if op and not by_sync:
        return _by_op(op, fallbacks)
    if "end" in names:
        return Told("step", "", expected=True) if route == "lazy" else Told("outside", "")
    if by_sync:
        return Told("sync", "")
    return Told("unknown", "", op)


def _is_op(name: str) -> bool:
    return "::" in name and not name.startswith(("triage:", "autograd::", "torch::"))


def _asking(ops: Sequence[str]) -> str:
    """Return the operator that wanted a value: not what moves tensors for it."""
    asked = [one for one in ops if one not in _MOVES]
    return asked[-1] if asked else ops[0] if ops else ""


def _by_op(op: str, fallbacks: Collection[str]) -> Told:
    base = op.split(".")[0]
    if base in READS:
        return Told("read", "", op)
    if base in SHAPES:
        return Told("dynamic shape", "", op)
    if base in {one.split(".")[0] for one in fallbacks}:
        return Told("fallback", "", op)
    if base in _MOVES:
        return Told("copy", "", op)
    return Told("unknown", "", op)


def from_dump(cause: str, frames: Sequence[Frame]) -> Told:
    """Return what frames and the sentence of ``PT_XLA_DEBUG`` say; operators are not in them."""
    first = frames[0] if frames else Frame("", 0, "")
    if "dynamo is compiling" in cause or is_lowering(frames):
        return Told("fx graph", "dynamo lowers an FX graph, or a part of one", expected=True)
    if "dynamo is executing" in cause:
        return Told("fx graph", "dynamo runs a graph it has compiled", expected=True)
    if any(_in_bridge(one, "run_node") for one in frames):
        return Told("probe", "dynamo's bridge tries operators out: one is not lowered")
    if "dynamo processing input" in cause:
        return Told("pending", "operations pending when dynamo begins to lower a graph")
    if _in_bridge(first, "optimized_mod"):
        return Told("input", "computed outside every FX graph and needed as an input of one")
    if "parallel loader" in cause:
        return Told("step", "the parallel loader ends a step", expected=True)
    if "StepTrace" in cause:
        return Told("step", "a step of the profiler ends", expected=True)
    if "torch_xla.compile" in cause:
        return Told("step", "a region of torch_xla.compile", expected=True)
    if (
        "user torch_xla.sync" in cause
        or "user mark_step" in cause
        or first.function in ("sync", "mark_step")
    ):
        return Told("sync", "torch_xla.sync() at the program's line")
    if "access tensor value" in cause or frames:
        return Told("read", "a tensor's value was needed before torch_xla.sync(): item(), print,"
                    " a copy to the host or an operator that is not lowered")  # fmt: skip
    return Told("unknown", "no Python frame: a thread of its own, such as the backward pass")


def again(
    before: Module | None, now: Module | None, aliased: tuple[int | None, int | None]
) -> Cause:
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
