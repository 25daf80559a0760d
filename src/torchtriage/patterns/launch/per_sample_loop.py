"""Python loops over the elements of a tensor.

Looks like: ``aten::select`` operators that are not inside another operator and whose index runs
    0, 1, 2, ... over eight values or more on tensors of one shape in one step, each value followed
    by the same sequence of operators; or ``aten::unbind`` into eight or more (``for row in x``),
    followed by as many rounds of one sequence. Those of a ``DataLoader`` are left out.
Slow because: every element pays for its operators and launches, and each is too small to use the
    device.
Cost: (1 - 1/min(n, 16)) of the loop's host-late idle time, n being its rounds (without a device:
    of its host time without convolutions); the low end is half of it, divided by the profiler's
    inflation; nothing on a CPU whose rounds hold products, which take their time in any case. Where
    every round looks up rows of an embedding, its whole gradient is filled once per round: on a CPU
    that counts too, whatever else the round holds, since the rows are known before the loop.
Fix: one call on the whole batch.
Leave it when: a round needs the result of the one before (decoding, recurrences), or the rounds are
    micro-batches that memory asks for.
Source: torch.profiler._pattern_matcher, "For Loop Indexing Pattern"; measured: 1332 rounds per
    image in a mask generator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.distinct import distinct
from torchtriage.finding import Fix
from torchtriage.patterns._inputs import inputs_of
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, ms

PATTERN = Pattern(
    code="LCH017",
    name="per-sample-loop",
    family="launch",
    title="Python loop over the elements of a tensor",
    order=350,
    needs=frozenset({"ops", "shapes", "work"}),
)

FIX = Fix(
    text="Compute the whole batch in one call: broadcasting, torch.bmm, torch.vmap, or padded"
    " tensors where lengths differ.",
    code="out = torch.vmap(f)(x)  # instead of torch.stack([f(x[i]) for i in range(len(x))])",
    link="https://docs.pytorch.org/docs/stable/generated/torch.vmap.html",
)

Ints = NDArray[np.int64]

MIN_ROUNDS = 8
"""Rounds of one loop (catalogue 17; PyTorch's own matcher asks for 10 calls)."""
MAX_ROUND_OPS = 1000
"""A longer way to the next index is a coincidence of two loops over steps or layers."""
MAX_PERIODS = 32
"""Lengths of a round that are tried, the shortest first."""
MAX_GAIN_ROUNDS = 16
MAX_CLAIMS = 5
_CONVOLUTION = r"^aten::(conv\w*|_convolution|mkldnn_convolution)$"
_RECURRENT = r"(lstm|gru|rnn_tanh|rnn_relu)(_cell|$)|_thnn_fused"
_LOADER = r"^enumerate\(DataLoader\)#"
_LOOK_UP, _FILL = "aten::embedding", "aten::embedding_dense_backward"
_PRODUCT = r"^aten::(linear|addmm|mm|matmul|conv\w*|scaled_dot_product_attention)$"


class _Loop(NamedTuple):
    """Runs of one kind of round: its ops, those that begin the rounds, their host time.

    ``over`` : an operator whose first input is the tensor.
    """

    body: list[str]
    rounds: int
    runs: int
    begins: Ints
    spans: intervals.Spans
    over: int


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim per kind of loop, the longest first."""
    if not trace.devices and not trace.is_host_only:
        return
    ops = _outer_ops(trace)
    loops = [*_loops(trace, ops), *_unbound(trace, ops)]
    claims = [claim for loop in loops if (claim := _claim(trace, loop)) is not None]
    claims.sort(key=lambda claim: -_judged_ns(trace, claim.spans))
    yield from claims[:MAX_CLAIMS]


def _loops(trace: Trace, ops: Ints) -> list[_Loop]:
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
    for one in candidates[np.lexsort((-end[candidates], begin[candidates]))].tolist():
        # x[i] and y[i] in one body, and loops inside it, are the same loop
        if begin[one] >= reach:
            members.setdefault(int(kind[one]), []).append(one)
            reach = end[one]
    loops = []
    for same in members.values():
        longest = max(same, key=lambda one: rounds[one])
        body = at[first[longest]] + np.arange(length[first[longest]])
        start_ns, end_ns = trace.start_ns[ops[begin[same]]], trace.end_ns[ops[end[same] - 1]]
        loops.append(
            _Loop(
                [trace.name_of(row) for row in ops[body].tolist()],
                int(rounds[longest]),
                len(same),
                ops[at[np.isin(run, same)]],
                intervals.union(intervals.spans(start_ns, end_ns)),
                int(ops[begin[same[0]]]),
            )
        )
    return loops


def _unbound(trace: Trace, ops: Ints) -> list[_Loop]:
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
            _Loop(
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
    """Return how many operators one of so many like rounds has, 0 if there are no such rounds."""
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


def _outer_ops(trace: Trace) -> Ints:
    """Return the main thread's ops that are in no other op nor loader, in time order.

    A loader reads a data set item by item, which is its own finding where it costs.
    """
    is_op: NDArray[np.bool_] = trace.kind == Kind.OP
    rows = trace.tree.members
    rows = rows[is_op[rows] & (trace.lane[rows] == trace.steps.lane)]
    inside = is_op | (trace.is_kind(Kind.ANNOTATION) & trace.matching(_LOADER))
    outer: Ints = rows[~trace.tree.under(inside)[rows]]
    return outer


def _rounds(trace: Trace, ops: Ints) -> tuple[Ints, NDArray[np.bool_]]:
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
    """Return a number per round that is equal for equal sequences of names.

    Parameters
    ----------
    names : int32[m]
        Name codes of the ops in time order.
    start, length : int64[k]
        First op and number of ops of each round.
    """
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


def _convolutions(trace: Trace) -> intervals.Spans:
    rows = np.flatnonzero((trace.kind == Kind.OP) & trace.matching(_CONVOLUTION))
    return intervals.union(intervals.spans(trace.start_ns[rows], trace.end_ns[rows]))


def _judged_ns(trace: Trace, spans: intervals.Spans) -> float:
    """Return how much of some time is in the judged steps, per step."""
    inside = intervals.intersect(spans, trace.steps.judged)
    return intervals.length(inside) / trace.steps.n_steady


def _fills(trace: Trace, loop: _Loop) -> Ints:
    """Return the backward operators on a CPU that fill a table's gradient once per round."""
    if trace.devices or not any(name == _LOOK_UP for name in loop.body):
        return np.empty(0, np.int64)
    fill = trace.named(_FILL) & (trace.kind == Kind.OP)
    rows = np.flatnonzero(fill & ~trace.tree.under(fill))
    rows = rows[trace.steps.in_steady(trace.steps.of_host(rows))]
    _, which = inputs_of(trace, rows)
    # lookups elsewhere have indices of another shape, or are few
    usual = np.flatnonzero(np.bincount(which, minlength=1) >= MIN_ROUNDS * trace.steps.n_steady)
    many: Ints = rows[np.isin(which, usual)]
    return many


def _claim(trace: Trace, loop: _Loop) -> Claim | None:
    steps, body = trace.steps, loop.body
    selects = loop.begins[steps.in_steady(steps.of_host(loop.begins))]
    if not len(selects) or any(re.search(_RECURRENT, name) for name in body):
        return None
    # a CPU takes as long for the convolutions of a batch as for those of its images
    at_stake = intervals.subtract(loop.spans, _convolutions(trace))
    if trace.devices:
        at_stake = intervals.intersect(loop.spans, trace.devices[0].host_late)
    n_steps = steps.n_steady

    lost_ns, held_ns = _judged_ns(trace, at_stake), _judged_ns(trace, loop.spans)
    if not lost_ns:
        return None
    fills = _fills(trace, loop)
    filled = intervals.union(intervals.spans(trace.start_ns[fills], trace.end_ns[fills]))
    filled_ns = _judged_ns(trace, filled)
    time = (
        f"the GPU stands idle for {format_ns(lost_ns)}"
        if trace.devices
        else f"they take {format_ns(held_ns)}"
    )
    lost = "gpu_idle" if trace.devices else "host_without_convolutions"
    gain = 1.0 - 1.0 / min(loop.rounds, MAX_GAIN_ROUNDS)
    shape = trace.details_of("dims", [loop.over])[0][0]
    per_step, n_fills = len(selects) / n_steps, round(len(fills) / n_steps, 2)
    # a product may carry a state from round to round, which a trace does not show
    carries = any(re.search(_PRODUCT, name) for name in body)
    low = 0.0 if carries and not trace.devices else 0.5 * gain / trace.origin.inflation
    return Claim(
        message=f"a loop over a tensor of shape {shape} runs {format_count(per_step, 'round')} of"
        f" {format_count(len(body), 'operator')} {steps.per}: {time} of"
        f" {format_ns(steps.wall_ns)}"
        + (
            f", and the gradient of the embedding is filled {format_count(n_fills, 'time')}:"
            f" {format_ns(filled_ns)}"
            if len(fills)
            else ""
        ),
        certainty="hint" if carries and filled_ns < held_ns else "likely",
        rows=selects,
        spans=np.concatenate([at_stake, filled]),
        gain_low=np.repeat([low, 0.5 * gain], [len(at_stake), len(filled)]) if len(fills) else low,
        gain_high=gain,
        time_class="idle" if trace.devices else "host",
        method="idle time of the device inside the loop"
        if trace.devices
        else "host time of the loop",
        evidence={
            **({f"{lost}_ms_per_step": ms(lost_ns)} if trace.devices or lost_ns < held_ns else {}),
            "host_ms_per_step": ms(held_ns),
            **({"gradient_fills_ms_per_step": ms(filled_ns)} if len(fills) else {}),
            "n_rounds_per_step": round(per_step, 2),
            "n_ops_per_round": len(body),
            "n_rounds_of_longest_loop": loop.rounds,
            "n_loops": loop.runs,
            "tensor_shape": shape,
            "first_ops_of_round": body[:5],
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(selects[0]),
        edits=(
            Edit(
                "threads",
                factor=1.0 if carries and not trace.devices else 1.0 - 0.5 * gain,
                best=1.0 - gain,
                spans=loop.spans if trace.devices else at_stake,
            ),
            *(
                [Edit("shrink", fills, factor=1.0 - 0.5 * gain, best=1.0 - gain)]
                if len(fills)
                else []
            ),
        ),
    )
