"""Ranks were compiled to run their collectives in different orders: such a job can hang.

Looks like: the schedules of collectives that the compiler logs (``inductor_collective_schedule``) of one compilation
    are not the same on every rank: one rank has a collective that another lacks or has elsewhere.
Slow because: it is not: a collective ends when every rank of its group has called it. Ranks that
    call others in between wait for each other until the time-out, or exchange the wrong tensors.
Cost: the job, if it hangs. None in time.
Fix: give every rank the same graphs: no branch on the rank, on its data or on sizes that differ
    inside of compiled code; the same versions and caches on all ranks; collectives outside.
Leave it when: the ranks do different work by design (stages of a pipeline), and each collective is
    of a group whose ranks agree: a schedule does not name groups.
Source: PyTorch documentation, "Distributed communication package": the collectives of a group are
    called by all its ranks in one order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import zip_longest

from torchtriage.core.finding import Finding, Fix, Place
from torchtriage.core.units import format_count

CODE = "COM053"
NAME = "collective-order"
FAMILY = "comm"
TITLE = "Ranks run their collectives in different orders"
NEEDS = "structured logs of two ranks"
FIX = Fix(
    "Give every rank the same graphs: no branch on the rank or its data inside of compiled code,"
    " the same versions and caches everywhere; or keep the collectives outside.",
    "@torch.compiler.disable  # around the function that calls torch.distributed",
    "https://docs.pytorch.org/docs/stable/distributed.html",
)

Schedules = Mapping[int, Mapping[str, str]]
"""By rank and compile id: the list of collectives as the log has it."""


def differences(schedules: Schedules) -> Iterator[tuple[str, dict[tuple[str, ...], list[int]]]]:
    """Yield compile ids that several ranks have, and which ranks have which order.

    A compilation that only one rank has is no difference of order: it may be of other sizes.
    """
    ids = dict.fromkeys(sorted(compile_id for by_id in schedules.values() for compile_id in by_id))
    for compile_id in ids:
        orders: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for rank, by_id in sorted(schedules.items()):
            if compile_id in by_id:
                orders[tuple(re.findall(r"[\w.]+", by_id[compile_id]))].append(rank)
        if len(orders) > 1:
            yield compile_id, orders


def finding(schedules: Schedules) -> Finding | None:
    """Return the finding on ranks whose orders differ; None where they agree."""
    differing = list(differences(schedules))
    if not differing:
        return None
    compile_id, orders = differing[0]
    ordered = sorted(orders.items(), key=lambda item: (-len(item[1]), item[1]))
    (usual, ranks), (other, odd) = ordered[0], ordered[1]
    place = next(place for place, pair in enumerate(zip_longest(usual, other)) if pair[0] != pair[1])
    return Finding(
        code=CODE,
        name=NAME,
        family=FAMILY,
        title=TITLE,
        severity="high",
        certainty="likely",
        message=(
            f"compilation {compile_id}: number {place + 1} is {_at(usual, place)} on"
            f" {_ranks(ranks)}, {_at(other, place)} on {_ranks(odd)}; such a job can hang"
            + (f"; {format_count(len(differing) - 1, 'compilation')} more" if len(differing) > 1 else "")
        ),
        place=Place(),
        cost=None,
        evidence={
            "compile_ids": [compile_id for compile_id, _ in differing[:50]],
            "orders": [{"ranks": some, "collectives": list(names[:200])} for names, some in ordered],
        },
        fix=FIX,
        n_events=len(differing),
    )


def _at(names: tuple[str, ...], place: int) -> str:
    if place >= len(names):
        return "none"
    return names[place].removeprefix("torch.ops.").removeprefix("_c10d_functional.").split(".")[0]


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:6])) + (" …" if len(ranks) > 6 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
