"""What collectives exchange: their names, process groups and sizes, as the recording says it.

Newer versions of PyTorch write it to the kernel; older ones leave it with the operators around its launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from torchtriage.core.arrays import Floats, Ints, Mask
from torchtriage.core.names import short_name
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.schema import Kind

HOST_COLLECTIVE = r"^(gloo|mpi|ucc):"
_ANNOTATED = r"^(nccl|rccl|xccl|hccl|ucc):"
_RECORD = "record_param_comms"
_RECORD_INPUTS = (8, 10)
"""Inputs of a record that begins a collective, by version; the last is the size of the group."""
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "complexfloat"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
MAX_BYTES = 1 << 50  # what a damaged file gives as a size need not be one

# what of (n - 1) / n of the size n ranks put on the bus, and what they put there whole;
# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
# gather and scatter are sends and receives: the kernel of a rank that is not the root lasts as long as its own part
_SHARED = {"allreduce": 2, "allgather": 1, "reducescatter": 1, "alltoall": 1}
_ROOTED = ("broadcast", "reduce")
_KIND = re.compile(rf"({'|'.join((*_SHARED, *_ROOTED))})(base|oop|coalesced|v|single|into|tensor)*")


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: its name, and its members.

    Where the name was not recorded it is ``stream 1``, ``stream 2``, ... of those that communicate.

    ``ranks`` is empty where they were not recorded.
    """

    name: str
    ranks: tuple[int, ...] = ()
    what: str = ""
    """What the program called it, such as ``mesh_tp``."""

    @property
    def label(self) -> str:
        """What people call it; PyTorch's word for a group that nobody named is none."""
        return self.what if self.what not in ("", "undefined") else self.name


@dataclass(frozen=True, eq=False)
class Messages:
    """What some collectives exchange, one element for each of ``rows``: kernels, or annotations of host threads."""

    trace: Trace
    rows: Ints

    @cached_property
    def names(self) -> list[str]:
        """What each is called: by its argument, its annotation, or its kernel."""
        trace = self.trace
        around = self._around(trace.matching(_ANNOTATED, Kind.ANNOTATION, Kind.OP))
        names = []
        for row, note, given in zip(self.rows.tolist(), around.tolist(), self._said("collective"), strict=True):
            own = trace.name_of(row)
            text = given or (trace.name_of(note) if note >= 0 else own)
            text = str(text).split(":", 1)[-1] if ":" in str(text)[:6] else str(text)
            names.append(short_name(text) if text == own else text)
        return names

    @cached_property
    def groups(self) -> tuple[tuple[ProcessGroup, ...], Ints]:
        """The process groups, and the code of each collective's; streams where they were not recorded."""
        trace, known = self.trace, {name: group for name, (group, _) in self._configured.items()}
        # numbers of streams differ between ranks, their order does not
        lanes = sorted(set(trace.lane[self.rows].tolist()), key=lambda lane: (trace.lanes[lane].stream, lane))
        streams = {lane: place for place, lane in enumerate(lanes, 1) if trace.lanes[lane].kind == "stream"}
        table: dict[ProcessGroup, int] = {}
        codes = []
        for name, ranks, lane in zip(
            self._said("group"), self._said("ranks"), trace.lane[self.rows].tolist(), strict=True
        ):
            if name is None:
                only = next(iter(known.values())) if len(known) == 1 else None
                group = only or ProcessGroup(f"stream {streams[lane]}" if lane in streams else "")
            else:
                listed = _listed(ranks)
                config = known.get(str(name))
                group = ProcessGroup(str(name), listed or (config.ranks if config else ()))
                if config is not None:
                    group = ProcessGroup(group.name, group.ranks, config.what)
            codes.append(table.setdefault(group, len(table)))
        return tuple(table), np.array(codes, np.int64)

    @cached_property
    def seq(self) -> Ints:
        """int64[k]: the number of the collective in its group, -1 where it was not recorded."""
        return np.array(list(map(_whole, self._said("seq"))), np.int64)

    @cached_property
    def nelems(self) -> Ints:
        """int64[k]: elements that this rank puts in, -1 where they were not recorded."""
        out = np.array(list(map(_whole, self._said("nelems"))), np.int64)
        # older versions: the shape of the annotation's input
        old = np.array(list(map(_elements, self._at(self._note, "dims"))), np.int64)
        return np.where(out < 0, old, out)

    @cached_property
    def n_ranks(self) -> Ints:
        """int64[k]: members of the process group, 0 where they were not recorded."""
        groups, code = self.groups
        sizes = [len(group.ranks) or self._configured.get(group.name, (group, 0))[1] for group in groups]
        given = np.array(list(map(_whole, self._said("group_size"))), np.int64)
        old = np.array(list(map(_group_size, self._at(self._record, "concrete"))), np.int64)
        listed = np.array([*sizes, 0], np.int64)[code]
        return np.select([given > 0, listed > 0, old > 0], [given, listed, old], 0).astype(np.int64)

    @cached_property
    def dtypes(self) -> list[str]:
        """The type of each one's elements, as it was recorded; empty where it was not."""
        return [
            str(dtype or (types[0] if isinstance(types, list) and types else ""))
            for dtype, types in zip(self._said("dtype"), self._at(self._note, "types"), strict=True)
        ]

    @cached_property
    def size_bytes(self) -> Ints:
        """int64[k], bytes: the size as NCCL's tests count it, of a gather what comes out; -1 where it is not known."""
        item = list(map(item_bytes, self.dtypes))
        parts = np.where(np.array(self.kinds) == "allgather", self.n_ranks, 1)
        size = self.nelems.astype(np.float64) * item * parts
        # the kernels of one call divide its message in a way that nothing says
        _, which, count = np.unique(self._record, return_inverse=True, return_counts=True)
        whole = (self._record < 0) | (count[which] == 1)
        return np.where((size > 0) & (size < MAX_BYTES) & whole, size, -1).astype(np.int64)

    @cached_property
    def bus_factor(self) -> Floats:
        """float64[k]: bytes on the bus over the size; nan for groups of one, unknown ones, and other operations."""
        n = np.maximum(self.n_ranks, 1)
        shared = np.array([_SHARED.get(kind, np.nan) for kind in self.kinds], np.float64) * (n - 1) / n
        rooted = np.array([kind in _ROOTED for kind in self.kinds], dtype=bool)
        return np.where(n > 1, np.where(rooted, 1.0, shared), np.nan)

    @cached_property
    def kinds(self) -> list[str]:
        """The operation of each, ``allreduce`` or another of NCCL's; empty for others."""
        matches = (_KIND.fullmatch(re.sub(r"[^a-z]", "", name.lower())) for name in self.names)
        return [match[1] if match else "" for match in matches]

    # -- where it is written ---------------------------------------------------------------------

    @cached_property
    def _record(self) -> Ints:
        """int64[k]: the operator that says what each exchanges, -1 without."""
        return self._around((self.trace.kind == Kind.OP) & self.trace.named(_RECORD))

    @cached_property
    def _note(self) -> Ints:
        """int64[k]: the annotation of each, -1 without."""
        trace = self.trace
        mask = trace.matching(f"{_ANNOTATED}|{HOST_COLLECTIVE}", Kind.ANNOTATION)
        return np.where(mask[self.rows], self.rows, self._around(mask))

    @cached_property
    def _configured(self) -> dict[str, tuple[ProcessGroup, int]]:
        """The process groups of the job by name, and how many members each has."""
        info = self.trace.meta.get("distributedInfo")
        listed = info.get("pg_config") if isinstance(info, dict) else None
        out = {}
        for item in listed if isinstance(listed, list) else []:
            if isinstance(item, dict) and "pg_name" in item:
                name = str(item["pg_name"])
                group = ProcessGroup(name, _listed(item.get("ranks")), str(item.get("pg_desc") or ""))
                out[name] = group, max(_whole(item.get("pg_size")), 0)
        return out

    def _around(self, mask: Mask) -> Ints:
        """Return int64[k]: the innermost row of ``mask`` around each launch, -1 without."""
        call = self.trace.links.call[self.rows].astype(np.int64)
        out = np.full(len(call), -1, np.int64)
        out[call >= 0] = self.trace.tree.nearest(call[call >= 0], mask)
        return out

    def _said(self, what: str) -> list[Any]:
        """Return a detail of each: its own, else its record's, else None."""
        own, record = self.trace.details_of(what, self.rows), self._at(self._record, what)
        return [mine if mine is not None else theirs for mine, theirs in zip(own, record, strict=True)]

    def _at(self, rows: Ints, what: str) -> list[Any]:
        """Return a detail of some rows, None for -1."""
        details = self.trace.details_of(what, np.maximum(rows, 0))
        return [detail if row >= 0 else None for row, detail in zip(rows.tolist(), details, strict=True)]


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element of a type as PyTorch writes it, 0 where it is not known."""
    return _ITEM_BYTES.get(dtype.lower().removeprefix("c10::"), 0)


def _whole(value: Any) -> int:
    try:
        return int(value) if value is not None and abs(int(value)) < 1 << 62 else -1
    except (TypeError, ValueError, OverflowError):
        return -1


def _elements(dims: Any) -> int:
    shapes = [dim for dim in dims or [] if isinstance(dim, list)]
    if not shapes or not all(isinstance(n, int) for shape in shapes for n in shape):
        return -1
    return _whole(sum(prod(shape) for shape in shapes))


def _group_size(inputs: Any) -> int:
    return _whole(inputs[-1]) if isinstance(inputs, list) and len(inputs) in _RECORD_INPUTS else -1


def _listed(value: Any) -> tuple[int, ...]:
    """Return rank numbers from a list, or from its text; nothing when it was cut short."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = [int(match) for match in re.findall(r"\d+", value)]
    if not isinstance(value, list):
        return ()
    return tuple(item for item in value if isinstance(item, int))
