"""Idle time behind host calls, thread by thread."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace.allocator_calls import allocator_calls, idle_behind


def behind(builder):
    trace = builder.build()
    mallocs, frees = allocator_calls(trace)
    spans, share = idle_behind(trace, np.flatnonzero(mallocs | frees))
    return (spans - trace.window.start_ns).tolist(), share.tolist()


def test_each_thread_looks_back_on_its_own_launches():
    builder = TraceBuilder()
    builder.launch(0, 5, 10, 20)
    builder.launch(390, 3, 395, 3)
    builder.call("cudaMalloc", 100, 300, tid=2)
    builder.launch(400, 5, 410, 20, tid=2)  # the first launch of its thread
    spans, share = behind(builder)
    assert spans == [[398_000, 410_000]]
    assert share == [1.0]


def test_calls_of_another_thread_delay_nothing():
    builder = TraceBuilder()
    builder.launch(0, 5, 10, 20)
    builder.call("cudaMalloc", 50, 100, tid=2)
    builder.launch(200, 5, 210, 20)
    assert behind(builder) == ([], [])


def test_only_the_part_spent_in_calls_is_explained():
    builder = TraceBuilder()
    builder.launch(0, 5, 10, 20)
    builder.call("cudaFree", 50, 45)
    builder.launch(200, 5, 210, 20)
    spans, share = behind(builder)
    assert spans == [[30_000, 210_000]]
    assert share == pytest.approx([45 / 180])
