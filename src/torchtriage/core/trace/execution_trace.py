"""The inputs of operators, from the execution trace (Chakra) that PyTorch wrote beside a profiler's file.

``ExecutionTraceObserver`` records every operator with its inputs, however the profiler was set. Both record a thread's
operators in the order in which they begin, so an operator of one is known in the other by its place: where the names
of a thread's operators in the execution trace are, one after the other, names of a thread's in the profiler's file,
and in one place only, they are the same. (So it is in all pairs at hand: PyTorch 2.0 to 2.13.) The ids of record
functions, which the profiler writes too since 2.2, have to agree, and tell equal places apart.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import LONGEST, elide
from torchtriage.core.trace.columns import Detail, Trace
from torchtriage.core.trace.input import open_source
from torchtriage.core.trace.schema import Kind
from torchtriage.core.units import DEFAULT_MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_PLACES = 1000
"""Equal places that ids distinguish."""


_PAIR = "pass the execution trace and the profiler's file of one process, recorded in the same steps"


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


_NONE = msgspec.Raw(b"[]")


class _Inputs(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] = []


class _Node(msgspec.Struct):
    """What is read of a node. Since schema 1.0.2 ``inputs`` holds all of them, and ids are attributes."""

    id: int
    name: str
    tid: int = 0
    rf_id: int = 0
    inputs: msgspec.Raw = _NONE
    input_shapes: msgspec.Raw = _NONE
    input_types: msgspec.Raw = _NONE
    attrs: list[_Attribute] = []

    def __post_init__(self) -> None:
        for attribute in self.attrs:
            if attribute.name in ("tid", "rf_id") and type(attribute.value) is int:
                setattr(self, attribute.name, attribute.value)
        self.attrs = []

    def given(self) -> _Inputs:
        """Return the inputs; raises msgspec.DecodeError: they are written in another way."""
        inputs = msgspec.json.decode(self.inputs, type=_Inputs | list[Any])
        if isinstance(inputs, _Inputs):
            return inputs
        shapes = msgspec.json.decode(self.input_shapes, type=list[Any])
        return _Inputs(inputs, shapes, msgspec.json.decode(self.input_types, type=list[str]))


class _File(msgspec.Struct):
    nodes: list[_Node]
    pid: int | None = None


def join_inputs(trace: Trace, path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Trace:
    """Return ``trace`` with the inputs that its operators have in an execution trace; what it has itself stays.

    Raises TraceFormatError: ``path`` is no execution trace, or not of what ``trace`` recorded.
    """
    try:
        return _join(trace, path, max_bytes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(
            f"expected an execution trace with nodes, found another file: {error}",
            where=os.fspath(path),
            hint="pass what ExecutionTraceObserver wrote",
        ) from error


def _join(trace: Trace, path: str | os.PathLike[str], max_bytes: int) -> Trace:
    with open_source(path, max_bytes=max_bytes) as source:
        text = b"".join(iter(lambda: source.read(1 << 20), b""))
    file = msgspec.json.decode(text, type=_File)
    processes = {trace.lanes[lane].pid for lane in np.unique(trace.lane[trace.kind == Kind.OP]).tolist()}
    if file.pid is not None and str(file.pid) not in processes:
        raise TraceFormatError(
            f"expected an execution trace of process {', '.join(sorted(processes))}, found one of {file.pid}",
            where=os.fspath(path),
            hint=_PAIR,
        )
    threads = _threads(file.nodes, trace)
    lanes = _lanes(trace, {node.name for nodes in threads for node in nodes})
    details = list(trace.details)
    codes: dict[Detail, int] = {}
    column = trace.detail.copy()
    most, n_joined = 0, 0
    for nodes in threads:
        rows, n_places = _place(nodes, lanes, trace)
        most = max(most, n_places)
        n_joined += len(rows)
        for node, row in zip(nodes, rows.tolist(), strict=False):
            known = trace.details[column[row]] if column[row] >= 0 else Detail()
            if not known.dims and not known.concrete:
                joined = known._replace(**_detail(node.given()))
                if joined not in codes:
                    codes[joined] = len(details)
                    details.append(joined)
                column[row] = codes[joined]
    if not n_joined:
        found = f"them in {most:,} places, and nothing tells in which" if most else "other operators, or another order"
        raise TraceFormatError(
            f"expected operators that {trace.report.path or 'the trace'} has in the same order, found {found}",
            where=os.fspath(path),
            hint=_PAIR,
        )
    n_ops = np.count_nonzero(trace.kind == Kind.OP)
    inputs = f"{n_joined:,} of {n_ops:,} operators have their inputs from {Path(path).name}"
    return replace(
        trace, detail=column, details=tuple(details), report=msgspec.structs.replace(trace.report, inputs=inputs)
    )


def _threads(nodes: list[_Node], trace: Trace) -> list[list[_Node]]:
    """Return the operators of each thread that the trace has, too, in the order in which they begin."""
    names = {trace.names[code] for code in np.unique(trace.name[trace.kind == Kind.OP]).tolist()}
    threads = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.id):
        node.name = elide(node.name, LONGEST)
        if node.name in names:
            threads[node.tid].append(node)
    return list(threads.values())


def _lanes(trace: Trace, names: set[str]) -> list[Ints]:
    """Return the rows of each thread's operators with such names, in file order: that of their begin."""
    ops = (trace.kind == Kind.OP) & trace.named(*names)
    rows = np.flatnonzero(ops)
    rows = rows[np.argsort(trace.lane[rows], kind="stable")]
    return [part for part in np.split(rows, np.flatnonzero(np.diff(trace.lane[rows])) + 1) if len(part)]


def _place(nodes: list[_Node], lanes: list[Ints], trace: Trace) -> tuple[Ints, int]:
    """Return the rows of a thread's operators, none where they are not known, and how many places fit."""
    codes = {name: code for code, name in enumerate(trace.names)}
    wanted = np.array([codes[node.name] for node in nodes], np.int32)
    places = [rows[at : at + len(wanted)] for rows in lanes for at in _occurrences(trace.name[rows], wanted)]
    ids = [trace.args(int(rows[0])).get("Record function id") for rows in places]
    places = [rows for rows, written in zip(places, ids, strict=True) if written in (None, nodes[0].rf_id)]
    return (places[0] if len(places) == 1 else np.empty(0, np.int64)), len(places)


def _occurrences(names: NDArray[np.int32], wanted: NDArray[np.int32]) -> Iterator[int]:
    """Return where ``wanted`` begins in ``names``, at most a thousand times; linear, as the search in bytes is."""
    size = names.dtype.itemsize
    text, part = names.tobytes(), wanted.tobytes()

    def starts() -> Iterator[int]:
        at = text.find(part)
        while at >= 0:
            if at % size == 0:
                yield at // size
            at = text.find(part, at + 1)

    return islice(starts(), _MOST_PLACES)


# -- a node's inputs as the profiler writes them -------------------------------------------------


def _detail(inputs: _Inputs) -> dict[str, bytes]:
    encode, types = msgspec.json.encode, inputs.types
    detail = {
        "dims": encode(list(map(_sizes, types, inputs.shapes))),
        "types": encode(list(map(_type, types))),
        "concrete": encode(list(map(_concrete, types, inputs.values))),
    }
    if inputs.strides:
        detail["strides"] = encode(list(map(_sizes, types, inputs.strides)))
    return detail if types else {}


def _sizes(kind: str, value: Any) -> Any:
    return value if kind.startswith(("Tensor(", "GenericList[Tensor(")) else []


def _type(kind: str) -> str:
    if kind.startswith("Tensor("):
        return "" if "uninitialized" in kind else kind[len("Tensor(") : -1]
    if kind.startswith("GenericList["):
        return "TensorList" if kind.startswith("GenericList[Tensor(") else "ScalarList"
    return "Scalar" if kind in ("Int", "Double", "Bool") else ""


def _concrete(kind: str, value: Any) -> str:
    if kind.startswith("GenericList[") and isinstance(value, list):
        return "" if "Tensor" in kind else f"[{', '.join(map(str, value))}]"
    return str(value) if kind in ("Int", "Double", "Bool") else ""
