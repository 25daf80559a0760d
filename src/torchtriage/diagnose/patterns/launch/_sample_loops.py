"""Loops over the elements of a tensor: rounds of the same operators, by ``select`` or after ``unbind``."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_inputs import inputs_of
from torchtriage.core.trace.op_runs import outer_ops
from torchtriage.core.trace.schema import LOADER_NAME
from torchtriage.diagnose.patterns.base import Ints, Kind, Mask, Spans, Trace

MIN_ROUNDS = 8  # rounds of one loop (catalogue 17; PyTorch's own matcher asks for 10 calls)
MAX_ROUND_OPS = 1000  # a longer way to the next index is a coincidence of two loops over steps or layers
MAX_PERIODS = 32  # lengths of a round that are tried, the shortest first


class SampleLoop(NamedTuple):
    """Runs of one kind of round: its ops, those that begin the rounds, their host time.

    ``over`` : an operator whose first input is the tensor.
    """

    body: list[str]
    rounds: int
    runs: int
    begins: Ints
    spans: Spans
    over: int


def select_loops(trace: Trace, ops: Ints) -> list[SampleLoop]:
    """Return the loops of the main thread, those that do the same thing together."""
    names = trace.name[ops]
    at, joined = _rounds(trace, ops)
    if not len(at):
        return []
    # a round ends where the next one begins; the last one is as long as the one before
    length = np.ones(len(at), np.int64)
    length[:-1][joined[1:]] = np.diff(at)[joined[1:]]
    last = joined & ~np.append(joined[1:], False)
    length[last] = np.minimum(length[np.flatnonzero(last) - 1], len(ops) - at[last])
    what = _signatures(names, at, length)
    run = np.cumsum(~joined) - 1
    first = np.flatnonzero(~joined)
    rounds = np.bincount(run)
    equal = np.bincount(run[1:], joined[1:] & (what[1:] == what[:-1]), minlength=len(first))
    # a branch may differ from round to round: half of them have to be like their neighbour
    good = (rounds >= MIN_ROUNDS) & (2 * equal >= rounds) & (length[first] > 1)
    begin, end = at[first], at[first + rounds - 1] + length[first + rounds - 1]
    kind = _signatures(names, at, np.minimum(length, 3))[first]
    members: dict[int, list[int]] = {}
    reach = 0
    candidates = np.flatnonzero(good)
    for candidate in candidates[np.lexsort((-end[candidates], begin[candidates]))].tolist():
        # x[i] and y[i] in one body, and loops inside it, are the same loop
        if begin[candidate] >= reach:
            members.setdefault(int(kind[candidate]), []).append(candidate)
            reach = end[candidate]
    loops = []
    for same in members.values():
        longest = max(same, key=lambda item: rounds[item])
        body = at[first[longest]] + np.arange(length[first[longest]])
        start_ns, end_ns = trace.start_ns[ops[begin[same]]], trace.end_ns[ops[end[same] - 1]]
        loops.append(
            SampleLoop(
                [trace.name_of(row) for row in ops[body].tolist()],
                int(rounds[longest]),
                len(same),
                ops[at[np.isin(run, same)]],
                intervals.union(intervals.spans(start_ns, end_ns)),
                int(ops[begin[same[0]]]),
            )
        )
    return loops


def unbind_loops(trace: Trace, ops: Ints) -> list[SampleLoop]:
    """Return the loops over what ``unbind`` returned, those that do the same thing together."""
    found: dict[tuple[str, ...], list[tuple[int, int, int]]] = {}
    at = np.flatnonzero(trace.named("aten::unbind")[ops])
    inputs, which = inputs_of(trace, ops[at])
    step = trace.steps.of_host(ops)
    for place, code in zip(at.tolist(), which.tolist(), strict=True):
        shape = inputs[code].shape(0)
        axis = inputs[code].axis(1, len(shape))
        rounds = shape[axis] if axis >= 0 else 0
        length = _period(trace.name[ops], place + 1, rounds) if rounds >= MIN_ROUNDS else 0
        if length and step[place] == step[place + rounds * length]:
            body = ops[place + 1 : place + 1 + length]
            names = tuple(trace.name_of(row) for row in body.tolist())
            found.setdefault(names, []).append((place, rounds, length))
    loops = []
    for body_names, same in found.items():
        first = [place for place, _, _ in same]
        last = [place + rounds * length for place, rounds, length in same]
        start_ns, end_ns = trace.start_ns[ops[first]], trace.end_ns[ops[last]]
        begins = [place + 1 + length * np.arange(rounds) for place, rounds, length in same]
        loops.append(
            SampleLoop(
                list(body_names),
                max(rounds for _, rounds, _ in same),
                len(same),
                ops[np.concatenate(begins)],
                intervals.union(intervals.spans(start_ns, end_ns)),
                int(ops[first[0]]),
            )
        )
    return loops


def _period(names: NDArray[np.int32], first: int, rounds: int) -> int:
    ahead = names[first : first + MAX_ROUND_OPS + 2]
    again = ahead[1:-1] == ahead[:1]
    # a loop inside the round may begin like the round: two operators tell more of them apart
    clearly = again & (ahead[2:] == ahead[1:2])
    tried = [np.flatnonzero(which)[:MAX_PERIODS] + 1 for which in (again, clearly)]
    for length in distinct(np.concatenate(tried)):
        whole = names[first : first + rounds * int(length)]
        if len(whole) == rounds * length:
            body = whole.reshape(rounds, int(length))
            # a branch may differ from round to round: half of them have to be like the first
            if 2 * int((body == body[0]).all(axis=1).sum()) >= rounds:
                return int(length)
    return 0


def loop_ops(trace: Trace) -> Ints:
    """Return the main thread's ops that are in no other op nor loader, in time order.

    A loader reads a data set item by item, which is its own finding where it costs.
    """
    return outer_ops(trace, trace.tree.under(trace.matching(LOADER_NAME, Kind.ANNOTATION)))


def _rounds(trace: Trace, ops: Ints) -> tuple[Ints, Mask]:
    """Return the position of the op that begins each round, and whether it goes on with a run.

    Rounds of one run are neighbours; runs of different tensors may interleave in time.
    """
    at = np.flatnonzero(trace.named("aten::select")[ops])
    index, shape = _index_and_shape(trace, ops[at])
    order = np.argsort(shape, kind="stable")
    order = order[index[order] >= 0]
    at, index, shape = at[order], index[order], shape[order]
    step, near = np.diff(index), np.diff(at) <= MAX_ROUND_OPS
    same = (shape[1:] == shape[:-1]) & near
    begins = np.append(True, ~(same & (step == 0)))[: len(at)]
    # data[i] with i the number of the step is the loop of the training, not one in it
    of = trace.steps.of_host(ops[at])
    joined = np.append(False, same & (step == 1) & (of[1:] == of[:-1]))[: len(at)]
    return at[begins], joined[begins]


def _index_and_shape(trace: Trace, selects: Ints) -> tuple[Ints, Ints]:
    """Return the index each select takes (-1: not recorded) and a code for its tensor's shape."""
    codes, first, inverse = np.unique(trace.detail[selects], return_index=True, return_inverse=True)
    index = np.full(len(codes), -1, np.int64)
    shape = np.zeros(len(codes), np.int64)
    seen: dict[str, int] = {}
    concrete = trace.details_of("concrete", selects[first])
    dims = trace.details_of("dims", selects[first])
    for code, (values, sizes) in enumerate(zip(concrete, dims, strict=True)):
        if sizes and isinstance(values, list) and len(values) == 3:
            # the dimension belongs to the loop, the last value runs
            shape[code] = seen.setdefault(f"{sizes} {values[1]}", len(seen))
            text = str(values[2])
            index[code] = int(text) if text.isdecimal() and len(text) < 10 else -1
    return index[inverse], shape[inverse]


def _signatures(names: NDArray[np.int32], start: Ints, length: Ints) -> Ints:
    """Return a number per round (first op, number of ops) that is equal for equal sequences of names."""
    which = np.repeat(np.arange(len(start)), length)
    place = np.arange(len(which)) - np.repeat(np.cumsum(length) - length, length)
    # every (name, place) gets a scattered 64-bit number; sums of them do not collide in practice
    mixed = names[start[which] + place].astype(np.uint64) << np.uint64(32)
    mixed += place.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    out = np.zeros(len(start), np.uint64)
    np.add.at(out, which, mixed)
    return out.view(np.int64)
