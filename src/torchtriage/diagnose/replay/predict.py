"""From edits to savings: scenarios are replayed in batches under several variants of the model.

The default model repeats the recorded run exactly. The others ask how much an answer depends on
what was not recorded: ``strict`` has no residuals and one lag per kind of edge, ``seen`` does
without edges inferred from coinciding times, ``unprofiled`` takes the profiler's own cost out of
the host's work. The printed interval spans them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, distinct, joined
from torchtriage.core.errors import UsageError
from torchtriage.core.trace import Trace
from torchtriage.core.trace.recorders import XLA
from torchtriage.diagnose.replay.edits import Edit
from torchtriage.diagnose.replay.engine import NEVER, Patch, Schedule, schedule
from torchtriage.diagnose.replay.graph import CONFIDENCE, LAUNCH_NS, EdgeKind, Graph, NodeKind, build
from torchtriage.diagnose.replay.quality import Quality, judge
from torchtriage.diagnose.replay.reach import Reach, Stretch
from torchtriage.diagnose.replay.scenarios import Scenario, ScenarioSteps

Edits = Sequence[Edit]

INFERRED = 0.6
"""Edges of less confidence were inferred from coinciding times."""
PER_OP_NS, PER_FRAME_NS = 1_400, 1_700
"""What the profiler itself adds to an operator and to a Python frame (fitted on four pairs)."""
COLUMNS, CHANGES = 128, 1 << 18
"""Variants times scenarios replayed at once, 4 MB per chunk of nodes; and changes of nodes in them, 4 MB."""
CROWDING, MAX_CROWDING = 0.8, 0.31
"""Work moved to other processes takes cores: with 4 workers instead of none for loading that took
38 % of the step, the other host work was 2-31 % slower (six recorded pairs)."""
COVERED = 0.99
"""A call covered this far by dropped rows is gone, its wait included."""


@dataclass(frozen=True)
class ReplayPrediction:
    """What a set of edits saves per steady step (per window without steps).

    ``low_ns <= saving_ns <= high_ns`` : the smallest, the default model's, and the largest saving
    over the variants of the model, the cautious and hopeful factors of the edits, and what work
    done in parallel takes from the rest; negative when the edits slow the step down. ``naive_ns`` :
    the plain sum of the durations taken away, for contrast. ``inferred_share`` : share of the
    saving that rests on edges that were inferred from timing (0-1).
    """

    saving_ns: float
    low_ns: float
    high_ns: float
    naive_ns: float
    inferred_share: float


class _Variant(NamedTuple):
    name: str
    dur_ns: Ints
    still_ns: Ints
    """Gap and residual: what a node takes besides its duration."""
    lag_ns: Ints


@dataclass(eq=False)
class _Change:
    """A scenario in the making; ``cut`` and ``staged`` are edges, ``gone`` nodes."""

    keep: Floats
    gone: list[Ints] = field(default_factory=list)
    cut: list[Ints] = field(default_factory=list)
    staged: list[Ints] = field(default_factory=list)
    floor_ns: float = 0.0


class ReplayModel:
    """A trace as a graph of work and waiting; make it with :func:`model`.

    ``step_ms`` : wall time of a step measured without the profiler, if known.
    """

    def __init__(self, trace: Trace, *, step_ms: float | None = None) -> None:
        """Build the graph and judge it."""
        self.trace = trace
        self.graph: Graph = build(trace)
        self.schedule: Schedule = schedule(self.graph)
        self._step_ms = step_ms
        self._reach = Reach(trace, self.graph)
        self._known_shares: dict[int, tuple[intervals.Spans, list[tuple[int, int, slice, Floats]]]] = {}

    # -- what it says ------------------------------------------------------------------------

    @cached_property
    def quality(self) -> Quality:
        """How far the replay can be trusted."""
        quality = judge(self.graph, self.schedule)
        trace = self.trace
        if quality.accepted and not trace.devices and not trace.is_host_only:
            return replace(quality, accepted=False, reason="the device's work is not in it")
        if quality.accepted and (trace.origin.accelerator or trace.report.recorder in XLA):
            # calls that wait have other names, or a thread waits in none, as XLA's and TensorFlow's do: a run without
            # their waits would seem to gain nothing
            reason = f"which calls wait for the {trace.origin.accelerator or 'GPU'} is not known"
            return replace(quality, accepted=False, reason=reason)
        return quality

    @cached_property
    def step_ns(self) -> float:
        """Replayed wall time of the mean steady step (of the window without steps).

        The recorded one, or the unprofiled one that was given.
        """
        return float(self._base[self._at])

    def predict(self, edits: Edits) -> ReplayPrediction:
        """Return what one set of edits saves."""
        return self.predict_many([edits])[0]

    def predict_many(self, edit_sets: Sequence[Edits]) -> list[ReplayPrediction]:
        """Return what each set of edits saves on its own."""
        asked: list[tuple[Edits, bool]] = []
        index: list[tuple[slice, slice]] = []
        for edits in edit_sets:
            first = len(asked)
            asked.append((edits, False))
            if any(edit.best is not None for edit in edits):
                asked.append((edits, True))
            usual = slice(first, len(asked))
            if any(edit.kind == "parallel" for edit in edits):
                moved = sum(self._per_step(edit.rows) for edit in edits if edit.kind == "parallel")
                crowded = min(CROWDING * moved / max(self.step_ns, 1.0), MAX_CROWDING)
                crowd = Edit("threads", factor=1 + crowded)
                asked.append(([*edits, crowd], False))
            index.append((usual, slice(first, len(asked))))
        saving = self._base[:, None] - self._after(asked)
        seen = self._names.index("seen") if "seen" in self._names else self._at
        out = []
        for edits, (usual, whole) in zip(edit_sets, index, strict=True):
            both = saving[:, whole]
            middle = float(saving[self._at, usual].mean())
            rests = abs(middle - float(saving[seen, usual].mean()))
            out.append(
                ReplayPrediction(
                    middle,
                    float(both.min()),
                    float(both.max()),
                    self._naive(edits),
                    min(rests / abs(middle), 1.0) if middle else 0.0,
                )
            )
        return out

    def cumulative(self, edit_sets: Sequence[Edits]) -> list[float]:
        """Return the saving in ns of the first, the first two, ... sets of edits together."""
        return self.savings(list(accumulate(map(list, edit_sets))))

    def savings(self, edit_sets: Sequence[Edits]) -> list[float]:
        """Return the saving in ns of each set of edits on its own, by the default model alone."""
        saving = self._base[self._at] - self._after([(edits, False) for edits in edit_sets], [self._at])[0]
        return [float(value) for value in saving]

    def after_ns(self, edits: Edits) -> float:
        """Return the wall time of a step with these edits, in ns, by the default model."""
        return float(self._after([(edits, False)], [self._at])[0, 0])

    def release(self) -> None:
        """Let go of what only edits need; who asks about more of them waits for it again."""
        vars(self).pop("_ordered", None)
        vars(self.schedule).pop("_chunks", None)
        self._reach = Reach(self.trace, self.graph)
        self._known_shares.clear()

    # -- variants ----------------------------------------------------------------------------

    def _variants(self) -> list[_Variant]:
        graph = self.graph
        lag = graph.lag_ns - graph.gap_ns[graph.target]
        still = graph.gap_ns + graph.extra_ns
        variants = [
            _Variant("default", graph.dur_ns, still, lag),
            _Variant(
                "strict", graph.dur_ns, graph.strict_gap_ns, graph.strict_lag_ns - graph.strict_gap_ns[graph.target]
            ),
        ]
        inferred = CONFIDENCE[graph.edge_kind] < INFERRED
        if inferred.any():
            variants.append(
                _Variant(
                    "seen", graph.dur_ns, graph.gap_ns + graph.residuals(~inferred), np.where(inferred, NEVER, lag)
                )
            )
        light = self._without_profiler()
        if light is not None:
            variants.append(_Variant("unprofiled", light, still, lag))
        return variants

    @cached_property
    def _ordered(self) -> tuple[list[str], list[Ints], list[Ints], Ints]:
        """Names of the variants, what nodes take in running order, and int64[edges, variants]: the lags.

        Nodes as :class:`ScenarioSteps` is given them.
        """
        variants, node = self._variants(), self._running
        # most variants share their arrays
        every = {id(values): values for variant in variants for values in (variant.dur_ns, variant.still_ns)}
        running = {key: values[node] for key, values in every.items()}
        return (
            [variant.name for variant in variants],
            [running[id(variant.dur_ns)] for variant in variants],
            [running[id(variant.still_ns)] for variant in variants],
            np.stack([variant.lag_ns for variant in variants], axis=1),
        )

    @property
    def _names(self) -> list[str]:
        return self._ordered[0]

    @property
    def _at(self) -> int:
        """Where the default model is among the variants."""
        given = self._step_ms is not None and "unprofiled" in self._names
        return self._names.index("unprofiled" if given else "default")

    def _without_profiler(self) -> Ints | None:
        """Return durations without the profiler's cost; None where it cost nothing."""
        graph, trace = self.graph, self.trace
        own = np.where(self._reach.hosts, graph.dur_ns, 0)
        cost = np.minimum(self._profiler_ns(), own * (1 - 1 / trace.origin.inflation))
        if not cost.any():
            return None
        if self._step_ms is None:
            return graph.dur_ns - cost.astype(np.int64)
        return graph.dur_ns - (cost * self._scale(cost)).astype(np.int64)

    def _profiler_ns(self) -> Ints:
        """Return int64[nodes], ns: what the profiler itself cost inside each host node."""
        graph, trace = self.graph, self.trace
        cost = np.zeros(graph.n_nodes, np.int64)
        for tree, each in ((trace.tree, PER_OP_NS), (trace.frames, PER_FRAME_NS)):
            for lane, (a, b) in self._reach.host_lanes.items():
                # those that start before a node ends are its own, or of the nodes before it
                started = tree.n_started(lane, graph.finish_ns[a:b] + graph.origin_ns - 1)
                cost[a:b] += each * np.diff(started, prepend=0)
        return cost

    def _scale(self, cost: Floats) -> float:
        assert self._step_ms is not None
        graph, order = self.graph, self.schedule
        lag = (graph.lag_ns - graph.gap_ns[graph.target])[:, None]
        still = (graph.gap_ns + graph.extra_ns)[:, None]
        low, high = 0.0, float(1 / max((cost / np.maximum(graph.dur_ns, 1)).max(), 1e-9))
        for _ in range(3):
            tries = np.linspace(low, high, 9)
            dur = graph.dur_ns[:, None] - (cost[:, None] * tries).astype(np.int64)
            walls = self._finished(order.run_steps(np.maximum(dur, 0) + still, lag, graph.bound_node, width=len(tries)))
            index = int(np.searchsorted(-walls, -self._step_ms * 1e6))
            low, high = tries[max(index - 1, 0)], tries[min(index, 8)]
        return float((low + high) / 2)

    @cached_property
    def _base(self) -> Floats:
        """float64[variants], ns: the step without edits."""
        none = np.empty(0, np.int64)
        nothing = Scenario(none.astype(np.int32), np.empty(0), none, none, 0.0)
        out: Floats = self._steps([nothing])[:, 0]
        return out

    def _after(self, asked: Sequence[tuple[Edits, bool]], variants: Sequence[int] | None = None) -> Floats:
        """Return float64[variants, asked], ns: the step with edits, or what is hoped of them; moved work in mind."""
        base = self._base if variants is None else self._base[variants]
        size = max(COLUMNS // len(base), 1)
        out, batch = [np.empty((len(base), 0))], list[Scenario]()
        for index, (edits, hopeful) in enumerate(asked):
            batch.append(self.scenario(edits, hopeful=hopeful))
            full = len(batch) == size or sum(len(scenario.node) for scenario in batch) > CHANGES
            if full or index == len(asked) - 1:
                floors = np.array([scenario.floor_ns for scenario in batch])
                out.append(np.maximum(self._steps(batch, variants), np.minimum(floors, base[:, None])))
                batch = []
        return np.concatenate(out, axis=1)

    # -- scenarios ---------------------------------------------------------------------------

    def _steps(self, scenarios: Sequence[Scenario], variants: Sequence[int] | None = None) -> Floats:
        """Return float64[variants, scenarios], ns: the wall time of the mean steady step; of all variants or some."""
        order = self.schedule
        _, dur, still, lag = self._ordered
        if variants is not None:
            dur, still = ([each[index] for index in variants] for each in (dur, still))
            lag = lag[:, variants]
        n_variants, width = len(dur), len(scenarios)
        # in each variant the same edges; half the bytes of what indexes them otherwise
        edge = np.concatenate([scenario.edge for scenario in scenarios]).astype(np.int32)
        which = np.repeat(np.arange(width, dtype=np.int32), [len(scenario.edge) for scenario in scenarios])
        column = which[:, None] + np.arange(n_variants, dtype=np.int32) * width
        lags = np.concatenate([scenario.lag_ns for scenario in scenarios])
        patch = Patch(np.repeat(edge, n_variants), column.ravel(), np.repeat(lags, n_variants))
        filled = ScenarioSteps(order, dur, still, scenarios)
        walls = self._finished(order.run(filled, n_variants * width, lag, self.graph.bound_node, patch))
        return walls.reshape(n_variants, width)

    def _finished(self, bound_ns: Ints) -> Floats:
        """Return float64[columns], ns: mean steady step from finish times of the bounding nodes."""
        walls = np.diff(self.graph.bounds_of(bound_ns), axis=0)
        steps = self.trace.steps
        steady = steps.steady if len(steps) else np.ones(1, dtype=bool)
        out: Floats = walls[steady].mean(axis=0)
        return out

    def scenario(self, edits: Edits, *, hopeful: bool = False) -> Scenario:
        """Return what edits change in the graph; ``hopeful`` takes their hopeful factors."""
        graph = self.graph
        change = _Change(np.ones(graph.n_nodes))
        host: list[tuple[Ints, Floats]] = []
        dropped: list[Ints] = []
        for edit in edits:
            mine, left = self._reach.of(edit.rows), edit.remains(hopeful=hopeful)
            node, left_work = mine.node, left[mine.at_work]
            other, left_other = mine.host, left[mine.at_host]
            if edit.kind == "threads":
                self._slow(change, edit, float(np.asarray(edit.hopeful if hopeful else edit.factor)))
            elif edit.kind == "shrink":
                change.keep[node] *= left_work
                if (left_other != 1.0).any():
                    host.append((other, left_other))
            elif edit.kind == "drop":
                change.keep[node] = 0.0
                change.gone.append(node)
                change.cut.append(self._reach.edges_into(node, EdgeKind.LAUNCH))
                host.append((other, np.zeros(len(other))))
                dropped.append(other)
            elif edit.kind == "unblock":
                gone = left_other == 0
                change.cut.append(self._reach.edges_into_waits(other if gone.all() else other[gone]))
            elif edit.kind == "overlap":
                self._overlap(change, node, mine.rows[mine.at_work], left_work)
            elif edit.kind == "parallel":
                host.append((other, np.zeros(len(other))))
                dropped.append(other)
                change.floor_ns += self._per_step(other, left_other)
        if host:
            whole = self._apply_host(change.keep, host)
            if dropped:
                waits = np.flatnonzero((graph.kind == NodeKind.WAIT) & (whole == 0))
                change.cut.append(self._reach.edges_into(waits))
            edges = self._reach.batches
            left = whole[graph.target[edges]]
            hit = np.isfinite(left)
            change.keep[graph.source[edges[hit]]] *= left[hit]
        change.keep[joined(change.gone)] = np.nan
        kept = change.keep[self._running]
        changed = np.flatnonzero(kept != 1.0)
        gone = np.zeros(len(graph.source), dtype=bool)
        gone[joined(change.cut)] = True
        light = np.zeros(len(graph.source), dtype=bool)
        light[joined(change.staged)] = True
        cut, staged = np.flatnonzero(gone), np.flatnonzero(light & ~gone)
        return Scenario(
            self._running[changed].astype(np.int32),
            kept[changed],
            np.concatenate([cut, staged]),
            np.concatenate([np.full(len(cut), NEVER), np.full(len(staged), LAUNCH_NS)]),
            change.floor_ns,
        )

    def _slow(self, change: _Change, edit: Edit, factor: float) -> None:
        if edit.spans is None:
            change.keep[self._reach.hosts] *= factor
            return
        for a, b, at, share in self._shares(edit.spans):
            change.keep[a:b][at] *= 1 - share * (1 - factor)

    def _shares(self, spans: intervals.Spans) -> list[tuple[int, int, slice, Floats]]:
        """Return for each thread which of its nodes ``a:b`` the spans touch, and how much of each they cover (0-1)."""
        # many scenarios ask for the same spans
        if id(spans) not in self._known_shares:
            graph, reach = self.graph, self._reach
            found: list[tuple[int, int, slice, Floats]] = []
            time = intervals.union(np.asarray(spans, np.int64)) - graph.origin_ns
            for lane, (a, b) in reach.host_lanes.items():
                at, covered = reach.covered(lane, time)
                found.append((a, b, at, np.where(reach.hosts[a:b][at], covered / reach.length_ns[a:b][at], 0.0)))
            self._known_shares[id(spans)] = spans, found
        return self._known_shares[id(spans)][1]

    def _overlap(self, change: _Change, node: Ints, work: Ints, left: Floats) -> None:
        graph = self.graph
        lane = graph.lane_of()
        moved_ns = np.bincount(lane[node], weights=graph.dur_ns[node], minlength=graph.n_lanes)
        stream_ns = np.bincount(lane, weights=graph.dur_ns, minlength=graph.n_lanes)
        # on a stream that does little else, in time and in number, it stays, and nothing waits for it
        aside = moved_ns >= 0.9 * stream_ns
        aside &= 2 * np.bincount(lane[node], minlength=graph.n_lanes) >= np.bincount(
            lane[graph.kind == NodeKind.WORK], minlength=graph.n_lanes
        )
        alone = aside[lane[node]] & (left == 0)
        leaving = np.zeros(graph.n_nodes, dtype=bool)
        leaving[node[alone]] = True
        change.cut.append(np.flatnonzero(leaving[graph.source]))
        moved = ~alone
        # what is moved is as fast as the edits before this one have made it
        change.floor_ns += self._per_step(work[moved], change.keep[node[moved]])
        change.keep[node[moved]] *= left[moved]
        change.gone.append(node[moved & (left == 0)])
        # memory that can be copied beside other work needs no staging by the host
        change.staged.append(self._reach.edges_into(node[moved], EdgeKind.LAUNCH))

    def _apply_host(self, keep: Floats, host: list[tuple[Ints, Floats]]) -> Floats:
        """Shrink host nodes by what rows cover of them; return what remains of those covered wholly, else nan."""
        whole = np.full(self.graph.n_nodes, np.nan)
        saved: dict[int, list[intervals.Spans]] = {}
        # what several edits shrink is shrunk once, by the strongest
        for factor in distinct(np.concatenate([distinct(left) for _, left in host])).tolist():
            found: dict[int, list[Stretch]] = {}
            for rows, left in host:
                mine = left == factor
                known = self._reach.stretches(rows) if mine.all() else self._reach.stretches_once(rows[mine])
                for lane, stretch in known.items():
                    found.setdefault(lane, []).append(stretch)
            for lane, parts in found.items():
                before = saved.setdefault(lane, [])
                stretch = parts[0]
                if before or len(parts) > 1:
                    spans = intervals.union(np.concatenate([part.spans for part in parts]))
                    new = intervals.subtract(spans, intervals.union(np.concatenate(before))) if before else spans
                    stretch = self._reach.stretch(lane, new)
                before += [part.spans for part in parts]
                keep[stretch.node] *= np.maximum(1 - stretch.share * (1 - factor), 0.0)
                whole[stretch.node[stretch.share >= COVERED]] = factor
        return whole

    def _naive(self, edits: Edits) -> float:
        trace, total = self.trace, 0.0
        for edit in edits:
            rows = np.asarray(edit.rows, np.int64)
            left = edit.remains(hopeful=False)
            if edit.kind == "threads":
                spans = trace.steps.judged if edit.spans is None else intervals.union(edit.spans)
                held = intervals.intersect(spans, trace.steps.judged)
                share = 1 - float(np.asarray(edit.factor))
                total += intervals.length(held) / trace.steps.n_steady * share
                continue
            weights = np.ones(len(rows)) if edit.kind in ("drop", "parallel") else 1 - left
            total += self._per_step(rows, np.maximum(weights, 0.0))
        return total

    def _per_step(self, rows: Ints, weight: Floats | None = None) -> float:
        """Return the time of rows in the judged steps, per step; what is nested counts once."""
        trace = self.trace
        total = 0.0
        judged = trace.steps.judged
        for lane in distinct(trace.lane[rows]).tolist():
            mine = trace.lane[rows] == lane
            spans = intervals.spans(trace.start_ns[rows[mine]], trace.end_ns[rows[mine]])
            pieces, of = intervals.disjoint(spans)
            held = intervals.covered(pieces, judged)
            total += float((held if weight is None else held * weight[mine][of]).sum())
        return total / trace.steps.n_steady

    # -- places ------------------------------------------------------------------------------

    @cached_property
    def _running(self) -> Ints:
        """int64[nodes]: the nodes in running order."""
        node = np.empty(self.graph.n_nodes, np.int64)
        node[self.schedule.place] = np.arange(len(node))
        return node


def model(trace: Trace, *, step_ms: float | None = None) -> ReplayModel:
    """Return the model of a trace, built when first asked for and stored with the trace.

    ``step_ms`` : wall time of a step measured without the profiler: host work is scaled to it.

    Raises
    ------
    UsageError
        ``step_ms`` is not above 0.
    """
    if step_ms is not None:
        if not step_ms > 0:
            raise UsageError(f"expected a step time above 0 ms, found {step_ms!r}")
        return ReplayModel(trace, step_ms=step_ms)
    # beside the trace's own cached properties, and freed with them
    cached = vars(trace)
    if "replay_model" not in cached:
        cached["replay_model"] = ReplayModel(trace)
    found: ReplayModel = cached["replay_model"]
    return found
