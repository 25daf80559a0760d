"""A rollout from requests to 100 %, or back."""

from __future__ import annotations

import os
import pickle
import random
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.operate.experiment import Rate, Tail, Typical
from torchtriage.operate.rollout import Rollout, RolloutPlan, Router, StageEvidence, Ticket, open_rollouts
from torchtriage.operate.rollout.controller import STALE_S
from torchtriage.operate.rollout.store import Lease
from torchtriage.operate.rollout.summary import summary

PLAN = RolloutPlan(
    "int8",
    steps=(0.2, 0.5, 1.0),
    metric=Typical("latency_s", worse_than=1.1),
    guardrails=(Tail("latency_s", worse_than=1.5), Rate("error")),
    least_requests=300,
    least_s=20,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store():
    with open_rollouts(":memory:") as found:
        yield found


def made(store, clock: Clock, **options) -> Rollout:
    return Rollout(PLAN, store, clock=clock, wall=lambda: 1e9, owner="one", **options)


def serve(rollout: Rollout, clock: Clock, seconds: int, *, seed: int = 1, **bad: float) -> int:
    """Answer 100 requests a second and look once a second; return the seconds it ran."""
    rng = random.Random(seed)
    for second in range(seconds):
        for request in range(100):
            ticket = rollout.assign(f"{seed}-{second}-{request}")
            candidate = ticket.arm == "candidate"
            values = {
                "latency_s": rng.lognormvariate(-4, 0.3) * (bad.get("slower", 1) if candidate else 1),
                "error": rng.random() < (bad.get("errors", 0.002) if candidate else 0.002),
            }
            if candidate and rng.random() < bad.get("nan", 0):
                values["latency_s"] = float("nan")
            rollout.record(ticket, **values)
        clock.now_s += 1
        if rollout.tick().status != "running":
            return second + 1
    return seconds


def test_a_good_version_reaches_all_requests(store, clock: Clock) -> None:
    rollout = made(store, clock)
    serve(rollout, clock, 300)
    assert rollout.state.status == "done"
    assert all(rollout.assign(n).arm == "candidate" for n in range(100))
    told = summary(store, "int8")
    assert [event.kind for event in told.events] == ["started", "promoted", "promoted", "done"]
    assert told.events[1].rows[0].metric == "latency_s"
    assert [stage.state for stage in told.stages] == ["passed"] * 3


@pytest.mark.parametrize(
    ("bad", "why"), [({"slower": 1.3}, "latency_s: +"), ({"errors": 0.05}, "error: "), ({"slower": 2.0}, "latency_s")]
)
def test_a_bad_version_goes_back_at_the_first_step(store, clock: Clock, bad, why: str) -> None:
    rollout = made(store, clock)
    seconds = serve(rollout, clock, 300, **bad)
    assert rollout.state.status == "rolled back"
    assert seconds < 120
    assert why in rollout.state.waiting
    assert not any(rollout.assign(n).arm == "candidate" for n in range(2000))
    told = summary(store, "int8")
    assert told.events[-1].kind == "rolled back"
    assert told.events[-1].share_before == 0.2
    assert "worse" in {row.verdict for row in told.events[-1].rows}


def test_users_who_come_again_roll_nothing_back(store, clock: Clock) -> None:
    rollout = made(store, clock)
    draw = random.Random(3)
    for _ in range(150):
        for _ in range(100):
            # 10 users of whom other than one in five have the candidate
            ticket = rollout.assign(f"user-{draw.randrange(10)}")
            rollout.record(ticket, latency_s=draw.lognormvariate(-4, 0.3), error=False)
        clock.now_s += 1
        rollout.tick()
        if rollout.state.stage:
            break
    assert rollout.state.status == "running"


@pytest.mark.parametrize(
    ("answered_s", "lost", "kind"),
    [
        (lambda asked_s: asked_s + 3, 0.0, "promoted"),
        (lambda asked_s: asked_s + max(0, 5016 - asked_s) * (asked_s > 5012), 0.0, "promoted"),  # it stood still
        (lambda asked_s: asked_s, 0.2, "rolled back"),
    ],
)
def test_a_split_is_wrong_for_lost_answers_not_for_late_ones(store, clock: Clock, answered_s, lost, kind: str) -> None:
    plan = replace(PLAN, steps=(0.5, 1.0), metric=Typical("score", worse_than=1.1), guardrails=())
    rollout = Rollout(plan, store, clock=clock, wall=lambda: 1e9, owner="one")
    draw, answers = random.Random(5), deque()
    for _ in range(70):
        for _ in range(100):
            ticket = rollout.assign(draw.getrandbits(60))
            if ticket.arm == "control":
                rollout.record(ticket, score=draw.lognormvariate(0, 0.1))
            elif draw.random() >= lost:
                answers.append((answered_s(clock.now_s), ticket))
        clock.now_s += 0.5
        while answers and answers[0][0] <= clock.now_s:
            rollout.record(answers.popleft()[1], score=draw.lognormvariate(0, 0.1))
        rollout.tick()
    assert store.history("int8")[-1].kind == kind


def test_a_ticket_is_a_pair_that_keeps_its_id(store, clock: Clock) -> None:
    rollout = made(store, clock)
    ticket = rollout.assign("user-1")
    arm, epoch = ticket
    assert ticket == (arm, epoch) == (ticket.arm, 1)
    assert pickle.loads(pickle.dumps(ticket)).id == ticket.id == "user-1"


@pytest.mark.parametrize("given", [{}, {"id": "user-1"}])
def test_a_split_that_nobody_checks_is_told(store, clock: Clock, given) -> None:
    rollout = made(store, clock)
    rollout.record(("candidate", 1), latency_s=0.01, error=False, **given)
    rollout.tick()
    assert ("split" in [note.code for note in summary(store, "int8").notes]) is not bool(given)


def test_values_that_are_nan_hold_it_for_ever(store, clock: Clock) -> None:
    rollout = made(store, clock)
    serve(rollout, clock, 40, nan=0.1)
    assert rollout.state.stage == 0
    assert "of candidate's requests have no usable value" in rollout.state.waiting


def test_a_metric_that_nobody_records_holds_it(store, clock: Clock) -> None:
    rollout = made(store, clock)
    for second in range(60):
        for request in range(100):
            ticket = rollout.assign(f"{second}-{request}")
            rollout.record(ticket, latency_s=0.01 + request % 7 / 1000)
        clock.now_s += 1
        rollout.tick()
    assert rollout.state.stage == 0
    assert rollout.state.waiting == "error: no usable value of control and candidate yet"


def test_requests_that_stop_hold_it(store, clock: Clock) -> None:
    rollout = made(store, clock)
    serve(rollout, clock, 10)
    for _ in range(40):
        clock.now_s += 1
        rollout.tick()
    assert rollout.state.stage == 0
    assert rollout.state.waiting == "no request was seen in the last 30 s"


def test_at_the_last_step_values_must_still_come(store, clock: Clock) -> None:
    rollout = made(store, clock)
    for _ in range(2):
        store.promote("int8", "by hand", actor="person", at_s=1)
    rollout.tick()
    assert rollout.state.share == 1
    serve(rollout, clock, 60, nan=0.5)
    assert rollout.state.status == "running"
    assert "latency_s: " in rollout.state.waiting


def test_an_alarm_rolls_back_at_the_next_look(store, clock: Clock) -> None:
    alarms: list[str] = []
    rollout = made(store, clock, alarm=lambda: alarms[0] if alarms else "")
    serve(rollout, clock, 3)
    alarms.append("gpu memory grows by 1 MiB a second")
    clock.now_s += 0.5
    assert rollout.tick().status == "rolled back"
    assert rollout.state.waiting == "gpu memory grows by 1 MiB a second"


def test_alarms_and_judges_that_fail_promote_nothing(store, clock: Clock) -> None:
    def fails(*_: object) -> str:
        raise RuntimeError("no metrics server")

    rollout = made(store, clock, judge=fails)
    clock.now_s += 1
    assert rollout.tick().waiting == "the evaluation failed: RuntimeError: no metrics server"
    rollout.close()
    rollout = made(store, clock, alarm=fails)
    serve(rollout, clock, 30)
    assert rollout.state.stage == 0
    assert rollout.state.waiting == "the alarm failed: RuntimeError: no metrics server"


def test_a_verdict_that_cannot_be_written_stops_here_and_is_written_later(store, clock: Clock, monkeypatch) -> None:
    alarms = ["p99 doubled"]
    rollout = made(store, clock, alarm=lambda: alarms.pop() if alarms else "")

    def full(*_: object, **__: object) -> None:
        raise StoreError("store: database or disk is full")

    with monkeypatch.context() as ill:
        ill.setattr(store, "roll_back", full)
        for _ in range(2):
            with pytest.raises(StoreError, match="disk is full"):
                rollout.tick()
            assert rollout.state.share == 0
            assert not any(rollout.assign(n).arm == "candidate" for n in range(200))
    assert store.read("int8").state.share == 0.2
    rollout.tick()
    assert store.history("int8")[-1].reason == "p99 doubled"
    assert store.read("int8").state.share == 0


def test_a_verdict_without_the_store_stops_here(store, clock: Clock, monkeypatch) -> None:
    rollout = made(store, clock, alarm=lambda: "nan")

    def gone(*_: object) -> None:
        raise StoreError("store: disk I/O error")

    with monkeypatch.context() as ill:
        ill.setattr(store, "read", gone)
        with pytest.raises(StoreError, match="I/O"):
            rollout.tick()
        assert not any(rollout.assign(n).arm == "candidate" for n in range(200))
    assert rollout.tick().status == "rolled back"
    assert store.read("int8").state.share == 0


def test_an_owner_that_follows_needs_no_more_requests_than_the_first(store, clock: Clock) -> None:
    first = made(store, clock)
    before = first.tick()
    told = replace(before, last_number=10**6)
    assert store.move("int8", Lease("one", 1), before, told, (), at_s=1)
    first.close()
    second = Rollout(PLAN, store, clock=clock, wall=lambda: 1e9, owner="two")
    serve(second, clock, 30, seed=2)
    assert second.state.stage >= 1


def test_a_controller_of_another_plan_moves_nothing(store, clock: Clock) -> None:
    rollout = made(store, clock)
    store.roll_back("int8", "by hand", actor="person", at_s=1)
    store.start(RolloutPlan("int8", steps=(0.5, 1.0)), actor="other", at_s=2)
    with pytest.raises(UsageError, match="the plan of this controller"):
        rollout.tick()
    clock.now_s += STALE_S + 1
    assert not any(rollout.assign(n).arm == "candidate" for n in range(200))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_a_controller_of_its_own(tmp_path: Path, clock: Clock) -> None:
    store = open_rollouts(tmp_path / "rollouts.db")
    rollout = made(store, clock)
    rollout.tick()
    rollout._stage._lock.acquire()  # another thread records as it forks
    child = os.fork()
    if not child:
        told = rollout.record(rollout.assign("a"), latency_s=0.1)
        rollout.tick()
        os._exit(0 if told and rollout.owner == f"one in {os.getpid()}" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rollout.owner == store.read("int8").owner == "one"
    store.close()


def test_answers_of_an_earlier_stage_are_late(store, clock: Clock) -> None:
    rollout = made(store, clock)
    ticket = rollout.assign("a")
    assert rollout.record(ticket, latency_s=0.1)
    store.promote("int8", "by hand", actor="person", at_s=1)
    rollout.tick()
    assert not rollout.record(ticket, latency_s=0.1)
    ticket = rollout.assign("a")
    assert rollout.record(ticket[:2], id="a", latency_s=0.1)  # one made by hand
    assert rollout.record(ticket, latency_s=0.1)
    assert sum(arm.units for arm in rollout._stage._experiment.arrived()) == 1
    with pytest.raises(UsageError, match="expected control or candidate, found 'other'"):
        rollout.record(Ticket("other", 2))


def test_nobody_is_exposed_while_nobody_looks(store, clock: Clock) -> None:
    rollout = made(store, clock)
    rollout.tick()
    assert any(rollout.assign(n).arm == "candidate" for n in range(100))
    clock.now_s += STALE_S + 1
    assert not any(rollout.assign(n).arm == "candidate" for n in range(100))
    rollout.tick()
    assert any(rollout.assign(n).arm == "candidate" for n in range(100))


def test_the_same_ids_stay_at_every_step(store, clock: Clock) -> None:
    rollout = made(store, clock)
    before: set[int] = set()
    for _ in range(3):
        now = {n for n in range(2000) if rollout.assign(n).arm == "candidate"}
        assert before <= now
        before = now
        store.promote("int8", "by hand", actor="person", at_s=1)
        rollout.tick()


@pytest.mark.timing
def test_a_rollback_is_known_everywhere_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    evidence = [None]
    with open_rollouts(path) as store:
        owner = Rollout(PLAN, store, judge=lambda _: evidence[0])
        router = Router(lambda: open_rollouts(path), "int8")
        owner.run(every_s=0.2)
        ids = [f"user-{n}" for n in range(300)]
        deadline = time.monotonic() + 60
        while not any(router.treats(id)[0] for id in ids) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert router.share == 0.2
        evidence[0] = StageEvidence(1, 1, 0.0, 1, 1, worse=("p99 doubled",))
        verdict_s = time.monotonic()
        while any(router.treats(id)[0] for id in ids) and time.monotonic() < verdict_s + 60:
            time.sleep(0.01)
        took_s = time.monotonic() - verdict_s
        assert took_s <= 1
        owner.close()
        router.close()


def test_a_router_of_a_mistyped_name_says_so_once(tmp_path: Path, caplog) -> None:
    path = tmp_path / "rollouts.db"
    with open_rollouts(path) as store:
        made(store, Clock())
    router = Router(lambda: open_rollouts(path), "int9", every_s=0.01)
    assert router.treats("user-1") == (False, 0)
    deadline = time.monotonic() + 60
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    router.close()
    (told,) = caplog.records
    assert "int9" in told.getMessage()


def test_a_router_without_its_store_sends_nothing_to_the_candidate(store, clock: Clock) -> None:
    made(store, clock)
    router = Router(lambda: store, "int8", clock=clock)
    assert router.share == 0
    router.refresh(store)
    assert router.share == 0.2
    clock.now_s += 11
    assert router.share == 0
