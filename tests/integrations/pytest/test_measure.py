from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
import pytest

from torchtriage.core.errors import BenchmarkError
from torchtriage.core.machine import HostUse
from torchtriage.integrations.pytest.measure import MIB, Memory, Step, Timing, judge_memory, judge_time

QUIET = HostUse(wall_s=1.0, own_s=1.0, others_s=0.0, stolen_s=0.0, n_cores=2)
NOISY = HostUse(wall_s=1.0, own_s=0.5, others_s=1.5, stolen_s=0.0, n_cores=2)
UNKNOWN = HostUse(wall_s=1.0, own_s=1.0)


def timing(median_ms: float, use: HostUse = QUIET, *, cpu: float = 1.0, n: int = 60) -> Timing:
    spread = np.random.default_rng(3).permutation(np.linspace(0.98, 1.02, n))
    wall = (median_ms * 1e6 * spread).astype(int)
    return Timing(wall.tolist(), (cpu * wall).astype(int).tolist(), [use])


@pytest.mark.parametrize("use", [QUIET, NOISY, UNKNOWN])
def test_fast_enough_is_fast_enough_on_any_host(use: HostUse) -> None:
    assert judge_time(timing(4.0, use), 5.0).verdict == "within"


def test_slow_on_a_quiet_host_is_slow() -> None:
    found = judge_time(timing(6.0), 5.0)
    assert found.verdict == "over"
    assert found.sentence.startswith("6.00 ms (5.9")
    assert "budget 5.00 ms: 20 % over" in found.sentence


def test_slow_where_nobody_knows_the_host_says_so() -> None:
    found = judge_time(timing(6.0, UNKNOWN), 5.0)
    assert found.verdict == "over"
    assert found.sentence.endswith("who else used the host is not known")


def test_slow_on_a_noisy_host_is_not_told() -> None:
    found = judge_time(timing(6.0, NOISY), 5.0)
    assert found.verdict == "inconclusive"
    assert "the host was noisy: other processes used 1.5 of 2 cores" in found.sentence


def test_slow_by_its_own_computing_is_slow_on_a_noisy_host_too() -> None:
    found = judge_time(timing(20.0, NOISY, cpu=0.9), 5.0)
    assert found.verdict == "over"
    assert "the step's own thread computed for 1" in found.sentence


def test_waiting_on_a_noisy_host_is_nobodys_fault() -> None:
    # three times the budget, but not by computing
    assert judge_time(timing(15.0, NOISY, cpu=0.3), 5.0).verdict == "inconclusive"


def test_a_budget_inside_the_interval_is_not_told() -> None:
    found = judge_time(timing(5.0), 5.0)
    assert found.verdict == "inconclusive"
    assert "repeats=" in found.sentence


def test_too_few_calls_tell_nothing() -> None:
    assert judge_time(timing(4.99, n=3), 5.0).verdict == "inconclusive"
    for n, calls in ((1, "1 call"), (6, "6 calls")):
        few = judge_time(timing(1.0, n=n), 5.0, looks=1)
        assert few.verdict == "inconclusive"
        assert f"({calls}), budget 5.00 ms; too few calls for an interval; time 20 or more" in few.sentence
    assert judge_time(timing(1.0, n=7), 5.0, looks=1).verdict == "within"


def test_a_step_of_exactly_its_budget_is_seldom_called_slow() -> None:
    """At most 1 % in either direction, all looks together; 400 series of 60 calls."""
    rng = np.random.default_rng(7)
    said = []
    for _ in range(400):
        values = (5e6 * np.exp(0.05 * rng.standard_normal(60))).astype(int).tolist()
        said.append(judge_time(Timing(values, values, [QUIET]), 5.0).verdict)
    assert said.count("over") <= 8
    assert said.count("within") <= 8


def test_memory_is_what_the_step_adds() -> None:
    # in a process of its own: what other tests leave behind may go at any time
    program = """
import numpy as np
from torchtriage.integrations.pytest.measure import MemoryWatch
watch = MemoryWatch()
watch.begin()
data = np.ones(40 << 20, np.uint8)
found = watch.end()
print(-1 if found is None else found.peak_bytes)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    peak_bytes = int(ran.stdout)
    assert peak_bytes == -1 or 40 * MIB <= peak_bytes < 44 * MIB


def test_memory_over_its_budget_says_what_and_how() -> None:
    found = judge_memory(Memory("cuda", 300 * MIB, 100 * MIB), 256)
    assert found.verdict == "over"
    assert found.sentence == (
        "300 MiB allocated on cuda (100 MiB of it before the first call), budget 256 MiB: 44.0 MiB over"
    )
    assert "torchtriage memory" in found.lines[0]


def test_memory_that_nobody_tells_is_not_checked() -> None:
    assert judge_memory(None, 1).verdict == "not checked"


def test_warm_up_is_as_many_calls_as_asked() -> None:
    step = Step(lambda: None)
    Timing().warm_up(step, lambda: None, 0)
    assert step.n_calls == 0
    Timing().warm_up(step, lambda: None, 7)
    assert step.n_calls == 7


def test_each_call_waits_for_the_device() -> None:
    events: list[str] = []
    seen = Timing()
    seen.look(Step(lambda: events.append("step")), lambda: events.append("wait"), 3)
    assert events == ["wait", *["step", "wait"] * 3]
    assert len(seen.wall_ns) == len(seen.cpu_ns) == 3


async def _coroutine() -> None: ...


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("step", [_coroutine, _generator, _async_generator])
def test_a_step_that_only_makes_what_could_run_is_an_error(step: Callable[[], object]) -> None:
    with pytest.raises(BenchmarkError, match="nothing of it has run"):
        Step(step)()
