"""What the others need of one rank to replay the job with its findings fixed: its graph, reduced to its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.trace import Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.diagnose.replay import Edit, model
from torchtriage.diagnose.replay.reduce import MOST, Reduced, collective_nodes, reduce_graph
from torchtriage.diagnose.verdict.result import Result

MAX_FIXES = 8
"""Findings of a rank that are replayed, the costliest; the others keep their bound."""
MAX_WINDOW_NS = 60_000_000_000
"""Paths have to stay shorter than what tells their sources apart."""
ALL = -1
"""The fix that is all of a rank's replayed fixes together."""


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class RankSkeleton:
    """One rank's collectives in the order of their start, and what each and each bound of a step waits for.

    ``origin_ns`` : the graph's origin on the rank's own clock, base time included; ``start_ns`` and ``end_ns`` count
    from there. ``bound_ns`` : the recorded bounds of its steps. ``fixes`` : place of a finding in the rank's result, or
    ``ALL``, to its scenario of ``reduced``, the first of which is the recording. ``saving_ns`` : what that saves per
    step where the collectives stay as they are. ``reason`` : why there is none, empty where there is.
    """

    reason: str
    origin_ns: int = 0
    row: Ints = field(default_factory=_none)
    start_ns: Ints = field(default_factory=_none)
    end_ns: Ints = field(default_factory=_none)
    bound_ns: Ints = field(default_factory=_none)
    reduced: Reduced | None = None
    fixes: dict[int, int] = field(default_factory=dict)
    saving_ns: dict[int, float] = field(default_factory=dict)


def rank_skeleton(trace: Trace, result: Result, fixes: Sequence[tuple[Edit, ...]]) -> RankSkeleton | None:
    """Return a rank's skeleton; None where it has no collectives on a device.

    ``fixes`` : what each finding of the result changes.
    """
    # what communication would save depends on the other ranks in another way: they are not late, they are done
    asked = [
        at
        for at, (finding, edits) in enumerate(zip(result.findings, fixes, strict=True))
        if edits and finding.cost is not None and finding.cost.high_ms > 0 and finding.family != "comm"
    ][:MAX_FIXES]
    sets = {at: fixes[at] for at in asked}
    if len(sets) > 1:
        sets[ALL] = tuple(edit for edits in sets.values() for edit in edits)
    return skeleton_of(trace, sets)


def skeleton_of(trace: Trace, fixes: Mapping[int, Sequence[Edit]]) -> RankSkeleton | None:
    """Return a rank's skeleton with these fixes; None where it has no collectives on a device."""
    rows = np.flatnonzero(communicates(trace))
    if not len(rows) or not trace.devices:
        return None
    replayed = model(trace)
    if not replayed.quality.accepted:
        return RankSkeleton(replayed.quality.reason)
    graph = replayed.graph
    body, row = collective_nodes(graph, rows)
    if not 0 < len(body) <= MOST:
        return RankSkeleton(f"{len(body):,} collectives of a rank are too many to replay")
    if int(graph.finish_ns.max() - graph.begin_ns.min()) > MAX_WINDOW_NS:
        return RankSkeleton("the recording is too long to replay")
    scenarios = [replayed.scenario(edits) for edits in fixes.values()]
    return RankSkeleton(
        "",
        origin_ns=graph.origin_ns + (trace.origin.base_time_ns or 0),
        row=row,
        start_ns=graph.begin_ns[body],
        end_ns=graph.finish_ns[body],
        bound_ns=graph.bounds(graph.finish_ns),
        reduced=reduce_graph(graph, body, [None, *scenarios]),
        fixes={at: index for index, at in enumerate(fixes, start=1)},
        saving_ns={at: replayed.step_ns - replayed.after_ns(edits) for at, edits in fixes.items()},
    )
