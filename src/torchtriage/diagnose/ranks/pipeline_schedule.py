"""Schedules of pipelines: in which order each rank runs its passes, and how long a step of it takes.

A task is (stage, kind, micro-batch); kinds are forward F, backward B, and where that is split, the gradients of the
input I and of the weights W.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

Task = tuple[int, str, int]
Orders = Sequence[Sequence[Task]]
UNKNOWN, ONE_BY_ONE = "unknown schedule", "one micro-batch after another"


@dataclass(frozen=True)
class Played:
    """A step played through: how long it takes, and how long each rank computes in it."""

    span_ns: float
    busy_ns: tuple[float, ...]

    @property
    def idle_share(self) -> float:
        """The mean share of the step in which a rank does not compute."""
        return 1 - sum(self.busy_ns) / (len(self.busy_ns) * self.span_ns) if self.span_ns else 0.0


@dataclass
class _Rank:
    at_ns: float = 0.0
    busy_ns: float = 0.0
    place: int = 0
    put_off: list[Task] = field(default_factory=list)


def play(
    orders: Orders, times_ns: Mapping[tuple[int, str], float], *, hop_ns: float = 0.0, gap_ns: float = 0.0
) -> Played | None:
    """Return a step of these orders; None where they can never run to their end.

    ``times_ns`` : of a stage's pass of a kind. ``hop_ns`` : from the end of a pass until another rank has its result.
    ``gap_ns`` : between two passes of one rank. Where an order holds I and no W, each W is done as soon as a rank would
    stand idle.
    """
    rank_of = {task[0]: rank for rank, order in enumerate(orders) for task in order}
    n_stages = max(rank_of, default=-1) + 1
    known = {task for order in orders for task in order}
    loose = not any(task[1] == "W" for order in orders for task in order)
    ranks = [_Rank() for _ in orders]
    done: dict[Task, float] = {}
    queue = [(0.0, rank) for rank in range(len(orders))]
    asleep: list[int] = []

    def ready_ns(task: Task, rank: int) -> float | None:
        ready = 0.0
        for need in needs(task, known, n_stages):
            if need not in done:
                return None
            ready = max(ready, done[need] + (hop_ns if rank_of[need[0]] != rank else 0.0))
        return ready

    def run(task: Task, rank: int, begin_ns: float) -> None:
        took, mine = times_ns.get(task[:2], 0.0), ranks[rank]
        mine.at_ns = begin_ns + took + gap_ns
        mine.busy_ns += took
        done[task] = begin_ns + took
        if task[1] == "I" and loose:
            mine.put_off.append((task[0], "W", task[2]))

    while queue:
        _, rank = heapq.heappop(queue)
        mine, order = ranks[rank], orders[rank]
        task = order[mine.place] if mine.place < len(order) else None
        ready = ready_ns(task, rank) if task else None
        if task and ready is not None and (ready <= mine.at_ns or not mine.put_off):
            run(task, rank, max(ready, mine.at_ns))
            mine.place += 1
        elif mine.put_off:
            run(mine.put_off.pop(0), rank, mine.at_ns)
        elif task:
            asleep.append(rank)
            continue
        else:
            continue
        for other in (rank, *asleep):
            heapq.heappush(queue, (ranks[other].at_ns, other))
        asleep.clear()
    if asleep or not n_stages:
        return None
    return Played(max(done.values()), tuple(rank.busy_ns for rank in ranks))


def needs(task: Task, known: Container[Task], n_stages: int) -> list[Task]:
    """Return the passes among those known that have to be done before one can begin."""
    stage, kind, micro = task
    if kind == "F":
        return [(stage - 1, "F", micro)] if stage else []
    if kind == "W" and (stage, "I", micro) in known:
        return [(stage, "I", micro)]
    # the first stage has no input to give a gradient to, and its W needs what its I would
    out = [(stage, "F", micro)]
    if stage + 1 < n_stages:
        out.append((stage + 1, "I" if (stage + 1, "I", micro) in known else "B", micro))
    return out


# -- orders --------------------------------------------------------------------------------------


def order_of(schedule: str, p: int, m: int, v: int) -> Orders | None:
    """Return the order of each rank, None where a schedule does not have one for these numbers."""
    if schedule == "GPipe" and v == 1:
        return [[(rank, kind, micro) for kind in "FB" for micro in range(m)] for rank in range(p)]
    if schedule == ONE_BY_ONE and v == 1:
        return [[(rank, kind, micro) for micro in range(m) for kind in "FB"] for rank in range(p)]
    if schedule == "1F1B" and v == 1:
        return [_one_forward_one_backward(_tasks(rank, p, m, 1), min(m, p - rank)) for rank in range(p)]
    if schedule == "interleaved 1F1B" and m % p == 0:
        return [
            _one_forward_one_backward(_tasks(rank, p, m, v), min(m * v, (v - 1) * p + 2 * (p - rank - 1) + 1))
            for rank in range(p)
        ]
    if schedule == "zero bubble" and v == 1:
        split = order_of("1F1B", p, m, 1)
        return [[(stage, "I" if kind == "B" else kind, micro) for stage, kind, micro in order] for order in split or ()]
    return None


def _tasks(rank: int, p: int, m: int, v: int) -> tuple[list[Task], list[Task]]:
    """Return the forward and the backward passes of a rank: p micro-batches of a chunk, then of the next."""
    forward, backward = [], []
    for at in range(m * v):
        turn, within = divmod(at, p * v)
        chunk, micro = divmod(within, p)
        if v == 1:
            chunk, turn, micro = 0, 0, at
        forward.append((chunk * p + rank, "F", turn * p + micro))
        backward.append(((v - 1 - chunk) * p + rank, "B", turn * p + micro))
    return forward, backward


def _one_forward_one_backward(tasks: tuple[list[Task], list[Task]], n_warm: int) -> list[Task]:
    forward, backward = tasks
    out = forward[:n_warm]
    for at, task in enumerate(backward):
        out.append(task)
        out += forward[n_warm + at : n_warm + at + 1]
    return out


def recognise(orders: Orders, *, v: int) -> str:
    """Return what a schedule is called, ``unknown schedule`` where it is none of those that are known."""
    letters = ["".join(task[1] for task in order) for order in orders]
    p = len(orders)
    if any(set(text) & set("IW") for text in letters):
        # in a zero bubble the weights' gradients are put off: some come after another pass
        put_off = any(
            task[1] == "W" and before != (task[0], "I", task[2])
            for order in orders
            for before, task in itertools.pairwise(order)
        )
        return "zero bubble" if put_off else UNKNOWN
    m = len(letters[0]) // (2 * v)
    warm = []
    for text in letters:
        n = len(text) // 2
        first = text.find("B")
        if text == "F" * n + "B" * n:
            warm.append(n)
        elif first > 0 and text == "F" * first + "BF" * (n - first) + "B" * first:
            warm.append(first)
        else:
            return UNKNOWN
    if v == 1 and warm == [min(m, p - rank) for rank in range(p)]:
        return "1F1B" if m > 1 else "GPipe"
    if v == 1 and warm == [1] * p:
        return ONE_BY_ONE
    if all(n == m * v for n in warm):
        return "GPipe" if v == 1 else UNKNOWN
    if v > 1 and all(left >= right for left, right in itertools.pairwise(warm)):
        return "interleaved 1F1B"
    return UNKNOWN


def books_share(schedule: str, p: int, m: int, v: int) -> float | None:
    """Return the share of a step that ranks of equal stages stand idle, None where there is no simple formula.

    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021, section 2.2.
    """
    if schedule in ("GPipe", "1F1B", "interleaved 1F1B"):
        return (p - 1) / (v * m + p - 1)
    return (p - 1) / p if schedule == ONE_BY_ONE else None
