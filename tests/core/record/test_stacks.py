"""Looks at the stacks of other threads."""

from __future__ import annotations

import gc
import threading
import weakref

from torchtriage.core.record.stacks import current_frames


class Variable:
    """What a function of another thread holds while it runs."""


def test_a_look_does_not_keep_what_functions_held() -> None:
    running, go = threading.Event(), threading.Event()
    held: list[weakref.ref[Variable]] = []

    def work() -> None:
        variable = Variable()
        held.append(weakref.ref(variable))
        running.set()
        go.wait(60)

    def look() -> None:
        frames = current_frames()
        assert thread.ident in frames

    thread = threading.Thread(target=work)
    thread.start()
    running.wait(60)
    gc.collect()
    gc.disable()  # a cycle through the frames would be kept until a collection
    try:
        look()
        go.set()
        thread.join(60)
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_thread_does_not_see_itself() -> None:
    assert threading.get_ident() not in current_frames()
