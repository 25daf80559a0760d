"""What recordings know of the host: its operators, its waits for the device, and whether steps have more to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import TraceBuilder
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.trace import Trace
from torchtriage.diagnose.runs.account import step_account
from torchtriage.diagnose.runs.hot_lines import growing_step, hot_lines
from torchtriage.diagnose.runs.recorded_host import host_shares, long_operators, work_growth

AUTOGRAD = 7
SOURCE = """\
for batch in loader:
    loss = model(batch)
    loss.backward()
    optimizer.step()
    total += loss.item()
    seen = history + [batch]
"""
ENGINE = ("torch/_tensor.py:Tensor.backward", "torch/autograd/graph.py:_engine_run_backward")
FORWARD = ("torch/nn/modules/module.py:Module._call_impl",)


def recorded(first: int, n: int, *, more: float = 0.0, larger: int = 0, took: tuple[float, ...] = ()) -> Trace:
    """Return steps of 1 ms: operators, then a backward pass in another thread, then 195 us of waiting for a result.

    ``more``, ``larger`` : operators and elements that each step has more than the one before. ``took`` : the device's
    time for the product of each step.
    """
    builder = TraceBuilder()
    for at in range(n):
        begin = 1_000.0 * at
        builder.step(first + at, begin, 1_000)
        builder.op("aten::mm", begin + 100, 100, dims=[[64 + larger * (first + at), 64], [64, 64]])
        builder.launch(begin + 110, 8, begin + 250, took[at] if took else 300)
        builder.op("autograd::engine::evaluate_function: MmBackward0", begin + 300, 200, tid=AUTOGRAD)
        builder.launch(begin + 310, 8, begin + 650, 80, tid=AUTOGRAD)
        builder.op("aten::item", begin + 550, 200)
        builder.copy(begin + 555, 5, begin + 740, 4, kind="DtoH (Device -> Pageable)")
        builder.sync(begin + 561, 189)
        for number in range(round(more * (first + at))):
            builder.op("aten::add", begin + 800 + number, 0.5)
    return builder.build()


def test_a_backward_pass_in_another_thread_is_operators_and_reading_a_result_a_wait() -> None:
    shares = host_shares(recorded(20, 6))
    assert shares is not None
    assert shares == pytest.approx((0.5, 0.195, 0.0), abs=0.01)


@pytest.mark.parametrize(("took", "share"), [(1_000, 0.4), (600, 0.2)])
def test_a_long_launch_waits_for_a_place_in_the_queue_where_the_device_never_rests(took: float, share: float) -> None:
    builder = TraceBuilder()
    for at in range(6):
        builder.step(20 + at, 1_000.0 * at, 1_000)
        builder.op("aten::mm", 1_000.0 * at + 50, 900)
        builder.launch(1_000.0 * at + 100, 200, 1_000.0 * at, took)
        builder.launch(1_000.0 * at + 600, 200, 1_000.0 * at + took, 0)
        builder.launch(1_000.0 * at + 900, 5, 1_000.0 * at + took, 0)
    shares = host_shares(builder.build())
    assert shares is not None
    assert shares.for_queue == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("light", "heavy", "slope"),
    [
        ({}, {}, 0.0),
        ({"more": 1.0}, {"more": 1.0}, 0.036),
        ({"larger": 16}, {"larger": 16}, 0.025),
        ({"took": (300, 306, 312, 318, 324, 330)}, {}, 0.015),
        ({"took": (300, 310, 325, 305, 330, 310)}, {"took": (420, 400, 430, 410)}, 0.0),
    ],
)
def test_work_grows_by_its_operators_its_inputs_or_the_time_of_the_device(
    light: dict[str, float], heavy: dict[str, float], slope: float
) -> None:
    traces = recorded(20, 6, **light), recorded(30, 4, **heavy)  # type: ignore[arg-type]
    assert work_growth(traces) == pytest.approx(slope, rel=0.3)


def looks(folder: Path, *, grows: str, n: int = 40) -> SamplesBuilder:
    """Return steps whose time grows by 2 ms each in a backward pass, or in Python."""
    built = SamplesBuilder(folder, SOURCE)
    built.step()
    for at in range(n):
        built.look("loss = model(batch)", below=FORWARD, ms=20)
        built.look("loss.backward()", below=ENGINE, ms=40 + 2 * at * (grows == "pass"))
        built.look("total += loss.item()", ms=20)
        built.look("seen = history", below=("numpy/core/multiarray.py:append",), ms=20 + 2 * at * (grows == "Python"))
        built.step()
    return built


@pytest.mark.parametrize(
    ("grows", "queue", "more", "n"),
    [("pass", 0.4, 0.0, 0), ("pass", 0.4, 1.0, 1), ("Python", 0.4, 0.0, 1), ("pass", 0.0, 0.0, 1)],
)
def test_steps_that_wait_longer_and_longer_for_a_device_with_no_more_to_do_do_not_grow(
    tmp_path: Path, grows: str, queue: float, more: float, n: int
) -> None:
    built = looks(tmp_path, grows=grows)
    loop = built.loop(boundary="optimizer.step()", operators=0.8, queue=queue)
    assert loop is not None
    traces = recorded(20, 6, more=more), recorded(30, 4, more=more)
    found = growing_step(loop, built.samples(), 100.0, traces)
    assert [finding.code for finding in found] == ["HST106"] * n


@pytest.mark.parametrize(("more", "n"), [(0.0, 0), (1.0, 1)])
def test_steps_that_get_slower_with_the_machine_do_not_grow(tmp_path: Path, more: float, n: int) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for at in range(40):
        built.look("loss = model(batch)", below=FORWARD, ms=20 + at)
        built.look("loss.backward()", below=ENGINE, ms=40 + 2 * at)
        built.look("seen = history", below=("numpy/core/multiarray.py:append",), ms=60)  # one thread, as fast as before
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=0.6)
    assert loop is not None
    found = growing_step(loop, built.samples(), 60.0, (recorded(20, 6, more=more), recorded(30, 4, more=more)))
    assert [finding.code for finding in found] == ["HST106"] * n


def test_the_account_calls_a_wait_for_the_device_a_wait(tmp_path: Path) -> None:
    built = looks(tmp_path, grows="")
    loop = built.loop(boundary="optimizer.step()", operators=0.8, results=0.15, queue=0.3)
    assert loop is not None
    account = step_account(loop, built.samples(), 100.0)
    assert {part.kind: part.share for part in account.parts} == pytest.approx(
        {"waiting for the device": 0.5, "operators": 0.3, "Python": 0.2}, abs=0.02
    )
    assert {row.line: row.kind for row in account.lines}[5] == "waiting for the device"
    plain = built.loop(boundary="optimizer.step()", operators=0.8)
    assert plain is not None
    assert "waiting for the device" not in {part.kind for part in step_account(plain, built.samples(), 100.0).parts}


def test_a_line_that_waits_for_the_device_is_no_hot_line(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for _ in range(60):
        built.look("loss = model(batch)", below=FORWARD, ms=20)
        built.look("total += loss.item()", ms=80)
        built.step()
    for results, n in ((0.7, 0), (0.0, 1)):
        loop = built.loop(boundary="optimizer.step()", operators=1.0, results=results)
        assert loop is not None
        assert len(hot_lines(loop, built.view, 100.0)) == n


def test_long_operators_that_are_no_products() -> None:
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        at = 10_000 * step
        builder.step(step, at, 10_000)
        builder.op("aten::convolution", at + 100, 3_000).op("aten::mkldnn_convolution", at + 200, 2_500)
        builder.op("aten::relu", at + 4_000, 100)
        builder.op("aten::linear", at + 5_000, 2_000).op("aten::addmm", at + 5_010, 1_900)
        builder.op("aten::batch_norm", at + 1_000, 5_000, tid=77)
    assert long_operators(builder.build()) == pytest.approx(0.25)
    assert long_operators(TraceBuilder(vendor="cpu").op("aten::convolution", 0, 3_000).build()) == 0.0
    assert long_operators(None) == 0.0
