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
    assert call_probe._digest(value, 3, result=True) == call_probe._digest(value, 3, result=True)


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
    assert call_probe._digest(value, 3, result=True)[0] != call_probe._digest(other, 3, result=True)[0]


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


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals are no copies there")
def test_where_another_thread_runs_code_of_the_users_nothing_is_compared() -> None:
    over = threading.Event()
    other = threading.Thread(target=lambda: over.wait(60))
    other.start()
    try:
        assert not CallProbe().start()
    finally:
        over.set()
        other.join()


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


def test_a_long_probe_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_probe, "LONGEST_S", 0.0)
    assert not probed(lambda _step: scaled(np.ones(32)))
