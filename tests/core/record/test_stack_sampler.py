"""The sampling thread: what it sees, what it leaves as it was, and where it stops."""

from __future__ import annotations

import dis
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from tests.waiting import wait_for

from torchtriage.core.record import main_thread, stack_sampler
from torchtriage.core.record.main_thread import in_main_thread
from torchtriage.core.record.stack_sampler import StackSampler, samples_of
from torchtriage.core.record.stacks import callers, positions, without_collection
from torchtriage.diagnose.runs.samples import read_samples


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[StackSampler]:
    """Return a sampler that is stopped at the end of the test."""
    made = StackSampler(tmp_path)
    yield made
    made.stop()


def functions(facts: dict[str, Any], stack: int) -> list[str]:
    """Return the names of a stack's functions, innermost first."""
    return [facts["frames"][frame][1] for frame in facts["stacks"][stack]]


def compute() -> int:
    total = 0
    for number in range(2_000):
        total += number * number
    return total


def write_and_read() -> None:
    values = [f"{number:.3f}" for number in range(50)]
    for value in values:
        assert float(value.strip()) >= 0
    sorted(values, key=lambda value: -float(value))


def descend(depth: int, at_the_end: Callable[[], object]) -> None:
    if depth:
        descend(depth - 1, at_the_end)
    else:
        at_the_end()


def test_looks_cover_the_time_and_name_what_ran(sampler: StackSampler, tmp_path: Path) -> None:
    sampler.start()
    begun = time.perf_counter_ns()
    while len(sampler._looks) <= 3 * 60:
        compute()
    ended = time.perf_counter_ns()
    sampler.stop()
    facts = sampler.facts()
    times, threads, stacks = facts["looks"]
    of_main = [at for at, thread in zip(times, threads, strict=True) if thread == facts["main_thread"]]
    assert of_main == sorted(of_main)
    assert of_main[0] - begun < 0.5 * (ended - begun)
    assert any("compute" in name for stack in set(stacks) for name in functions(facts, stack))
    assert read_samples(samples_of(tmp_path, os.getpid())) is not None
    assert facts["own_ns"] < 0.2 * (ended - begun)


def test_what_a_caller_does_is_not_of_the_function_that_begins_next(sampler: StackSampler) -> None:
    values = list(range(200_000))

    def note(found: bool) -> bool:
        return found

    def search() -> bool:
        found = -1 in values
        return note(found)

    sampler.start()
    while len(sampler._looks) <= 3 * 60:
        search()
    sampler.stop()
    facts = sampler.facts()
    names = [functions(facts, stack)[0].rpartition(".")[2] for stack in facts["looks"][2]]
    assert names.count("search") > 4 * names.count("note")


def test_a_function_begins_up_to_its_resume_and_goes_on_behind_it() -> None:
    def outer(kept: int) -> Callable[[], int]:
        return lambda: kept

    def items() -> Iterator[int]:
        yield 1
        yield 2

    for code in (outer.__code__, items.__code__):
        steps = list(dis.get_instructions(code))
        first = next((at for at, step in enumerate(steps) if step.opname == "RESUME"), -1)
        begins = [stack_sampler._begins(code, step.offset) for step in steps]
        assert begins == [at <= first for at in range(len(steps))]
        assert stack_sampler._begins(code, -1)


def helper(found: Any) -> Any:
    return found


class Caller:
    """Calls in several ways; each method's marked line is where its time is."""

    calls = 0

    def helper(self, found: object) -> object:
        return found

    def indexes(self, values: list[int]) -> object:
        found = -1 in values  # here
        return helper(found)

    def within(self, values: list[int]) -> object:
        return self.helper(-1 in values)  # here

    def returned(self, values: list[int]) -> object:
        found = self.indexes(values)  # here
        return helper(found)

    def called_back(self, values: list[int]) -> object:
        ordered = values + values
        return sorted(ordered, key=helper)  # here

    def iterates(self, values: list[int]) -> object:
        for value in values:  # here
            helper(value)
        return None

    def branches(self, values: list[int]) -> object:
        if values:
            helper(values)  # here
        return None

    def counts(self, values: list[int]) -> object:
        found = -1 in values  # here
        self.calls += 1
        return helper(found)

    def comprehends(self, values: list[int]) -> object:
        found = values + values  # here
        return [number + 1 for number in found]

    def skips(self, values: list[int]) -> object:
        if not values:
            values = sorted(values)
        return helper(values)  # here


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before 3.11, Python tells no places")
@pytest.mark.parametrize(
    "method", ["indexes", "within", "returned", "called_back", "iterates", "branches", "counts", "comprehends", "skips"]
)
def test_the_time_before_a_function_begins_is_at_the_line_of_the_work(method: str) -> None:
    function = getattr(Caller, method)
    code = function.__code__
    calls = [step.offset for step in dis.get_instructions(code) if step.opname in ("CALL", "CALL_KW")]
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    begun = next(inner, helper.__code__)
    ((_, name, _, line, _, column, end_column), *_) = [
        stack_sampler._frame(*frame) for frame in stack_sampler._frames(((begun, -1), (code, calls[-1])))
    ]
    lines, first = inspect.getsourcelines(function)
    assert name.endswith(method)
    assert line == first + next(at for at, text in enumerate(lines) if text.endswith("# here\n"))
    # at no call of a name that a decorator, a callback or a branch may have nothing to do with
    assert (column == end_column) == (method in ("called_back", "branches", "skips"))


def test_a_jump_back_is_at_a_line_of_its_loop() -> None:
    def search(values: list[int]) -> None:
        for value in values:
            if value not in values:
                values.append(value)

    code = search.__code__
    lines = {stack_sampler._frame(code, at, False)[3] - code.co_firstlineno for at in range(4, len(code.co_code), 2)}
    assert lines == {1, 2, 3}


def test_the_start_of_the_process_stays_where_it_was(sampler: StackSampler) -> None:
    before = sampler.facts()["process_started_ns"]
    time.sleep(0.1)

    assert sampler.facts()["process_started_ns"] == before <= sampler.started_ns


def test_the_interpreter_is_left_as_it_was(sampler: StackSampler) -> None:
    before, callbacks = sys.getswitchinterval(), len(gc.callbacks)
    sampler.start()
    assert sys.getswitchinterval() <= stack_sampler.SWITCH_S
    sampler.stop()
    sampler.stop()
    assert sys.getswitchinterval() == pytest.approx(before)
    assert len(gc.callbacks) == callbacks


def test_the_lock_is_handed_over_sooner_where_no_other_thread_runs(sampler: StackSampler) -> None:
    over = threading.Event()
    waiting, working = (
        threading.Thread(target=work) for work in (over.wait, lambda: [compute() for _ in iter(over.is_set, True)])
    )
    waiting.start()
    sampler.start()
    wait_for(lambda: sys.getswitchinterval() < stack_sampler.SWITCH_S / 2)
    working.start()
    wait_for(lambda: sys.getswitchinterval() > stack_sampler.SWITCH_S / 2)
    over.set()
    working.join()
    wait_for(lambda: sys.getswitchinterval() < stack_sampler.SWITCH_S / 2)
    waiting.join()


def test_an_interval_that_the_program_sets_stays(sampler: StackSampler) -> None:
    before = sys.getswitchinterval()
    sampler.start()
    sys.setswitchinterval(0.02)
    sampler.stop()
    assert sys.getswitchinterval() == pytest.approx(0.02)
    sys.setswitchinterval(before)


def test_collections_are_noted(sampler: StackSampler) -> None:
    sampler.start()
    cycles: list[list[Any]] = [[] for _ in range(200_000)]
    for cycle in cycles:
        cycle.append(cycle)
    del cycles, cycle
    gc.collect()
    sampler.stop()
    assert any(generation == 2 and took > 20_000 for _, took, generation in sampler.facts()["collections"])


def test_a_pause_has_no_looks_and_no_collections(sampler: StackSampler) -> None:
    n_callbacks = len(gc.callbacks)
    sampler.start()
    wait_for(lambda: sampler.facts()["looks"][0])
    sampler.pause(True)
    assert len(gc.callbacks) == n_callbacks

    def no_more_looks() -> bool:  # one may be under way
        n_looks = len(sampler.facts()["looks"][0])
        time.sleep(0.2)
        return len(sampler.facts()["looks"][0]) == n_looks

    wait_for(no_more_looks)
    n_looks = len(sampler.facts()["looks"][0])
    sampler.pause(False)
    wait_for(lambda: len(sampler.facts()["looks"][0]) > n_looks)
    sampler.stop()
    sampler.pause(False)
    assert len(gc.callbacks) == n_callbacks


@pytest.mark.parametrize(("spins", "wait"), [(True, 0.0), (False, 0.002)])
def test_a_thread_that_spins_is_told_from_one_that_waits(spins: bool, wait: float, sampler: StackSampler) -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            if wait:
                over.wait(60)
            else:
                write_and_read()

    thread = threading.Thread(target=work)
    thread.start()
    sampler.start()
    try:
        if spins:  # on a busy machine it may wait for a core at most looks for a while
            wait_for(lambda: sampler.others_spin)
        else:
            wait_for(lambda: len(sampler._looks) > 3 * 100)
            assert not sampler.others_spin
    finally:
        over.set()
        thread.join()


def test_the_thread_that_a_backward_pass_waits_for_does_not_spin(sampler: StackSampler) -> None:
    """On a device autograd runs Python in a thread of its own, which is no other work than the loop's."""
    over, names = threading.Event(), {"sleep": time.sleep}
    exec(compile("def engine(): sleep(0.02)", "/lib/torch/autograd/graph.py", "exec"), names)

    def work() -> None:
        while not over.is_set():
            write_and_read()

    thread = threading.Thread(target=work)
    sampler.start()
    engine: Any = names["engine"]
    thread.start()
    try:
        while len(sampler._looks) <= 3 * 100:
            engine()
        assert not sampler.others_spin
    finally:
        over.set()
        thread.join()


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, sampler: StackSampler) -> None:
    monkeypatch.setattr(stack_sampler, "MOST_LOOKS", 40)
    monkeypatch.setattr(stack_sampler, "MOST_STACKS", 30)
    monkeypatch.setattr(stack_sampler, "DEEPEST", 50)
    seen: list[int] = []
    sampler.guards.append(seen.append)

    def look() -> None:
        looking = threading.Thread(target=sampler._look, args=(time.perf_counter_ns(),))  # a thread does not see itself
        looking.start()
        looking.join()

    def look_often() -> None:
        wait_for(lambda: compute() and seen and len(sampler._stacks) > 5)

    sampler.start()
    for depth in range(0, 120, 4):
        descend(depth, look)
    descend(300, look_often)
    sampler.stop()
    facts = sampler.facts()
    assert max(len(stack) for stack in facts["stacks"]) <= 50
    assert len(facts["stacks"]) <= 30 + 10  # and the outermost frames of what came later
    assert min(seen) > 1 << 20


def test_thinning_keeps_the_first_look_of_each_pair_of_times(sampler: StackSampler) -> None:
    sampler._looks.extend([1, 7, 0, 1, 8, 0, 2, 7, 1, 3, 7, 2, 4, 7, 3])
    sampler._thin()
    assert sampler._looks.tolist() == [2, 7, 1, 4, 7, 3]


def test_a_folder_that_goes_away_is_noted(tmp_path: Path) -> None:
    sampler = StackSampler(tmp_path / "removed")
    sampler.start()
    sampler.stop()
    assert "FileNotFoundError" in sampler.problem


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_is_not_looked_at(sampler: StackSampler) -> None:
    before = sys.getswitchinterval()
    sampler.start()
    child = os.fork()
    if not child:
        sampler.forked()
        sampler.write()
        restored = abs(sys.getswitchinterval() - before) < 1e-6
        os._exit(0 if restored and not samples_of(sampler.path.parent, os.getpid()).exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampler.stop()
    assert sampler.path.exists()


def in_another_thread(act: Callable[[], object]) -> list[bool]:
    """Ask for a call on the main thread from a thread; return what it was told."""
    answers: list[bool] = []
    asker = threading.Thread(target=lambda: answers.append(in_main_thread(act)))
    asker.start()
    wait_for(lambda: answers)  # Python runs between two naps
    asker.join()
    return answers


def test_a_call_runs_on_the_main_thread() -> None:
    ran_on: list[int] = []
    assert in_another_thread(lambda: ran_on.append(threading.get_ident())) == [True]
    assert ran_on == [threading.main_thread().ident]


def test_what_a_call_raises_stays_with_it() -> None:
    assert in_another_thread(lambda: 1 / 0) == [True]


def test_a_main_thread_that_does_not_come_is_no_longer_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_thread, "PATIENCE_S", 0.05)
    ran: list[int] = []
    answers: list[bool] = []
    held = threading.Lock()
    held.acquire()
    main, line = threading.get_ident(), sys._getframe().f_lineno + 9

    def ask() -> None:
        wait_for(lambda: sys._current_frames()[main].f_lineno == line)
        answers.append(in_main_thread(lambda: ran.append(1)))
        held.release()

    asker = threading.Thread(target=ask)
    asker.start()
    held.acquire()  # one call into C: what is pending waits for its end
    asker.join()
    compute()
    assert answers == [False]
    assert ran == []


LOOKS = """
import dataclasses, gc, inspect, os, re, sys, threading, time
from torchtriage.core.record.stacks import current_frames, positions

threading.excepthook = lambda raised: os._exit(3)
gc.set_threshold(5, 2, 2)
gc.callbacks.append(lambda phase, info: sum(range(30)))
sys.setswitchinterval(1e-5)
main, ended, looks = threading.get_ident(), False, 0

def look():
    global looks
    while not ended:
        for code, at in positions(current_frames()[main], 200):
            assert code.co_filename
        looks += 1

sampler = threading.Thread(target=look)
sampler.start()
begun = time.monotonic()
while time.monotonic() < begun + 1.5:
    dataclasses.make_dataclass("Point", ["x", "y"])
    re.purge(), re.compile("(a|b)*c[de]+(?P<x>z|y)"), inspect.signature(look)
ended = True
sampler.join()
assert looks > 100 and gc.isenabled()
"""
HOLDS_A_LOCAL = """
import gc, threading
from torchtriage.core.record.stacks import current_frames

class Holder:
    def __init__(self):
        self.local, self.me = threading.local(), self

for _ in range(200):
    gc.set_threshold(0)
    for _ in range(50):
        Holder()
    gc.set_threshold(20)
    current_frames()
"""


@pytest.mark.parametrize("program", [LOOKS, HOLDS_A_LOCAL])
def test_a_collection_during_a_look_neither_crashes_nor_hangs(program: str) -> None:
    """Both did with frames asked for one by one: a collection ran other threads while C read a frame."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_stack_of_a_thread_is_whole() -> None:
    seen: list[Any] = []
    descend(300, lambda: seen.append((callers(sys._getframe()), positions(sys._getframe(), 7))))
    [(stack, nearest)] = seen
    assert [frame.f_code.co_name for frame in stack].count("descend") == 301
    assert stack[-1].f_back is None
    assert [code.co_name for code, _ in nearest] == ["<lambda>"] + 6 * ["descend"]


def test_what_a_call_without_collection_raises_leaves_the_collector_on() -> None:
    with pytest.raises(ZeroDivisionError):
        without_collection(partial(divmod, 1, 0))
    assert gc.isenabled()
