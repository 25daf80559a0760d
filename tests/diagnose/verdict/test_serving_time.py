"""The account of an engine's steps: tokens as its ranges say, time that adds up, how the steps are launched."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import TraceBuilder

from torchtriage.core import intervals
from torchtriage.core.selection import Selection
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.select import select
from torchtriage.diagnose.verdict.device_time import device_time
from torchtriage.diagnose.verdict.result import PhaseTime
from torchtriage.diagnose.verdict.serving_time import serving_time
from torchtriage.diagnose.verdict.verdict import diagnose

DECODE, PREFILL = "execute_context_0(0)_generation_4(4)", "execute_context_1(500)_generation_0(0)"
GEMM, ATTENTION = "ampere_sgemm_128x64_tn", "flash_fwd_kernel"


def phases(trace: Trace) -> dict[str, PhaseTime]:
    """Return the account by phase, and check that it adds up."""
    account = serving_time(trace)
    assert account is not None
    steps = trace.steps
    assert sum(phase.n_steps for phase in account.phases) == len(steps)
    assert sum(phase.wall_ns for phase in account.phases) == (steps.end_ns - steps.start_ns)[steps.steady].sum()
    busy_ns = sum(phase.busy_ns or 0 for phase in account.phases)
    assert busy_ns == device_time(trace)[0].busy_ns
    idle_ns = intervals.length(intervals.intersect(trace.devices[0].idle, steps.judged))
    assert sum(phase.wall_ns for phase in account.phases) - busy_ns == idle_ns
    assert sum(phase.between_ns or 0 for phase in account.phases) <= idle_ns
    return {phase.phase: phase for phase in account.phases}


def loop(*names: str) -> TraceBuilder:
    """Add steps of 100 µs, each with two kernels of 20 and 30.5 µs, idle for 10 µs between them and 39.5 around."""
    builder = TraceBuilder()
    for index, name in enumerate(names):
        at = 100.0 * index
        builder.annotation(name, at, 100).op("aten::mm", at + 5, 20)
        builder.launch(at + 10, 2, at + 20, 20, GEMM)
        builder.launch(at + 15, 2, at + 50, 30.5, ATTENTION)
    return builder


def test_phases_hold_their_tokens_and_times() -> None:
    found = phases(loop(DECODE, DECODE, PREFILL, DECODE).build())
    decode, prefill = found["decode"], found["prefill"]
    # the first step is not steady
    assert (decode.n_steps, decode.n_steady, decode.n_generation, decode.generation_tokens) == (3, 2, 8, 8)
    assert (decode.n_context, decode.context_tokens) == (0, 0)
    assert (prefill.n_steps, prefill.n_steady, prefill.n_context, prefill.context_tokens) == (1, 1, 1, 500)
    assert (decode.wall_ns, decode.busy_ns, decode.n_work, decode.n_launches) == (200_000, 101_000, 4, 4)
    # before the kernel at 20, after the one that ends at 80.5
    assert decode.between_ns == 2 * 39_500
    assert decode.tokens_per_s == pytest.approx(8 / 200e-6)
    assert prefill.tokens_per_s == pytest.approx(500 / 100e-6)
    assert decode.graphs == {"eager": 2}


def test_what_a_range_does_not_say_is_not_summed() -> None:
    found = phases(loop("step[EXTEND bs=2]", "step[EXTEND bs=2 toks=20]").build())["prefill"]
    assert (found.n_context, found.context_tokens, found.tokens_per_s, found.kv_tokens) == (4, None, None, None)


def graph(builder: TraceBuilder, at: float, *kernels: str, dur: float = 10) -> None:
    correlation = builder._next()
    builder.call("cudaGraphLaunch", at, 2, correlation=correlation)
    for index, name in enumerate(kernels):
        builder.kernel(name, at + 5 + dur * index, dur, correlation=correlation)


@pytest.mark.parametrize(
    ("use", "eager", "graphed"),
    [
        ("full", [GEMM], [GEMM, ATTENTION]),
        ("piecewise", [ATTENTION], [GEMM, GEMM]),
        # nothing here is known to be attention
        ("some", [], [GEMM, GEMM]),
    ],
)
def test_how_graphs_are_used(use: str, eager: list[str], graphed: list[str]) -> None:
    builder = TraceBuilder()
    for index in range(2):
        at = 100.0 * index
        builder.annotation(DECODE, at, 100).op("aten::mm", at + 1, 3)
        graph(builder, at + 10, *graphed)
        for name in eager:
            builder.launch(at + 50, 2, at + 60.5, 20, name)
    decode = phases(builder.build())["decode"]
    assert decode.graphs == {use: 2}
    assert (decode.n_launches, decode.n_work) == (2 * (1 + len(eager)), 2 * (len(graphed) + len(eager)))


def test_without_ranges_only_a_graph_says_decode() -> None:
    builder = TraceBuilder()
    for index in range(3):
        at = 100.0 * index
        builder.op("aten::mm", at + 1, 3).frame("vllm/v1/worker/gpu_model_runner.py(9): execute_model", at, 90)
        if index:
            graph(builder, at + 10, GEMM, ATTENTION)
        else:
            builder.launch(at + 10, 2, at + 20.5, 30, ATTENTION)
    trace = builder.build()
    account = serving_time(trace)
    assert account is not None
    assert account.basis == "frames"
    assert {phase.phase: (phase.n_steps, phase.tokens_per_s) for phase in account.phases} == {
        "decode": (2, None),
        "unknown": (1, None),
    }


def test_without_all_rows_of_the_device_its_times_are_not_known() -> None:
    account = serving_time(loop(DECODE, DECODE).build(), whole=False)
    assert account is not None
    (decode,) = account.phases
    assert (decode.busy_ns, decode.between_ns, decode.n_work) == (None, None, None)
    assert decode.generation_tokens == 8


def test_other_programs_have_none() -> None:
    assert serving_time(loop("train", "train", "train").build()) is None
    assert diagnose(loop("train", "train", "train").build()).serving is None


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "phase", "tokens", "graphs"),
    [
        ("b200_eager", "prefill", (888, 0), {"eager": 1}),
        ("vllm_decode_full_graph", "decode", (0, 32), {"full": 1}),
        ("vllm_prefilldecode_piecewise_graph", "mixed", (8155, 37), {"piecewise": 1}),
        ("sglang_qwen3-8b_decode", "decode", (0, 32), {"full": 1}),
    ],
)
def test_recordings_of_engines(
    recordings: Path, name: str, phase: str, tokens: tuple[int, int], graphs: dict[str, int]
) -> None:
    found = phases(read_trace(recordings / "llm" / f"{name}.json.gz"))
    assert list(found) == [phase]
    assert (found[phase].context_tokens, found[phase].generation_tokens) == tokens
    assert found[phase].graphs == graphs


@pytest.mark.data
def test_a_recording_of_captures_holds_no_step(recordings: Path) -> None:
    account = serving_time(read_trace(recordings / "llm" / "vllm_piecewise_graph_capture.json.gz"), whole=False)
    assert account is not None
    assert (account.engine, account.captures, account.phases) == ("vLLM", ("capture_8192_PIECEWISE",), ())


def test_a_window_is_no_step_of_the_engine() -> None:
    trace = loop(*[DECODE] * 6).build()
    assert serving_time(trace) is not None
    assert serving_time(select(trace, Selection(window="0.15ms-0.45ms"))) is None
    part = serving_time(select(trace, Selection(steps="2-4")))
    assert part is not None
    assert part.phases[0].n_steady == 3
