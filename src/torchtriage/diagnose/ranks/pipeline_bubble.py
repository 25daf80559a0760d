"""How long the ranks of a pipeline stand idle in it, and how much of that its schedule and its stages imply.

A rank cannot go on before the stage it needs has ended: until then it waits, which is the bubble; from then on the
message is on its way. What the schedule implies is the same order played through with the stages' usual times.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.intervals import Spans
from torchtriage.diagnose.ranks.pipeline import Pass, Pipeline
from torchtriage.diagnose.ranks.pipeline_schedule import UNKNOWN, Orders, Played, books_share, needs, play
from torchtriage.diagnose.ranks.rank_record import RankRecord

PassTimes = dict[tuple[int, str], float]
"""Stage and kind of a pass to its nanoseconds."""


@dataclass(frozen=True, eq=False)
class Bubble:
    """Times are of one step of one pipeline; arrays are int64[ranks, steps].

    ``span_ns`` : int64[steps], from the first pass on any rank to the last. ``bubble_ns`` : waiting in it for what
    another stage has not done yet. ``transfer_ns`` : sending or receiving what is done. ``busy_ns`` : its passes; the
    rest is the host between them. ``windows`` : the spans, on the job's clock. ``times_ns`` : stage and kind to the
    mean computation of its passes. ``lengths_ns`` : the same from a pass's begin to its end, messages included.
    """

    pipeline: Pipeline
    span_ns: Ints
    bubble_ns: Ints
    transfer_ns: Ints
    busy_ns: Ints
    windows: Spans
    times_ns: PassTimes
    lengths_ns: PassTimes

    @property
    def share(self) -> float:
        """Mean share of the pipeline's time in which a rank waits for another stage."""
        return _share(self.bubble_ns, self.span_ns)

    @property
    def transfer_share(self) -> float:
        """The same of messages on their way."""
        return _share(self.transfer_ns, self.span_ns)

    @cached_property
    def hop_ns(self) -> float:
        """Mean time that a message keeps a rank from going on."""
        stages = self.pipeline.rank_of
        n = sum(left != right for left, right in itertools.pairwise(stages)) * 2 * self.pipeline.n_micro
        return float(self.transfer_ns.sum()) / max(n * len(self.span_ns), 1)

    @cached_property
    def gap_ns(self) -> float:
        """Mean time of the host between two passes."""
        n = sum(map(len, self.pipeline.orders)) * len(self.span_ns)
        rest = self.span_ns * len(self.bubble_ns) - (self.bubble_ns + self.transfer_ns + self.busy_ns).sum(axis=0)
        return float(np.maximum(rest, 0).sum()) / max(n, 1)

    @property
    def known(self) -> bool:
        """Whether its schedule is one that theory is about."""
        return self.pipeline.schedule != UNKNOWN

    @cached_property
    def implied(self) -> Played | None:
        """Its order with every pass as long as usual, and nothing between them."""
        return play(self.pipeline.orders, self.times_ns) if self.known else None

    @cached_property
    def even(self) -> Played | None:
        """The same as if the stages of all ranks were equally long, with the same work together."""
        return play(self.pipeline.orders, self.even_ns) if self.known else None

    @cached_property
    def even_ns(self) -> PassTimes:
        """Times of the passes if the stages of all ranks were equally long, forward and on the way back."""
        return self._evened(self.times_ns)

    def lasts_ns(self, orders: Orders, times_ns: PassTimes) -> float:
        """Return how long some order would last, with messages and gaps as they are here; 0 where it cannot run."""
        played = play(orders, times_ns, hop_ns=self.hop_ns, gap_ns=self.gap_ns)
        return played.span_ns if played else 0.0

    @property
    def even_gain_ns(self) -> float:
        """What equal stages would save: what lies between the computation of a pass moves with its layers."""
        inside_ns = float(np.mean([self.lengths_ns[key] - time_ns for key, time_ns in self.times_ns.items()]))
        between_ns = max(self.gap_ns - inside_ns, 0.0)
        now, even = (
            play(self.pipeline.orders, times_ns, hop_ns=self.hop_ns, gap_ns=between_ns)
            for times_ns in (self.lengths_ns, self._evened(self.lengths_ns))
        )
        return now.span_ns - even.span_ns if now and even else 0.0

    def _evened(self, times_ns: PassTimes) -> PassTimes:
        rank_of, out = self.pipeline.rank_of, {}
        for kinds in ("F", "BIW"):
            whole = [0.0] * len(self.pipeline.members)
            for (stage, kind), time_ns in times_ns.items():
                whole[rank_of[stage]] += time_ns * (kind in kinds)
            mean = float(np.mean(whole))
            for (stage, kind), time_ns in times_ns.items():
                if kind in kinds:
                    out[stage, kind] = time_ns * mean / max(whole[rank_of[stage]], 1.0)
        return out

    @property
    def books_share(self) -> float | None:
        """What books give for equal stages and messages that take no time."""
        made = self.pipeline
        return books_share(made.schedule, len(made.members), made.n_micro, made.n_chunks)

    @cached_property
    def rank_ns(self) -> list[float]:
        """What the stages of each rank take for one micro-batch."""
        out = [0.0] * len(self.pipeline.members)
        for (stage, _), time_ns in self.times_ns.items():
            out[self.pipeline.rank_of[stage]] += time_ns
        return out


def measure(pipeline: Pipeline, ranks: Sequence[RankRecord], offset_ns: Ints) -> Bubble:
    """Return the bubble of a pipeline, rank by rank and step by step."""
    n, p = len(pipeline.steps), len(pipeline.members)
    begins = [min(passes[0].start_ns for passes in step.passes) for step in pipeline.steps]
    ends = [max(pass_.end_ns for passes in step.passes for pass_ in passes) for step in pipeline.steps]
    # a rank may go on to its next step while others end this one
    order = np.argsort(begins)
    for this, following in zip(order.tolist(), order[1:].tolist(), strict=False):
        ends[this] = max(min(ends[this], begins[following]), begins[this])
    windows = np.array([begins, ends], np.int64).T
    bubble, transfer, busy = (np.zeros((p, n), np.int64) for _ in range(3))
    for at, step in enumerate(pipeline.steps):
        done = {pass_.task: pass_.end_ns for passes in step.passes for pass_ in passes}
        begin_ns, end_ns = windows[at].tolist()
        for place, passes in enumerate(step.passes):
            waits, on_way = _gaps(passes, done, pipeline.rank_of, begin_ns, end_ns)
            exposed = ranks[pipeline.members[place]].pipeline.exposed + offset_ns[pipeline.members[place]]
            bubble[place, at] = intervals.length(intervals.clip(waits, begin_ns, end_ns))
            transfer[place, at] = intervals.length(intervals.intersect(on_way, exposed))
            busy[place, at] = sum(pass_.busy_ns for pass_ in passes)
    times: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for step in pipeline.steps:
        for passes in step.passes:
            for micro_pass in passes:
                times.setdefault(micro_pass.task[:2], []).append(
                    (micro_pass.busy_ns, micro_pass.end_ns - micro_pass.start_ns)
                )
    means = {key: np.mean(values, axis=0).tolist() for key, values in times.items()}
    return Bubble(
        pipeline=replace(pipeline, steps=()),
        span_ns=windows[:, 1] - windows[:, 0],
        bubble_ns=bubble,
        transfer_ns=transfer,
        busy_ns=np.minimum(busy, windows[:, 1] - windows[:, 0] - bubble),
        windows=windows,
        times_ns={key: busy for key, (busy, _) in means.items()},
        lengths_ns={key: length for key, (_, length) in means.items()},
    )


def _gaps(
    passes: Sequence[Pass], done: dict[tuple[int, str, int], int], rank_of: tuple[int, ...], begin_ns: int, end_ns: int
) -> tuple[Spans, Spans]:
    """Return when a rank waits for a stage that has not ended, and when it might for a message on its way."""
    waits, on_way = [], []
    before_ns = begin_ns
    for pass_ in passes:
        others = [need for need in needs(pass_.task, done, len(rank_of)) if rank_of[need[0]] != rank_of[pass_.task[0]]]
        ready = done.get(others[0]) if others else None
        if ready is not None and pass_.start_ns > before_ns:
            middle_ns = min(max(ready, before_ns), pass_.start_ns)
            waits.append((before_ns, middle_ns))
            on_way.append((middle_ns, pass_.start_ns))
        before_ns = max(before_ns, pass_.end_ns)
    waits.append((before_ns, max(end_ns, before_ns)))
    return (
        intervals.union(np.array(waits, np.int64).reshape(-1, 2)),
        intervals.union(np.array(on_way, np.int64).reshape(-1, 2)),
    )


def _share(part_ns: Ints, span_ns: Ints) -> float:
    whole = float(span_ns.sum()) * len(part_ns)
    return float(part_ns.sum()) / whole if whole else 0.0
