"""The ranks of a job replayed together: one graph, in which a collective waits for its last rank.

Each rank brings the graph of its own trace. A matched collective of a device is cut in two: every
rank enters, all meet when the last has, and only then does the transfer run. So a rank that gets
faster waits for the others, and one that everybody waits for makes all of them faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, joined
from torchtriage.core.trace import Trace
from torchtriage.diagnose.ranks.match import Matches
from torchtriage.diagnose.ranks.rank_record import RankReplay
from torchtriage.diagnose.replay import Scenario, model, parse_what_if
from torchtriage.diagnose.replay.engine import Patch, Schedule, schedule
from torchtriage.diagnose.replay.graph import EdgeKind, Graph, NodeKind

MAX_ERROR = 0.03
"""Of the recorded step: a joint replay further off gives no numbers."""


def rank_replay(trace: Trace, questions: Sequence[str], step_ms: float | None) -> RankReplay:
    """Return what a job needs of a rank's replay to answer what-if questions.

    ``step_ms`` : a step without the profiler, if known.
    """
    replayed = model(trace, step_ms=step_ms)
    graph = replayed.graph
    edits = [parse_what_if(text).edits(trace) for text in questions]
    return RankReplay(
        graph,
        graph.origin_ns + (trace.origin.base_time_ns or 0),
        replayed.quality.reason if trace.devices else "collectives of the host are not replayed",
        tuple(replayed.scenario(some) if some else None for some in edits),
    )


class JobReplay:
    """The ranks of a job as one graph.

    ``bounds`` : for each rank, the steps (indices into its own) that are averaged over; equal lengths.
    """

    def __init__(self, ranks: Sequence[RankReplay], matches: Matches, bounds: Sequence[Ints]) -> None:
        """Join the graphs."""
        self._ranks = ranks
        self._steps = bounds
        sizes = [rank.graph.n_nodes for rank in ranks]
        self._first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.graph, self._edge_place = _joined(ranks, matches, self._first)
        self._schedule: Schedule = schedule(self.graph)
        self._bounds = np.concatenate(
            [rank.graph.bound_node + at for rank, at in zip(ranks, self._first[:-1], strict=True)]
        )
        self.step_ns = self.after_ns([None] * len(ranks))
        """Mean replayed step."""
        recorded = self._mean_step(self.graph.finish_ns[self._bounds])
        self.error = self.step_ns / recorded - 1 if recorded else 0.0
        """Against the recorded one; signed share."""

    @property
    def reason(self) -> str:
        """Why its numbers are not to be used, empty where they are."""
        refused = [at for at, rank in enumerate(self._ranks) if rank.reason]
        if refused:
            return self._ranks[refused[0]].reason
        if abs(self.error) > MAX_ERROR:
            return "the ranks replayed together do not give the recorded steps"
        return ""

    def ask(self, question: int) -> float | None:
        """Return the step in ns after a question on every rank; None where it changes nothing."""
        scenarios = [rank.questions[question] for rank in self._ranks]
        if all(scenario is None for scenario in scenarios):
            return None
        return self.after_ns(scenarios)

    def after_ns(self, scenarios: Sequence[Scenario | None]) -> float:
        """Return the mean step in ns with each rank changed by its scenario (None: unchanged)."""
        graph = self.graph
        step = graph.dur_ns + graph.gap_ns + graph.extra_ns
        edges, lags = [], []
        for first, places, scenario in zip(self._first[:-1], self._edge_place, scenarios, strict=True):
            if scenario is None:
                continue
            node = scenario.node + first
            step[node] = scenario.takes(graph.dur_ns[node], graph.gap_ns[node] + graph.extra_ns[node])
            edges.append(places[scenario.edge])
            lags.append(scenario.lag_ns)
        edge = joined(edges)
        patch = Patch(edge, np.zeros(len(edge), np.int64), joined(lags))
        lag = (graph.lag_ns - graph.gap_ns[graph.target])[:, None]
        done = self._schedule.run_steps(step[:, None], lag, self._bounds, patch)
        return self._mean_step(done[:, 0])

    def _mean_step(self, finish_ns: Ints) -> float:
        walls, at = [], 0
        for rank, steps in zip(self._ranks, self._steps, strict=True):
            done = finish_ns[at : at + len(rank.graph.bound_node)]
            at += len(done)
            latest = np.maximum.reduceat(done, rank.graph.bound_first[:-1])
            walls.append(np.diff(np.maximum.accumulate(latest))[steps].mean())
        return float(np.mean(walls))


def _joined(ranks: Sequence[RankReplay], matches: Matches, first: Ints) -> tuple[Graph, list[Ints]]:
    graphs = [rank.graph for rank in ranks]
    origins = np.array([rank.origin_ns for rank in ranks]) + matches.offset_ns
    origin = int(origins.min())
    late = origins - origin
    n_ranks = int(first[-1])

    def all_of(name: str) -> Ints:
        return np.concatenate([getattr(graph, name) for graph in graphs])

    shift = np.repeat(late, [graph.n_nodes for graph in graphs])
    begin, finish, dur = all_of("begin_ns") + shift, all_of("finish_ns") + shift, all_of("dur_ns")
    # a rank's root is the moment its recording begins
    dur[first[:-1]] = late
    kind = np.concatenate([graph.kind for graph in graphs])
    row = all_of("row")

    # where ranks meet: one node for each match, in a lane for each group
    entry, body, meeting, lane_sizes = _meetings(matches, first, kind, row)
    n_meetings = int(sum(lane_sizes))
    meet_ns = np.full(n_meetings, np.iinfo(np.int64).min)
    np.maximum.at(meet_ns, meeting, finish[entry])
    transfer = np.maximum(finish[body] - meet_ns[meeting], 0)
    dur[body] = np.minimum(transfer, dur[body])

    n_edges = [len(graph.source) for graph in graphs]
    moved = np.repeat(first[:-1], n_edges)
    source = np.concatenate([all_of("source") + moved, entry, meeting + n_ranks])
    target = np.concatenate([all_of("target") + moved, meeting + n_ranks, body])
    lag = np.append(all_of("lag_ns"), np.zeros(2 * len(meeting), np.int64))
    edge_kind = np.append(all_of("edge_kind"), np.full(2 * len(meeting), EdgeKind.COLLECTIVE)).astype(np.uint8)
    order = np.argsort(target, kind="stable")
    where = np.empty(len(order), np.int64)
    where[order] = np.arange(len(order))
    places = np.split(where[: len(moved)], np.cumsum(n_edges)[:-1])

    def more(values: Ints, fill: Ints | int) -> Ints:
        return np.append(values, np.broadcast_to(np.asarray(fill), (n_meetings,)))

    lanes = [graph.lane_first[:-1] + at for graph, at in zip(graphs, first[:-1], strict=True)]
    lanes.append(n_ranks + np.cumsum([0, *lane_sizes]))
    lane_first = np.concatenate(lanes).astype(np.int64)
    graph = Graph(
        origin_ns=origin,
        lane_first=lane_first,
        trace_lane=np.full(len(lane_first) - 1, -1, np.int64),
        kind=more(kind, NodeKind.PAUSE).astype(np.uint8),
        row=more(row, -1),
        begin_ns=more(begin, meet_ns),
        finish_ns=more(finish, meet_ns),
        dur_ns=more(dur, 0),
        gap_ns=more(all_of("gap_ns"), 0),
        strict_gap_ns=more(all_of("strict_gap_ns"), 0),
        extra_ns=more(all_of("extra_ns"), 0),
        source=source[order],
        target=target[order],
        edge_kind=edge_kind[order],
        lag_ns=lag[order],
        strict_lag_ns=lag[order],
        bound_node=np.empty(0, np.int64),
        bound_first=np.zeros(1, np.int64),
        n_contradicted=sum(graph.n_contradicted for graph in graphs),
    )
    return graph, places


def _meetings(matches: Matches, first: Ints, kind: NDArray[np.uint8], row: Ints) -> tuple[Ints, Ints, Ints, list[int]]:
    """Return for each matched collective its two nodes and its meeting, and the lanes' sizes.

    Groups that cannot be judged do not meet, nor do collectives without nodes (of the host).
    """
    entry, body, meeting, sizes = [], [], [], []
    n_before = n_meetings = 0
    node_of = []
    for begin, end in pairwise(first.tolist()):
        enters = begin + np.flatnonzero(kind[begin:end] == NodeKind.ENTER)
        node_of.append(dict(zip(row[enters].tolist(), enters.tolist(), strict=True)))
    for group in matches.groups:
        use = (matches.match_id >= n_before) & (matches.match_id < n_before + len(group))
        if not group.fault:
            position, rows = matches.rank[use], matches.row[use]
            pairs = zip(position.tolist(), rows.tolist(), strict=True)
            node = np.array([node_of[rank].get(item, -1) for rank, item in pairs], np.int64)
            number = matches.match_id[use] - n_before
            # a lane runs in order: matches are sorted by the first rank, meetings by the last
            rank_of_match = np.argsort(np.argsort(group.start_ns.max(axis=1), kind="stable"))
            known = node >= 0
            entry.append(node[known])
            body.append(node[known] + 1)
            meeting.append(rank_of_match[number[known]] + n_meetings)
            sizes.append(len(group))
            n_meetings += len(group)
        n_before += len(group)
    return joined(entry), joined(body), joined(meeting), sizes
