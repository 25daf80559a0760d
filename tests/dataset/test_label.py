"""Marks go without a trace, and say where the fault was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from torchtriage.dataset.label import label
from torchtriage.dataset.windows import faulty


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def frame(name: str, ts: float, dur: float, number: int, parent: int | None) -> dict[str, Any]:
    return event(
        name, ts, dur, "python_function", **{"Python id": number, "Python parent id": parent}
    )


def test_marks_go_and_their_numbers_are_given_out_anew() -> None:
    events = [
        event("tt:line 7", 0, 40, "user_annotation", **{"External id": 5}),
        event("aten::add", 1, 10, **{"External id": 6, "Record function id": 0}),
        event("tt:line 8", 50, 40, "user_annotation", **{"External id": 7}),
        event("aten::mul", 51, 10, **{"External id": 8, "Record function id": 9}),
    ]
    found = label(events, [8], modules=False)
    assert [one["name"] for one in found.events] == ["aten::add", "aten::mul"]
    assert [one["args"]["External id"] for one in found.events] == [1, 2]
    assert [one["args"]["Record function id"] for one in found.events] == [0, 1]
    assert found.intervals_us == ((50, 90),)
    assert "tt:" not in json.dumps(found.events)


def test_a_clean_recording_has_no_intervals_and_loses_its_marks_too() -> None:
    events = [event("tt:line 7", 0, 40, "user_annotation"), event("aten::add", 1, 10)]
    found = label(events, [], modules=False)
    assert found.intervals_us == ()
    assert len(found.events) == 1


def test_the_backward_of_a_marked_module_is_marked_too() -> None:
    events = [
        event("tt:module", 0, 40, "user_annotation"),
        event("aten::bmm", 1, 10, **{"Sequence number": 3, "Fwd thread id": 0}),
        event("aten::mm", 45, 10, **{"Sequence number": 4, "Fwd thread id": 0}),
        event("BmmBackward0", 100, 20, **{"Sequence number": 3, "Fwd thread id": 1}),
        event("MmBackward0", 130, 20, **{"Sequence number": 4, "Fwd thread id": 1}),
    ]
    assert label(events, [], modules=True).intervals_us == ((0, 40), (100, 120))


def test_frames_of_the_marks_go_and_those_of_the_script_stay() -> None:
    ours = "torchtriage/dataset/child.py"
    events = [
        frame("runpy.py(88): _run_code", 0, 900, 1, None),
        frame(f"{ours}(120): main", 1, 800, 2, 1),
        frame("train.py(40): main", 2, 700, 3, 2),
        frame("torch/autograd/profiler.py(777): __enter__", 3, 5, 4, 3),
        frame("<built-in method enter>", 4, 2, 5, 4),
        frame("torch/nn/modules/linear.py(130): forward", 10, 50, 6, 3),
        frame(f"{ours}(60): step", 100, 50, 7, 3),
        frame("torch/profiler/profiler.py(900): step", 101, 40, 8, 7),
    ]
    found = label(events, [], modules=False).events
    assert [one["name"] for one in found] == [
        "runpy.py(88): _run_code",
        "train.py(40): main",
        "torch/nn/modules/linear.py(130): forward",
    ]
    numbers = [(one["args"]["Python id"], one["args"]["Python parent id"]) for one in found]
    assert numbers == [(1, None), (2, 1), (3, 2)]


def test_a_window_is_faulty_when_half_of_it_is_or_half_of_the_fault_is_in_it() -> None:
    windows = np.array([[0, 100], [100, 200], [200, 300], [300, 400]])
    assert faulty(windows, np.array([[40, 160]])).tolist() == [True, True, False, False]
    assert faulty(windows, np.array([[70, 250]])).tolist() == [False, True, True, False]
    assert faulty(windows, np.array([[310, 315]])).tolist() == [False, False, False, True]
    assert faulty(windows, np.empty((0, 2), np.int64)).tolist() == [False] * 4
