"""An experiment decides when it is certain, and says what limits its answer."""

from __future__ import annotations

import json
import math
import random
import threading

import pytest

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.operate.experiment import Experiment, Rate, Tail, Typical

ARMS = {"fp32": 0.5, "int8": 0.5}
LATENCY = Typical("latency_s")


def experiment(**options) -> Experiment:
    given = {"arms": ARMS, "metric": LATENCY} | options
    return Experiment("int8", **given)


def drive(one: Experiment, n: int, seed: int = 1, **values) -> Experiment:
    """Record requests of made-up users; ``values`` : functions of (random, is it the candidate)."""
    rng = random.Random(seed)
    for request in range(n):
        arm = one.assign(f"{seed}-{request}")
        is_candidate = arm == one.candidate
        one.record(
            arm, replica=f"{arm}-{request % 3}", **{name: draw(rng, is_candidate) for name, draw in values.items()}
        )
    return one


def units(one: Experiment) -> list[int]:
    return [arm.units for arm in one.arrived()]


def latency(factor: float):
    return lambda rng, candidate: rng.lognormvariate(-4, 0.3) * (factor if candidate else 1)


def test_equal_versions_are_undecided() -> None:
    told = drive(experiment(), 4000, latency_s=latency(1)).result()
    assert told.decision == "undecided"
    assert told.verdict[0] == "Undecided: continue"
    row = told.rows[0]
    assert row.low < 1 < row.high
    assert told.notes == ()


@pytest.mark.parametrize(("factor", "decision"), [(1.1, "worse"), (0.9, "better")])
def test_a_difference_is_decided_and_the_decision_stays(factor: float, decision: str) -> None:
    one = drive(experiment(), 3000, latency_s=latency(factor))
    assert one.decision == decision
    at = one.result().rows[0].decided_at
    drive(one, 3000, seed=2, latency_s=latency(1 / factor))
    assert one.decision == decision
    assert one.result().rows[0].decided_at == at


def test_more_is_better_for_throughput() -> None:
    one = experiment(metric=Typical("requests_per_s", better="higher"))
    assert drive(one, 3000, requests_per_s=latency(0.9)).decision == "worse"


def test_guardrails_stop_what_the_metric_likes() -> None:
    one = experiment(guardrails=[Rate("error"), Tail("latency_s")])
    drive(
        one, 4000, latency_s=latency(0.95), error=lambda rng, candidate: rng.random() < (0.03 if candidate else 0.003)
    )
    assert one.decision == "worse"
    told = one.result()
    assert told.verdict[0] == "Stop: int8 is worse in error"
    assert [row.verdict for row in told.rows][1:] == ["worse", "undecided"]


def test_a_tail_is_found_that_the_typical_request_does_not_show() -> None:
    def slow_now_and_then(rng: random.Random, candidate: bool) -> float:
        value = rng.lognormvariate(-4, 0.3)
        return value * 4 if rng.random() < (0.03 if candidate else 0.005) else value

    allowed = Typical("latency_s", worse_than=1.1)
    one = experiment(metric=allowed, guardrails=[Tail("latency_s")])
    drive(one, 10_000, latency_s=slow_now_and_then)
    assert [row.verdict for row in one.result().rows] == ["undecided", "worse"]


def test_allowed_is_allowed() -> None:
    for factor, verdict in ((1.15, "undecided"), (1.4, "worse")):
        one = experiment(guardrails=[Typical("memory_bytes", worse_than=1.2)])
        drive(one, 3000, latency_s=latency(1), memory_bytes=latency(factor))
        assert one.result().rows[1].verdict == verdict


def test_a_covariate_finds_what_drowned() -> None:
    rng = random.Random(3)
    plain, adjusted = experiment(), experiment(metric=Typical("latency_s", covariate="log_size"))
    for request in range(3000):
        arm = plain.assign(request)
        size = rng.normalvariate(0, 1)
        value = math.exp(size + rng.normalvariate(0, 0.1) + 0.05 * (arm == "int8"))
        for one in (plain, adjusted):
            one.record(arm, latency_s=value, log_size=size)
    assert plain.decision == "undecided"
    assert adjusted.decision == "worse"
    assert adjusted.result().rows[0].explained > 0.95


def test_missing_values_are_counted_and_told() -> None:
    one = experiment(guardrails=[Rate("error")])
    for request in range(100):
        for arm in ARMS:
            one.record(arm, latency_s=math.nan if request % 2 and arm == "int8" else 0.01)
    told = one.result()
    assert told.rows[0].n_missing == (0, 50)
    assert told.rows[1].verdict == "no data"
    said = [note.message for note in told.notes]
    assert "latency_s: 50 % of int8's requests have no usable value" in said


def test_values_that_are_all_equal_have_an_interval() -> None:
    one = experiment(guardrails=[Rate("error")])
    for request in range(200):
        for arm in ARMS:
            one.record(arm, latency_s=1e9, error=math.nan if request % 2 else 0)
    told = one.result()
    assert told.verdict[:2] == ("Undecided: continue", "latency_s: 0 % (0 % to 0 %)")
    assert {note.fix for note in told.notes if note.code == "missing"} == {
        "NaN and requests without a value are left out: does the version cause them?"
    }


@pytest.mark.parametrize("value", [None, "fast", "0.01", b"1", math.nan, math.inf, 0, -1, [1, 2], 10**400, object()])
def test_what_is_no_latency_is_missing(value: object) -> None:
    one = experiment(guardrails=[Tail("latency_s")])
    one.record("int8", latency_s=value)
    assert [row.n_missing for row in one.result().rows] == [(0, 1), (0, 1)]


def test_a_covariate_beyond_all_measure_is_missing() -> None:
    one = experiment(metric=Typical("latency_s", covariate="size"), guardrails=[Rate("error")])
    one.record("int8", latency_s=0.01, size=1e200, error=False)
    told = one.result()
    assert (told.candidate.n_requests, told.rows[0].n_missing, told.rows[1].n) == (1, (0, 1), (0, 1))


def test_a_split_that_is_not_the_plans_breaks_it() -> None:
    one = experiment()
    for request in range(5000):
        one.record("int8" if request % 100 < 44 else "fp32", latency_s=0.01)
    assert one.decision == "broken"
    assert one.result().verdict[0] == "Broken: int8 receives 44.10% instead of 50.00%"


def test_units_other_than_requests_are_counted_on_their_own() -> None:
    one = experiment(unit="user")
    for _ in range(3000):
        one.record("int8", latency_s=0.01)
    assert one.decision == "undecided"
    assert "split" in {note.code for note in one.result().notes}
    for _ in range(3000):
        one.count("int8")
    assert one.decision == "broken"


def test_users_who_come_again_break_no_split_and_one_that_is_wrong_is_found() -> None:
    one, wrong = experiment(unit="user"), experiment(unit="user")
    for request in range(10_000):
        user = f"user-{request % 40}"  # 40 users are rarely half and half
        one.record(one.assign(user), id=user)
        if wrong.decision == "undecided":
            arm = wrong.assign(request)
            wrong.record("fp32" if request % 10 == 0 else arm, id=request)
    assert sum(units(one)) == 40
    assert (one.decision, wrong.decision) == ("undecided", "broken")
    assert [note.code for note in one.result().notes if note.code in ("split", "units")] == ["units"]


def test_a_unit_of_two_processes_counts_once() -> None:
    both = experiment(unit="user")
    other = experiment(unit="user")
    for user in range(1000):
        for process in (both, other) if user % 2 else (other,):
            process.record(process.assign(user), id=user)
    alone = experiment(unit="user")
    alone.restore(json.loads(json.dumps(other.state())))
    both.join(alone)
    for user in range(1000):
        other.record(other.assign(user), id=user)
    assert units(both) == units(other)
    assert sum(units(both)) == 1000


def test_of_many_ids_a_part_is_counted_that_knows_nothing_of_who_comes_first() -> None:
    whole, parts = experiment(unit="user"), [experiment(unit="user") for _ in range(2)]
    # all come, but those of one version sooner
    for user in sorted(range(60_000), key=lambda user: user * (1.08 if whole.assign(user) == "fp32" else 1)):
        for each in (whole, parts[user % 2]):
            each.record(each.assign(user), id=user)
    treated, counted = len(whole._places[1]), sum(map(len, whole._places))
    assert 3700 < counted <= 8192
    assert abs(treated - counted / 2) < 3 * math.sqrt(counted) / 2
    assert whole.decision == "undecided"
    assert abs(sum(units(whole)) - 60_000) < 2500
    parts[0].join(parts[1])
    assert (units(parts[0]), parts[0]._places) == (units(whole), whole._places)
    assert "units" not in {note.code for note in whole.result().notes}


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_processes_that_answer_for_one_version_each_are_judged_together(share: float) -> None:
    parts = [experiment(unit="user", arms={"fp32": 1 - share, "int8": share}) for _ in range(4)]
    for user in range(20_000):
        arm = parts[0].assign(user)
        parts[3 if arm == "int8" else user % 3].record(arm, id=user)
    joined = []
    for order in (parts, parts[::-1]):
        joined.append(experiment(unit="user", arms=parts[0].arms))
        for part in order:
            joined[-1].join(part)
    assert joined[0]._places == joined[1]._places
    assert abs(sum(units(joined[0])) - 20_000) < 1000
    assert [each.decision for each in joined] == ["undecided", "undecided"]


def test_a_loss_of_few_users_is_found_and_its_size_stays_for_the_report() -> None:
    one = experiment(unit="user", arms={"fp32": 0.99, "int8": 0.01})
    for user in range(100_000):
        arm = one.assign(user)
        if arm == "fp32" or user % 5 > 1 or one.decision == "broken":
            one.record(arm, id=user)
    assert one.decision == "broken"
    assert one.result().verdict[0] == "Broken: int8 receives 0.69% instead of 1.00%"


@pytest.mark.parametrize(
    ("replicas", "said"), [(1, "one replica per arm: no test can tell"), (2, "two replicas per arm"), (3, None)]
)
def test_few_replicas_cannot_tell_version_from_place(replicas: int, said: str | None) -> None:
    one = experiment()
    for request in range(30):
        for arm in ARMS:
            one.record(arm, replica=f"{arm}-{request % replicas}", latency_s=0.01)
    found = [note.message for note in one.result().notes if note.code == "replicas"]
    assert bool(found) == bool(said)
    assert not said or said in found[0]


def test_nobody_named_the_replicas() -> None:
    one = experiment()
    one.record("int8", latency_s=0.01)
    assert [note.code for note in one.result().notes] == ["replicas"]
    other = experiment()
    assert other.result().notes == ()
    other.record("int8", replica="pod-3", latency_s=0.01)
    assert other.result().notes == ()


def test_it_goes_on_where_it_was_stopped() -> None:
    guardrails = [Rate("error"), Tail("latency_s"), Typical("memory_bytes", worse_than=1.1)]
    values = {
        "latency_s": latency(1.02),
        "error": lambda rng, candidate: rng.random() < 0.01,
        "memory_bytes": latency(1),
    }
    one, other = experiment(guardrails=guardrails), experiment(guardrails=guardrails)
    drive(one, 1000, **values)
    one.record("int8", replica=7, latency_s=0.01)
    other.restore(json.loads(json.dumps(one.state())))
    for each in (one, other):
        drive(each, 1000, seed=5, **values)
    assert one.result() == other.result()


@pytest.mark.parametrize("state", [{}, {"rows": []}, None, {"rows": [1], "check": 2}])
def test_another_state_is_refused(state) -> None:
    with pytest.raises(StoreError, match="state of this experiment"):
        experiment().restore(state)


def test_the_state_of_another_plan_is_refused() -> None:
    with pytest.raises(StoreError, match="state of this experiment"):
        experiment().restore(experiment(metric=Typical("other")).state())
    for arms in ({"int8": 0.5, "fp32": 0.5}, {"fp32": 0.9, "int8": 0.1}):
        with pytest.raises(StoreError, match="its arms are"):
            experiment().restore(experiment(arms=arms).state())


def test_threads_lose_nothing() -> None:
    one = experiment()

    def work() -> None:
        for request in range(500):
            one.record("int8" if request % 2 else "fp32", latency_s=0.01)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = one.result()
    assert (told.control.n_requests, told.candidate.n_requests) == (2000, 2000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": {"a": 1.0}}, "expected two arms"),
        ({"arms": {"a": 0.5, "b": 0.4}}, "add up to 1, found 0.9"),
        ({"arms": {"a": 1.5, "b": -0.5}}, "expected two arms"),
        ({"alpha": 0}, "expected alpha"),
        ({"guardrails": [LATENCY]}, "once, found one twice"),
        ({"guardrails": ["error"]}, "as a guardrail, found 'error'"),
        ({"metric": Rate("error")}, "expected a Typical as the metric, found Rate"),
    ],
)
def test_experiments_that_cannot_be_meant_are_refused(options, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        experiment(**options)


def test_metrics_that_cannot_be_meant_are_refused() -> None:
    for make in (
        lambda: Typical(""),
        lambda: Typical("x", worse_than=0.9),
        lambda: Typical("x", better="up"),  # type: ignore[arg-type]
        lambda: Tail("x", p=1.0),
        lambda: Rate("x", worse_than=math.inf),
    ):
        with pytest.raises(UsageError):
            make()


def test_an_unknown_arm_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="expected an arm of fp32 and int8, found 'bf16'"):
        experiment().record("bf16", latency_s=1)
