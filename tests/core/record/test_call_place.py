"""Which call of a module begins a step: one of each iteration, and another one where the loop has moved on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torchtriage.core.record.call_place import MOVED_ON, CallPlace


def called(place: CallPlace) -> bool:
    """Stand for a module that is called."""
    return place.begins_step(sys._getframe(1))


def through(helper: Callable[[CallPlace], bool], place: CallPlace) -> bool:
    return helper(place)


def test_of_two_calls_in_an_iteration_one_begins_a_step() -> None:
    place, begins = CallPlace(), []
    for _ in range(3):
        begins += [called(place)]
        begins += [called(place)]
    assert begins == [True, False] * 3


def test_a_helper_that_is_called_twice_does_not_make_two_steps() -> None:
    place, begins = CallPlace(), []
    for _ in range(3):
        begins += [through(called, place)]
        begins += [through(called, place)]
    assert begins == [True, False] * 3


def test_the_loop_may_move_to_another_place() -> None:
    place = CallPlace()
    assert called(place)
    begins = [called(place) for _ in range(MOVED_ON + 3)]
    assert begins == [False] * (MOVED_ON - 1) + [True] * 4
