"""The backward pass of an operation takes many times as long as its forward pass.

Looks like: the autograd nodes of one operation take at least 5 % of the kernel time (on a CPU, of the step), and eight
    times what their forward operators take, where one to three times are usual (of operations but an index and
    ``nn.Bilinear`` at least 30 %). Or a loop takes a tensor part by part (``x[:, t]``), each a third or less of it, and
    the gradients of these parts take as much.
Slow because: the gradient of each part is filled into zeros as large as the whole, and all of them are added up;
    ``nn.Bilinear`` multiplies all features with all, for each row; an index adds its gradients one by one.
Cost: modelled, from the time of these nodes. Parts: at the high end all but one pass over the whole, at the low end
    half of that. ``nn.Bilinear``: 45 % to 98 %. Others: nothing at the low end, at the high end what is above three
    times the forward pass.
Fix: take all parts at once (``unbind``, ``split``, ``chunk``), whose gradients are joined in one copy; a product with
    the weight as a matrix; ``F.embedding`` or ``index_select`` for rows on a device.
Leave it when: only a few of the parts are needed, or the operation is a library's own.
Source: PyTorch source, ``derivatives.yaml`` (``select_backward``, ``_trilinear``, ``index_put_``); measured on a CPU,
    forward and backward: 400 parts of 32 x 400 x 256 in 2,343 ms, unbound in 168; 50 parts in 26, unbound in 13; a
    bilinear layer of 2,708 x 512 to one output in 3,220 ms, as a product in 173, of 1,000 x 64 to ten in 91, as a
    product in 48.
"""

import re
from collections.abc import Iterator

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.trace.user_places import forward_operators
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import Work, work_of
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Ints, Kind, Pattern, Trace

PATTERN = Pattern.of(
    __name__,
    "KRN072",
    "A backward pass takes many times as long as its forward pass",
    order=547,
    needs="ops shapes work",
)
FIX = Fix(
    text="Write it with operations whose gradients are cheap, or write its backward pass by hand.",
    code="""class Op(torch.autograd.Function):  # with forward() and backward()
    ...""",
    link="https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-autograd",
)
_AT_ONCE = Fix(
    text="Take all parts at once: their gradients are joined in one copy.",
    code="""for part in x.unbind(1):  # not x[:, t] for each t; split() or chunk() for slices
    state = cell(part, state)
out = torch.stack(states, dim=1)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.unbind.html",
)
_PRODUCT = Fix(
    text="Multiply with the weight as a matrix, and the result with the second input.",
    code="""scores = ((x @ layer.weight[0]) * y).sum(-1) + layer.bias  # of nn.Bilinear(n, m, 1)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Bilinear.html",
)
_LOOK_UP = Fix(
    text="Look rows up with F.embedding or index_select, whose gradients are summed by row.",
    code="""rows = F.embedding(index, table)  # not table[index]""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html",
)

MIN_SHARE, MIN_SHARE_OF_OTHERS = 0.05, 0.30
"""The others are operations without a known better form: a loss, for example, has to fill its whole gradient."""
MANY, USUAL = 8, 3
"""Times its forward pass: from where on a backward pass is reported, and up to where it is usual."""
FEWEST_PARTS = 3
BILINEAR = 0.45, 0.98
_LONGEST = 1 << 40
_PARTS = ("aten::select", "aten::slice")
# forward they are free, and backward they add up or copy what has to be; a table's gradient has its own pattern
_LEFT = (
    r"(Expand|View|Reshape|Alias|Permute|Transpose|T|Squeeze|Unsqueeze|Unbind|Split\w*|AsStrided|Embedding\w*)"
    r"Backward\d*$"
)


def find(trace: Trace) -> Claims:
    """Yield a claim for each kind of node, over all of its calls."""
    nodes = np.flatnonzero((trace.kind == Kind.OP) & (trace.key >= 0) & trace.matching(rf"^{BACKWARD_NODE}\w+$"))
    nodes = nodes[~trace.matching(_LEFT)[nodes]]
    forward = forward_operators(trace, nodes)
    # functions of the user's own, of compiled graphs and of sharded layers do more than one operation
    known = (forward >= 0) & trace.matching(r"^aten::")[forward]
    nodes, forward = nodes[known], forward[known]
    for name in distinct(trace.name[nodes]).tolist():
        mine = trace.name[nodes] == name
        yield from _claims(trace, nodes[mine], _namesakes(trace, name, distinct(forward[mine])))


def _namesakes(trace: Trace, node: int, forward: Ints) -> Ints:
    """Return the operators that a node is named after: numbers are shared with others that have no gradient."""
    names = {name: _plain(trace.names[name]) for name in (node, *distinct(trace.name[forward]).tolist())}
    of = names[node]
    return forward[[names[name] in of or of in names[name] for name in trace.name[forward].tolist()]]


def _plain(name: str) -> str:
    return re.sub(r"backward\d*$|_", "", name.removeprefix(BACKWARD_NODE).removeprefix("aten::").lower())


def _claims(trace: Trace, nodes: Ints, forward: Ints) -> Iterator[Claim]:
    work = work_of(trace, nodes) if len(forward) else None
    if work is None or work.share < MIN_SHARE:
        return
    operator = trace.name_of(forward[0])
    if operator in _PARTS:
        yield from _parts(trace, work, forward)
        return
    there = work_of(trace, forward)
    times = work.per_step_ns / there.per_step_ns if there is not None else 0.0
    on_host = not trace.devices
    bilinear, looks_up = operator == "aten::_trilinear", operator == "aten::index"
    # on a CPU other ways to look up are as slow (measured)
    if times < MANY or (looks_up and on_host) or (work.share < MIN_SHARE_OF_OTHERS and not bilinear and not looks_up):
        return
    low, high = BILINEAR if bilinear and on_host else (0.0, 1 - USUAL / times)
    yield work.claim(
        f"the backward pass of {operator} takes {work.text}, {times:.0f} times as long as its forward pass",
        "backward",
        low=low,
        high=high,
        method="measured on a CPU, as a matrix product" if bilinear else "what is above three forward passes",
        certainty="likely" if low else "hint",
        evidence={"times_forward": round(times, 1), "n_per_step": work.n_per_step},
        anchor=trace.longest(forward),
        fix=_PRODUCT if bilinear else _LOOK_UP if looks_up else None,
    )


def _parts(trace: Trace, work: Work, forward: Ints) -> Iterator[Claim]:
    inputs, which = inputs_of(trace, forward)
    parts = np.array([_n_parts(given, trace.name_of(forward[0])) for given in inputs])[which]
    n_calls = trace.steps.mean_count(trace.steps.of_host(forward))
    n_parts = int(np.median(parts))
    # the last state of each of four layers is one part, taken four times: count the different places
    n_taken = len(distinct(which[parts == n_parts]))
    if n_parts < FEWEST_PARTS or n_taken < n_parts / 2 or n_calls < n_parts / 2:
        return
    high = 1 - 1 / n_parts
    yield work.claim(
        f"the gradients of {format_count(n_calls, 'part')} of tensors, each one of {n_parts:,}, take {work.text}: each"
        " is filled into a tensor as large as the whole",
        "backward",
        low=high / 2,
        high=high,
        method="all but one pass over the whole; half of it at the low end",
        evidence={"n_parts": n_parts, "n_per_step": n_calls},
        anchor=int(forward[0]),
        fix=_AT_ONCE,
    )


def _n_parts(inputs: Inputs, operator: str) -> int:
    """Return how many such parts a tensor has; 0 where that was not recorded."""
    shape = inputs.shape(0)
    given = [inputs.value(number) for number in range(1, 2 if operator == "aten::select" else 5)]
    if not all(re.fullmatch(r"-?[0-9]{1,19}", value) for value in given):
        return 0
    axis, *part = map(int, given)
    if not -len(shape) <= axis < len(shape) or not 0 < shape[axis] <= _LONGEST:
        return 0
    if operator == "aten::select":
        return shape[axis]
    start, end, step = part
    length = len(range(*slice(start, end, step or 1).indices(shape[axis])))
    return shape[axis] // max(length, 1)
