"""A wide last layer is computed for positions whose results nobody reads.

Looks like: a layer with 256 outputs or more, and more outputs than inputs, whose results (also after softmax or a
    scale) are only selected and sliced, until at most half of their rows are left: ``head(hidden)[:, -1]``, the scores
    of an answer behind a long question.
Slow because: the layer over the vocabulary is the widest of the model, and the softmax goes through all that it makes.
Cost: modelled: their time, times the share of rows that nobody reads; 60 % of that at the low end, on a device nothing.
Fix: pick the positions before the layer (``logits_to_keep`` of Hugging Face's models).
Leave it when: the whole result is read elsewhere, such as in NumPy.
Source: Hugging Face Transformers, ``logits_to_keep`` of ``forward``; EleutherAI's lm-evaluation-harness.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.trace import Kind
from torchtriage.core.trace.matrix_products import products
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claims, Fix, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "KRN075", "A layer is computed for rows that nobody reads", order=549, needs="ops shapes work"
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
MOST_CALLS, MOST_AFTER = 200, 1000
"""Calls of a layer that are followed, and operators after each."""
_LAYERS = ("aten::linear", "aten::matmul")
_SAME_ROWS = ("aten::log_softmax", "aten::softmax", "aten::div", "aten::div_", "aten::mul", "aten::mul_")
_PARTS = ("aten::select", "aten::slice")
Shape = tuple[int, ...]


def find(trace: Trace) -> Claims:
    """Yield one claim over all wide layers most of whose rows are thrown away."""
    is_op = trace.kind == Kind.OP
    outer = np.flatnonzero(is_op & (trace.lane == trace.steps.lane))
    outer = outer[trace.tree.nearest(outer, is_op) < 0]
    at = np.flatnonzero(trace.named(*_LAYERS)[outer])
    of = products(trace, outer[at])
    wide = (of.batch == 1) & (of.n >= WIDE) & (of.n > of.k) & (of.m > 1)
    work = work_of(trace, outer[at[wide]]) if wide.any() else None
    if work is None or work.share < MIN_SHARE / 2:
        return
    some = at[wide][np.argsort(-trace.dur_ns[outer[at[wide]]], kind="stable")[:MOST_CALLS]]
    parts = {
        row: unread for place in some.tolist() for row, unread in _unread(trace, outer[place : place + MOST_AFTER])
    }
    work = work_of(trace, np.array(sorted(parts), np.int64)) if parts else None
    if work is None or work.share < MIN_SHARE:
        return
    unread = np.array([parts.get(row, 0.0) for row in work.op.tolist()])
    layers = np.isin(work.op, outer[some])
    mean = float(np.average(unread, weights=trace.dur_ns[work.rows]))
    widest = int(max(of.n[np.isin(at, some)]))
    yield work.claim(
        f"a layer with {widest:,} outputs, and what goes through all of them after it, takes {work.text};"
        f" {format_share(mean)} of the rows are never read",
        "layer",
        low=np.zeros(len(unread)) if trace.devices else LOW * unread,
        high=unread,
        method="times the share of rows that nobody reads",
        evidence={"share_unread": round(mean, 4), "n_outputs": widest},
        anchor=int(work.op[np.argmax(np.where(layers, trace.dur_ns[work.rows], -1))]),
    )


def _unread(trace: Trace, ops: Ints) -> Iterator[tuple[int, float]]:
    """Yield the layer that comes first, and what reads all rows of its result, with the share that nobody does."""
    inputs, which = inputs_of(trace, ops)
    names = [trace.names[code] for code in trace.name[ops].tolist()]
    given = [inputs[code] for code in which.tolist()]
    result = _result(names[0], given[0])
    whole, n_rows, n_read = {result}, math.prod(result[:-1]), 0
    taking, parts = [0], Counter[Shape]()
    for place in range(1, len(ops)):
        shapes = {tuple(given[place].shape(at)) for at in range(len(given[place].dims))}
        if names[place] in _LAYERS and _result(names[place], given[place]) in whole:
            break  # the next time
        if shapes & whole:
            if names[place] in _PARTS:
                part = _part(names[place], given[place])
                if part[-1:] != result[-1:]:
                    return
                if math.prod(part[:-1]) == n_rows:
                    whole.add(part)
                else:
                    parts[part] += 1
                    n_read += math.prod(part[:-1])
            elif names[place] in _SAME_ROWS and not n_read:
                taking.append(place)
            else:
                return
        elif names[place] in _PARTS and (before := next(iter(shapes & parts.keys()), None)):
            part = _part(names[place], given[place])
            if part[-1:] != result[-1:]:
                continue  # it was read all the same
            n_read += math.prod(part[:-1]) - math.prod(before[:-1]) * (parts[before] > 0)
            parts[before] -= 1
            parts[part] += 1
    if result and n_read and 1 - n_read / n_rows >= MIN_UNREAD:
        yield from ((int(ops[place]), 1 - n_read / n_rows) for place in taking)


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
