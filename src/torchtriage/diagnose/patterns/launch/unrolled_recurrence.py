"""A recurrent layer is called once per time step from Python.

Looks like: ``aten::lstm``, ``gru`` or ``rnn_*`` outside every other operator on an input with one time step, or a cell
    (``aten::lstm_cell``, ...), eight times in a row or more in one step with weights of one shape. Its inputs are known
    beforehand where every call follows the next ``select`` or ``slice`` of one tensor, or ``unbind`` into as many, with
    nothing between but what works on that part alone (a lookup, a view, a layer).
Slow because: every time step costs the host its operators and launches, forward and backward, which the layer's own
    loop over a sequence does not; what follows (output layer, loss) is done for every time step too.
Cost: (1 - 1/min(n, 16)) of the host-late idle time from the first call to the last and of their backward pass, n being
    the calls in a row; low counts half of it, divided by the profiler's inflation. On a CPU 15 to 90 % of the host's
    time. Nothing where the rows do not show that the inputs are known beforehand: then it is a hint.
Fix: call the layer once over the whole sequence where its inputs are known beforehand.
Leave it when: an input depends on the output before it (generation, training without teacher forcing, attention that is
    fed the last state, an environment), or the state is changed between the time steps.
Source: PyTorch documentation, ``torch.nn.GRU`` and ``torch.nn.LSTM``; measured: a character model on an H200, 6,002
    kernels with 120 calls of a GRU and 1,105 with one; on a CPU 60 time steps of a GRU, LSTM or LSTMCell take 16-93 %
    less in one call.
"""

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.units import format_count, format_ns
from torchtriage.diagnose.patterns._host_time import host_claim, host_time, with_backward
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Pattern, Trace, aten
from torchtriage.diagnose.patterns.launch._sample_loops import MAX_ROUND_OPS, MIN_ROUNDS, loop_ops

PATTERN = Pattern.of(
    __name__, "LCH106", "A recurrent layer is called for every time step", order=349, needs="ops shapes work"
)
FIX = Fix(
    text="Call the layer once over the whole sequence, where its inputs are known beforehand, and what follows once"
    " over all of its outputs. For a loop over a cell: the layer of its name.",
    code="""rnn = nn.GRU(width, hidden)  # not nn.GRUCell
outputs, state = rnn(embedding(tokens), state)  # (time, batch, width)
loss = criterion(linear(outputs).flatten(0, 1), targets.flatten())""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html",
)

MIN_SHARE = 0.02  # of the step, as for other loops of the host
MAX_GAIN_ROUNDS = 16
ON_CPU = (0.15, 0.9)
MOSTLY_AHEAD = 0.8
BATCH_FIRST, BIDIRECTIONAL = 8, 7  # where they stand among the inputs of a layer
_LAYERS = aten("lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
_PARTS = aten("select slice")
_OF_ONE = aten(
    "embedding view reshape unsqueeze squeeze contiguous transpose t permute expand flatten one_hot to linear relu tanh"
    " gelu dropout layer_norm"
)
"""Operators between a part and the layer that need nothing else than the part and weights."""
MAX_OF_ONE = 12
_FED_BACK = (
    r"^aten::(argmax|multinomial|topk|max|sort|item|bernoulli\w*|cat|bmm|baddbmm|matmul|softmax|to|copy_|lift_fresh)$"
)
_ON_STATE = aten("mul mul_ where lerp lerp_ masked_fill masked_fill_ index_select")


def find(trace: Trace) -> Claims:
    """Yield one claim per layer."""
    ops = loop_ops(trace)
    at = np.flatnonzero(trace.named(*_LAYERS)[ops])
    inputs, which = inputs_of(trace, ops[at])
    seen: dict[str, int] = {}
    kinds = [
        seen.setdefault(f"{call.dims[0]} {call.dims[2:]}", len(seen)) if _one_step(call) else -1 for call in inputs
    ]
    kind = np.array(kinds, np.int64)[which]
    layer = trace.name[ops[at]].astype(np.int64) * (len(seen) + 1) + kind
    for code in distinct(layer[kind >= 0]).tolist():
        yield from _claim(trace, ops, _runs(trace, ops, at[layer == code]))


def _one_step(call: Inputs) -> bool:
    shape = call.shape(0)
    if len(shape) < 3:
        return bool(shape) and bool(call.shape(2))  # a cell; packed sequences have lists of weights there
    batch_first = {"True": 1, "False": 0}.get(call.value(BATCH_FIRST))
    return batch_first is not None and shape[batch_first] == 1 and call.value(BIDIRECTIONAL) == "False"


def _runs(trace: Trace, ops: Ints, at: Ints) -> list[Ints]:
    """Return the positions of calls that follow one another in one step, those of loops."""
    step = trace.steps.of_host(ops[at])
    breaks = np.flatnonzero((np.diff(at) > MAX_ROUND_OPS) | (np.diff(step) != 0)) + 1
    return [run for run in np.split(at, breaks) if len(run) >= MIN_ROUNDS]


def _claim(trace: Trace, ops: Ints, runs: list[Ints]) -> Claims:
    if not runs:
        return
    steps = trace.steps
    rows = ops[np.concatenate(runs)]
    first, last = (ops[[run[at] for run in runs]] for at in (0, -1))
    time = host_time(trace, with_backward(trace, first, last))
    if not recurs(trace, rows) or not time.lost_ns or time.held_ns < MIN_SHARE * steps.wall_ns:
        return
    # before the first call its state is made
    begins = [_begins(trace, ops, run[1:]) for run in runs]
    if trace.named(*_LAYERS)[ops[np.concatenate(begins)]].all() and not np.isin(np.concatenate(begins), runs[0]).any():
        return  # a layer above another one, which is the one to look at
    known = all(
        _in_order(trace, ops[begin]) or _unbound(trace, ops, run) for run, begin in zip(runs, begins, strict=True)
    )
    between = ops[np.concatenate([np.arange(run[0] + 1, run[-1]) for run in runs])]
    fed_back = bool(trace.matching(_FED_BACK)[between].any())
    trained = bool(trace.matching(f"^{BACKWARD_NODE}").any())
    if _state_changes(trace, rows, between) or (not known and (fed_back or not trained)):
        return
    name, count = trace.name_of(int(rows[0])), steps.mean_count(steps.of_host(rows))
    what = "is called" if not name.endswith("_cell") else "runs"
    message = f"{name} {what} {format_count(count, 'time')} {steps.per} for one time step each"
    in_a_row = max(map(len, runs))
    evidence = {
        **time.evidence(),
        "n_calls_per_step": count,
        "n_calls_in_a_row": in_a_row,
        "input_shape": inputs_of(trace, rows[:1])[0][0].shape(0),
        "inputs_known_beforehand": known,
    }
    if not known:
        yield Claim(
            f"{message}; the recording does not show whether their inputs are known beforehand",
            "hint",
            rows,
            evidence=evidence,
        )
        return
    gain = 1.0 - 1.0 / min(in_a_row, MAX_GAIN_ROUNDS)
    low, high = (0.5 * gain, gain) if trace.devices else ON_CPU
    lost = time.idle_text("while") if trace.devices else f"they take {format_ns(time.held_ns)}"
    yield host_claim(
        trace,
        f"{message}: {lost.removeprefix('while ')} of {format_ns(steps.wall_ns)}",
        rows,
        time.spans,
        gain=low,
        gain_high=high,
        method="idle time of the device inside the loop and its backward pass"
        if trace.devices
        else "host time of both",
        evidence=evidence,
        anchor=int(ops[begins[0][0]]),
        edits=(Edit("threads", factor=1.0 - low, best=1.0 - high, spans=time.held),),
    )


def _begins(trace: Trace, ops: Ints, run: Ints) -> Ints:
    """Return for each call the position of what its input is made of, by operators that need nothing else."""
    of_one = trace.named(*_OF_ONE)
    begin = np.maximum(run - 1, 0)
    for _ in range(MAX_OF_ONE):
        begin = np.maximum(begin - of_one[ops[begin]], 0)
    return begin


def _in_order(trace: Trace, parts: Ints) -> bool:
    """Return whether these rows take one part of a tensor after the other; layers may stand between."""
    parts = parts[~trace.named(*_LAYERS)[parts]]
    if len(parts) < MIN_ROUNDS - 1 or not trace.named(*_PARTS)[parts].all():
        return False
    inputs, which = inputs_of(trace, parts)
    of, index = zip(*map(_part, inputs), strict=True)
    # a loop over time may run several times in a row
    ahead = np.abs(np.diff(np.array(index)[which])) == 1
    return len({of[code] for code in which.tolist()}) == 1 and bool(ahead.mean() >= MOSTLY_AHEAD)


def _part(call: Inputs) -> tuple[str, int]:
    first, end = (int(text) if text.lstrip("-").isdecimal() else 0 for text in (call.value(2), call.value(3)))
    # a slice of several time steps is none
    single = not call.value(3) or end - first == 1
    return f"{call.dims[:1]} {call.value(1)}", first if single else 0


def _unbound(trace: Trace, ops: Ints, run: Ints) -> bool:
    """Return whether a tensor was unbound into as many parts as there are calls before the first of them."""
    near = ops[max(int(run[0]) - MAX_ROUND_OPS, 0) : int(run[0])]
    near = near[trace.named("aten::unbind")[near]]

    def into_as_many(call: Inputs) -> bool:
        axis = call.axis(1, len(call.shape(0)))
        return axis >= 0 and 0 <= call.shape(0)[axis] - len(run) <= 1

    same = trace.steps.of_host(near) == trace.steps.of_host(ops[run[:1]])
    return bool((same & where_inputs(trace, near, into_as_many)).any())


def _state_changes(trace: Trace, rows: Ints, between: NDArray[np.integer]) -> bool:
    state = inputs_of(trace, rows[:1])[0][0].dims[1]
    shapes = [state] if state and not isinstance(state[0], list) else state
    changing = between[trace.named(*_ON_STATE)[between]]
    return bool(where_inputs(trace, changing, lambda call: call.shape(0) in shapes).any())
