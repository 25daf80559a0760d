"""The engine: equal to an independent one, monotone, exact in scale; delays propagate."""

from __future__ import annotations

import numpy as np
import pytest
from diagnose.replay import programs
from diagnose.replay.slow_engine import finish_times
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.core.engine import READER_VARIABLE, find_engine
from torchtriage.diagnose.replay import engine
from torchtriage.diagnose.replay.engine import NEVER, Patch, Schedule, schedule
from torchtriage.diagnose.replay.graph import EdgeKind, Graph, NodeKind, build
from torchtriage.diagnose.replay.quality import binding, critical_nodes
from torchtriage.diagnose.replay.scenarios import Scenario, ScenarioSteps


def random_graph(seed: int, n_lanes: int, n_edges: int) -> Graph:
    """Return a graph whose edges go forward in a hidden order of all its nodes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 12, n_lanes)
    lane_first = np.concatenate([[0, 1], 1 + np.cumsum(sizes)])
    n = int(lane_first[-1])
    # a hidden order: nodes of a lane keep theirs
    lane = np.repeat(np.arange(n_lanes + 1), np.diff(lane_first))
    order = random.permutation(lane[1:])
    rank = np.zeros(n, np.int64)
    for one in range(1, n_lanes + 1):
        rank[lane == one] = 1 + np.flatnonzero(order == one)
    pairs = random.integers(0, n, (n_edges, 2))
    pairs = pairs[(rank[pairs[:, 0]] < rank[pairs[:, 1]]) & (lane[pairs[:, 0]] != lane[pairs[:, 1]])]
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    none = np.zeros(n, np.int64)
    return Graph(
        origin_ns=0,
        lane_first=lane_first,
        trace_lane=np.full(n_lanes + 1, -1),
        kind=np.full(n, NodeKind.WORK, np.uint8),
        row=np.full(n, -1),
        begin_ns=none,
        finish_ns=rank * 100,
        dur_ns=random.integers(0, 1_000, n) * (lane > 0),
        gap_ns=random.integers(-50, 50, n) * (lane > 0),
        strict_gap_ns=none,
        extra_ns=random.integers(0, 100, n) * (lane > 0),
        source=pairs[:, 0],
        target=pairs[:, 1],
        edge_kind=np.full(len(pairs), EdgeKind.LAUNCH, np.uint8),
        lag_ns=random.integers(-100, 500, len(pairs)),
        strict_lag_ns=np.zeros(len(pairs), np.int64),
        bound_node=np.array([0, n - 1]),
        bound_first=np.array([0, 1, 2]),
        n_contradicted=0,
    )


def replay(graph: Graph, order: Schedule, *, scale: int = 1, patch: Patch | None = None) -> list[int]:
    """Return finish times in the order of the graph, of the first of two equal columns."""
    steps = scale * (graph.gap_ns + graph.extra_ns + graph.dur_ns)
    # the first node of a lane has no gap to a node before it
    heads = graph.lane_first[:-1]
    steps[heads] -= scale * graph.gap_ns[heads]
    gap = graph.gap_ns.copy()
    gap[heads] = 0
    lag = scale * (graph.lag_ns - gap[graph.target])
    done = order.run_steps(steps[:, None], lag[:, None], np.arange(graph.n_nodes), patch, width=2)
    assert (done[:, 0] == done[:, 1]).all() or patch is not None
    return done[:, 0].tolist()


graphs = st.builds(random_graph, st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 60))


@pytest.fixture(params=["numpy", "plain", "native"])
def way(request, monkeypatch) -> str:
    """Run with the array engine, with the one for few columns and short runs, and the library."""
    if request.param == "native" and find_engine().library is None:
        pytest.skip(find_engine().reason)
    monkeypatch.setenv(READER_VARIABLE, "native" if request.param == "native" else "python")
    monkeypatch.setattr(engine, "CHUNK", 16)  # most graphs here are several, some are one
    monkeypatch.setattr(engine, "RUN_COST", 0.0 if request.param == "numpy" else 1e9)
    return str(request.param)


@pytest.mark.usefixtures("way")
class TestAgainstTheSlowOne:
    @settings(max_examples=120, deadline=None)
    @given(graphs)
    def test_two_implementations_agree(self, graph: Graph) -> None:
        assert replay(graph, schedule(graph)) == finish_times(graph)

    @settings(max_examples=60, deadline=None)
    @given(graphs, st.integers(0, 1_000))
    def test_edges_taken_out_in_one_column_only(self, graph: Graph, seed: int) -> None:
        random = np.random.default_rng(seed)
        gone = np.flatnonzero(random.random(len(graph.source)) < 0.4)
        patch = Patch(gone, np.zeros(len(gone), np.int64), np.full(len(gone), NEVER))
        lag = graph.lag_ns.tolist()
        for edge in gone.tolist():
            lag[edge] = None
        found = replay(graph, schedule(graph), patch=patch)
        assert found == finish_times(graph, lag_ns=lag)

    @settings(max_examples=60, deadline=None)
    @given(graphs)
    def test_twice_as_long_takes_twice_as_long(self, graph: Graph) -> None:
        order = schedule(graph)
        once, twice = replay(graph, order), replay(graph, order, scale=2)
        assert twice == [2 * one for one in once]

    @settings(max_examples=60, deadline=None)
    @given(graphs, st.integers(0, 1_000))
    def test_less_work_never_ends_later(self, graph: Graph, seed: int) -> None:
        random = np.random.default_rng(seed)
        order = schedule(graph)
        before = replay(graph, order)
        graph.dur_ns[:] = graph.dur_ns * random.random(graph.n_nodes)
        graph.lag_ns[:] = np.minimum(graph.lag_ns, graph.lag_ns * random.random(len(graph.lag_ns)))
        after = replay(graph, order)
        assert all(one <= two for one, two in zip(after, before, strict=True))

    @settings(max_examples=60, deadline=None)
    @given(graphs, st.integers(0, 1_000))
    def test_a_delay_reaches_what_hangs_on_it_and_nothing_else(self, graph: Graph, seed: int) -> None:
        order = schedule(graph)
        before = replay(graph, order)
        node = int(np.random.default_rng(seed).integers(1, graph.n_nodes))
        graph.extra_ns[node] += 700
        after = replay(graph, order)
        moved = [one - two for one, two in zip(after, before, strict=True)]
        assert moved[node] == 700
        assert all(0 <= one <= 700 for one in moved)
        assert {one for one, by in enumerate(moved) if by} <= _descendants(graph, node)


def _descendants(graph: Graph, node: int) -> set[int]:
    heads = set(graph.lane_first.tolist())
    effects: dict[int, list[int]] = {}
    for one, two in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
        effects.setdefault(one, []).append(two)
    found, left = set(), [node]
    while left:
        one = left.pop()
        if one in found:
            continue
        found.add(one)
        left += effects.get(one, [])
        if one + 1 < graph.n_nodes and one + 1 not in heads:
            left.append(one + 1)
    return found


@pytest.mark.parametrize("program", programs.ALL, ids=lambda one: one.__name__)
def test_the_recorded_run_comes_out_to_the_nanosecond(program) -> None:
    graph = build(program())
    assert finish_times(graph) == graph.finish_ns.tolist()
    assert replay(graph, schedule(graph)) == graph.finish_ns.tolist()


@pytest.mark.parametrize("program", programs.ALL, ids=lambda one: one.__name__)
def test_every_node_runs_once_after_its_causes(program) -> None:
    graph = build(program())
    order = schedule(graph)
    assert sorted(order.place.tolist()) == list(range(graph.n_nodes))
    assert (order.place[graph.source] < order.place[graph.target]).all()
    for a, b in zip(graph.lane_first[:-1].tolist(), graph.lane_first[1:].tolist(), strict=True):
        assert (np.diff(order.place[a:b]) > 0).all()
    assert order.n_cut == 0


def test_runs_are_long_where_nothing_waits_for_the_device() -> None:
    graph = build(programs.host_bound(steps=20))
    assert schedule(graph).n_runs <= 3


def circle() -> Graph:
    """Return a graph in which the first nodes of two lanes wait for each other."""
    graph = random_graph(1, 2, 0)
    a, b = int(graph.lane_first[1]), int(graph.lane_first[2])
    return Graph(
        **{
            **vars(graph),
            "source": np.array([b, a]),
            "target": np.array([a, b]),
            "edge_kind": np.array([EdgeKind.TIMED, EdgeKind.LAUNCH], np.uint8),
            "lag_ns": np.zeros(2, np.int64),
            "strict_lag_ns": np.zeros(2, np.int64),
        }
    )


def test_a_circle_is_cut_at_its_weakest_edge() -> None:
    graph = circle()
    order = schedule(graph)
    assert order.n_cut == 1
    assert graph.edge_kind[order.edge].tolist() == [EdgeKind.LAUNCH]
    assert sorted(order.place.tolist()) == list(range(graph.n_nodes))


def test_what_a_bound_hangs_on_holds_no_node_twice_in_a_circle() -> None:
    graph = circle()
    last = graph.n_nodes - 1
    found = critical_nodes(graph, binding(graph)[0], 0).tolist()
    assert found == [*range(last, graph.lane_first[2] - 1, -1), graph.lane_first[1]]


@pytest.mark.skipif(find_engine().library is None, reason="the native library is not built")
def test_both_engines_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    order = schedule(random_graph(3, 4, 30))
    n = len(order.place)
    none, nodes = np.empty(0, np.int64), np.argsort(order.place)
    some = np.sort(random.permutation(n)[:12])
    left = np.where(np.arange(12) < 7, random.random(12), np.nan)
    scenarios = [
        Scenario(none, np.empty(0), none, none, 0.0),
        Scenario(nodes[some], left, none, none, 0.0),
        Scenario(nodes, random.random(n) * 2, none, none, 0.0),
    ]
    dur, still = random.integers(0, 1 << 40, (2, n)), random.integers(-50, 50, (2, n))
    tables = []
    for name in ("native", "python"):
        monkeypatch.setenv(READER_VARIABLE, name)
        table = np.empty((n - 5, 6), np.int64)
        ScenarioSteps(order, list(dur), list(still), scenarios)(5, table)
        tables.append(table)
    assert (tables[0] == tables[1]).all()
    gone = some[7:]
    assert (tables[0][gone[gone >= 5] - 5][:, [1, 4]] == 0).all()
