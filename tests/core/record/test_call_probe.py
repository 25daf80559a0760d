"""Calls that are compared: which give equal results for equal inputs, and that nothing else changes."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torchtriage.core.record import call_probe
from torchtriage.core.record.call_probe import CallProbe

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="calls are not compared on Python 3.10")


def bank(n: int) -> Any:
    return np.arange(n * n).reshape(n, n) * 0.5


def scaled(values: Any) -> Any:
    return values * 2


def label(values: Any) -> str:
    return "large" if values.sum() > 0 else "small"


def counted(values: Any) -> Any:
    yield from values


def probed(step: Callable[[int], object], n_steps: int = 2) -> dict[str, dict[str, Any]]:
    """Return what the last step called, by function."""
    probe = CallProbe()
    assert probe.start()
    for number in range(n_steps):
        step(number)
        probe.step()
    calls = probe.stop()
    assert sys.getprofile() is None
    return {call["function"]: call for call in calls}


def test_equal_inputs_and_results_of_the_step_before_are_repeated() -> None:
    calls = probed(lambda step: scaled(bank(8) + step))
    assert calls["bank"]["repeated"] == 1.0
    assert calls["bank"]["within"] == 0.0
    assert calls["bank"]["large"]
    assert calls["scaled"]["repeated"] == 0.0
    assert calls["bank"]["caller_line"] == calls["scaled"]["caller_line"]


@pytest.mark.torch
def test_rows_of_a_window_that_moves_on_are_known() -> None:
    import torch

    frames = torch.rand(12, 3, 8, 8)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    trained = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    mixes = torch.nn.Sequential(torch.nn.Flatten(0), torch.nn.Unflatten(0, (8, -1)), torch.nn.Softmax(0)).eval()

    def slid(step: int) -> None:
        with torch.inference_mode():
            net(frames[step : step + 8])
            trained(frames[step : step + 8])  # the statistics of the batch: another result for each row
            mixes(frames[step : step + 8])

    lines = sorted((call["caller_line"], call["rows"]) for call in _modules(slid))
    assert [rows for _, rows in lines] == [7 / 8, 0.0, 0.0]

    def padded(step: int) -> None:
        with torch.inference_mode():
            net(torch.cat([frames[step : step + 1], torch.zeros(7, 3, 8, 8)]))

    assert [call["rows"] for call in _modules(padded)] == [0.0]


@pytest.mark.torch
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("kind", "rows"), [("complex", 0.0), ("no elements", 0.0), ("integers", 7 / 8), ("infinite", 7 / 8), ("vmap", 0.0)]
)
def test_batches_of_any_kind_are_read_without_a_word(kind: str, rows: float) -> None:
    import torch

    values = torch.rand(10, 4, dtype=torch.complex64) if kind == "complex" else torch.arange(40).reshape(10, 4)
    values = values[:, :0] if kind == "no elements" else values
    net = torch.nn.Threshold(20.0, -torch.inf) if kind == "infinite" else torch.nn.Identity()
    values = values.double() if kind == "infinite" else values
    call = torch.vmap(lambda batch: net(batch)) if kind == "vmap" else net
    read = _modules(
        lambda step: call(values[step : step + 8].reshape(8, 2, -1) if kind == "vmap" else values[step : step + 8])
    )
    assert [module["rows"] for module in read] == [rows]


@pytest.mark.torch
def test_modules_of_one_class_at_one_line_may_give_rows_of_several_widths() -> None:
    import torch

    heads = [torch.nn.Linear(32, width) for width in (4, 6)]
    batch = torch.rand(8, 32)

    def step(_: int) -> None:
        with torch.inference_mode():
            for head in heads:
                head(batch)

    assert [call["rows"] for call in _modules(step)] == [1.0]


@pytest.mark.torch
def test_rows_that_differ_in_one_element_are_two() -> None:
    import torch

    frames = torch.rand(1, 1, 84, 84).repeat(12, 1, 1, 1)
    for number in range(12):
        frames[number, 0, number, 1] = 2.0
    net = torch.nn.Conv2d(1, 1, 3)

    def step(number: int) -> None:
        with torch.inference_mode():
            net(frames[4 * number : 4 * number + 4])

    assert [call["rows"] for call in _modules(step)] == [0.0]


def _modules(step: Callable[[int], object]) -> list[dict[str, Any]]:
    """Return what the third of three steps called of modules."""
    probe = CallProbe()
    assert probe.start()
    for number in range(3):
        step(number)
        probe.step()
    return [call for call in probe.stop() if not call["first_line"]]


def test_a_module_whose_call_begins_a_step_is_compared_from_the_first_on() -> None:
    """A step that begins with a forward is told inside of it, by a hook."""

    class Encoder:
        def __init__(self) -> None:
            self.probe, self.turn, self.calls = CallProbe(), 0, []

        def hook(self) -> None:
            self.turn += 1
            if self.turn == 1:
                assert self.probe.start()
            else:
                self.probe.step()
            if self.turn == 3:
                self.calls = self.probe.stop()

        def _wrapped_call_impl(self, values: Any) -> Any:
            self.hook()
            return values * 2

    encoder, given = Encoder(), np.ones(32)
    for _ in range(3):
        encoder._wrapped_call_impl(given)
    repeated = {call["function"]: call["repeated"] for call in encoder.calls}
    assert repeated["Encoder"] == 1.0


def test_of_calls_in_one_step_the_later_equal_ones_are_repeated() -> None:
    values = [np.full(32, at % 2) for at in range(8)]
    calls = probed(lambda step: [scaled(value + 10 * step) for value in values])
    assert calls["scaled"]["n_calls"] == 8
    assert calls["scaled"]["within"] > 0.3  # six of eight, by their time
    assert calls["scaled"]["within"] == calls["scaled"]["repeated"]


def test_what_was_changed_in_place_is_another_input() -> None:
    values = np.zeros(64)

    def step(_number: int) -> None:
        values[63] += 1
        scaled(values)

    assert probed(step)["scaled"]["repeated"] == 0.0


def test_small_results_tell_nothing() -> None:
    assert not probed(lambda _step: label(np.ones(32)))["label"]["large"]


@pytest.mark.parametrize(
    "value",
    [float("nan"), "text", b"bytes", (1, [2, {"three": np.ones(20)}]), np.array([np.nan] * 20), np.array(["a"] * 20)],
    ids=["nan", "text", "bytes", "nested", "array-of-nan", "array-of-text"],
)
def test_equal_values_of_many_kinds_have_equal_digests(value: Any) -> None:
    assert call_probe._digest(value, 3, (0, 0)) == call_probe._digest(value, 3, (0, 0))


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 1.0),
        (np.ones(20), np.ones(20, np.float32)),
        (np.ones((4, 5)), np.ones(20)),
        (np.zeros(100_000), np.append(np.zeros(99_999), 1)),
        ([1, 2], (1, 2)),
        ({"a": 1}, {"a": 2}),
        (object(), object()),
    ],
    ids=["type", "dtype", "shape", "last-element", "kind", "entry", "object"],
)
def test_other_values_have_other_digests(value: Any, other: Any) -> None:
    assert call_probe._digest(value, 3, (0, 0))[0] != call_probe._digest(other, 3, (0, 0))[0]


def test_generators_and_library_functions_are_not_compared() -> None:
    calls = probed(lambda _step: (list(counted([1, 2])), types.new_class("Any")))
    assert set(calls) == {
        test_generators_and_library_functions_are_not_compared.__qualname__ + ".<locals>.<lambda>"
    } or ("counted" not in calls and "new_class" not in calls)


def test_a_profiler_of_the_script_stays() -> None:
    mine: list[str] = []

    def listen(_frame: object, event: str, _value: object) -> None:
        mine.append(event)

    sys.setprofile(listen)
    try:
        assert not CallProbe().start()
        assert sys.getprofile() is listen
    finally:
        sys.setprofile(None)


def test_a_closures_variable_keeps_what_another_thread_assigns() -> None:
    total, over = 0, threading.Event()

    def count() -> None:
        nonlocal total
        for _ in range(20_000):
            total += 1
        over.set()

    def step(values: Any) -> Any:
        return values + min(total, 0)

    probe = CallProbe()
    assert probe.start()
    counting = threading.Thread(target=count)
    counting.start()
    while not over.is_set():
        step(np.ones(1000))
    counting.join()
    probe.stop()
    assert total == 20_000


class TimeUpError(Exception):
    """What a signal handler of a script raises."""


def test_what_a_signal_handler_raises_reaches_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_args: object, **_keywords: object) -> tuple[int, int]:
        return raise_it()

    def raise_it() -> tuple[int, int]:  # this file is no library's
        raise TimeUpError

    monkeypatch.setattr(call_probe, "_read", read)
    probe = CallProbe()
    assert probe.start()
    with pytest.raises(TimeUpError):
        scaled(np.ones(32))
    assert sys.getprofile() is None
    assert probe.stop() == []


def test_a_digest_reads_more_than_one_column() -> None:
    first, second = np.zeros((1024, 1024)), np.zeros((1024, 1024))
    first[100:200, 100:200] = second[500:600, 700:800] = 1
    assert call_probe._digest(first, 3, (0, 0))[0] != call_probe._digest(second, 3, (0, 0))[0]


@pytest.mark.parametrize(
    ("value", "other"), [([-1] * 20, [-2] * 20), ([0] * 640, [0] * 639 + [1])], ids=["minus", "last"]
)
def test_lists_of_numbers_are_read_to_the_end(value: list[int], other: list[int]) -> None:
    assert call_probe._digest(value, 3, (0, 0))[0] != call_probe._digest(other, 3, (0, 0))[0]


@pytest.mark.torch
def test_modes_tracers_and_graphs_see_nothing_of_the_probe() -> None:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    def double(x: Any) -> Any:
        return x * 2

    def work(x: Any) -> Any:
        return double(x) + 1

    probe = CallProbe()
    assert probe.start()
    graph = make_fx(work)(torch.ones(32))
    with FlopCounterMode(display=False):
        work(torch.ones(32))
    weights = torch.ones(32, requires_grad=True)
    for _ in range(2):
        double(weights)
        double(torch.ones(32))
        probe.step()
    calls = probe.stop()
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.mul.Tensor,
        torch.ops.aten.add.Tensor,
    ]
    by_line = {call["caller_line"]: call["repeated"] for call in calls if call["function"] == "double"}
    assert sorted(by_line.values()) in ([0.0, 1.0], [])  # with a graph a result is another one's


@pytest.mark.torch
def test_equal_results_with_graphs_count_until_a_backward_pass() -> None:
    import torch

    layer = torch.nn.Linear(64, 64)

    def encoded(x: Any) -> Any:
        return layer(x)

    x = torch.randn(32, 64)

    def step(_number: int) -> None:
        samples = [encoded(x) for _ in range(8)]
        sum(samples).sum().backward()

    def apart(_number: int) -> None:
        for loss in [encoded(x).sum() for _ in range(8)]:
            loss.backward()

    def detached(_number: int) -> None:
        y = x * layer.weight[0]
        (encoded(y).sum() - encoded(y.detach()).sum()).backward()

    def passes(_number: int) -> None:
        for _ in range(4):
            encoded(x).sum().backward()

    def gradients(_number: int) -> None:
        for _ in range(4):
            torch.autograd.grad(encoded(x).sum(), list(layer.parameters()))

    together = probed(step)["Linear"]
    assert 0.3 < together["repeated"] == together["within"] < 1.0  # seven of eight, by their time
    for other in (apart, detached, passes, gradients):
        assert probed(other)["Linear"]["repeated"] == 0.0


def test_what_cannot_be_read_does_no_harm() -> None:
    class Odd(np.ndarray):
        def __eq__(self, other: object) -> Any:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    odd = np.ones(32).view(Odd)
    assert probed(lambda _step: scaled(odd))["scaled"]["repeated"] == 0.0


def wrapped(values: Any) -> Any:
    return [object() for _ in values]


def test_a_result_that_gets_the_place_of_another_in_memory_is_another() -> None:
    assert probed(lambda _step: wrapped(range(20)), 4)["wrapped"]["repeated"] == 0.0


def test_a_compiler_at_work_ends_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_probe, "COMPILER", "/types.py")
    calls = probed(lambda _step: (types.new_class("Any"), scaled(np.ones(32))))
    assert "scaled" not in calls


def test_a_long_probe_ends_whatever_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_probe, "LONGEST_S", 0.0)
    assert not probed(lambda _step: scaled(np.ones(32)))
    probe = CallProbe()
    assert probe.start()
    for number in range(300):
        len(str(number))
    assert sys.getprofile() is None


class Traces:
    """What decays, in an attribute and in a variable."""

    def __init__(self) -> None:
        torch = pytest.importorskip("torch")
        self.held = torch.full((100, 100), 1e-39)

    def step(self, number: int) -> float:
        torch = sys.modules["torch"]
        kernel = torch.exp(-torch.arange(8192.0))  # below 1.2e-38 from 88 on, zero from 104 on
        normal = torch.rand(8192)
        return float(kernel.sum() + normal.sum() + number)


@pytest.mark.torch
def test_variables_with_subnormal_numbers_are_named() -> None:
    probe, traces = CallProbe(), Traces()
    probe.start()
    for number in range(2):
        traces.step(number)
        probe.step()
    probe.stop()
    (found,) = probe.subnormal()
    assert (found["name"], found["function"], found["shape"]) == ("self.held", "step", (100, 100))
    assert found["share"] == 1.0
