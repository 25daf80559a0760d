"""HST054 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.host.host_stalled import find
from torchtriage.diagnose.patterns.launch.launch_bound import find as launch_bound

OPS = ("aten::mm", "aten::add", "aten::mul", "aten::relu")
STALLS = {(1, 13): 4_000, (1, 30): 2_500, (2, 3): 6_000, (2, 22): 3_000, (3, 8): 2_000, (3, 17): 5_000}


def loop(stalls: dict[tuple[int, int], float], *, n_ops: int = 40, n_steps: int = 4) -> TraceBuilder:
    """Return steps of operators of 20 us with kernels of 19; ``stalls`` : how much longer, by step and place."""
    trace = TraceBuilder()
    host = device = 0.0
    for step in range(n_steps):
        begin = host
        for place in range(n_ops):
            took = 20 + stalls.get((step, place), 0)
            name = OPS[place % 4]
            trace.op(name, host, took)
            device = max(device, host + took - 1)
            trace.launch(host + took - 8, 5, device, 19, f"{name}_kernel")
            host, device = host + took, device + 19
        host = max(host, device)
        trace.step(step, begin, host - begin)
    return trace.profiler_stop(host + 1, 5)


def test_quiet_on_ordinary_dispatch() -> None:
    assert not loop({}).claims(find)


def test_quiet_on_little_of_it() -> None:
    assert not loop({(1, 13): 2_600}, n_steps=12).claims(find)


def test_quiet_on_an_operator_that_is_as_long_in_every_step() -> None:
    assert not loop({(step, 13): 4_000 for step in range(4)}).claims(find)


def test_stalls_at_unrelated_calls() -> None:
    trace = loop(STALLS).build()
    (claim,) = find(trace)
    assert claim.certainty == "likely"
    assert claim.evidence["n_stalls_per_step"] == 2
    assert claim.evidence["n_different_calls"] == 4
    assert claim.evidence["n_first_of_their_kind"] == 0
    assert claim.evidence["usual_us"] == pytest.approx(15)
    assert claim.gain_low == pytest.approx(0.5 / trace.origin.inflation)
    assert "unrelated calls: aten::add, aten::relu" in claim.message
    # it is nothing that fewer launches would save
    assert not list(launch_bound(trace))


def test_a_stall_or_two_promise_nothing() -> None:
    (claim,) = find(loop({(1, 13): 4_000, (2, 3): 6_000}).build())
    assert claim.certainty == "hint"
    assert claim.time_class == "none"
    assert "no saving is claimed" in claim.message


def test_first_calls_promise_nothing() -> None:
    trace = TraceBuilder()
    for place in range(8):
        at = place * 4_000.0
        trace.op(f"aten::op_{place}", at, 3_000)
        trace.launch(at + 2_900, 5, at + 2_910, 100, f"kernel_{place}")
    (claim,) = find(trace.profiler_stop(33_000, 5).build())
    assert claim.evidence["n_first_of_their_kind"] == 7  # the window begins with the first kernel
    assert claim.time_class == "none"


def test_stalls_inside_one_operator_at_its_second_call() -> None:
    """As a TorchScript function does, which is optimised when it runs again."""
    trace = TraceBuilder()
    for call, stall in ((0, 10.0), (1, 9_000.0)):
        at = call * 2_000.0
        trace.op("forward_script", at, 200 + 2 * stall)
        for half in range(2):
            launch = at + 90 + half * 100 + (half + 1) * stall
            trace.launch(launch, 5, launch + 8, 20, f"kernel_{half}")
    (claim,) = find(trace.profiler_stop(21_000, 5).build())
    assert claim.time_class == "none"
    assert "inside forward_script" in claim.message
    assert not list(launch_bound(trace.build()))
