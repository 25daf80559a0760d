"""What ROCm's profilers record, as the columns that Kineto's JSON gives: kernels, copies, calls and ROCTX ranges.

Their databases (``rocpd``) and rocprofv3's JSON and CSV say the same in different words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.columns import Detail
from torchtriage.core.trace.event_numbers import NO_DUR_NS, NO_TIME_NS
from torchtriage.core.trace.formats.nvtx import split_text
from torchtriage.core.trace.formats.sqlite_rows import MISSING
from torchtriage.core.trace.formats.texts import text_of

SIZES = tuple(f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
"""A kernel's size as ROCm counts it: the grid in work items."""
COPY = re.compile(r"(Host|Device|Peer|Array)_?to_?(Host|Device|Peer|Array)", re.IGNORECASE)
SET = re.compile(r"^fill|memset", re.IGNORECASE)
_MOST_GPUS = 4096
_PROCESS_BITS = 40
"""Of a key, below the number of the process that it counts in."""


def keys_of(correlation: Ints, process: int | Ints) -> Ints:
    """Return the keys that pair calls with their work: each process, by number, counts its own correlation ids."""
    known = (correlation > 0) & (correlation < 1 << _PROCESS_BITS)
    return np.where(known, correlation + (process << _PROCESS_BITS), -1)


class RocmRows:
    """Takes rows into a builder; ``devices`` has the names of GPUs by number."""

    def __init__(self, builder: ColumnBuilder) -> None:
        self._builder = builder
        self.devices: dict[int, str] = {}

    def name_device(self, number: int, name: str) -> None:
        """Keep what a GPU is called."""
        if 0 <= number < _MOST_GPUS:
            self.devices[number] = name

    def facts(self) -> dict[str, Any]:
        """Return what is known of the machine, as Kineto's top-level keys."""
        facts: dict[str, Any] = {"vendor": "rocm"}
        if self.devices:
            known = range(max(self.devices) + 1)
            facts["deviceProperties"] = [{"id": index, "name": self.devices.get(index, "")} for index in known]
        return facts

    # -- rows ------------------------------------------------------------------------------

    def take(self, start: Ints, end: Ints, cat: NDArray[Any], **columns: Any) -> None:
        """Append rows: their times, the texts of their categories, and columns of codes and numbers."""
        cats, which = np.unique(cat, return_inverse=True)
        self._builder.take_columns(
            {
                "start_ns": np.where(start == MISSING, NO_TIME_NS, start),
                "dur_ns": np.where(start == MISSING, 0, np.where(end == MISSING, NO_DUR_NS, end - start)),
                "cat": self._builder.codes_of(cats=cats.tolist())["cat"][which],
                **columns,
            }
        )

    def take_kernels(
        self, start: Ints, end: Ints, *, names: Sequence[str], lane: NDArray[Any], key: Ints, sizes: Mapping[str, Ints]
    ) -> None:
        """Append kernels; ``sizes`` by the names in SIZES."""
        self.take(
            start,
            end,
            np.full(len(start), "kernel"),
            name=self.named(names),
            lane=lane,
            key=key,
            detail=self.grids([sizes[column] for column in SIZES], in_items=True),
        )

    def take_copies(
        self, start: Ints, end: Ints, *, kinds: Sequence[str], lane: NDArray[Any], key: Ints, n_bytes: Ints
    ) -> None:
        """Append copies; ``kinds`` are ROCm's words for their direction."""
        self.take(
            start,
            end,
            np.full(len(start), "gpu_memcpy"),
            name=self.named(self.each(kinds, copy_name)),
            lane=lane,
            key=key,
            value=np.maximum(n_bytes, -1),
        )

    def take_calls(
        self,
        start: Ints,
        end: Ints,
        *,
        lane: NDArray[Any],
        texts: Sequence[str],
        cat: NDArray[Any],
        key: Ints,
        is_op: NDArray[np.bool_] | None = None,
        sequence: Ints | None = None,
        dims: Sequence[bytes] | None = None,
    ) -> None:
        """Append calls and ranges of the host.

        What autograd says of an operator may be beside it (``is_op``, ``sequence``, ``dims``) or in its range's text.
        """
        n = len(start)
        op = np.zeros(n, bool) if is_op is None else is_op.copy()
        number = np.full(n, -1, np.int64) if sequence is None else sequence.copy()
        detail = np.full(n, -1, np.int64) if dims is None else self._dims(dims)
        marked = np.flatnonzero(cat == "user_annotation")
        entries, which = split_text([texts[at].encode("utf-8", "replace") for at in marked.tolist()])
        names = np.array(list(texts), object)
        names[marked] = [text_of(entries[at].name) for at in which]
        op[marked] |= np.array([entries[at].is_op for at in which], bool)
        number[marked] = np.where(number[marked] >= 0, number[marked], [entries[at].sequence for at in which])
        detail[marked] = np.where(detail[marked] >= 0, detail[marked], self._dims([entries[at].dims for at in which]))
        # a mark, and no range
        cat = np.where((cat == "user_annotation") & ~op & (start == end), "instant", cat)
        cat = np.where(op & (cat == "user_annotation"), "cpu_op", cat)
        called = cat == "cuda_runtime"
        self.take(
            start,
            end,
            cat,
            name=self.named(names.tolist()),
            lane=lane,
            key=np.where(called, key, np.where(op, number, -1)),
            detail=np.where(op, detail, -1),
        )

    # -- codes -----------------------------------------------------------------------------

    def named(self, names: Iterable[str]) -> NDArray[np.int32]:
        """Return the codes of names."""
        return self._builder.codes_of(names=names)["name"]

    def each(self, texts: Sequence[str], make: Callable[[str], str]) -> NDArray[Any]:
        """Return what ``make`` makes of each text; equal ones are asked about once."""
        known = {text: make(text) for text in dict.fromkeys(texts)}
        return np.array([known[text] for text in texts], object)

    def lanes(
        self, first: Ints, second: Ints, make: Callable[[tuple[int, int]], tuple[Any, ...]] = lambda ids: ids
    ) -> NDArray[np.int32]:
        """Return the codes of lanes, which ``make`` makes of two numbers: those of a process and its thread."""
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        some = dict.fromkeys(pairs)
        codes = self._builder.codes_of(lanes=map(make, some))["lane"].tolist()
        known = dict(zip(some, codes, strict=True))
        return np.fromiter(map(known.__getitem__, pairs), np.int32, len(pairs))

    def streams(self, device: Ints, stream: Ints, queue: Ints) -> NDArray[np.int32]:
        """Return the lanes of work; its queue tells where no stream is recorded."""
        stream = np.where(stream == MISSING, queue, stream)
        return self.lanes(device, np.where(stream == MISSING, 0, stream), lambda ids: ("device", *ids))

    def grids(self, sizes: Sequence[Ints], *, in_items: bool) -> NDArray[np.int64]:
        """Return codes of details with grid and block, -1 where they are not known.

        ``in_items`` : the grid counts work items, where HIP and Kineto count groups of them.
        """
        table = np.stack(sizes, axis=1).reshape(-1, 6)
        known = np.flatnonzero((table > 0).all(axis=1))
        out = np.full(len(table), -1, np.int64)
        distinct, which = np.unique(table[known], axis=0, return_inverse=True)
        if in_items:
            distinct[:, :3] = -(-distinct[:, :3] // distinct[:, 3:])
        details = [
            b"\0".join(Detail(grid=b"[%d, %d, %d]" % tuple(row[:3]), block=b"[%d, %d, %d]" % tuple(row[3:])))
            for row in distinct.tolist()
        ]
        out[known] = self._builder.codes_of(details=details)["detail"][which.ravel()]
        return out

    def _dims(self, dims: Sequence[bytes]) -> NDArray[np.int64]:
        """Return codes of details that hold sizes of inputs alone, -1 where there are none."""
        known = [index for index, text in enumerate(dims) if text.startswith(b"[") and b"\0" not in text]
        out = np.full(len(dims), -1, np.int64)
        out[known] = self._builder.codes_of(details=[b"\0".join(Detail(dims=dims[index])) for index in known])["detail"]
        return out


# -- words ---------------------------------------------------------------------------------------


def copy_name(kind: str) -> str:
    """Write copies as Kineto does: ``Memcpy HtoD``."""
    way = COPY.search(kind)
    if way is not None:
        return f"Memcpy {way[1][0].upper()}to{way[2][0].upper()}"
    return "Memset (Device)" if SET.search(kind) else kind


def category_of_domain(domain: str) -> str:
    """Return the category of rocprofv3's records of the host: the domain is what it traced."""
    if domain.startswith(("MARKER_CONTROL", "MARKER_NAME")):
        return "overhead"  # calls that steer the profiler, or name what it shows
    return "cuda_runtime" if domain.startswith(("HIP", "HSA", "RCCL", "ROC")) else "user_annotation"
