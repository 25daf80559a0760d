"""A wide last layer is computed for positions whose results are never read.

Looks like: a layer with 256 outputs or more, and more outputs than inputs, whose results (also after softmax or a
    scale) are only selected and sliced, until at most half of their rows are left: ``head(hidden)[:, -1]``, the scores
    of an answer behind a long question.
Slow because: the layer over the vocabulary is the widest of the model, and the softmax processes all of its output.
Cost: modelled: their time, times the share of rows that are never read; 60 % of that at the low end, on a device
    nothing.
Fix: pick the positions before the layer (``logits_to_keep`` of Hugging Face's models).
Leave it when: the whole result is read elsewhere, such as in NumPy.
Source: Hugging Face Transformers, ``logits_to_keep`` of ``forward``; EleutherAI's lm-evaluation-harness.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set

import numpy as np

from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.trace import Kind
from torchtriage.core.trace.matrix_products import is_shape, products
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claims, Fix, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "KRN075", "A layer is computed for rows that are never read", order=549, needs="ops shapes work"
)
FIX = Fix(
    text="Pick the positions before the layer, not after it.",
    code="""last = head(hidden[:, -1])  # not head(hidden)[:, -1]
scores = head(hidden[rows, positions]).log_softmax(-1)  # not of all positions""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html",
)

MIN_SHARE, MIN_UNREAD = 0.05, 0.5
WIDE = 256
LOW = 0.6
_LAYERS = ("aten::linear", "aten::matmul")
_SAME_ROWS = ("aten::log_softmax", "aten::softmax", "aten::div", "aten::div_", "aten::mul", "aten::mul_")
_PARTS = ("aten::select", "aten::slice")
Shape = tuple[int, ...]


def find(trace: Trace) -> Claims:
    """Yield one claim over all wide layers most of whose rows are thrown away."""
    is_op = trace.kind == Kind.OP
    layers = np.flatnonzero(trace.named(*_LAYERS) & is_op & (trace.lane == trace.steps.lane))
    layers = layers[trace.tree.nearest(layers, is_op) < 0]
    of = products(trace, layers)
    wide = (of.batch == 1) & (of.n >= WIDE) & (of.n > of.k) & (of.m > 1)
    work = work_of(trace, layers[wide]) if wide.any() else None
    if work is None or work.share < MIN_SHARE / 2:
        return
    outer = np.flatnonzero(is_op)
    outer = outer[trace.tree.nearest(outer, is_op) < 0]
    parts = {row: unread for n in distinct(of.n[wide]).tolist() for row, unread in _unread(trace, outer, n)}
    parts = {row: unread for row, unread in parts.items() if unread >= MIN_UNREAD}
    work = work_of(trace, np.array(sorted(parts), np.int64)) if parts else None
    if work is None or work.share < MIN_SHARE:
        return
    unread = np.array([parts.get(row, 0.0) for row in work.op.tolist()])
    own = np.isin(work.op, layers)
    anchor = int(work.op[np.argmax(np.where(own, trace.dur_ns[work.rows], -1))])
    n_outputs = int(of.n[np.searchsorted(layers, anchor)])
    mean = float(np.average(unread, weights=trace.dur_ns[work.rows]))
    yield work.claim(
        f"a layer with {n_outputs:,} outputs, and what goes through all of them after it, takes {work.text};"
        f" {format_share(mean)} of the rows are never read",
        "layer",
        low=np.zeros(len(unread)) if trace.devices else LOW * unread,
        high=unread,
        method="times the share of rows that nobody reads",
        evidence={"share_unread": round(mean, 4), "n_outputs": n_outputs},
        anchor=anchor,
    )


def _unread(trace: Trace, outer: Ints, width: int) -> Iterator[tuple[int, float]]:
    """Yield layers with so many outputs, and what goes through all of their results, with the share of unread rows."""
    inputs, which = inputs_of(trace, outer)
    shapes = [_shapes(given, width) for given in inputs]
    concerned = np.array([bool(found) for found in shapes])[which]
    concerned |= trace.named(*_LAYERS)[outer]
    calls: list[_Call] = []
    latest: dict[Shape, _Call] = {}
    read_whole: set[Shape] = set()
    for row, code in zip(outer[concerned].tolist(), which[concerned].tolist(), strict=True):
        name, given = trace.name_of(row), inputs[code]
        if name not in _PARTS and name not in _SAME_ROWS:
            read_whole |= shapes[code]
        if trace.lane[row] != trace.steps.lane:
            continue
        result = _result(name, given) if name in _LAYERS else ()
        if result[-1:] == (width,):
            latest[result] = call = _Call(row, result)
            calls.append(call)
            continue
        for call in {id(latest[shape]): latest[shape] for shape in shapes[code] & latest.keys()}.values():
            latest |= dict.fromkeys(call.take(row, name, given, shapes[code]), call)
    if not len(trace.steps):
        calls = calls[:-1]  # what reads it may come after the recording
    for call in calls:
        if call.n_read and not call.whole & read_whole:
            share = 1 - call.n_read / math.prod(call.result[:-1])
            yield from ((row, share) for row in call.rows)


class _Call:
    """A call of a layer; ``rows`` : it, and what goes through its whole result. ``n_read`` : rows read of that."""

    def __init__(self, row: int, result: Shape) -> None:
        self.rows, self.result, self.whole = [row], result, {result}
        self.n_read = 0
        self._parts = Counter[Shape]()

    def take(self, row: int, name: str, given: Inputs, shapes: Set[Shape]) -> list[Shape]:
        """Take in an operator with these wide inputs, and return the shapes of what is new of the result."""
        is_whole = bool(shapes & self.whole)
        if name in _SAME_ROWS:
            if is_whole and self.n_read:
                self.n_read = math.prod(self.result[:-1])  # all of it goes on after a part was taken
            elif is_whole:
                self.rows.append(row)
        elif name in _PARTS and (is_whole or shapes & self._parts.keys()):
            part, before = _part(name, given), tuple(given.shape(0))
            n_rows = math.prod(part[:-1])
            if part[-1:] != self.result[-1:]:
                self.n_read += math.prod(before[:-1])  # something else is taken: all of it is read
            elif is_whole and n_rows == math.prod(self.result[:-1]):
                self.whole.add(part)
                return [part]
            else:
                self.n_read += n_rows - math.prod(before[:-1]) * (self._parts[before] > 0)
                self._parts[before] -= 1
                self._parts[part] += 1
                return [part]
        return []


def _shapes(given: Inputs, width: int) -> set[Shape]:
    """Return the shapes of the inputs that are so wide, also those in lists of tensors."""
    lists = [
        value if isinstance(value, list) and value and isinstance(value[0], list) else [value] for value in given.dims
    ]
    some = [item for items in lists for item in items]
    return {tuple(shape) for shape in some if is_shape(shape) and len(shape) > 1 and shape[-1] == width}


def _result(name: str, given: Inputs) -> Shape:
    """Return the shape of a layer's result, empty where it is not known."""
    left, weight = given.shape(0), given.shape(1)
    if not left or len(weight) != 2:
        return ()
    return (*left[:-1], weight[0] if name == "aten::linear" else weight[1])


def _part(name: str, given: Inputs) -> Shape:
    """Return the shape of a part that is selected or sliced; empty where it is not known."""
    shape = given.shape(0)
    axis = given.axis(1, len(shape))
    if axis < 0:
        return ()
    if name == "aten::select":
        return tuple(shape[:axis] + shape[axis + 1 :])
    texts: Sequence[str] = [given.value(at) for at in (2, 3, 4)]
    if not all(re.fullmatch(r"-?\d{1,19}", text) for text in texts) or int(texts[2]) < 1:
        return ()
    n = len(range(*slice(*map(int, texts)).indices(shape[axis])))
    return (*shape[:axis], n, *shape[axis + 1 :])
