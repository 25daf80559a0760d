"""What another profiler's file does not hold, and how to record it, in the words of that profiler.

``ProfilerActivity`` is no advice on an export of Nsight Systems. What its recordings cannot hold is said to need
``torch.profiler``.

Source: Nsight Systems User Guide, "CLI Profile Command Switch Options"; PyTorch, ``torch.autograd.profiler.emit_nvtx``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from torchtriage.core.finding import Fix, Note
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.formats import nsys
from torchtriage.core.trace.recorders import ROCPD, ROCPROF, WAYS, XLA, XPLANE, XPLANE_JSON
from torchtriage.core.units import format_count, format_ns
from torchtriage.diagnose.verdict.result import Result

_WHOLE_GRAPHS = rf"^{nsys.WHOLE_GRAPH}( \d+)?$"

_NVTX = {
    "shapes": "emit_nvtx(record_shapes=True), in a short recording of its own",
    "stacks": "not in this format: torch.profiler with with_stack=True, in a short recording of its own",
    "memory": "not in this format: torch.profiler with profile_memory=True",
    "steps": "a range of one name around each step: with torch.cuda.nvtx.range('step'): …",
}
_ROCM = {
    "ops": "run the loop under torch.autograd.profiler.emit_nvtx(), and record with rocprofv3 --marker-trace",
    **_NVTX,
    "device": WAYS[ROCPD],
    "window": "rocprofv3 --collection-period DELAY:SECONDS:1 --collection-period-unit sec, past the warm-up",
}
_XLA = {
    **dict.fromkeys(("ops", "shapes", "memory"), "not in this format"),
    "stacks": "jax.profiler.trace(FOLDER, profiler_options=options) with options.python_tracer_level = 1",
    "steps": "with jax.profiler.StepTraceAnnotation('train', step_num=i): around each step",
    "device": WAYS[XPLANE],
    "window": WAYS[XPLANE],
}
_WAYS: dict[str, dict[str, str]] = {
    nsys.RECORDER: {
        "ops": "run the loop under torch.autograd.profiler.emit_nvtx(), and record with nsys profile --trace=cuda,nvtx",
        **_NVTX,
        "device": "nsys profile --trace=cuda,nvtx, on the GPU machine",
        "window": "nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop; in the program, after a"
        " warm-up, torch.cuda.synchronize(); torch.cuda.profiler.start(), and the same with stop() some steps later",
    },
    **dict.fromkeys(XLA, _XLA),
    **dict.fromkeys((ROCPD, *ROCPROF.values()), _ROCM),
}
_NO_OPERATORS = (
    "no operators of PyTorch with their inputs and no allocator records in this format; the host's rows are those of"
    " XLA and its client"
)
_LACKS = {
    ROCPROF["csv"]: "no Python stacks, no allocator records and no sizes of copies in this format, and no GPU's name"
    " without PREFIX_agent_info.csv; rocprofv3's JSON and rocpd have sizes and names",
    XPLANE: _NO_OPERATORS,
    XPLANE_JSON: f"{_NO_OPERATORS}; neither the device's name and size nor whether its writer was set to end it"
    " early: the .xplane.pb file beside it has all",
}
_OF_NOTE = {
    "no-host-rows": "ops",
    "no-shapes": "shapes",
    "no-stacks": "stacks",
    **dict.fromkeys(("no-steps", "one-step"), "steps"),
    "no-gpu-rows": "device",
    **dict.fromkeys(
        ("orphans", "cut-window", "early-end", "backlog", "cold-start", "compiling", "heavy-recording"), "window"
    ),
}
_OF_NEED = {
    "operators": "ops",
    "operators (in an XPlane)": "ops",
    "input shapes": "shapes",
    "allocator records": "memory",
    "steps": "steps",
    "GPU rows": "device",
    "runtime calls": "device",
}


def in_recorder_words(result: Result, trace: Trace) -> Result:
    """Return the result with its advice on recording as the profiler that made the file takes it."""
    ways = _WAYS.get(trace.report.recorder)
    if ways is None:
        return result

    def way(missing: tuple[str, ...], otherwise: str) -> str:
        asked = [_OF_NEED.get(need, "stacks" if need.startswith("Python stacks") else "") for need in missing]
        return "; ".join(dict.fromkeys(ways[key] for key in asked)) if asked and all(asked) else otherwise

    return replace(
        result,
        notes=tuple(
            replace(note, fix=ways[_OF_NOTE[note.code]]) if note.code in _OF_NOTE and note.fix else note
            for note in result.notes
        ),
        not_checked=tuple(
            replace(item, how_to_record=way(item.missing, item.how_to_record)) for item in result.not_checked
        ),
        findings=tuple(
            replace(finding, fix=Fix(f"Warm up before recording: {ways['window']}."))
            if "torch.profiler" in finding.fix.code
            else finding
            for finding in result.findings
        ),
    )


def recorder_of(trace: Trace) -> str:
    """Return what the profiler is called that made the file."""
    return trace.report.recorder or "the PyTorch profiler"


def other_recorder(trace: Trace) -> Iterator[Note]:
    """Say what the format of another profiler has no room for, and what of this file no column has room for."""
    if not trace.report.recorder:
        return
    lacks = _LACKS.get(trace.report.recorder, "no Python stacks and no allocator records in this format")
    message = f"recorded with {trace.report.recorder}: {lacks}"
    given = trace.meta.get("unread")
    given = given if isinstance(given, dict) else {}
    unread = {what: n for what, n in given.items() if isinstance(n, int)}
    if unread:
        message += f"; in the file and not read: {', '.join(f'{n:,} {what}' for what, n in unread.items())}"
    yield Note("other-recorder", "info", message, evidence={"unread": unread} if unread else {})
    whole = np.flatnonzero(trace.matching(_WHOLE_GRAPHS, Kind.KERNEL))
    if len(whole):
        yield Note(
            "whole-graphs",
            "warn",
            f"{format_count(len(whole), 'launch', 'launches')} of CUDA graphs, each recorded in one piece"
            f" ({format_ns(int(trace.dur_ns[whole].sum()))} on the GPU): which kernels they ran is not known",
            "nsys profile --cuda-graph-trace=node",
            {"n_launches": len(whole)},
        )
