"""What a training step is for the clock: the phases that hooks enter, in their order."""

from __future__ import annotations

import copy
import io
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from torchtriage.core.record import phase_clock
from torchtriage.core.record.phase_clock import (
    BACKWARD,
    BETWEEN,
    DEVICE_EVERY,
    FORWARD,
    LOADER,
    OPTIMIZER,
    PHASES,
    WAIT,
    PhaseClock,
)
from torchtriage.core.record.phase_hooks import PhaseHooks, phase_of

pytestmark = pytest.mark.torch
FETCH = [LOADER, BETWEEN]
FORTH = [FORWARD, BETWEEN]
BACK = [BACKWARD, WAIT, BETWEEN]
UPDATE = [OPTIMIZER, BETWEEN]


class Watched(PhaseClock):
    """Remembers what was entered."""

    def __init__(self) -> None:
        super().__init__(20)
        self.entered: list[int] = []

    def enter(self, phase: int) -> int:
        self.entered.append(phase)
        return super().enter(phase)


class Program:
    """A network, its optimizer and its batches, watched."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        self.net: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.batches = iter(torch.utils.data.DataLoader(list(torch.zeros(64, 4)), batch_size=2))
        self.clock = Watched()
        self.n_steps = 0
        self.hooks = self.watch(self.net, self.optimizer)

    def watch(self, net: Any, optimizer: Any) -> PhaseHooks:
        return PhaseHooks(self.clock, [net], optimizer, self.end_step)

    def end_step(self) -> None:
        self.n_steps += 1

    def entered(self) -> list[int]:
        found, self.clock.entered = self.clock.entered, []
        return found


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program()
    made.hooks.install()
    yield made
    made.hooks.remove()


def test_the_phases_of_a_step(program: Program) -> None:
    loss = program.net(next(program.batches)).sum()
    loss.backward()
    program.optimizer.step()
    assert program.entered() == FETCH + FORTH + BACK + UPDATE
    assert program.n_steps == 1


def test_accumulation_and_evaluation(program: Program) -> None:
    import torch

    for _ in range(2):
        program.net(next(program.batches)).sum().backward()
    with torch.no_grad():
        program.net(next(program.batches))
    assert program.entered() == (FETCH + FORTH + BACK) * 2 + FETCH + FORTH


def test_a_step_that_calls_the_one_of_its_base_is_one_step(program: Program) -> None:
    import torch

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    program.hooks.remove()
    own = Own(program.net.parameters(), lr=0.1)
    hooks = program.watch(program.net, own)
    hooks.install()
    program.net(next(program.batches)).sum().backward()
    program.entered()
    own.step()
    assert program.entered() == UPDATE
    assert program.n_steps == 1
    program.clock.timed = False
    own.step()
    own.step()
    hooks.remove()
    assert program.entered() == []
    assert program.n_steps == 3


@pytest.mark.parametrize("watched", ["outer", "inner"])
def test_an_optimizer_that_steps_another_one_makes_one_step(program: Program, watched: str) -> None:
    import torch

    inner = program.optimizer

    class Outer(torch.optim.SGD):  # as those that look ahead or average do
        def step(self, closure: Any = None) -> Any:
            return inner.step(closure)

    program.hooks.remove()
    outer = Outer(program.net.parameters(), lr=0.1)
    hooks = program.watch(program.net, {"outer": outer, "inner": inner}[watched])
    hooks.install()
    for program.clock.timed in (True, False, False):
        outer.step()
    hooks.remove()
    assert program.n_steps == 3


@pytest.mark.parametrize("timed", [True, False])
def test_a_step_with_a_closure_is_one_step(program: Program, timed: bool) -> None:
    program.clock.timed = timed
    batch = next(program.batches)

    def closure() -> Any:
        loss = program.net(batch).sum()
        loss.backward()
        return loss

    for _ in range(2):
        program.optimizer.step(closure)
    assert program.n_steps == 2


def test_what_follows_a_closure_belongs_to_the_optimizer(program: Program) -> None:
    batch = next(program.batches)
    program.entered()

    def closure() -> Any:
        loss = program.net(batch).sum()
        loss.backward()
        return loss

    program.optimizer.step(closure)
    assert program.entered() == [OPTIMIZER, FORWARD, OPTIMIZER, BACKWARD, WAIT, OPTIMIZER, BETWEEN]


def test_a_step_that_raises_is_not_open_for_good(program: Program) -> None:
    import torch

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    def fail() -> Any:
        raise RuntimeError("out of memory")

    program.hooks.remove()
    own = Own(program.net.parameters(), lr=0.1)
    hooks = program.watch(program.net, own)
    hooks.install()
    with pytest.raises(RuntimeError):
        own.step(fail)
    program.entered()
    own.step()
    hooks.remove()
    assert program.entered() == UPDATE
    assert program.n_steps == 1


def test_a_step_that_is_not_timed_is_counted_alone(program: Program) -> None:
    import torch

    program.clock.timed = False
    program.net(next(program.batches)).sum().backward()
    program.optimizer.step()
    torch.optim.SGD(program.net.parameters(), lr=0.1).step()  # another one
    assert program.entered() == []
    assert program.n_steps == 1


def test_a_stack_tells_its_phase(program: Program) -> None:
    import torch

    seen: list[int] = []

    def look(*_: Any, **__: Any) -> None:
        frame, stack = sys._getframe(), []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        seen.append(phase_of(stack))

    class Samples(torch.utils.data.Dataset[Any]):
        def __getitem__(self, _index: int) -> Any:
            look()
            return torch.zeros(4)

        def __len__(self) -> int:
            return 2

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, values: Any) -> Any:
            return values * 2

        @staticmethod
        def backward(_ctx: Any, grads: Any) -> Any:
            look()
            return grads * 2

    class Net(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            look()
            eval("look()", {"look": look, "__name__": "torch.distributed.distributed_c10d"})
            return Double.apply(program.net(values))

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            look()
            return super().step(closure)

    Net()(next(iter(torch.utils.data.DataLoader(Samples())))).sum().backward()
    Own(program.net.parameters(), lr=0.1).step()
    look()
    assert seen == [LOADER, FORWARD, WAIT, WAIT, OPTIMIZER, WAIT]


def test_two_passes_before_one_backward(program: Program) -> None:
    batch = next(program.batches)
    (program.net(batch).sum() + program.net(batch).sum()).backward()
    assert program.entered() == FETCH + FORTH + FORTH + BACK


def test_what_is_computed_again_belongs_to_the_backward_pass(program: Program) -> None:
    from torch.utils.checkpoint import checkpoint

    out: Any = checkpoint(program.net, next(program.batches).requires_grad_(), use_reentrant=False)
    out.sum().backward()
    assert program.entered() == FETCH + FORTH + BACK


@pytest.mark.parametrize("shape", ["dict", "tuple", "nested"])
def test_outputs_of_any_shape(program: Program, shape: str) -> None:
    import torch

    class Wrapped(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            out = program.net(values)
            return {"dict": {"loss": out}, "tuple": (out, 1), "nested": [{"a": (out,)}]}[shape]

    net = Wrapped()
    hooks = program.watch(net, None)
    program.hooks.remove()
    hooks.install()
    out = net(next(program.batches))
    while not hasattr(out, "sum"):
        out = next(iter(out.values())) if isinstance(out, dict) else out[0]
    out.sum().backward()
    hooks.remove()
    assert program.entered() == FETCH + FORTH + BACK


def test_other_threads_do_not_count(program: Program) -> None:
    thread = threading.Thread(target=lambda: program.net(next(program.batches)))
    thread.start()
    thread.join()
    assert program.entered() == []


def test_all_of_it_is_taken_back(program: Program) -> None:
    import torch.distributed as dist
    from torch.utils.data import dataloader

    program.hooks.remove()
    for owner, name in ((dist.Work, "wait"), (dataloader._BaseDataLoaderIter, "__next__")):
        assert not hasattr(getattr(owner, name), "__wrapped__")
    program.net(next(program.batches)).sum().backward()
    program.optimizer.step()
    assert program.entered() == []


def test_watches_that_overlap_are_taken_back_in_any_order(program: Program) -> None:
    from torch.utils.data import dataloader

    later = program.watch(program.net, None)
    later.install()
    program.hooks.remove()
    assert hasattr(dataloader._BaseDataLoaderIter.__next__, "__wrapped__")
    later.remove()
    assert not hasattr(dataloader._BaseDataLoaderIter.__next__, "__wrapped__")


def test_copied_and_saved_models_do_not_keep_hooks(program: Program) -> None:
    import torch

    file = io.BytesIO()
    torch.save(program.net, file)
    file.seek(0)
    batch = next(program.batches)
    program.entered()
    for net in (copy.deepcopy(program.net), torch.load(file, weights_only=False)):
        assert torch.equal(net(batch), program.net(batch))
        assert program.entered() == FORTH


def test_a_compiled_model_is_compiled_once_and_timed(program: Program) -> None:
    import torch

    torch._dynamo.reset()
    compiled: Any = torch.compile(program.net, backend="eager", fullgraph=True)
    program.hooks.remove()
    hooks = program.watch(compiled, None)
    hooks.install()
    for _ in range(3):
        compiled(next(program.batches)).sum().backward()
    hooks.remove()
    torch._dynamo.reset()
    assert program.entered() == (FETCH + FORTH + BACK) * 3


def test_a_compiled_function_that_calls_the_model_stays_one_graph(program: Program) -> None:
    import torch

    torch._dynamo.reset()
    program.entered()
    function = torch.compile(lambda values: program.net(values).sum(), backend="eager", fullgraph=True)
    function(torch.zeros(2, 4)).backward()
    torch._dynamo.reset()
    assert program.entered() == []


def test_a_forward_that_raises_leaves_no_phase_open(program: Program) -> None:
    with pytest.raises(RuntimeError):
        program.net("no tensor".__len__ and __import__("torch").zeros(3, 3))
    program.clock.end_step()
    assert program.clock.phase == BETWEEN


@pytest.mark.parametrize(
    ("step_ms", "every", "timed"),
    [(100, 20, 20), (40, 20, 10), (20, 20, 5), (1, 20, 5), (1, 5, 5), (28, 40, 10), (20, 40, 5)],
)
def test_of_short_steps_fewer_are_timed(
    step_ms: float, every: int, timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(phase_clock, "perf_counter_ns", lambda: now[0])
    clock = PhaseClock(every)
    for _ in range(4 * every):
        clock.enter(LOADER)  # a phase of the user's own, which is switched in every step
        now[0] += int(step_ms * 1e6)
        clock.enter(BETWEEN)
        clock.end_step()
    assert [len(window.host_ns) for window in clock.windows] == [every, timed, timed, timed]
    assert [window.number for window in clock.windows] == [0, 1, 2, 3]
    assert {sum(row) for window in clock.windows for row in window.host_ns} == {int(step_ms * 1e6)}


def test_a_device_is_asked_now_and_then_and_read_late() -> None:
    now = SimpleNamespace(ms=0.0, passed=False)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            now.ms += 1.0
            self.at = now.ms

        def query(self) -> bool:
            return bool(now.passed)

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    cuda = SimpleNamespace(current_stream=lambda: 7, is_current_stream_capturing=lambda: False, Event=Event)
    clock = PhaseClock(20)
    clock.begin(cuda)
    for _ in range(2 * DEVICE_EVERY):
        clock.enter(FORWARD)
        clock.enter(WAIT)
        clock.end_step()
    assert clock.read_device() == {}  # not passed: nobody waits for it
    now.passed = True
    row = [0.0] * len(PHASES)
    row[BETWEEN], row[FORWARD], row[WAIT] = 1e6, 1e6, 1e6
    assert clock.read_device() == {0: [row]}
    # of a step on another stream nothing is marked
    cuda.current_stream = lambda: 8
    for _ in range(2 * DEVICE_EVERY):
        clock.enter(FORWARD)
        clock.end_step()
    assert clock.read_device() == {}
