"""Gradients are reduced after every micro-batch instead of once per optimizer step.

Looks like: between two optimizer steps two or more forwards of ``DistributedDataParallel`` (or FSDP), each with its
    own backward, and after each of them the same all-reduces (FSDP: reduce-scatters).
Slow because: the sum of k micro-batches can be reduced once; the k - 1 other rounds move the same bytes again, and in
    each one every rank waits for the slowest.
Cost: exposed time of all rounds but the last; low is half of it, since part of the waiting moves from the early rounds
    to the last.
Fix: accumulate locally inside ``no_sync()`` and reduce with the last micro-batch.
Leave it when: FSDP has no memory for unsharded gradients, or several models take turns between the steps.
Source: PyTorch documentation, ``DistributedDataParallel.no_sync``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Mask, Pattern, Trace
from torchtriage.diagnose.patterns.comm._collectives import shorter
from torchtriage.diagnose.patterns.comm._gradient_reduces import FORWARD, REDUCES

PATTERN = Pattern.of(
    __name__, "COM038", "Gradients are reduced after every micro-batch", order=407, needs="collectives ops"
)
FIX = Fix(
    text="Reduce with the last micro-batch only.",
    code="""from contextlib import nullcontext

for i, batch in enumerate(micro_batches):
    last = i == len(micro_batches) - 1
    with nullcontext() if last else model.no_sync():
        (loss_fn(model(batch)) / len(micro_batches)).backward()
optimizer.step()""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
)

_FIX_SHARDED = Fix(
    text="Reduce with the last micro-batch only, if memory allows gradients that are not sharded.",
    code="""for i, batch in enumerate(micro_batches):
    model.set_requires_gradient_sync(i == len(micro_batches) - 1)  # FSDP2
    (loss_fn(model(batch)) / len(micro_batches)).backward()
optimizer.step()""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)

EARLY_ROUNDS = 0.5  # what a round less frees at least: its waiting part may come back in the last round


class _Rounds(NamedTuple):
    """Micro-batches of one optimizer step: forward rows, and the collectives behind each."""

    forwards: Ints
    reduced: list[Ints]


def find(trace: Trace) -> Claims:
    """Yield one claim over all rounds but the last of each optimizer step."""
    found = find_collectives(trace)
    if found is None or trace.origin.world_size == 1:
        return
    issued_ns = _issued_ns(trace, found)
    windows = list(_windows(trace, found, issued_ns))
    redundant = [window for window in windows if _even(found, window, issued_ns)]
    alike = _same_work(trace, redundant, issued_ns) if redundant else []
    redundant = [item for item, same in zip(redundant, alike, strict=True) if same]
    if not redundant or 2 * len(redundant) < len(windows):
        return
    early = np.concatenate([part for item in redundant for part in item.reduced[:-1]])
    picked = np.zeros(len(found.rows), dtype=bool)
    picked[early] = True
    mine = picked[found.source]
    op = found.enqueued_by[early]
    spans = found.exposed[mine]
    steps = trace.steps
    exposed_ns = steps.judged_ns(spans)
    n_rounds = int(np.median([len(item.forwards) for item in redundant]))
    n_each = int(np.median([len(item.reduced[0]) for item in redundant]))
    sharded = trace.name_of(int(redundant[0].forwards[0])).startswith(("Fully", "FSDP"))
    what = "reduce-scatter" if sharded else "all-reduce"
    size = found.size_bytes[redundant[0].reduced[0]]
    yield Claim(
        message=f"{n_rounds} backward passes per optimizer step each reduce gradients ({format_count(n_each, what)}):"
        f" all but the last are redundant, and {format_ns(exposed_ns / steps.n_steady)} of them {steps.per} is"
        " exposed",
        certainty="hint" if sharded else "likely",
        rows=found.rows[early],
        spans=spans,
        gain_low=0.0 if sharded else EARLY_ROUNDS,
        time_class="host" if found.on_host else "comm",
        method="exposed time of all rounds but the last; low half of it",
        evidence={
            "backward_passes_per_optimizer_step": n_rounds,
            "n_collectives_per_backward_pass": n_each,
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
            "redundant_ms_per_step": ms(
                int(trace.dur_ns[found.rows[early]][steps.in_steady(found.step[early])].sum()) / steps.n_steady
            ),
            "n_optimizer_steps": len(redundant),
            **({"bytes_per_backward_pass": int(size.sum())} if (size >= 0).all() else {}),
        },
        anchor=int(redundant[0].forwards[0]),
        fix=_FIX_SHARDED if sharded else FIX,
        edits=(
            shorter(found, picked, spans, 0.0 if sharded else EARLY_ROUNDS, 1.0),
            # on the host, who enqueues competes with who sends: what goes is not known
            *([] if found.on_host else [Edit("drop", distinct(op[op >= 0]))]),
        ),
    )


def _windows(trace: Trace, found: Collectives, issued_ns: Ints) -> Iterator[_Rounds]:
    mine = trace.is_kind(Kind.ANNOTATION, Kind.OP) & (trace.lane == trace.steps.lane)
    forward = mine & trace.matching(FORWARD)
    forwards = np.flatnonzero(forward & ~trace.tree.under(forward))
    forwards = forwards[np.argsort(trace.start_ns[forwards], kind="stable")]
    edges = np.sort(trace.start_ns[mine & trace.matching(r"^Optimizer\.step#")])
    if len(forwards) < 2 or len(edges) < 2:
        return
    reduces = np.flatnonzero(_reduces(trace, found))
    issued = issued_ns[reduces]
    window = np.searchsorted(edges, trace.start_ns[forwards])
    for item in range(1, len(edges)):
        inside = forwards[window == item]
        if len(inside) < 2:
            continue
        bounds = np.append(trace.start_ns[inside], edges[item])
        round_of = np.searchsorted(bounds, issued, side="right") - 1
        yield _Rounds(inside, [reduces[round_of == k] for k in range(len(inside))])


def _even(found: Collectives, rounds: _Rounds, issued_ns: Ints) -> bool:
    counts = [len(part) for part in rounds.reduced]
    if not counts[0] or len(set(counts)) > 1:
        return False
    order = [part[np.argsort(issued_ns[part], kind="stable")] for part in rounds.reduced]
    return all((found.equal[part] == found.equal[order[0]]).all() for part in order)


def _same_work(trace: Trace, windows: list[_Rounds], issued_ns: Ints) -> list[bool]:
    """Return for each window whether its rounds have equal forwards and a backward each.

    Models that take turns have forwards of their own.
    """
    ops = np.sort(trace.start_ns[(trace.kind == Kind.OP) & (trace.lane == trace.steps.lane)])
    nodes = np.sort(trace.start_ns[trace.matching(f"^{BACKWARD_NODE}")])
    found = []
    for window in windows:
        start, end = trace.start_ns[window.forwards], trace.end_ns[window.forwards]
        n_ops = np.searchsorted(ops, end) - np.searchsorted(ops, start)
        until = np.array([issued_ns[part].max() for part in window.reduced])
        n_nodes = np.searchsorted(nodes, until) - np.searchsorted(nodes, end)
        found.append(bool((n_ops == n_ops[0]).all() and (n_nodes > 0).all()))
    return found


def _reduces(trace: Trace, found: Collectives) -> Mask:
    op = found.enqueued_by
    by_op = (op >= 0) & np.append(trace.matching(REDUCES), False)[op]
    by_name = (op < 0) & trace.matching(REDUCES)[found.rows]
    return by_op | by_name


def _issued_ns(trace: Trace, found: Collectives) -> Ints:
    op = found.enqueued_by
    own = trace.start_ns[found.rows] if found.on_host else trace.links.launched_ns(found.rows)
    return np.where(op >= 0, trace.start_ns[op], own)
