"""Marks go without a trace, and say where the fault was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from torchtriage.learn.dataset.recordings import faulty
from torchtriage_benchmark.recording.labelling import label


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def frame(name: str, ts: float, dur: float, number: int, parent: int | None) -> dict[str, Any]:
    return event(name, ts, dur, "python_function", **{"Python id": number, "Python parent id": parent})


def test_marks_go_and_their_numbers_are_given_out_anew() -> None:
    events = [
        event("tt:line 7", 0, 40, "user_annotation", **{"External id": 5}),
        event("aten::add", 1, 10, **{"External id": 6, "Record function id": 0}),
        event("tt:line 8", 50, 40, "user_annotation", **{"External id": 7}),
        event("aten::mul", 51, 10, **{"External id": 8, "Record function id": 9}),
    ]
    found = label(events, [8])
    assert [one["name"] for one in found.events] == ["aten::add", "aten::mul"]
    assert [one["args"]["External id"] for one in found.events] == [1, 2]
    assert [one["args"]["Record function id"] for one in found.events] == [0, 1]
    assert found.intervals_us == ((50, 90),)
    assert "tt:" not in json.dumps(found.events)


def test_a_clean_recording_has_no_intervals_and_loses_its_marks_too() -> None:
    events = [event("tt:line 7", 0, 40, "user_annotation"), event("aten::add", 1, 10)]
    found = label(events, [])
    assert found.intervals_us == ()
    assert len(found.events) == 1


def test_the_backward_of_a_marked_module_is_marked_too() -> None:
    events = [
        event("tt:module Conv2d", 0, 40, "user_annotation"),
        event("tt:module Dropout", 42, 30, "user_annotation"),
        event("aten::bmm", 1, 10, **{"Sequence number": 3, "Fwd thread id": 0}),
        event("aten::mm", 45, 10, **{"Sequence number": 4, "Fwd thread id": 0}),
        event("BmmBackward0", 100, 20, **{"Sequence number": 3, "Fwd thread id": 1}),
        event("MmBackward0", 130, 20, **{"Sequence number": 4, "Fwd thread id": 1}),
    ]
    assert label(events, [], modules=("Conv2d",)).intervals_us == ((0, 40), (100, 120))


def test_events_count_by_their_names_and_by_what_is_around_them() -> None:
    events = [
        event("Region: 0/0", 0, 100),
        event("Lookup", 2, 3),
        event("Region: 1/0", 50, 20),
        event("Lookup", 110, 3),
        event("Lookup", 200, 3),
    ]
    assert label(events, [], names=["^Lookup$"]).intervals_us == ((2, 5), (110, 113), (200, 203))
    assert label(events, [], names=["^Region > ^Lookup"]).intervals_us == ((2, 5),)
    assert label(events, [], names=["^Region > ^Region"]).intervals_us == ((50, 70),)


def test_frames_of_the_marks_go_and_those_of_the_script_stay() -> None:
    ours = "torchtriage/dataset"
    events = [
        frame("<frozen runpy>(88): _run_code", 0, 900, 1, None),
        frame(f"{ours}/server.py(42): main", 0, 900, 2, 1),
        frame(f"{ours}/child.py(120): run", 1, 800, 3, 2),
        frame("<built-in method exec>", 1, 800, 4, 3),
        frame("train.py(80): <module>", 2, 700, 5, 4),
        frame("train.py(40): main", 2, 700, 6, 5),
        frame("torch/autograd/profiler.py(777): __enter__", 3, 5, 7, 6),
        frame("<built-in method enter>", 4, 2, 8, 7),
        frame("torch/nn/modules/linear.py(130): forward", 10, 50, 9, 6),
        frame(f"{ours}/child.py(60): step", 100, 50, 10, 6),
        frame("torch/profiler/profiler.py(900): step", 101, 40, 11, 10),
        frame("threading.py(1002): _bootstrap", 0, 900, 12, None),
    ]
    found = label(events, []).events
    assert [one["name"] for one in found] == [
        "train.py(80): <module>",
        "train.py(40): main",
        "torch/nn/modules/linear.py(130): forward",
        "threading.py(1002): _bootstrap",
    ]
    numbers = [(one["args"]["Python id"], one["args"]["Python parent id"]) for one in found]
    assert numbers == [(1, None), (2, 1), (3, 2), (4, None)]


def test_a_window_is_faulty_when_half_of_it_is_or_half_of_the_fault_is_in_it() -> None:
    windows = np.array([[0, 100], [100, 200], [200, 300], [300, 400]])
    assert faulty(windows, np.array([[40, 160]])).tolist() == [True, True, False, False]
    assert faulty(windows, np.array([[70, 250]])).tolist() == [False, True, True, False]
    assert faulty(windows, np.array([[310, 315]])).tolist() == [False, False, False, True]
    assert faulty(windows, np.empty((0, 2), np.int64)).tolist() == [False] * 4
