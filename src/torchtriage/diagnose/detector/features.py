"""What a window of a trace looks like, in numbers that carry over to other models and devices.

Times are shares of the window, counts are shares of the operators or logarithms of how many there
are in a millisecond. Each is given twice: as it is, and less the trace's own median, because what
is ordinary in one program is odd in another. Where in its step a window lies is no feature.

A row that lies in several windows counts in each with the time it is in it. Its own time is what
none of its children covers: each row adds its time to its family and takes it from its parent's.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask, distinct
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.nesting import Tree
from torchtriage.core.trace.schema import Kind
from torchtriage.diagnose.detector.collective_features import COLLECTIVES, collective_columns
from torchtriage.diagnose.detector.device_features import DEVICE, device_columns
from torchtriage.diagnose.detector.families import FRAME_FAMILIES, HOST_FAMILIES
from torchtriage.diagnose.detector.windows import Columns, Pieces, Windows, bounded, families_of, ratio

HOST = tuple(name for name, _ in HOST_FAMILIES)
FRAME = tuple(name for name, _ in FRAME_FAMILIES)

PER_STEP = 16
"""Windows of a step: equal pieces."""
_SMALL, _LARGE = 4096, 1 << 20
"""Elements: an operator on fewer is mostly overhead, one on more is mostly work."""
_MOST = 1 << 62
"""Elements that a damaged shape may claim."""

ABOUT: tuple[str, ...] = (
    "has stacks",
    "has shapes",
    "has device",
    "trace has backward",
    "trace has optimizer",
    "device launches recorded",
)
"""Of the whole trace: what the others can be trusted for."""

_SHAPE = (
    "op depth",
    "ops per ms",
    "log own op time",
    "longest op",
    "quiet host",
    "longest quiet",
    "phase backward",
    "phase optimizer",
    "phase loader",
)
_REPEAT = ("same op again", "distinct ops", "same inputs again", "in a period", "passes in step")
_OF_DETAIL = (
    "double",
    "half",
    "integer",
    "batch of one",
    "small",
    "large",
    "log elements",
    "rows last",
    "layouts differ",
)
_INPUTS = (
    *_OF_DETAIL,
    "known inputs",
    "tracked",
    "tracked without backward",
    "norm by batch without backward",
    "inputs grow",
)
_TOLD = ("known", "elements", "double", "half", "integer", "batch of one", "rows last", "layouts differ")
_FRAMES = ("depth", "frames per ms")

BASE: tuple[str, ...] = (
    *_SHAPE,
    *(f"host time {name}" for name in HOST),
    *(f"host count {name}" for name in HOST),
    *_REPEAT,
    *(f"inputs {name}" for name in _INPUTS),
    *(f"frame time {name}" for name in FRAME),
    *(f"frame {name}" for name in _FRAMES),
    *DEVICE,
    *COLLECTIVES,
)
"""What is measured of each window by itself."""

NAMES: tuple[str, ...] = (*BASE, *(f"{name}, beside the trace" for name in BASE), *ABOUT)
"""The columns of :func:`window_features`."""


def windows(trace: Trace) -> Ints:
    """Return int64[n, 2]: beginning and end in ns, ``PER_STEP`` for each step of the host.

    A recording without steps is one step.
    """
    steps = trace.steps
    begin_ns, end_ns = steps.host_start_ns, steps.host_end_ns
    if not len(steps):
        begin_ns, end_ns = (np.array([item], np.int64) for item in steps.window[:2])
    return windows_within(begin_ns, end_ns)


def windows_within(begin_ns: Ints, end_ns: Ints) -> Ints:
    """Return int64[n, 2]: ``PER_STEP`` windows of equal length in each of these stretches."""
    at = np.linspace(0, 1, PER_STEP + 1)
    edges = np.rint(begin_ns[:, None] + (end_ns - begin_ns)[:, None] * at).astype(np.int64)
    return np.stack([edges[:, :-1].ravel(), edges[:, 1:].ravel()], axis=1)


def window_features(trace: Trace, windows_ns: Ints) -> NDArray[np.float32]:
    """Return float32[n, len(NAMES)]: what each window looks like.

    ``windows_ns`` : int64[n, 2], beginning and end of each, in any order, none inside another.
    """
    count = len(windows_ns)
    if not count:
        return np.zeros((0, len(NAMES)), np.float32)
    order = np.argsort(windows_ns[:, 0], kind="stable")
    windows = Windows(windows_ns[order])
    columns = _host(trace, windows) | _frames(trace, windows)
    columns |= device_columns(trace, windows) | collective_columns(trace, windows)
    base = np.stack([columns[name] for name in BASE], axis=1)
    about = np.tile(_about(trace), (count, 1))
    features = np.empty((count, len(NAMES)), np.float32)
    features[order] = np.concatenate([base, base - np.median(base, axis=0), about], axis=1)
    return features


def _about(trace: Trace) -> Floats:
    names = [trace.names[code] for code in distinct(trace.name[trace.hosts]).tolist()]
    backward = any(name.startswith("autograd::engine") or "Backward" in name for name in names)
    optimizer = any(name.startswith("Optimizer.step#") for name in names)
    works = trace.works
    launched = float((trace.links.call[works] >= 0).mean()) if works.any() else 0.0
    present = (trace.has_stacks, trace.has_shapes, bool(works.any()), backward, optimizer, launched)
    return np.array(present, np.float64)


# -- host ----------------------------------------------------------------------------------------


def _host(trace: Trace, windows: Windows) -> Columns:
    tree = trace.tree
    family = families_of(trace, trace.hosts, HOST_FAMILIES)
    annotation = HOST.index("annotation")
    rows = tree.members
    codes = family[trace.name[rows]]
    plain = (codes == len(HOST) - 1) & (trace.kind[rows] == Kind.ANNOTATION)
    codes[plain] = annotation
    start_ns, end_ns = trace.start_ns[rows], trace.end_ns[rows]
    pieces = windows.cut(start_ns, end_ns)
    own = _own_time(windows, tree, rows, codes, pieces, len(HOST))
    ops = trace.kind[rows] == Kind.OP
    begun = pieces.begins & (ops | (trace.kind[rows] == Kind.RUNTIME))[pieces.at]
    at, window = pieces.at[begun], pieces.window[begun]
    counts = windows.sums(window, codes[at], len(HOST))
    n_ops = counts.sum(axis=1)
    columns = {f"host time {name}": own[:, k] for k, name in enumerate(HOST)}
    columns |= {f"host count {name}": ratio(counts[:, k], n_ops) for k, name in enumerate(HOST)}
    columns |= _shape(trace, windows, rows, codes, ops, at, window)
    columns |= _repeats(trace, windows, rows[ops])
    columns |= _inputs(trace, windows, rows[at], codes[at], window)
    return columns


def _own_time(windows: Windows, tree: Tree, rows: Ints, codes: Ints, pieces: Pieces, n_codes: int) -> Floats:
    """Return float64[count, n_codes]: shares of the windows that are the families' own time."""
    place = np.full(len(tree.parent) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    above = place[tree.parent[rows]]
    own = windows.sums(pieces.window, codes[pieces.at], n_codes, pieces.inside_ns)
    above = above[pieces.at]
    inner = above >= 0
    own -= windows.sums(pieces.window[inner], codes[above[inner]], n_codes, pieces.inside_ns[inner])
    return np.maximum(own, 0) / windows.wall_ns[:, None]


def _shape(trace: Trace, windows: Windows, rows: Ints, codes: Ints, ops: Mask, at: Ints, window: Ints) -> Columns:
    tree = trace.tree
    depth = np.zeros(len(trace), np.int64)
    for level, members in enumerate(tree.levels):
        depth[members] = level
    n_ops = windows.total(window)
    main = trace.lane[rows] == trace.steps.lane
    work = main & (ops | (trace.kind[rows] == Kind.RUNTIME))
    busy = intervals.union(intervals.spans(trace.start_ns[rows[work]], trace.end_ns[rows[work]]))
    own_ns = tree.self_ns[rows[at]]

    def phase(*names: str) -> Floats:
        chosen = rows[np.isin(codes, [HOST.index(name) for name in names])]
        return windows.share(trace.time_of(chosen))

    return {
        "op depth": ratio(windows.total(window, depth[rows[at]]), n_ops),
        "ops per ms": windows.per_ms(window),
        "log own op time": ratio(windows.total(window, np.log1p(own_ns)), n_ops),
        "longest op": bounded(windows.most(window, trace.dur_ns[rows[at]])),
        "quiet host": 1 - windows.share(busy),
        "longest quiet": windows.longest(busy),
        "phase backward": phase("engine"),
        "phase optimizer": phase("optimizer", "zero_grad"),
        "phase loader": phase("loader", "loader here"),
    }


def _repeats(trace: Trace, windows: Windows, ops: Ints) -> Columns:
    above = trace.tree.parent[ops]
    outer = (above < 0) | (trace.kind[above] != Kind.OP)
    rows = ops[outer]
    name, detail = trace.name[rows].astype(np.int64), trace.detail[rows].astype(np.int64)
    window = intervals.owner(windows.spans, trace.start_ns[rows])
    inside = window >= 0
    n_rows = windows.total(window[inside])

    def share(mask: Mask) -> Floats:
        return ratio(windows.total(window[mask & inside]), n_rows)

    again = _shifted(name, 1)
    period = np.zeros(len(rows), dtype=bool)
    for gap in range(2, 9):
        period |= _shifted(name, gap)
    pairs = distinct(window[inside] * len(trace.names) + name[inside])
    n_kinds = windows.total(pairs // len(trace.names))
    # the same call with the same inputs, how often in its step?
    steps = trace.steps
    step = intervals.owner(intervals.spans(steps.host_start_ns, steps.host_end_ns), trace.start_ns[rows])
    call = np.unique(name * (len(trace.details) + 1) + detail + 1, return_inverse=True)[1]
    in_step = step * (int(call.max(initial=0)) + 1) + call
    _, which, times = np.unique(in_step, return_inverse=True, return_counts=True)
    passes = np.log1p(times[which])
    return {
        "same op again": share(again),
        "distinct ops": ratio(n_kinds, n_rows),
        "same inputs again": share(again & _shifted(detail, 1)),
        "in a period": share(period & ~again),
        "passes in step": ratio(windows.total(window[inside], passes[inside]), n_rows),
    }


def _shifted(values: Ints, by: int) -> Mask:
    same = np.zeros(len(values), dtype=bool)
    same[by:] = values[by:] == values[:-by] if by < len(values) else False
    return same


# -- inputs --------------------------------------------------------------------------------------


def _inputs(trace: Trace, windows: Windows, rows: Ints, codes: Ints, window: Ints) -> Columns:
    table = _details(trace, rows)
    known = (trace.detail[rows] >= 0) & table["known"][trace.detail[rows]].astype(bool)
    seen, detail, where = rows[known], trace.detail[rows[known]], window[known]
    n_known, n_rows = windows.total(where), windows.total(window)
    columns = {f"inputs {name}": ratio(windows.total(where, table[name][detail]), n_known) for name in _OF_DETAIL}
    ops = trace.kind[rows] == Kind.OP
    tracked = ops & (trace.key[rows] >= 0)
    backward = bool(_about(trace)[ABOUT.index("trace has backward")])
    batch = np.zeros(len(rows), dtype=bool)
    if not backward:
        batch[known] = _norms_by_batch(trace, seen, codes[known])
    tracked_share = ratio(windows.total(window[tracked]), n_rows)
    columns |= {
        "inputs known inputs": ratio(n_known, n_rows),
        "inputs tracked": tracked_share,
        "inputs tracked without backward": tracked_share * (not backward),
        "inputs norm by batch without backward": np.minimum(windows.total(window[batch]), 1.0),
        "inputs inputs grow": _growing(trace, windows, seen, table, where),
    }
    return columns


def _details(trace: Trace, rows: Ints) -> dict[str, Floats]:
    """Return per entry of ``trace.details`` what its shapes and types say, if rows use it."""
    table = {name: np.zeros(max(len(trace.details), 1)) for name in {*_OF_DETAIL, *_TOLD}}
    used = np.flatnonzero(np.bincount(trace.detail[rows] + 1, minlength=1)) - 1
    shapes, kinds = _Shapes(), _Types()
    codes, found = [], []
    for code in used[used >= 0].tolist():
        detail = trace.details[code]
        elements, first, second = shapes[detail.dims]
        if not first:
            continue
        single = len(first) >= 3 and first[0] == 1
        last = differ = False
        if len(first) == 4:
            _, strides, others = shapes[detail.strides]
            last = _rows_last(first, strides)
            # an image with its channels apart, beside weights with theirs together
            differ = len(second) == 4 and last != _rows_last(second, others)
        codes.append(code)
        found.append((1, elements, *kinds[detail.types], single, last, differ))
    if codes:
        for name, column in zip(_TOLD, np.array(found, np.float64).T, strict=True):
            table[name][codes] = column
    table["small"] = table["known"] * (table["elements"] < _SMALL)
    table["large"] = table["known"] * (table["elements"] >= _LARGE)
    table["log elements"] = np.log1p(table["elements"])
    return table


class _Shapes(dict[bytes, tuple[float, list[int], list[int]]]):
    """Elements of the largest input, and the first two's shapes, by the text; 0 and [] if none."""

    def __missing__(self, text: bytes) -> tuple[float, list[int], list[int]]:
        try:
            value = msgspec.json.decode(text) if text else None
        except msgspec.DecodeError:
            value = None
        shapes = [item for item in value if _is_shape(item)] if type(value) is list else []
        most = float(min(max(map(math.prod, shapes), default=0), _MOST))
        first, second = [*shapes, [], []][:2]
        self[text] = out = most, first, second
        return out


class _Types(dict[bytes, tuple[bool, bool, bool]]):
    def __missing__(self, text: bytes) -> tuple[bool, bool, bool]:
        half = b"Half" in text or b"BFloat16" in text
        self[text] = out = b'"double"' in text, half, text.startswith(b'["long')
        return out


def _rows_last(shape: list[int], strides: list[int]) -> bool:
    return len(strides) == 4 and strides[1] == 1 and strides[3] == shape[1] > 1


def _is_shape(value: Any) -> bool:
    return type(value) is list and set(map(type, value)) == {int}


def _norms_by_batch(trace: Trace, rows: Ints, codes: Ints) -> Mask:
    """Return which rows normalise by the batch they are given: their flag ``training`` is set."""
    out = np.zeros(len(rows), dtype=bool)
    norms = np.flatnonzero(codes == HOST.index("norm"))
    for at, concrete in zip(norms.tolist(), trace.details_of("concrete", rows[norms]), strict=True):
        name = trace.name_of(int(rows[at]))
        if name == "aten::batch_norm" and isinstance(concrete, list) and len(concrete) > 5:
            out[at] = str(concrete[5]) == "True"
    return out


def _growing(trace: Trace, windows: Windows, rows: Ints, table: dict[str, Floats], window: Ints) -> Floats:
    joins = np.flatnonzero(trace.where_name(lambda name: name in ("aten::cat", "aten::stack"))[rows])
    size = table["elements"][trace.detail[rows[joins]]]
    grows = np.zeros(len(joins), dtype=bool)
    grows[1:] = size[1:] > size[:-1]
    n_joins = windows.total(window[joins])
    return ratio(windows.total(window[joins[grows]]), n_joins) * np.minimum(n_joins / 4, 1)


# -- Python frames -------------------------------------------------------------------------------


def _frames(trace: Trace, windows: Windows) -> Columns:
    columns = {f"frame time {name}": np.zeros(windows.count) for name in FRAME}
    columns |= {f"frame {name}": np.zeros(windows.count) for name in _FRAMES}
    if not trace.has_stacks:
        return columns
    tree = trace.frames
    rows = tree.members
    codes = families_of(trace, trace.kind == Kind.PYTHON, FRAME_FAMILIES)[trace.name[rows]]
    pieces = windows.cut(trace.start_ns[rows], trace.end_ns[rows])
    own = _own_time(windows, tree, rows, codes, pieces, len(FRAME))
    depth = np.zeros(len(trace), np.int64)
    for level, members in enumerate(tree.levels):
        depth[members] = level
    at, window = pieces.at[pieces.begins], pieces.window[pieces.begins]
    columns |= {f"frame time {name}": own[:, k] for k, name in enumerate(FRAME)}
    columns["frame depth"] = ratio(windows.total(window, depth[rows[at]]), windows.total(window))
    columns["frame frames per ms"] = windows.per_ms(window)
    return columns
