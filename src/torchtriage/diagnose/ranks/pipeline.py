"""Which ranks of a job form a pipeline, which stage each holds, and which of their messages belong together.

Ranks that send to each other need not be one: rings and exchanges of halos or experts send as much. In a pipeline a
stage's pass of a micro-batch begins after the stage before has ended its own; where that is not so, it is none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchtriage.core.arrays import Ints, distinct
from torchtriage.diagnose.ranks.match import Matches
from torchtriage.diagnose.ranks.pipeline_rank import BACKWARD, FORWARD, KINDS, RankBlocks, RankPipeline
from torchtriage.diagnose.ranks.pipeline_schedule import Task, needs, recognise
from torchtriage.diagnose.ranks.rank_record import RankRecord

MAX_ACAUSAL = 0.02
"""Share of passes that may begin before what they need has ended: clocks of hosts differ."""
SLACK_NS = 300_000
"""By which ends of passes may lie behind their sends: calls after the last one that counts."""
SLACK = 0.1
"""The same, of the pass."""


@dataclass(frozen=True)
class Pass:
    """One pass of a micro-batch through a stage, on the job's clock."""

    task: Task
    start_ns: int
    end_ns: int
    busy_ns: int


@dataclass(frozen=True)
class PipelineStep:
    """One step: the passes of each rank in order."""

    number: int
    passes: tuple[tuple[Pass, ...], ...]


@dataclass(frozen=True)
class Pipeline:
    """Ranks that hand micro-batches on.

    ``members`` : positions in the job, in the order of their first stages. ``rank_of`` : stage to the place in
    ``members``. ``basis`` : how its ranks and stages were recognised. ``numbers`` : of its steps. ``orders`` : what
    each rank does in order, in the first of them. ``n_matched``, ``n_unmatched`` : sends with and without a receive.
    ``steps`` : all passes, which nobody needs once they are measured.
    """

    members: tuple[int, ...]
    group: str
    basis: str
    schedule: str
    rank_of: tuple[int, ...]
    n_micro: int
    numbers: tuple[int, ...]
    orders: tuple[tuple[Task, ...], ...]
    n_matched: int
    n_unmatched: int
    steps: tuple[PipelineStep, ...]

    @property
    def n_chunks(self) -> int:
        """Stages on each rank."""
        return len(self.rank_of) // len(self.members)


@dataclass(frozen=True)
class Unjudged:
    """Ranks that send and receive like a pipeline's, and why that cannot be judged."""

    group: str
    ranks: tuple[int, ...]
    reason: str


def find_pipelines(
    ranks: Sequence[RankRecord], numbers: Sequence[int], matches: Matches, steady: Ints, world_size: int | None
) -> Iterator[Pipeline | Unjudged]:
    """Yield the pipelines of a job, and at the end what might have been one.

    ``steady`` : numbers of the steps to look at. ``world_size`` : ranks of the job, also those not recorded.
    """
    left = {position for position, rank in enumerate(ranks) if len(rank.pipeline)}
    unjudged: dict[tuple[int, ...], Unjudged] = {}
    place = {number: position for position, number in enumerate(numbers)}
    for name, members, basis in _candidates(ranks, numbers, world_size):
        recorded = sorted(place[number] for number in members if number in place)
        if len(recorded) < 2 or not left.issuperset(recorded):
            continue
        reason = ""
        if len(recorded) < len(members):
            missing = [number for number in sorted(members) if number not in place]
            reason = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:8]))} of its group not recorded"
        else:
            made = _pipeline(ranks, numbers, recorded, name, basis, matches.offset_ns, steady)
            if isinstance(made, Pipeline):
                left -= set(recorded)
                yield made
                continue
            reason = made
        if reason:
            unjudged[tuple(recorded)] = Unjudged(name, tuple(numbers[at] for at in recorded), reason)
    yield from (pipeline for members, pipeline in unjudged.items() if left.issuperset(members))


def _candidates(
    ranks: Sequence[RankRecord], numbers: Sequence[int], world_size: int | None
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield name and members of groups that may be pipelines, the likeliest first, and how they are known."""
    named: dict[tuple[int, ...], tuple[str, str]] = {}
    for rank, number in zip(ranks, numbers, strict=True):
        made = rank.pipeline
        used = set(distinct(made.messages.group).tolist())
        sent = [group for code, group in enumerate(made.groups) if code in used and group.name]
        for group, basis in [
            *((group, "the group of its messages") for group in sent),
            *((group, f"the name of process group {group.label}") for group in made.configured if _pipes(group.label)),
            *((group, "the members of a process group") for group in made.configured),
        ]:
            if number in group.ranks and len(group.ranks) > 1:
                named.setdefault(group.ranks, (group.label, basis))
    order = sorted(named, key=lambda members: (not _pipes(named[members][0]), len(members), members))
    for members in order:
        yield named[members][0], members, named[members][1]
    if not any(set(numbers) <= set(members) for members in named) and world_size in (None, len(numbers)):
        yield "", tuple(numbers), "all ranks of the job"


def _pipes(label: str) -> bool:
    return "pp" in label.lower().replace("-", "_").split("_") or "pipe" in label.lower()


def _pipeline(
    ranks: Sequence[RankRecord],
    numbers: Sequence[int],
    members: list[int],
    name: str,
    basis: str,
    offset_ns: Ints,
    steady: Ints,
) -> Pipeline | str:
    """Return the pipeline that some ranks form, else why it is not known, empty where they form none."""
    made = [ranks[position].pipeline for position in members]
    labelled = all((rank.blocks.stage >= 0).all() and len(rank.blocks) for rank in made)
    steps, uneven = [], Counter[int]()
    rank_of: tuple[int, ...] = ()
    n_micro = n_sends = n_matched = n_odd = 0
    for number in steady.tolist():
        counts = [_counts(ranks[position], number) for position in members]
        mapped = _labelled_stages(made, number) if labelled else _stages(counts)
        if mapped is None:
            n_odd += 1
            uneven.update(_odd(counts, [numbers[position] for position in members]))
            continue
        rank_of, n_micro = mapped
        if not _peers_agree(made, number, [numbers[position] for position in members], rank_of):
            return ""
        passes = []
        for place, position in enumerate(members):
            mine = _passes(ranks[position].pipeline.blocks, number, place, rank_of, n_micro, int(offset_ns[position]))
            passes.append(tuple(mine))
        if labelled and not _complete(passes, rank_of, n_micro):
            n_odd += 1
            continue
        steps.append(PipelineStep(number, tuple(passes)))
        n_sends += sum(int((rank.messages.send & (rank.messages.step == number)).sum()) for rank in made)
        n_matched += _matched(made, number, [numbers[position] for position in members], rank_of)
    if not steps:
        if not uneven or not (labelled or _one_way(made)):
            return ""
        who = ", ".join(str(rank) for rank, _ in uneven.most_common(4))
        return f"different numbers of sends and receives (rank{'s' * (len(uneven) > 1)} {who})"
    acausal = float(np.mean([share for step in steps for share in _acausal(step, rank_of)]))
    if acausal > MAX_ACAUSAL:
        return "its passes do not follow each other: its sends are not matched, or clocks differ" if labelled else ""
    schedules = Counter(
        recognise([[pass_.task for pass_ in passes] for passes in step.passes], v=len(rank_of) // len(members))
        for step in steps
    )
    how = "stages named by the program" if labelled else "stages by order of sends and passes"
    return Pipeline(
        members=tuple(members),
        group=name,
        basis=f"{basis}; {how}",
        schedule=schedules.most_common(1)[0][0],
        rank_of=rank_of,
        n_micro=n_micro,
        numbers=tuple(step.number for step in steps),
        orders=tuple(tuple(pass_.task for pass_ in passes) for passes in steps[0].passes),
        n_matched=n_matched,
        n_unmatched=n_sends - n_matched,
        steps=tuple(steps),
    )


def _counts(rank: RankRecord, number: int) -> Counter[tuple[bool, int]]:
    """Return how often a rank sends or receives what in a step, and of each kind how many passes it has."""
    messages, blocks = rank.pipeline.messages, rank.pipeline.blocks
    here = messages.step == number
    out: Counter[tuple[bool, int]] = Counter(
        zip(messages.send[here].tolist(), messages.kind[here].tolist(), strict=True)
    )
    kinds = Counter(blocks.kind[blocks.step == number].tolist())
    # passes are counted under kinds of their own
    out.update({(False, -2 - kind): count for kind, count in kinds.items()})
    return out


def _stages(counts: Sequence[Counter[tuple[bool, int]]]) -> tuple[tuple[int, ...], int] | None:
    """Return the rank of each stage and the number of micro-batches, None where the counts are not a pipeline's.

    Ranks in a row hold one stage each, or several where the last one sends activations to the first.
    """
    p = len(counts)
    first = counts[0]
    n_micro = first[True, FORWARD] - first[False, FORWARD]
    if n_micro <= 0 or first[True, FORWARD] % n_micro:
        return None
    v = first[True, FORWARD] // n_micro
    for rank, count in enumerate(counts):
        ahead = v * n_micro - (n_micro if rank == p - 1 else 0)
        behind = v * n_micro - (n_micro if rank == 0 else 0)
        wanted = {(True, FORWARD): ahead, (False, BACKWARD): ahead, (False, FORWARD): behind, (True, BACKWARD): behind}
        if any(count[what] != n for what, n in wanted.items()):
            return None
        if count[False, -2 - FORWARD] != v * n_micro or count[False, -2 - BACKWARD] != v * n_micro:
            return None
    if v > 1 and n_micro % p:
        return None
    return tuple(stage % p for stage in range(p * v)), n_micro


def _labelled_stages(made: Sequence[RankPipeline], number: int) -> tuple[tuple[int, ...], int] | None:
    owner: dict[int, int] = {}
    n_micro = 0
    for place, rank in enumerate(made):
        blocks = rank.blocks
        here = blocks.step == number
        if not here.any():
            return None
        n_micro = max(n_micro, int(blocks.micro[here].max()) + 1)
        for stage in distinct(blocks.stage[here]).tolist():
            if owner.setdefault(stage, place) != place:
                return None
    n_stages = len(owner)
    if sorted(owner) != list(range(n_stages)) or n_stages % len(made):
        return None
    return tuple(owner[stage] for stage in range(n_stages)), n_micro


def _peers_agree(made: Sequence[RankPipeline], number: int, names: Sequence[int], rank_of: tuple[int, ...]) -> bool:
    """Return whether the ranks that messages name are those of the stages before and after."""
    near: dict[tuple[int, bool, int], set[int]] = {}
    for rank, after in itertools.pairwise(rank_of):
        for kind, source, target in ((FORWARD, rank, after), (BACKWARD, after, rank)):
            near.setdefault((source, True, kind), set()).add(names[target])
            near.setdefault((target, False, kind), set()).add(names[source])
    for place, rank_pipeline in enumerate(made):
        messages = rank_pipeline.messages
        here = (messages.step == number) & (messages.peer >= 0) & (messages.kind >= 0)
        for send, kind, peer in {
            *zip(messages.send[here].tolist(), messages.kind[here].tolist(), messages.peer[here].tolist(), strict=True)
        }:
            if peer not in near.get((place, send, kind), ()):
                return False
    return True


def _passes(
    blocks: RankBlocks, number: int, place: int, rank_of: tuple[int, ...], n_micro: int, offset_ns: int
) -> Iterator[Pass]:
    p = max(rank_of) + 1
    v = len(rank_of) // p
    seen = [0] * len(KINDS)
    for at in np.flatnonzero(blocks.step == number).tolist():
        kind, stage, micro = int(blocks.kind[at]), int(blocks.stage[at]), int(blocks.micro[at])
        if stage < 0:
            # p micro-batches of a chunk, then p of the next
            turn, within = divmod(seen[kind], p * v if v > 1 else n_micro)
            chunk, micro = divmod(within, p) if v > 1 else (0, within)
            micro += turn * p
            stage = (chunk if kind == FORWARD else v - 1 - chunk) * p + place
            seen[kind] += 1
        task = stage, KINDS[kind], micro
        yield Pass(
            task, int(blocks.start_ns[at]) + offset_ns, int(blocks.end_ns[at]) + offset_ns, int(blocks.busy_ns[at])
        )


def _complete(passes: Sequence[Sequence[Pass]], rank_of: tuple[int, ...], n_micro: int) -> bool:
    """Return whether every micro-batch goes forward and back through every stage."""
    done = {pass_.task for mine in passes for pass_ in mine}
    return all(
        (stage, "F", micro) in done and ((stage, "B", micro) in done or (stage, "I" if stage else "W", micro) in done)
        for stage in range(len(rank_of))
        for micro in range(n_micro)
    )


def _acausal(step: PipelineStep, rank_of: tuple[int, ...]) -> Iterator[float]:
    """Yield for each pass that needs another rank's whether it began before that had ended: 1 or 0."""
    done = {pass_.task: pass_ for passes in step.passes for pass_ in passes}
    for task, dependent in done.items():
        others = [need for need in needs(task, done, len(rank_of)) if need[0] != task[0]]
        need = done.get(others[0]) if others else None
        if need is not None:
            slack = max(SLACK_NS, SLACK * (need.end_ns - need.start_ns))
            yield float(dependent.start_ns < need.end_ns - slack)


def _matched(made: Sequence[RankPipeline], number: int, names: Sequence[int], rank_of: tuple[int, ...]) -> int:
    """Return how many sends of a step have their receive: of each pair of ranks, in order, equally large.

    NCCL's numbers of sends and receives count those of one rank, so they do not help; when a receive ends says little
    on a host, whose threads note a send late. That passes follow each other is shown by their own times.
    """
    n = 0
    for kind, way in ((FORWARD, 1), (BACKWARD, -1)):
        stages = [stage for stage in range(len(rank_of)) if 0 <= stage + way < len(rank_of)]
        links = {(rank_of[stage], rank_of[stage + way]) for stage in stages} - {(rank, rank) for rank in rank_of}
        for source, target in links:
            ends = (made[source].messages, True, names[target]), (made[target].messages, False, names[source])
            sends, receives = (
                np.flatnonzero(
                    (messages.step == number)
                    & (messages.send == send)
                    & (messages.kind == kind)
                    & ((messages.peer == peer) | (messages.peer < 0))
                )
                for messages, send, peer in ends
            )
            n_out, n_in = (sum(link[end] == rank for link in links) for end, rank in ((0, source), (1, target)))
            left, right = ends[0][0], ends[1][0]
            unknown = bool((left.peer[sends] < 0).any() or (right.peer[receives] < 0).any())
            if unknown and max(n_out, n_in) > 1:
                # whose are whose is not recorded, but how many
                n += min(len(sends) // n_out, len(receives) // n_in)
                continue
            k = min(len(sends), len(receives))
            sends, receives = sends[:k], receives[:k]
            sizes = left.nelems[sends], right.nelems[receives]
            same = (sizes[0] == sizes[1]) | (sizes[0] < 0) | (sizes[1] < 0)
            n += int(same.sum())
    return n


def _one_way(made: Sequence[RankPipeline]) -> bool:
    """Return whether activations go out of one rank that gets none, as from a first stage."""
    first = made[0].messages
    return bool((first.send & (first.kind == FORWARD)).any() and not (~first.send & (first.kind == FORWARD)).any())


def _odd(counts: Sequence[Counter[tuple[bool, int]]], numbers: Sequence[int]) -> list[int]:
    """Return the ranks whose passes differ in number from the usual."""
    totals = [count[False, -2 - FORWARD] for count in counts]
    usual = sorted(totals)[len(totals) // 2]
    messages = [sum(n for (_, kind), n in count.items() if kind >= 0) for count in counts]
    inner = sorted(messages[1:-1] or messages)[len(messages[1:-1] or messages) // 2]
    ends = (0, len(counts) - 1)
    return [
        number
        for place, (number, total, n) in enumerate(zip(numbers, totals, messages, strict=True))
        if total != usual or (place not in ends and n != inner)
    ]
