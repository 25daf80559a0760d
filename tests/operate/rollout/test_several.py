"""Several processes record one rollout: what they saw is judged together, and alarms know their version."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from dataclasses import replace

import pytest
from histories import rollout_history

from torchtriage.core.errors import StoreError
from torchtriage.operate.experiment import Experiment, Rate, Tail, Typical
from torchtriage.operate.monitor.alerts import ActiveAlarm
from torchtriage.operate.rollout import Rollout, RolloutPlan, open_rollouts
from torchtriage.operate.rollout.store import LEASE_S
from torchtriage.operate.rollout.summary import summary
from torchtriage.report.documents.rollout import document
from torchtriage.report.markdown import render

PLAN = RolloutPlan("int8", least_s=20, control="2.0", candidate="2.1")


class Clock:
    now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


def fails(*_: object) -> None:
    raise StoreError("gone")


class Fleet:
    """Some processes that serve one rollout."""

    def __init__(self, store, n: int, seed: int, plan: RolloutPlan = PLAN, **options) -> None:
        self.clock, self.draw = Clock(), random.Random(seed)
        self.pods = [
            Rollout(plan, store, clock=self.clock, wall=self.clock, owner=f"pod-{at}", **options) for at in range(n)
        ]
        self.n_candidate = 0
        self.slow = [self.draw.lognormvariate(0, 0.1) for _ in self.pods]  # no two machines are alike
        self.state = self.draw.random()

    def serve(self, seconds: int, *, a_second: int = 40, times: float = 1.0, errors: float = 0.002) -> str:
        """Answer requests and look once a second; return the status."""
        draw = self.draw
        for _ in range(seconds):
            for _ in range(a_second):
                at = draw.randrange(len(self.pods))
                ticket = self.pods[at].assign(draw.getrandbits(60))
                candidate = ticket.arm == self.pods[at].plan.candidate
                # requests resemble those before them
                self.state = 0.7 * self.state + 0.7 * draw.gauss(0, 1)
                took_s = 0.01 * self.slow[at] * 1.2**self.state * draw.lognormvariate(0, 0.2)
                failed = draw.random() < (errors if candidate else 0.002)
                self.pods[at].record(ticket, replica=at, latency_s=took_s * (times if candidate else 1), error=failed)
                self.n_candidate += candidate
            self.clock.now_s += 1
            for pod in self.pods:
                if pod.tick().status != "running":
                    return pod.state.status
        return "running"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "rollouts.db")
    return request.getfixturevalue("postgres")()


@pytest.fixture
def store():
    with open_rollouts(":memory:") as found:
        yield found


def test_a_slowdown_at_one_percent_is_acted_on_though_no_process_saw_enough(store) -> None:
    fleet = Fleet(store, 8, seed=1)
    assert fleet.serve(400, times=2.45) == "rolled back"
    assert fleet.n_candidate <= 130
    assert max(pod._stage._number for pod in fleet.pods) < fleet.n_candidate * 100


def test_it_is_the_same_over_either_store(place: str) -> None:
    with open_rollouts(place) as store:
        fleet = Fleet(store, 3, seed=2)
        assert fleet.serve(120, times=3.0, a_second=60) == "rolled back"
        told = summary(store, "int8")
        assert [event.kind for event in told.events] == ["started", "rolled back"]
        assert any(row.verdict == "worse" for row in told.events[-1].rows)
        store.restart("int8", actor="person", at_s=1)
    with open_rollouts(place, create=False) as store:
        assert store.read("int8").state.share == 0.01
        assert store.names() == ("int8",)


def test_what_a_dead_process_recorded_counts_for_the_one_that_follows(store) -> None:
    fleet = Fleet(store, 2, seed=3)
    fleet.serve(60)
    before = fleet.pods[0]._stage._number + fleet.pods[1]._stage._number
    del fleet.pods[0]  # killed; it owned the lease
    fleet.slow.pop()
    fleet.clock.now_s += LEASE_S + 1
    fleet.serve(3)
    assert store.read("int8").owner == "pod-1"
    assert store.read("int8").state.last_number >= before


def test_what_is_stored_of_an_earlier_step_is_gone(store) -> None:
    fleet = Fleet(store, 2, seed=4)
    fleet.serve(5)
    assert len(store.published("int8", 1)) == 2
    store.promote("int8", "by hand", actor="person", at_s=1)
    assert store.published("int8", 1) == {}
    fleet.serve(5)
    assert len(store.published("int8", 2)) == 2


def test_alarms_know_their_version_and_their_cause(store) -> None:
    alarm = ActiveAlarm("")
    fleet = Fleet(store, 1, seed=5, alarm=lambda: alarm)
    for version, cause in (
        ("2.0", "unknown"),
        ("2.1", "host contention"),
        ("2.1", "input mix"),
        ("", "host contention"),
    ):
        alarm = ActiveAlarm("shift: requests are 80 % slower", version=version, cause=cause)
        assert fleet.serve(25) == "running"
        assert "80 % slower" in store.read("int8").state.waiting
    alarm = ActiveAlarm("shift: requests are 80 % slower", version="2.1", cause="version change")
    assert fleet.serve(1) == "rolled back"


def test_joined_experiments_say_what_one_would(store) -> None:
    def made() -> Experiment:
        arms = {"a": 0.9, "b": 0.1}
        return Experiment("x", arms=arms, metric=Typical("t"), guardrails=(Tail("t"), Rate("e", worse_than=1.2)))

    whole, parts, draw = made(), [made() for _ in range(4)], random.Random(6)
    for _ in range(20_000):
        arm = "b" if draw.random() < 0.1 else "a"
        values = {"t": draw.lognormvariate(0, 0.3) * (1.1 if arm == "b" else 1), "e": draw.random() < 0.05}
        whole.record(arm, **values)
        parts[draw.randrange(4)].record(arm, **values)
    joined = made()
    for part in parts:
        other = made()
        other.restore(json.loads(json.dumps(part.state())))
        joined.join(other)
    one, several = whole.result(), joined.result()
    assert one.candidate.n_requests == several.candidate.n_requests
    assert one.rows[2].n_events == several.rows[2].n_events
    assert several.rows[0].ratio == pytest.approx(one.rows[0].ratio, rel=0.01)
    assert several.rows[0].low == pytest.approx(one.rows[0].low, rel=0.02)
    assert several.rows[0].verdict == one.rows[0].verdict == "worse"


@pytest.mark.parametrize(("lost", "status"), [(0.0, "running"), (0.4, "rolled back")])
def test_a_split_is_judged_where_each_version_has_its_own_process(store, monkeypatch, lost: float, status: str) -> None:
    clock, draw = Clock(), random.Random(9)
    plan = replace(PLAN, steps=(0.5, 1.0), least_s=1e6)
    pods = {arm: Rollout(plan, store, clock=clock, wall=clock, owner=arm) for arm in (plan.control, plan.candidate)}

    def serve(half_seconds: int) -> None:
        for _ in range(half_seconds):
            for _ in range(400):
                ticket = pods[plan.control].assign(draw.getrandbits(60))
                if ticket.arm == plan.control or draw.random() >= lost:
                    pods[ticket.arm].record(ticket, latency_s=draw.lognormvariate(-4, 0.1), error=False)
            clock.now_s += 0.5
            for pod in pods.values():
                with contextlib.suppress(StoreError):
                    pod.tick()

    serve(3)
    pods[plan.candidate]._published_s -= 1  # from now on each tells at other moments
    serve(60)
    with monkeypatch.context() as gone:
        gone.setattr(store, "read", fails)
        serve(18)
    assert [pod.state.status for pod in pods.values()] == [status, status]
    assert not lost or "2.1 receives 3" in store.read("int8").state.waiting


def test_too_few_values_are_no_claim(store) -> None:
    fleet = Fleet(store, 1, 8, replace(PLAN, guardrails=()))
    assert fleet.serve(90, a_second=20, times=2.45) == "running"
    text = render(document(summary(store, "int8")))
    assert "too few values for an interval" in text
    assert "undecided" in text
    assert "no regression" not in text


def test_a_store_of_a_version_before_is_carried_over(tmp_path) -> None:
    path = tmp_path / "rollouts.db"
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1)
    connection = sqlite3.connect(path)
    connection.executescript(
        "ALTER TABLE torchtriage_rollout RENAME TO rollout; ALTER TABLE torchtriage_rollout_event RENAME TO event;"
        "DROP TABLE torchtriage_rollout_evidence; PRAGMA user_version = 1"
    )
    connection.close()
    with open_rollouts(path) as store:
        assert store.read("int8").state.plan == PLAN
        assert [one.kind for one in store.history("int8")] == ["started"]


@pytest.mark.postgres
def test_a_connection_that_broke_is_made_again(postgres) -> None:
    with open_rollouts(postgres()) as store:
        store.start(PLAN, actor="a", at_s=1)
        store._database._connection.close()
        assert store.read("int8").state.share == 0.01


def test_no_healthy_candidate_goes_back_above_its_rate_and_bad_ones_soon() -> None:
    """``benchmarks/histories.py rollout`` runs thousands."""
    told = [rollout_history(seed) for seed in range(30)]
    good = [one.status for one in told if one.kind == "as good"]
    # alpha for the guardrails and as much for the metric: 10 % of all, of which three standard errors are chance
    assert good.count("rolled back") <= 0.1 * len(good) + 3 * (0.09 * len(good)) ** 0.5
    bad = [one for one in told if one.kind != "as good"]
    assert all(one.status == "rolled back" for one in bad)
    assert sorted(one.n_candidate for one in bad)[len(bad) // 2] <= 100
