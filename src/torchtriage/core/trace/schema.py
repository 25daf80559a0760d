"""The columns of a :class:`~torchtriage.core.trace.columns.Trace`, one row each.

A row is one complete event (``ph: X``, or a ``B``/``E`` pair) or one instant that is not an allocator record. Flow
arrows, counters and metadata are not rows; they are counted. The documentation page is generated from the table here.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, NamedTuple

import numpy as np


class Kind(np.uint8, Enum):
    """What a row is, whatever its age and vendor called it.

    Of the column's own type: against an ``IntEnum`` numpy compares as int64, which takes eight times as long.
    """

    OTHER = 0
    OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    PYTHON = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    GPU_ANNOTATION = 8
    DEVICE_SYNC = 9
    OVERHEAD = 10
    RECORDING = 11
    DEVICE_OTHER = 12
    INSTANT = 13


WORK_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
"""Rows that keep a GPU busy."""

HOST_KINDS = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
"""Rows of the op tree of a host thread; Python frames have a tree of their own."""

# Legacy names (capitalised) were written by torch 1.8 - 1.10; ROCm writes cuda_runtime.
CATEGORY_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("cpu_op", "Operator"), Kind.OP),
    "user_annotation": Kind.ANNOTATION,
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver"), Kind.RUNTIME),
    **dict.fromkeys(("hip_runtime", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver"), Kind.RUNTIME),
    # Ascend's queue between the thread of the operators and the one that calls CANN
    **dict.fromkeys(("enqueue", "dequeue"), Kind.RUNTIME),
    "python_function": Kind.PYTHON,
    **dict.fromkeys(("kernel", "Kernel"), Kind.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), Kind.MEMCPY),
    **dict.fromkeys(("gpu_memset", "Memset"), Kind.MEMSET),
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    **dict.fromkeys(("cuda_sync", "cuda_event"), Kind.DEVICE_SYNC),
    "overhead": Kind.OVERHEAD,
    "Trace": Kind.RECORDING,
    **dict.fromkeys(("mtia_ccp_events", "mtia_insight", "hpu_op", "collective_comm"), Kind.DEVICE_OTHER),
    "cuda_profiler_range": Kind.DEVICE_OTHER,
}


ANNOTATION_NAME = re.compile(
    r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.|nccl:|gloo:|mpi:|## |DataParallel\."
    r"|DistributedDataParallel\."
)
"""Names that mark a stretch of work rather than an operator, whatever category holds them."""
PSEUDONYM = re.compile(r"[xX]q[0-9jkqwyz]{12}z")
"""A word that an anonymised recording has in place of a private one."""
BACKWARD_NODE = "autograd::engine::evaluate_function: "
"""What the name of a node of the backward pass begins with."""
LOADER_NAME = r"^enumerate\(DataLoader\)#"
"""The name of what waits for a batch, in the loop's thread."""


class Column(NamedTuple):
    """One column of the trace."""

    name: str
    dtype: str
    unit: str
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("start_ns", "int64", "ns", "start, exact from the decimal text of `ts`"),
    Column("dur_ns", "int64", "ns", "duration; 0 means below the recording's resolution"),
    Column("name", "int32", "code", "index into `names`"),
    Column("cat", "int16", "code", "index into `cats`, the category as written"),
    Column("kind", "uint8", "Kind", "what the row is, vendor and age smoothed"),
    Column("lane", "int32", "code", "index into `lanes`: a host thread or a device stream"),
    Column(
        "key",
        "int64",
        "id",
        "correlation, or External id in files without any (runtime calls, GPU work), sequence number (ops),"
        " Python id (frames); -1 none",
    ),
    Column(
        "value",
        "int64",
        "bytes or id",
        "bytes (copies, sets, runtime calls), forward thread (ops), parent's Python id (frames); -1 none",
    ),
    Column(
        "detail",
        "int32",
        "code",
        "index into `details`: dims, types, concrete inputs, strides, grid, block, collective; -1",
    ),
)
COLUMN_TYPES: dict[str, Any] = {column.name: np.dtype(column.dtype) for column in COLUMNS}
