"""Constants are built on the host and copied to the GPU in every step.

Looks like: ``aten::lift_fresh`` (``torch.tensor(list)``) of at most 1 KiB, since larger ones are data, or a CPU
    factory (``aten::zeros``, ``ones``, ``full``, ``arange``, ``eye`` and the like, without device work of its own),
    followed within 5 operators at the same level by a copy below 1 MiB from host to device; or such a copy right before
    ``lift_fresh`` (``torch.tensor(list, device=...)``, which builds on the host too); or a module that copies the same
    number of pageable bytes in every step. In at least half of the steps, or three times in a recording without steps.
Slow because: each copy from ordinary memory makes the host wait for the stream, and building and copying the value
    again takes more launches than using it.
Cost: device idle time before the next work launched after each copy, at most as long as the host spent in it; low
    counts the waiting call only, divided by the profiler's inflation, high the whole ``aten::to``. Copies hidden by
    GPU work are free. Until the next wait the device also idles for the lead that the host lost: in full at the high
    end and half at the low end, where it is at least 5 % of the time waited.
Fix: build it on the device, or once: a registered buffer, or a cache per shape.
Leave it when: it is the input of the step, or a server's pinned, non-blocking metadata.
Source: PyTorch performance tuning guide, "Create tensors directly on the target device".
"""

import dataclasses

import numpy as np

from torchtriage.core import fixes
from torchtriage.diagnose.patterns._readbacks import TRANSFER_OPS, claim_reads
from torchtriage.diagnose.patterns._recurrence import frame_around, recurs
from torchtriage.diagnose.patterns.base import Claims, Ints, Kind, Mask, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "SYN005", "Small tensors built on the host and copied each step", order=332, needs="device runtime ops"
)
FIX = fixes.BUILD_ON_DEVICE

MAX_BYTES = 1 << 20  # a larger copy is an input, or CPY007's (catalogue 5)
MAX_LISTED = 1 << 10  # nobody writes a longer list: a larger one is data that each step makes (a batch, an observation)
REACH = 5  # operators between the factory and its copy; `lift_fresh` and `detach_` are two
_FACTORIES = (
    r"^aten::(zeros|ones|full|arange|eye|linspace|logspace|scalar_tensor|tril_indices"
    r"|triu_indices|hann_window|zeros_like|ones_like|full_like)$"
)
_LIST = "aten::lift_fresh"


def find(trace: Trace) -> Claims:
    """Yield one claim for all small uploads of values made on the host."""
    waits = trace.waits
    transfers = trace.named(*TRANSFER_OPS)
    small = waits.to_device & (waits.copy_bytes < MAX_BYTES)
    index = np.flatnonzero(small & waits.under(transfers))
    holder = trace.tree.outermost(waits.row[index], transfers)
    listed = waits.copy_bytes[index] <= MAX_LISTED
    constant = _after_factory(trace, holder, listed) | _same_in_module(trace, index)
    for claim in claim_reads(
        trace,
        index[constant],
        holder[constant],
        message="small tensors built on the host are copied to the GPU {times}: the host waits {wait} for the copies,"
        " and the GPU idles {idle}",
        what="copies",
        method="host-late idle time up to the next launched work, capped by the time in the copy",
    ):
        size = int(np.median(waits.copy_bytes[index[constant]]))
        yield dataclasses.replace(claim, evidence={**claim.evidence, "median_copy_bytes": size})


def _after_factory(trace: Trace, holder: Ints, listed: Mask) -> Mask:
    factories = trace.matching(_FACTORIES, Kind.OP)
    lists = trace.named(_LIST) & (trace.kind == Kind.OP)
    hit = np.zeros(len(holder), dtype=bool)
    if not len(holder) or not (factories | lists).any():
        return hit
    parent = trace.tree.parent
    near = np.zeros(len(trace) + 1, dtype=bool)  # the last stands for "no parent"
    near[parent[holder]] = True
    ops = trace.tree.members
    ops = ops[trace.is_kind(Kind.OP, Kind.ANNOTATION)[ops] & near[parent[ops]]]
    ops = ops[np.lexsort((trace.start_ns[ops], parent[ops], trace.lane[ops]))]
    position = np.zeros(len(trace), np.int64)
    position[ops] = np.arange(len(ops))
    launches = trace.tree.above(trace.links.launches)
    on_host, lists = factories & ~launches, lists & ~launches
    # an annotation ends the place; old profilers also make a tensor to open one
    here = np.ones(len(holder), dtype=bool)
    for back in range(1, REACH + 1):
        before = ops[np.maximum(position[holder] - back, 0)]
        same = (parent[before] == parent[holder]) & (trace.lane[before] == trace.lane[holder])
        here &= same & (trace.kind[before] == Kind.OP)
        hit |= here & (before != holder) & (on_host[before] | (listed & lists[before]))
    # torch.tensor(list, device=...) copies first
    after = ops[np.minimum(position[holder] + 1, len(ops) - 1)]
    hit |= (parent[after] == parent[holder]) & listed & lists[after]
    return hit


def _same_in_module(trace: Trace, index: Ints) -> Mask:
    hit = np.zeros(len(index), dtype=bool)
    if not trace.has_stacks or trace.steps.n_steady < 2 or not len(index):
        return hit
    waits = trace.waits
    module = frame_around(trace, waits.row[index], trace.where_name(lambda name: name.startswith("nn.Module: ")))
    pinned = trace.matches(waits.copy[index], "Pinned")
    inside = np.flatnonzero((module >= 0) & ~pinned)
    keys = np.stack([trace.name[module[inside]], waits.copy_bytes[index[inside]]], axis=1)
    kinds, which = np.unique(keys, axis=0, return_inverse=True)
    for item in range(len(kinds)):
        same = inside[which.ravel() == item]
        hit[same] = recurs(trace, waits.row[index[same]])
    return hit
