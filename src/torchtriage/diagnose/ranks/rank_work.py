"""What one rank computes, so that ranks can be compared: products, attention, passes of each step, and its program."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, distinct
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.diagnose.ranks.host_activity import Pieces

_PRODUCT = r"(?i)gemm|_mm\b|\bmm\b|addmm|bmm|matmul|cutlass|cublas|xmma|grouped_mm|nvjet|fused_experts|expert"
_EXPERTS = r"(?i)expert|(^|[^a-z])moe([^a-z]|$)|grouped_?(mm|gemm)"
_ATTENTION = r"(?i)attention|flash|fmha|sdpa|ring_attn"
_SAVES = (
    r"(?i)torch/serialization\.py\(\d+\): _?save|torch/distributed/checkpoint/.*: (async_)?save|save_checkpoint"
    r"|save_pretrained|safetensors.*save|^(## ?)?(save|checkpoint|saving)|write_checkpoint|save_state"
)
_EVALUATES = r"(?i)(^|[^a-z])(evaluate?|evaluation|validate|validation|eval_step|eval_epoch|run_eval)([^a-z]|$)"
_NOT_EVALUATION = r"(?i)evaluate_function|\.eval\b|: eval$|train\(|no_grad|_is_eval|safe_eval"
_VERSIONS = re.compile(r"(?i)version|driver|_arch|^env|environ")
MAX_KINDS = 40
"""Kinds of operators whose inputs are compared, those that take longest."""
MAX_SIZE = 1 << 40
"""Of inputs that are counted: a recording may say anything."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class RankWork:
    """What one rank computes, by its collectives and by its steps.

    Per collective, in their order: ``product_ns``, int64[n], the products it computed before the start. Per step:
    ``forwards`` and ``backwards``, operators outside and inside the backward pass; ``saves_ns`` and ``evaluates_ns``,
    time in calls or ranges with such names; ``attention_step_ns`` and ``other_step_ns``, attention and all other
    computation.

    ``inputs`` : kind of an operator to the shapes and types of its inputs in the steady steps, as text. ``sizes`` :
    float64, of each step, numbers in the inputs of a call of those operators in the mean; empty where shapes are not
    recorded.
    ``versions`` : what the recording says of versions, devices and settings.
    """

    product_ns: Ints
    forwards: Ints
    backwards: Ints
    saves_ns: Ints
    evaluates_ns: Ints
    attention_step_ns: Ints
    other_step_ns: Ints
    saves: tuple[str, ...] = ()
    evaluates: tuple[str, ...] = ()
    inputs: dict[str, frozenset[str]] = field(default_factory=dict)
    sizes: Floats = field(default_factory=lambda: np.empty(0))
    versions: dict[str, str] = field(default_factory=dict)
    experts: bool = False
    """Whether something it runs is called experts."""


NO_WORK = RankWork(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE)


def rank_work(trace: Trace, pieces: Pieces, until_ns: Ints) -> RankWork:
    """Return what a rank computes; ``until_ns`` : when each of its collectives was launched, or began on the device."""
    steps = trace.steps
    spans = intervals.spans(steps.start_ns, steps.end_ns)
    if not len(steps):
        spans = np.array([[trace.window.start_ns, trace.window.end_ns]], np.int64)
    if trace.devices:
        main = trace.devices[0]
        rows = main.rows[~main.comm]
    else:
        rows = np.flatnonzero((trace.kind == Kind.OP) & np.isin(trace.lane, pieces.lanes))
    attention = trace.matching(_ATTENTION)
    product = trace.matching(_PRODUCT) & ~attention
    everything = trace.time_of(rows)
    begin = min(int(trace.start_ns[rows].min()), int(until_ns.min())) if len(rows) and len(until_ns) else 0
    before = np.stack([np.full_like(until_ns, begin), until_ns], axis=1)
    focus, products = trace.time_of(rows[attention[rows]]), trace.time_of(rows[product[rows]])
    attended, computed = intervals.covered(spans, focus), intervals.covered(spans, everything)
    ops = np.flatnonzero((trace.kind == Kind.OP) & np.isin(trace.lane, pieces.lanes))
    engine = trace.matching(f"^{BACKWARD_NODE}") & (trace.kind == Kind.OP)
    inside = engine | trace.tree.under(engine)
    named = trace.is_kind(Kind.ANNOTATION, Kind.PYTHON)
    saving = np.flatnonzero(named & trace.matching(_SAVES))
    evaluating = np.flatnonzero(named & trace.matching(_EVALUATES) & ~trace.matching(_NOT_EVALUATION))
    inputs, sizes = _inputs(trace, ops)
    return RankWork(
        product_ns=intervals.covered(before, products),
        forwards=_counted(spans, trace.start_ns[ops[~inside[ops]]]),
        backwards=_counted(spans, trace.start_ns[ops[inside[ops]]]),
        saves_ns=intervals.covered(spans, trace.time_of(saving)),
        evaluates_ns=intervals.covered(spans, trace.time_of(evaluating)),
        attention_step_ns=attended,
        other_step_ns=computed - attended,
        saves=_names(trace, saving),
        evaluates=_names(trace, evaluating),
        inputs=inputs,
        sizes=sizes,
        versions=_versions(trace),
        experts=bool(trace.matching(_EXPERTS).any()),
    )


def _counted(spans: Ints, at_ns: Ints) -> Ints:
    at = np.sort(at_ns)
    return np.searchsorted(at, spans[:, 1]) - np.searchsorted(at, spans[:, 0])


def _names(trace: Trace, rows: Ints) -> tuple[str, ...]:
    spent = np.bincount(trace.name[rows], weights=trace.dur_ns[rows]) if len(rows) else _NONE
    longest = sorted(distinct(trace.name[rows]).tolist(), key=lambda code: (-spent[code], code))
    return tuple(trace.names[code] for code in longest[:3])


def _inputs(trace: Trace, ops: Ints) -> tuple[dict[str, frozenset[str]], Floats]:
    """Return the inputs of the longest kinds of operators, as text, and how many numbers a call has in each step."""
    if not trace.has_shapes:
        return {}, np.empty(0)
    steps = trace.steps
    at = steps.of_host(ops)
    steady = ops[steps.in_steady(at)]
    weight = np.bincount(trace.name[steady], weights=trace.dur_ns[steady], minlength=len(trace.names))
    longest = np.isin(trace.name[ops], np.argsort(-weight, kind="stable")[:MAX_KINDS]) & (at >= 0)
    rows, at = ops[longest], at[longest]
    found: dict[str, set[str]] = {}
    dims, types = trace.details_of("dims", rows), trace.details_of("types", rows)
    names = trace.name[rows].tolist()
    for name, dim, kind, is_steady in zip(names, dims, types, steps.in_steady(at).tolist(), strict=True):
        if is_steady:
            found.setdefault(trace.names[name], set()).add(f"{dim} {kind}")
    # in the mean: more calls are another program, or work of one rank alone
    n_steps = max(len(steps), 1)
    numbers = np.bincount(at, [_n_numbers(dim) for dim in dims], n_steps)
    sizes = numbers / np.maximum(np.bincount(at, minlength=n_steps), 1)
    return {name: frozenset(some) for name, some in found.items()}, sizes


def _n_numbers(dims: Any) -> int:
    """Return how many numbers the inputs with these sizes hold; lists of tensors are left out."""
    shapes = [shape for shape in dims or () if isinstance(shape, list) and shape]
    flat = [shape for shape in shapes if all(isinstance(size, int) and 0 <= size < MAX_SIZE for size in shape)]
    return min(sum(math.prod(shape) for shape in flat), MAX_SIZE)


def _versions(trace: Trace) -> dict[str, str]:
    found: dict[str, Any] = {key: value for key, value in trace.meta.items() if _VERSIONS.search(key)}
    info = trace.meta.get("distributedInfo")
    if isinstance(info, dict):
        found |= {key: info[key] for key in ("backend", "nccl_version") if key in info}
    if trace.devices:
        found["device"] = trace.devices[0].name
    return {key: str(value)[:200] for key, value in found.items()}
