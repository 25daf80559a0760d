"""Steps of inference engines: what the names of their ranges say, and which rows are steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.serving import Batch, read_batch

DECODE, PREFILL = "execute_context_0(0)_generation_4(4)", "execute_context_1(512)_generation_0(0)"


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        (
            "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6000sqsq3sqsk6000)",
            Batch("mixed", 2, 6144, 3, 3, 13144),
        ),
        ("execute_context_2(6144)_generation_3(3)", Batch("mixed", 2, 6144, 3, 3)),
        ("execute_context_1(888_788544)_generation_0(0)", Batch("prefill", 1, 888, 0, 0)),
        ("execute_context_0(0)_generation_64(192)", Batch("decode", 0, 0, 64, 192)),
        ("execute_context_0(0)_generation_0(0)", Batch("idle", 0, 0, 0, 0)),
        # which of the cached requests still are in prefill is not said
        ("execute_new_3_cached_0", Batch("prefill", 3, None, 0, 0)),
        ("execute_new_0_cached_7", Batch("unknown")),
        ("execute_new_3_cached_7", Batch("unknown")),
        ("step[DECODE bs=64]", Batch("decode", 0, 0, 64, 64)),
        ("step[EXTEND bs=4 toks=512]", Batch("prefill", 4, 512, 0, 0)),
        ("step[ EXTEND bs=4 toks=512 ]", Batch("prefill", 4, 512, 0, 0)),
        ("step[EXTEND bs=4]", Batch("prefill", 4, None, 0, 0)),
        ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]", Batch("decode", 0, 0, 64, 128, 131072)),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 g_sq=1 g_sk=12]", Batch("mixed", 1, 5, 1, 1, 20)),
        ("step[MIXED bs=8 toks=100]", Batch("mixed")),
        # drafts to verify: how many is not said
        ("step[TARGET_VERIFY bs=4]", Batch("decode", 0, 0, 4, None)),
        ("step[IDLE bs=0]", Batch("idle", 0, 0, 0, 0)),
        ("step[NEW_MODE_2 bs=2]", Batch("unknown")),
        ("prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]", Batch("prefill", 6, 17408, 0, 0)),
        # padded to the batch size of a graph
        ("decode[bs=117/128 tok=117 d=117]", Batch("decode", 0, 0, 117, 117)),
        ("[Executor] _forward_step 17: 2 ctx reqs, 300 ctx tokens, 30 gen reqs", Batch("mixed", 2, 300, 30, None)),
        ("[Executor] _forward_step: 0 ctx reqs, 4 gen reqs", Batch("decode", 0, 0, 4, None)),
    ],
)
def test_the_name_of_a_range_says_what_a_step_holds(name: str, batch: Batch) -> None:
    assert read_batch(name) == batch


@pytest.mark.parametrize(
    "name",
    [
        *("step[3]", "step[TRAIN]", "step 1", "prefill", "decode[0]", "ProfilerStep#3", "execute_diffusion_1_256x256"),
        *("step[DRAFT_EXTEND bs=4]", "step[DRAFT_EXTEND_V2 bs=4]"),
        *("execute_context_manager", "capture_8192_PIECEWISE", "my execute_context_1(8)_generation_0(0)"),
    ],
)
def test_other_ranges_are_no_steps(name: str) -> None:
    assert read_batch(name) is None


def us(times_ns: object) -> list[float]:
    return (np.asarray(times_ns) / 1000).tolist()


def engine(*names: str, gap: float = 20.0) -> TraceBuilder:
    """Add one range of 80 µs for each name, with a kernel launched in it and one after it."""
    builder = TraceBuilder()
    for index, name in enumerate(names):
        at = 100.0 * index
        builder.annotation(name, at, 100 - gap).op("aten::mm", at + 5, 20)
        builder.launch(at + 10, 2, at + 15, 30.5)
        builder.launch(at + 85, 2, at + 90, 5)
    return builder


def test_steps_go_from_range_to_range_and_hold_what_is_launched_in_between() -> None:
    trace = engine(DECODE, DECODE, PREFILL, DECODE).build()
    assert trace.serving is not None
    assert (trace.serving.engine, trace.serving.basis) == ("vLLM", "ranges")
    assert trace.steps.names == ("decode 0", "decode 1", "prefill 2", "decode 3")
    assert us(trace.steps.start_ns) == [0, 100, 200, 300]
    assert us(trace.steps.end_ns) == [100, 200, 300, 380]
    assert trace.window.basis == "4 steps of vLLM"
    assert trace.steps.of_work(np.flatnonzero(trace.works)).tolist() == [0, 0, 1, 1, 2, 2, 3, -1]


@pytest.mark.parametrize("draft", ["step[DRAFT_EXTEND bs=4]", "step[DRAFT_EXTEND_V2 bs=4]"])
def test_drafts_are_time_of_the_step_that_they_follow(draft: str) -> None:
    trace = engine(*["step[TARGET_VERIFY bs=4 toks=16]", draft] * 3).build()
    assert trace.serving is not None
    assert trace.serving.batches == (Batch("decode", 0, 0, 4, 16),) * 3
    assert us(trace.steps.start_ns) == [0, 200, 400]
    assert us(trace.steps.end_ns) == [200, 400, 480]


def test_a_prefill_is_no_outlier_among_decodes() -> None:
    builder, at = TraceBuilder(), 0.0
    for name, dur in [(DECODE, 10)] * 6 + [(PREFILL, 100), (PREFILL, 90), (DECODE, 10), (DECODE, 60), (PREFILL, 400)]:
        builder.annotation(name, at, dur).op("aten::mm", at + 1, 5.5)
        builder.launch(at + 2, 1, at + 3, dur - 4)
        at += dur
    steady = builder.build().steps.steady
    # the first step, the decode of 60 and the prefill of 400 are not
    assert np.flatnonzero(~steady).tolist() == [0, 9, 10]


def test_a_range_of_a_harness_around_the_engines_own_is_the_step() -> None:
    outer = "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk400sqsq4sqsk400)"
    trace = engine(outer, outer).annotation("step[DECODE bs=4]", 1, 70).annotation("step[DECODE bs=4]", 101, 70).build()
    assert trace.serving is not None
    assert (trace.serving.engine, len(trace.serving.rows), len(trace.steps)) == ("SGLang", 2, 2)


def frames(builder: TraceBuilder, name: str, *starts: float) -> Trace:
    for start in starts:
        builder.frame(name, start, 80)
    return builder.build()


def test_without_ranges_the_function_that_runs_a_step_says_where_it_is() -> None:
    builder = engine()
    for start in (0, 100, 200):
        builder.launch(start + 10, 2, start + 15, 30.5)
    trace = frames(builder, "/opt/vllm/v1/worker/gpu_model_runner.py(3380): execute_model", 0, 100, 200)
    assert trace.serving is not None
    assert (trace.serving.engine, trace.serving.basis) == ("vLLM", "frames")
    assert trace.steps.names == ("step 0", "step 1", "step 2")


def test_a_program_that_uses_an_engines_files_alone_is_none() -> None:
    trace = frames(engine(), "vllm/model_executor/layers/linear.py(12): forward", 0)
    assert trace.serving is None
    assert engine("train", "train", "train").build().serving is None


def test_a_capture_is_no_step() -> None:
    builder = TraceBuilder().annotation("capture_8192_PIECEWISE", 0, 100)
    trace = frames(builder, "vllm/v1/worker/gpu_model_runner.py(10): _dummy_run", 1)
    assert trace.serving is not None
    assert (len(trace.serving.rows), len(trace.serving.captures), len(trace.steps)) == (0, 1, 0)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "engine", "batch"),
    [
        ("b200_eager", "vLLM", Batch("prefill", 1, 888, 0, 0)),
        ("vllm_decode_full_graph", "vLLM", Batch("decode", 0, 0, 32, 32, 55086)),
        ("vllm_prefilldecode_piecewise_graph", "vLLM", Batch("mixed", 9, 8155, 37, 37, 8430 + 34489)),
        ("sglang_qwen3-8b_decode", "SGLang", Batch("decode", 0, 0, 32, 32, 32785)),
    ],
)
def test_recordings_of_engines(recordings: Path, name: str, engine: str, batch: Batch) -> None:
    trace = read_trace(recordings / "llm" / f"{name}.json.gz")
    assert trace.serving is not None
    assert trace.serving.engine == engine
    assert trace.serving.batches == (batch,)
