"""Which collectives of one rank exchange a few numbers in the middle of a step, such as the loss for a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Frame
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.collective_time import ENQUEUES, Collectives, find_collectives
from torchtriage.core.trace.frames import user_stack
from torchtriage.core.trace.schema import BACKWARD_NODE

MAX_BYTES = 512
"""Some dozens of numbers: losses and counts. What layers exchange of their channels, tokens or vectors is more."""
_EXCHANGES = r"(?i)all_?reduce|all_?gather|::reduce_$"
"""What brings numbers together; what one rank tells the others is new to them."""
_FORWARD = r"^(Distributed|FullySharded)DataParallel\.forward$"
_LAYER = r"(?i)conv|attention|matmul|gemm|linear|mm$|_mm|compiled|::(scaled_dot|lstm|gru|rnn)"


@dataclass(frozen=True, eq=False)
class RankExchanges:
    """Rows of such collectives.

    ``first`` : those that have a layer or a backward pass between them and the one before. ``stacks`` : the user's
    calls around them, innermost first, each with the rows that it asks for. ``known`` : whether any collective has a
    size and the operator that asked for it.
    """

    rows: Ints
    first: Ints
    stacks: Mapping[tuple[Frame, ...], Ints] = field(default_factory=dict)
    known: bool = True


def rank_exchanges(trace: Trace) -> RankExchanges:
    """Return what a rank exchanges of a few numbers in the middle of its steps.

    The main thread asks for them outside of all layers, right behind a backward pass or right before one, and not
    between the last one and the optimizer: what is exchanged there, such as a norm of gradients, the optimizer needs.
    """
    found = find_collectives(trace)
    if found is None:
        return RankExchanges(np.empty(0, np.int64), np.empty(0, np.int64))
    op, rows = _small(trace, found)
    updates = trace.start_ns[(trace.lane == trace.steps.lane) & trace.matching(r"^Optimizer\.step#")]
    # where neither marks the end of a step, what the optimizer needs looks like what a log does
    if not len(op) or (not len(updates) and len(trace.steps) < 2):
        none = rows[:0]
        return RankExchanges(none, none, known=bool(((found.enqueued_by >= 0) & (found.size_bytes >= 0)).any()))
    main = trace.lane == trace.steps.lane
    ops = trace.kind == Kind.OP
    engine = ops & trace.matching(f"^{BACKWARD_NODE}")
    passes = np.sort(trace.start_ns[engine])
    edges = np.sort(updates if len(updates) else trace.steps.end_ns)
    # on a CPU the backward pass, with products of its own, may be on the main thread
    layers = np.sort(trace.start_ns[main & ops & trace.matching(_LAYER) & ~engine & ~trace.tree.under(engine)])
    at_ns = trace.start_ns[op]
    (before, after), (layer, next_layer) = _around(passes, at_ns), _around(layers, at_ns)
    # with a layer on both sides it may be a layer's
    middle = ((layer <= before) | (next_layer >= after)) & (after < _around(edges, at_ns)[1])
    op, rows, turn = op[middle], rows[middle], np.maximum(before, layer)[middle]
    first = np.append(True, turn[1:] != turn[:-1])[: len(turn)]
    asked: dict[tuple[Frame, ...], list[int]] = {}
    for row, asking in zip(rows.tolist(), op.tolist(), strict=True):
        asked.setdefault(user_stack(trace, asking), []).append(row)
    return RankExchanges(rows, rows[first], {stack: np.array(its, np.int64) for stack, its in asked.items()})


def _small(trace: Trace, found: Collectives) -> tuple[Ints, Ints]:
    """Return the ops that exchange a few numbers outside of all others and of wrapped models, and their rows."""
    op = found.enqueued_by
    use = np.flatnonzero((op >= 0) & (found.size_bytes >= 0) & (found.size_bytes <= MAX_BYTES))
    inside = (trace.kind == Kind.OP) & ~trace.matching(ENQUEUES) | trace.hosts & trace.matching(_FORWARD)
    use = use[trace.matching(_EXCHANGES)[op[use]] & (trace.lane[op[use]] == trace.steps.lane)]
    use = use[trace.tree.nearest(op[use], inside) < 0]
    use = use[np.argsort(trace.start_ns[op[use]], kind="stable")]
    return op[use], found.rows[use]


def _around(sorted_ns: Ints, at_ns: Ints) -> tuple[Ints, Ints]:
    """Return the moment before each and the one after it; far off where there is none."""
    index = np.searchsorted(sorted_ns, at_ns)
    ends = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    whole = np.concatenate([[ends[0]], sorted_ns, [ends[1]]])
    return whole[index], whole[index + 1]
