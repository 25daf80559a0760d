"""A ladder answers every call, moves when it must and no more often than it may."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.waiting import wait_for

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.operate.ladder import Ladder, LadderEntry, LocalStore, Mode, Policy, Shared, answers_agree
from torchtriage.operate.monitor.alerts import ActiveAlarm

POLICY = Policy(dwell_s=10, recover_s=5, ramp=(0.5, 1.0), probe_calls=10, least_calls=10)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Model:
    """Three modes that say who they are, and what ails each."""

    def __init__(self) -> None:
        self.ill: dict[str, Exception] = {}
        self.calls: list[str] = []

    def modes(self) -> list[Mode]:
        return [Mode(name, self.mode(name)) for name in ("full", "bf16", "lite")]

    def mode(self, name: str):
        def call(_: object = None) -> str:
            self.calls.append(name)
            if name in self.ill:
                raise self.ill[name]
            return name

        return call


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model() -> Model:
    return Model()


def made(model: Model, clock: Clock, policy: Policy = POLICY, **options) -> Ladder:
    given = {"dry_run": False, "fallback": "none", "wall": lambda: 0.0} | options
    return Ladder("m", model.modes(), policy, clock=clock, **given)


def kinds(ladder: Ladder) -> list[str]:
    return [entry.kind for entry in ladder.entries]


def test_an_alarm_goes_down_at_the_next_look_and_says_why(model: Model, clock: Clock) -> None:
    ladder = made(model, clock)
    assert ladder("x") == "full"
    ladder.raise_alarm("p99 doubled")
    ladder.look()
    assert ladder("x") == "bf16"
    entry = ladder.entries[-1]
    assert (entry.kind, entry.before, entry.after, entry.why) == ("switch", "full", "bf16", "p99 doubled")


def test_an_alarm_function_is_asked_at_every_look(model: Model, clock: Clock) -> None:
    alarms = ["", "drift"]
    ladder = made(model, clock, alarm=lambda: alarms.pop(0))
    ladder.look()
    assert ladder("x") == "full"
    ladder.look()
    assert ladder("x") == "bf16"


def test_late_calls_go_down(model: Model, clock: Clock) -> None:
    ladder = made(model, clock, Policy(deadline_s=1e-9, least_calls=10))
    for _ in range(15):
        ladder("x")
    ladder.look()
    assert ladder.status().mode == "bf16"
    assert ladder.status().modes[0].n_late == 15


def test_a_second_step_waits_for_the_dwell(model: Model, clock: Clock) -> None:
    ladder = made(model, clock)
    ladder.raise_alarm("slow")
    for _ in range(20):
        ladder.look()
    assert ladder.status().level == 1
    assert kinds(ladder) == ["switch", "refused"]
    clock.now_s += 10
    ladder.look()
    assert ladder("x") == "lite"
    clock.now_s += 10
    ladder.look()
    assert ladder("x") == "lite"
    assert "no lower mode may be used" in ladder.entries[-1].why


def test_it_tries_the_better_mode_before_it_comes_back(model: Model, clock: Clock) -> None:
    ladder = made(model, clock)
    ladder.raise_alarm("slow")
    ladder.look()
    ladder.clear_alarm()
    clock.now_s += 10
    ladder.look()
    assert ladder.status().share == 0.5
    model.calls.clear()
    for _ in range(60):
        ladder("x")
    assert model.calls.count("full") == model.calls.count("bf16") == 30
    ladder.look()
    assert ladder.status().share == 0.5  # not a quarter of a dwell yet
    clock.now_s += 2.5
    ladder.look()
    model.calls.clear()
    assert ladder.status().share == 1
    for _ in range(50):
        ladder("x")
    assert model.calls == ["full"] * 50
    assert ladder.status().level == 1
    clock.now_s += 2.5
    ladder.look()
    assert ladder.status().level == 0
    assert kinds(ladder) == ["switch", "probe", "probe", "switch"]


def test_what_a_mode_takes_to_warm_up_is_not_judged(clock: Clock) -> None:
    calls = iter(range(100))

    def full() -> int:
        at = next(calls)
        time.sleep(0.01 if at < 5 else 0)
        return at

    ladder = Ladder("m", [Mode("full", full), Mode("lite", lambda: 0)], Policy(deadline_s=0.008, least_calls=5))
    for _ in range(60):
        ladder()
    assert ladder.status().modes[0].n_late >= 5
    assert sum(ladder._newest) <= ladder.status().modes[0].n_late - 5


def test_the_wait_of_all_workers_grows_with_the_trial_of_one(model: Model, clock: Clock) -> None:
    store = LocalStore(clock)
    one, other = (made(model, clock, store=store) for _ in range(2))
    one.raise_alarm("slow")
    one.look()
    one.clear_alarm()
    clock.now_s += 10
    one.look()
    model.ill["full"] = ValueError("still broken")
    for _ in range(4):
        one("x")
    one.look()
    assert kinds(one)[-1] == "give up"
    other.look()
    clock.now_s += 9
    other.look()
    one.look()
    assert (store.read("m").share, store.read("m").wait_s) == (0, 10)
    clock.now_s += 1
    other.look()
    assert store.read("m").share == 0.5


def test_a_relative_alarm_holds_nothing_down_while_deadlines_are_met(model: Model, clock: Clock) -> None:
    alarm = ActiveAlarm("shift: requests are 50 % slower", relative=True)
    policy = replace(POLICY, deadline_s=10.0)
    ladder = made(model, clock, policy, alarm=lambda: alarm)
    for _ in range(20):
        ladder("x")
    ladder.look()
    assert ladder.status().level == 0
    alarm = ActiveAlarm("nan: requests answer NaN", relative=False)
    ladder.look()
    assert ladder.status().level == 1


def test_calls_of_each_mode_are_exported_also_in_a_dry_run(model: Model, clock: Clock) -> None:
    ladder = made(model, clock, Policy(deadline_s=1e-9), dry_run=True)
    ladder("x")
    model.ill = {"full": ValueError(), "bf16": ValueError(), "lite": ValueError()}
    ladder("x")
    told = {(name, labels.get("mode"), labels.get("outcome")): value for name, labels, value in ladder.metrics()}
    assert told["ladder_calls_total", "full", "answered"] == 1
    assert told["ladder_calls_total", "full", "late"] == 1
    assert told["ladder_calls_total", "full", "failed"] == 1
    assert told["ladder_calls_total", "lite", "failed"] == 1
    assert told["ladder_fallbacks_total", None, None] == 1


def test_a_trial_that_fails_is_answered_and_the_next_one_waits_longer(model, clock: Clock) -> None:
    ladder = made(model, clock)
    ladder.raise_alarm("slow")
    ladder.look()
    ladder.clear_alarm()
    model.ill["full"] = ValueError("still broken")
    clock.now_s += 10
    ladder.look()
    assert {ladder("x") for _ in range(20)} == {"bf16"}
    ladder.look()
    assert kinds(ladder)[-1] == "give up"
    clock.now_s += 9
    ladder.look()
    assert not ladder.status().share
    clock.now_s += 1
    ladder.look()
    assert ladder.status().share


def test_a_mode_that_fails_is_answered_by_the_next(model: Model, clock: Clock) -> None:
    ladder = made(model, clock)
    model.ill = {"full": ValueError("a"), "bf16": RuntimeError("b")}
    assert ladder("x") == "lite"
    model.ill["lite"] = MemoryError()
    assert ladder("x") == "none"
    assert ladder.status().n_fallback == 1
    for _ in range(10):
        ladder("x")
    ladder.look()
    assert ladder.status().mode == "bf16"


def test_fallbacks_may_be_functions_and_may_fail(model: Model, clock: Clock) -> None:
    model.ill = dict.fromkeys(("full", "bf16", "lite"), ValueError())
    assert made(model, clock, fallback=lambda x: x * 2)(21) == 42
    assert made(model, clock, fallback=lambda x: 1 / 0)(21) is None


def test_a_mode_that_hangs_is_given_up(clock: Clock) -> None:
    go = threading.Event()
    modes = [Mode("full", lambda: go.wait(20)), Mode("lite", lambda: "lite")]
    ladder = Ladder("m", modes, Policy(timeout_s=0.02, least_calls=5), dry_run=False)
    start = time.monotonic()
    assert {ladder() for _ in range(30)} == {"lite"}
    assert time.monotonic() - start < 2
    assert ladder.status().n_given_up == 4
    go.set()


def test_calls_at_the_same_time_do_not_count_as_hanging(clock: Clock) -> None:
    together = threading.Barrier(8)

    def slow() -> str:
        together.wait(5)
        return "full"

    modes = [Mode("full", slow), Mode("lite", lambda: "lite")]
    ladder = Ladder("m", modes, Policy(timeout_s=5), clock=clock)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(ladder())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["full"] * 8
    assert ladder.status().n_given_up == 0


def test_calls_that_hung_count_no_more_once_they_ended(clock: Clock) -> None:
    go_on = threading.Event()
    modes = [Mode("full", lambda: go_on.wait(5)), Mode("lite", lambda: "lite")]
    ladder = Ladder("m", modes, Policy(timeout_s=0.01), clock=clock)
    for _ in range(6):
        assert ladder() == "lite"
    assert ladder.status().n_given_up == 4
    go_on.set()
    wait_for(lambda: not ladder.status().n_given_up)
    assert ladder() is True


def test_a_call_that_was_under_way_says_nothing_of_the_next_mode(clock: Clock) -> None:
    began, go_on = threading.Event(), threading.Event()

    def full() -> str:
        began.set()
        go_on.wait(5)
        return "full"

    modes = [Mode("full", full), Mode("lite", lambda: "lite")]
    policy = Policy(deadline_s=1e-9, least_calls=1)
    ladder = Ladder("m", modes, policy, clock=clock, dry_run=False)
    thread = threading.Thread(target=ladder)
    thread.start()
    began.wait(5)
    ladder.raise_alarm("slow")
    ladder.look()
    go_on.set()
    thread.join()
    assert ladder.status().mode == "lite"
    assert ladder.status().modes[0].n_late == 1
    assert not ladder._newest


def test_more_calls_than_are_kept_by_default_can_be_asked_for(model: Model, clock: Clock) -> None:
    ladder = made(model, clock, Policy(deadline_s=1e-9, least_calls=500))
    for _ in range(505):
        ladder("x")
    ladder.look()
    assert ladder.status().mode == "bf16"


def test_modes_that_cannot_be_watched_are_refused() -> None:
    async def later() -> str:
        return "full"

    class Later:
        async def __call__(self) -> str:
            return "full"

    for call in (later, Later(), "full"):
        with pytest.raises(UsageError, match="expected a function that answers"):
            Ladder("m", [Mode("full", call), Mode("lite", lambda: "lite")])


def test_a_person_is_heard_while_workers_switch(model: Model, clock: Clock) -> None:
    class Busy(LocalStore):
        n_before = 2

        def switch(self, ladder, before, after, **limits):
            if self.n_before:
                self.n_before -= 1
                super().switch(ladder, before, Shared(1, held=True), **limits)
            return super().switch(ladder, before, after, **limits)

    store = Busy(clock)
    ladder = made(model, clock, store=store)
    ladder.hold("lite", "maintenance")
    assert store.read("m").level == 2
    store.n_before = 99
    with pytest.raises(StoreError, match="another worker has switched"):
        ladder.hold("full", "over")


def test_a_release_from_elsewhere_leaves_it_where_it_is(model: Model, clock: Clock) -> None:
    store = LocalStore(clock)
    made(model, clock, store=store).hold("lite", "maintenance")
    made(model, clock, store=store).release("over")
    assert store.read("m") == Shared(2, epoch=2, why="over", actor="a person")


def test_a_look_that_fails_ends_no_watch(model: Model) -> None:
    class Odd(LocalStore):
        n_failures = 3

        def read(self, ladder):
            self.n_failures -= 1
            if self.n_failures >= 0:
                raise RuntimeError("odd")
            return super().read(ladder)

    ladder = Ladder("m", model.modes(), store=Odd(), dry_run=False)
    ladder.raise_alarm("slow")
    ladder.start(0.001)
    wait_for(lambda: ladder.status().level)
    ladder.close()
    assert kinds(ladder)[:2] == ["failed", "switch"]


def test_a_dry_run_changes_nothing_and_says_what_it_would(model: Model, clock: Clock) -> None:
    ladder = made(model, clock, dry_run=True)
    ladder.raise_alarm("slow")
    ladder.look()
    assert ladder("x") == "full"
    assert (ladder.entries[-1].kind, ladder.entries[-1].after) == ("would switch", "bf16")
    assert ladder.status().mode == "bf16"


def test_a_dry_run_moves_no_other_ladder_and_takes_no_budget(model: Model, clock: Clock) -> None:
    store, policy = LocalStore(clock), Policy(dwell_s=10, budget=1)
    trial = made(model, clock, policy, store=store, dry_run=True)
    trial.raise_alarm("slow")
    trial.look()
    real = made(model, clock, policy, store=store)
    real.look()
    assert real("x") == "full"
    other = Ladder("other", model.modes(), policy, store=store, clock=clock, dry_run=False)
    other.raise_alarm("slow")
    other.look()
    assert other("x") == "bf16"
    assert kinds(trial) == ["would switch"]


def test_dry_run_is_the_default(model: Model) -> None:
    assert Ladder("m", model.modes()).dry_run


def test_a_mode_that_fails_its_check_is_never_used(model: Model, clock: Clock) -> None:
    modes = model.modes()
    modes[1] = Mode("bf16", modes[1].call, check=lambda: "80 % of answers agree")
    modes[2] = Mode("lite", modes[2].call, check=lambda: "")
    ladder = Ladder("m", modes, POLICY, dry_run=False, clock=clock)
    ladder.raise_alarm("slow")
    ladder.look()
    # nothing has been checked yet
    assert ladder("x") == "full"
    model.ill["full"] = ValueError()
    assert ladder("x") is None
    ladder.check_modes()
    ladder.look()
    assert ladder("x") == "lite"
    assert "bf16" not in model.calls
    with pytest.raises(UsageError, match="bf16 failed its check: 80 %"):
        ladder.hold("bf16", "by hand")


def test_a_check_that_raises_is_a_failure(model: Model, clock: Clock) -> None:
    modes = model.modes()
    modes[1] = Mode("bf16", modes[1].call, check=lambda: 1 / 0)  # type: ignore[return-value]
    ladder = Ladder("m", modes, clock=clock)
    ladder.check_modes()
    assert ladder.status().modes[1].why == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, ""),
        (True, "TypeError: expected text (why it may not be used) or nothing, found True"),
        (False, "TypeError: expected text (why it may not be used) or nothing, found False"),
        (0, "TypeError: expected text (why it may not be used) or nothing, found 0"),
    ],
)
def test_a_check_says_why_or_nothing(model: Model, clock: Clock, said: object, why: str) -> None:
    full, lite, _ = model.modes()
    ladder = Ladder("m", [full, Mode("lite", lite.call, check=lambda: said)], clock=clock)  # type: ignore[arg-type]
    ladder.check_modes()
    assert (ladder.status().modes[1].why, ladder.entries[-1].after) == (why, "failed" if why else "passed")


def test_the_accuracy_gate_compares_answers() -> None:
    inputs = [(np.full(3, n),) for n in range(1, 101)]
    assert answers_agree(lambda x: x * 2.0, lambda x: x * 2.0001, inputs)() == ""
    said = answers_agree(lambda x: x * 2.0, lambda x: x * (2.0 + (x > 90)), inputs)()
    assert said.startswith("90 % of 100 answers agree, 99 % required; first: values differ by")
    assert answers_agree(abs, lambda x: abs(x) + (x > 93), [(n,) for n in range(1, 101)], least=0.93)() == ""
    same = answers_agree(len, lambda text: len(text) - (text == "abc"), [("abc",), ("a",)], compare=lambda a, b: a == b)
    assert same() == "50 % of 2 answers agree, 99 % required; first: different according to `compare`"
    with pytest.raises(UsageError, match="expected inputs"):
        answers_agree(abs, abs, [])
    # an image instead of its call's arguments would be taken apart, row by row
    with pytest.raises(UsageError, match="expected a tuple of each call's arguments, found ndarray"):
        answers_agree(abs, abs, [np.full(3, 1)])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="expected a tuple of each call's arguments, found ndarray"):
        answers_agree(abs, abs, np.full((3, 1), 1))
    with pytest.raises(UsageError, match="expected a tuple of each call's arguments, found int"):
        answers_agree(abs, abs, (n for n in range(3)))  # type: ignore[misc]
    assert answers_agree(abs, abs, ((n,) for n in range(3)))() == ""


def test_a_person_holds_it_whatever_happens(model: Model, clock: Clock) -> None:
    ladder = made(model, clock)
    ladder.hold("lite", "maintenance", actor="me")
    assert ladder("x") == "lite"
    ladder.raise_alarm("slow")
    clock.now_s += 100
    ladder.look()
    assert ladder("x") == "lite"
    assert kinds(ladder) == ["hold"]
    ladder.clear_alarm()
    ladder.release("done", actor="me")
    assert not ladder.status().held
    with pytest.raises(UsageError, match="expected a mode of full, bf16, lite"):
        ladder.hold("int4", "")


def test_a_person_holds_a_dry_run_too(model: Model, clock: Clock) -> None:
    ladder = made(model, clock, dry_run=True)
    ladder.hold("bf16", "trying it")
    assert ladder("x") == "bf16"


@pytest.mark.parametrize("by", [0, 1])
def test_a_hold_reaches_all_workers_also_those_in_a_dry_run(model: Model, clock: Clock, by: int) -> None:
    store = LocalStore(clock)
    workers = [made(model, clock, store=store, dry_run=dry_run) for dry_run in (True, False)]
    workers[by].hold("lite", "maintenance")
    for worker in workers:
        worker.look()
        assert (worker("x"), worker.status().held) == ("lite", True)
    workers[1 - by].release()
    for worker in workers:
        worker.look()
        assert not worker.status().held
    assert workers[0]("x") == "full"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_release_where_nothing_is_held_does_nothing(model: Model, clock: Clock, dry_run: bool) -> None:
    store = LocalStore(clock)
    shared = store.switch("m", Shared(), Shared(2, why="slow", share=0.5), dwell_s=0, budget=None).state
    ladder = made(model, clock, store=store, dry_run=dry_run)
    ladder.release("over")
    assert store.read("m") == shared
    assert kinds(ladder) == []


def test_a_hold_of_dry_runs_alone_leaves_no_level_behind(model: Model, clock: Clock) -> None:
    store = LocalStore(clock)
    shared = store.switch("m", Shared(), Shared(1, why="slow"), dwell_s=0, budget=None).state
    for mode in ("full", "lite"):
        made(model, clock, store=store, dry_run=True).hold(mode, "maintenance")
    ladder = made(model, clock, store=store, dry_run=True)
    ladder.look()
    ladder.release("over")
    assert store.read("m").level == shared.level
    assert (ladder.entries[-1].before, ladder.entries[-1].after) == ("lite", "full")


def test_the_budget_is_of_all_ladders_together(model: Model, clock: Clock) -> None:
    store = LocalStore(clock)
    policy = Policy(dwell_s=10, budget=2)
    ladders = [Ladder(name, model.modes(), policy, store=store, clock=clock, dry_run=False) for name in "abc"]
    for one in ladders:
        one.raise_alarm("slow")
        one.look()
    assert [ladder.status().level for ladder in ladders] == [1, 1, 0]
    assert ladders[2].entries[-1].why == "slow; 2 other ladders are below their first mode, 2 may be"


def test_without_its_store_it_keeps_its_mode(model: Model, clock: Clock) -> None:
    class Gone(LocalStore):
        gone = False

        def read(self, ladder: str) -> Shared:
            if self.gone:
                raise StoreError("Redis: connection refused")
            return super().read(ladder)

    store = Gone(clock)
    ladder = made(model, clock, store=store)
    ladder.raise_alarm("slow")
    ladder.look()
    store.gone = True
    clock.now_s += 100
    for _ in range(5):
        ladder.look()
    assert ladder("x") == "bf16"
    assert not ladder.status().connected
    store.gone = False
    ladder.look()
    assert kinds(ladder) == ["switch", "lost", "found", "switch"]


def test_two_workers_share_one_dwell(model: Model, clock: Clock) -> None:
    store = LocalStore(clock)
    one, other = (made(model, clock, store=store) for _ in range(2))
    for ladder in (one, other):
        ladder.raise_alarm("slow")
    for _ in range(3):
        one.look()
        other.look()
    assert (one("x"), other("x")) == ("bf16", "bf16")
    assert (kinds(one) + kinds(other)).count("switch") == 1


@settings(max_examples=60)
@given(loads=st.lists(st.tuples(st.booleans(), st.floats(-50, 50)), max_size=80))
def test_at_most_one_switch_per_dwell_whatever_the_load_and_the_clock(loads) -> None:
    clock, model = Clock(), Model()
    now_s, switches = 100.0, []
    ladder = made(model, clock, log=lambda entry: switches.append((now_s, entry.kind)))
    for bad, step_s in loads:
        now_s += abs(step_s)
        clock.now_s += step_s  # the ladder's own clock may go back
        (ladder.raise_alarm if bad else lambda _: ladder.clear_alarm())("load")
        ladder.look()
        assert [ladder("x") in ("full", "bf16", "lite") for _ in range(12)] == [True] * 12
    times = [at_s for at_s, kind in switches if kind == "switch"]
    assert all(b - a >= POLICY.dwell_s - 1e-6 for a, b in pairwise(times))


@pytest.mark.timing
def test_the_first_degraded_answer_comes_within_100_ms_of_the_alarm(model: Model) -> None:
    took = []
    for _ in range(5):
        ladder = Ladder("m", model.modes(), dry_run=False)
        ladder.start(every_s=5)
        time.sleep(0.02)
        start = time.perf_counter()
        ladder.raise_alarm("drift")
        while ladder("x") == "full":
            time.sleep(0.001)
        took.append(time.perf_counter() - start)
        ladder.close()
    assert sorted(took)[2] < 0.1


def test_a_failing_alarm_or_log_stops_nothing(model: Model) -> None:
    def fails(*_: object) -> str:
        raise RuntimeError("broken")

    told: list[LadderEntry] = []
    ladder = Ladder("m", model.modes(), alarm=fails, log=told.append)
    ladder.start(every_s=0.01)
    time.sleep(0.1)
    assert ladder("x") == "full"
    assert {one.kind for one in told} == {"failed"}
    assert len(told) < 5
    ladder.close()
    other = Ladder("m", model.modes(), dry_run=False, log=fails)
    other.raise_alarm("slow")
    other.look()
    assert other("x") == "bf16"


def test_threads_get_an_answer_each(model: Model, clock: Clock) -> None:
    ladder = made(model, clock)
    answers: list[str] = []

    def work() -> None:
        answers.extend(ladder("x") for _ in range(300))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for n in range(50):
        (ladder.raise_alarm("x") if n % 2 else ladder.clear_alarm())
        clock.now_s += 10
        ladder.look()
    for thread in threads:
        thread.join()
    assert len(answers) == 2400
    assert set(answers) <= {"full", "bf16", "lite"}


@pytest.mark.parametrize("names", [["full"], ["full", "full"], []])
def test_ladders_of_fewer_than_two_rungs_are_refused(names: list[str]) -> None:
    with pytest.raises(UsageError, match="expected two modes or more"):
        Ladder("m", [Mode(name, print) for name in names])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside a thread, as meant
def test_it_looks_in_a_fork_too(model: Model) -> None:
    ladder = Ladder("m", model.modes(), dry_run=False)
    ladder.start(every_s=0.01)
    ladder._look_lock.acquire()  # as a fork may find it
    child = os.fork()
    if not child:
        ladder.start(every_s=0.01)
        ladder.raise_alarm("slow")
        for _ in range(300):
            time.sleep(0.01)
            if ladder("x") == "bf16":
                os._exit(0)
        os._exit(1)
    ladder._look_lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ladder.close()
