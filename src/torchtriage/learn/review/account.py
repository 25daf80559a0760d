"""What an expert looks at before the window: machine, data types, the whole step, the host's lead, the other steps.

Each function returns one line's text, empty where the recording does not tell it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_count, format_ns, format_range, format_share
from torchtriage.learn.review.redaction import RedactedNames

N_OUTER, N_TYPES, N_STEPS = 4, 3, 8
_MACHINE = re.compile(r"(?:NVIDIA|AMD|Tesla|GeForce|Quadro|Intel|TPU|Google|MTIA|Ascend|HL-)[\w .()/+-]{0,40}")
"""Names of machines that are for sale; a file can hold any text there."""
TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "bool": "bool",
    "unsigned char": "uint8",
    "signed char": "int8",
    "char": "int8",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64",
}
"""As the profiler writes them, and as users do."""


def machine(trace: Trace) -> str:
    """Say what was recorded on."""
    if not trace.devices:
        return "recorded on the CPU only" if trace.is_host_only else "recorded without rows of a device"
    known = sorted({device.name for device in trace.devices if _MACHINE.fullmatch(device.name)})
    word = trace.origin.device_word
    named = f", {', '.join(map(json.dumps, known[:2]))}" if known else ", which one is not recorded"
    size = trace.origin.world_size
    job = f", rank {trace.origin.rank} of {size}" if size and trace.origin.rank is not None else ""
    return f"recorded on {len(trace.devices)} {word}{'s' if len(trace.devices) > 1 else ''}{named}{job}"


def data_types(trace: Trace, ops: Ints) -> str:
    """Say of which types the inputs of some operators are."""
    counts: dict[str, int] = {}
    codes, n = np.unique(trace.detail[ops], return_counts=True)
    first = {code: int(ops[trace.detail[ops] == code][0]) for code in codes.tolist() if code >= 0}
    for code, times in zip(codes.tolist(), n.tolist(), strict=True):
        types = trace.details_of("types", [first[code]])[0] if code >= 0 else None
        known = {TYPES[item] for item in types or () if isinstance(item, str) and item in TYPES}
        for item in known:
            counts[item] = counts.get(item, 0) + times
    if not counts:
        return "data types are not recorded"
    most = sorted(counts, key=lambda item: (-counts[item], item))[:N_TYPES]
    return "inputs of operators: " + ", ".join(f"{item} in {counts[item]:,}" for item in most)


def whole_step(trace: Trace, names: RedactedNames) -> list[str]:
    """Say what the steady steps, or the recording without steps, are made of: on the device, and on the host."""
    steps = trace.steps
    what = f"the whole step, mean of {steps.n_steady}" if len(steps) else "the whole recording"
    wall_ns = steps.wall_ns
    said = []
    if trace.devices and len(steps.judged):
        classes = trace.devices[0].classes(steps.judged)
        whole_ns = max(sum(item.wall_ns for item in classes), 1)
        told = (
            ("computes", sum(item.compute_ns for item in classes)),
            ("communicates", sum(item.comm_only_ns for item in classes)),
            ("copies", sum(item.copy_only_ns for item in classes)),
            ("idle, the host being late", sum(item.idle_host_late_ns for item in classes)),
            ("idle with work queued", sum(item.idle_queued_ns for item in classes)),
            ("idle for an unknown reason", sum(item.idle_unknown_ns for item in classes)),
        )
        shares = ", ".join(f"{word} {format_share(ns / whole_ns)}" for word, ns in told if ns / whole_ns >= 0.0005)
        said.append(f"{what}, {format_ns(wall_ns)} on the device: {shares}")
    rows = np.flatnonzero(trace.hosts & (trace.lane == steps.lane))
    tops = _tops(trace, rows)
    judged = steps.host_judged
    time_ns = intervals.covered(trace.spans_of(tops), judged)
    total: dict[str, int] = {}
    codes, which = np.unique(trace.name[tops], return_inverse=True)
    sums = np.bincount(which, weights=time_ns, minlength=len(codes))
    for at in np.argsort(-sums, kind="stable")[: 3 * N_OUTER].tolist():
        name = names.of(int(tops[which == at][0]))
        total[name] = total.get(name, 0) + int(sums[at])
    whole_ns = max(intervals.length(judged), 1)
    most = [name for name in sorted(total, key=lambda name: -total[name]) if total[name] > 0.005 * whole_ns][:N_OUTER]
    if most:
        parts = ", ".join(f"{json.dumps(name)} {format_share(total[name] / whole_ns)}" for name in most)
        said.append(f"{what}, {format_ns(wall_ns)} on the main thread: {parts}")
    return said


def _tops(trace: Trace, rows: Ints) -> Ints:
    """Return the outermost rows below the step's own."""
    parent = trace.tree.parent[rows]
    step = trace.matching(r"^ProfilerStep#")
    return rows[~step[rows] & ((parent < 0) | step[parent])]


def host_lead(trace: Trace, rows: Ints, long_ns: int) -> str:
    """Say how far the host runs ahead of the device, and how fast it launches, for device rows of a window."""
    known = rows[trace.links.call[rows] >= 0]
    if not len(known):
        return ""
    lead_ns = trace.start_ns[known] - trace.links.launched_ns(known)
    n = len(np.unique(trace.links.call[known]))
    middle, least = float(np.median(lead_ns)), float(lead_ns.min())
    return (
        f"launched by {n:,} calls, {n / long_ns * 1e6:.3g} per ms of the window; from a launch to its start on the"
        f" device {format_ns(middle)} at the median, {format_ns(least)} at least;"
        f" work lasts {format_ns(float(np.median(trace.dur_ns[known])))} at the median"
    )


def other_steps(trace: Trace, begin_ns: int, end_ns: int, busy: Callable[[int, int], tuple[int, int, int]]) -> str:
    """Say what the same window looks like in other steady steps.

    ``busy`` : gives operators, time in them and idle time of the device between two times.
    """
    steps = trace.steps
    at = np.flatnonzero((steps.host_start_ns <= begin_ns) & (steps.host_end_ns > begin_ns))
    if not len(at):
        return ""
    here = int(at[0])
    whole_ns = max(int(steps.host_end_ns[here] - steps.host_start_ns[here]), 1)
    first, last = ((edge_ns - int(steps.host_start_ns[here])) / whole_ns for edge_ns in (begin_ns, end_ns))
    others = [step for step in np.flatnonzero(steps.steady).tolist() if step != here]
    others = sorted(sorted(others, key=lambda step: abs(step - here))[:N_STEPS])
    if not others:
        return ""
    found = []
    for step in others:
        start_ns = int(steps.host_start_ns[step])
        long_ns = int(steps.host_end_ns[step]) - start_ns
        a, b = round(start_ns + first * long_ns), round(start_ns + last * long_ns)
        found.append((b - a, *busy(a, b)))
    long, n, host, idle = np.array(found, np.int64).T
    text = (
        f"the same window in {format_count(len(others), 'other step')}, on the thread of the steps:"
        f" {_between(format_ns, long)},"
        f" {_between(lambda value: f'{value:,.0f}', n)} operators and calls, in them"
        f" {_between(format_share, host / long)} of the time"
    )
    return text + (f", device idle {_between(format_share, idle / long)}" if trace.devices else "")


def _between(form: Callable[[float], str], values: NDArray[np.generic]) -> str:
    return format_range(form(float(values.min())), form(float(values.max())), from_zero=False)
