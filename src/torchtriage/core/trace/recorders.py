"""The names of profilers, beside PyTorch's, whose recordings are read, and how their files begin."""

from __future__ import annotations

import re

XPLANE, XPLANE_JSON = "the profiler of XLA (XPlane)", "the profiler of XLA (JSON)"
XLA = frozenset((XPLANE, XPLANE_JSON))
ROCPD = "ROCm's profiler (rocpd)"
ROCPROF = {"json": "rocprofv3 (JSON)", "csv": "rocprofv3 (CSV)"}
STEPS_LINE, PROGRAMS_LINE = "Steps", "XLA Modules"
"""Lines of a device in an XPlane that say when each step and each program ran there: thread ids of lanes."""


WAYS = {
    **dict.fromkeys(
        XLA, "with jax.profiler.trace(FOLDER), after a warm-up, and the result waited for (block_until_ready) inside it"
    ),
    **dict.fromkeys(
        (ROCPD, *ROCPROF.values()),
        "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace -- python train.py",
    ),
}
"""How to record with those whose files are not exported from something else."""

# a list of planes: an id perhaps, then a name that only planes have
_XPLANE = re.compile(
    rb"\n[\x80-\xff]{0,4}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12.(?:/host:|/device:|Task Environment)",
    re.DOTALL,
)
# an event, its fields in any order, that names a process as a plane is named, without more: TensorFlow 1 writes more
_PLANE = rb'\{\s*"name"\s*:\s*"/(?:host|device:\w+):[\w.\-]+(?: SparseCore \d+)?"'
_REST = rb"[^{}]{0,256}"
_XPLANE_JSON = re.compile(rb'"process_name"%b%b|%b%b\}%b"process_name"' % (_REST, _PLANE, _PLANE, _REST, _REST))
# only arrows have a category there, behind their id
_CATEGORY = re.compile(rb'("(?:bind_)?id"\s*:\s*\d+\s*,\s*)?"cat"\s*:')
# the first column, or the second behind an id of the process that rocpd's converter writes, says what it is
_ROCPROF = {
    "json": re.compile(rb'\{\s*"rocprofiler-sdk-tool"\s*:'),
    "csv": re.compile(
        rb'(?:"?Guid"?,)?"?(?:Kind"?,"?(?:Agent_Id|Direction|Operation)|Domain"?,"?Function|Node_Id"?,"?Logical_Node_Id'
        rb'|Correlation_Id"?,"?Dispatch_Id|Name"?,"?Calls"?,"?TotalDurationNs)"?[,\r\n]',
        re.IGNORECASE,
    ),
}


def rocprof_format(head: bytes) -> str:
    """Return ``json`` or ``csv`` for a file of rocprofv3 that begins so, empty for any other."""
    return next((kind for kind, pattern in _ROCPROF.items() if pattern.match(head.lstrip())), "")


def is_xplane(head: bytes) -> bool:
    """Return whether a file that begins so is an XPlane."""
    return _XPLANE.match(head) is not None


def is_xplane_json(head: bytes) -> bool:
    """Return whether a file that begins so is the JSON that is written beside an XPlane."""
    return _XPLANE_JSON.search(head) is not None and all(match[1] for match in _CATEGORY.finditer(head))
