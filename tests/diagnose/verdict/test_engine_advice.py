"""What is advised on an engine's recording: its own settings, and nothing of torch's for its user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builder import TraceBuilder

from torchtriage.core.finding import Finding
from torchtriage.core.selection import Selection
from torchtriage.core.trace import read_trace
from torchtriage.core.trace.select import select
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose

TORCH = re.compile(
    r"torch\.compile|torch\.cuda\.|torch\.profiler|DataLoader|prof\.step|schedule\(|ProfilerActivity|profile\("
)
ATTENTION = "flash_fwd_kernel"


def launches(name: str, *, between: float = 0, graph: bool = False, n_steps: int = 5) -> TraceBuilder:
    """Add steps of 20 operators of 50 µs that launch 5 µs of work, and a pause of ``between`` outside their range."""
    builder, at = TraceBuilder(), 0.0
    for _ in range(n_steps):
        builder.annotation(name, at, 1000)
        for index in range(20):
            start = at + 50 * index
            builder.op("aten::add", start, 50)
            builder.launch(start + 42, 5, start + 48, 5.5, ATTENTION if index % 2 else "kernel")
        if graph:
            correlation = builder._next()
            builder.call("cudaGraphLaunch", at + 20, 2, correlation=correlation)
            builder.kernel("graphed", at + 24, 5.5, correlation=correlation)
        at += 1000
        for start in range(int(at), int(at + between), 50):
            builder.op("aten::add", start, 50)
        at += between
    return builder.annotation(name, at, 10)


def finding(result: Result, code: str) -> Finding:
    return next(finding for finding in result.findings if finding.code == code)


DECODE = "execute_context_0(0)_generation_8(8)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (DECODE, r"cudagraph_mode other than NONE.*here decode has 8 requests and 8 tokens a step"),
        (
            "execute_context_2(900)_generation_0(0)",
            r"max_cudagraph_capture_size.*prefill has 2 requests and 900 tokens",
        ),
        ("step[DECODE bs=8]", r"without --disable-cuda-graph, and with a --cuda-graph-max-bs.*8 requests"),
        ("step[EXTEND bs=2 toks=900]", r"without --disable-piecewise-cuda-graph.*900 tokens"),
        (
            "[Executor] _forward_step 1: 0 ctx reqs, 8 gen reqs",
            r"cuda_graph_config with a max_batch_size.*8 requests"
            " a",
        ),
        ("[Executor] _forward_step 1: 2 ctx reqs, 0 gen reqs", r"piecewise graphs in prefill"),
        # no setting of this engine is known here
        ("decode[bs=8 tok=8 d=8]", r"For those who develop ATOM or the model"),
    ],
)
def test_eager_steps_are_to_replay_graphs(name: str, expected: str) -> None:
    fix = finding(diagnose(launches(name).build()), "LCH014").fix
    assert re.search(expected, fix.text)
    assert "ATOM" in fix.text or not TORCH.search(fix.text + fix.code)


def test_stacks_without_vllms_compiled_code_are_as_with_enforce_eager() -> None:
    builder = launches(DECODE).frame("vllm/v1/worker/gpu_model_runner.py(1): execute_model", 0, 900)
    assert "enforce_eager" in finding(diagnose(builder.build()), "LCH014").fix.text
    builder.frame("vllm/compilation/cuda_graph.py(9): __call__", 10, 800)
    assert "cudagraph_mode" in finding(diagnose(builder.build()), "LCH014").fix.text


def test_piecewise_decode_is_to_be_one_graph() -> None:
    fix = finding(diagnose(launches(DECODE, graph=True).build()), "LCH014").fix
    assert "one graph for a whole step of decode" in fix.text
    assert "FULL_AND_PIECEWISE" in fix.code


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (DECODE, "--async-scheduling"),
        ("step[DECODE bs=8]", "--disable-overlap-schedule"),
        ("[Executor] _forward_step 1: 0 ctx reqs, 8 gen reqs", "disable_overlap_scheduler: false"),
    ],
)
def test_a_host_that_works_between_steps_is_to_overlap(name: str, expected: str) -> None:
    builder, at = TraceBuilder(), 0.0
    for _ in range(5):
        builder.annotation(name, at, 1000).op("aten::mm", at, 990)
        builder.launch(at + 5, 5, at + 12, 960, ATTENTION)
        builder.frame("engine/scheduler.py(7): schedule", at + 1005, 1490)
        at += 2500
    result = diagnose(builder.annotation(name, at, 10).build())
    fix = finding(result, "HST020").fix
    assert expected in f"{fix.text} {fix.code}"


def test_what_no_setting_changes_is_for_those_who_develop_the_engine() -> None:
    builder = launches(DECODE)
    for step in range(5):
        builder.op("aten::item", 1000 * step + 2, 30)
        builder.op("aten::_local_scalar_dense", 1000 * step + 3, 28)
        builder.copy(1000 * step + 4, 25, 1000 * step + 10, 5, kind="DtoH (Device -> Pageable)")
    for item in diagnose(builder.build()).findings:
        if item.code != "LCH014":
            assert item.fix.text.startswith("For those who develop vLLM or the model; no setting"), item.code


def test_without_the_engines_steps_a_setting_may_change_it() -> None:
    window = Selection(window="0.001s-0.004s")
    fix = finding(diagnose(select(launches(DECODE).build(), window)), "LCH014").fix
    assert "unless a setting changes it: that is known where vLLM's own steps are judged" in fix.text
    none_known = finding(diagnose(select(launches("decode[bs=8 tok=8 d=8]").build(), window)), "LCH014").fix
    assert "no setting that is known here changes it" in none_known.text


def test_notes_ask_for_the_engines_own_profiler() -> None:
    result = diagnose(launches(DECODE, n_steps=0).build())
    notes = {note.code: note.fix for note in result.notes}
    assert "delay_iterations" in notes["one-step"]
    assert not [note for note in result.notes if TORCH.search(note.fix)]
    assert not [item for item in result.not_checked if TORCH.search(item.how_to_record)]


def test_other_recordings_are_advised_as_ever() -> None:
    fix = finding(diagnose(launches("train").build()), "LCH014").fix
    assert "torch.compile" in fix.code


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [
        *("b200_eager", "vllm_decode_full_graph", "vllm_prefilldecode_piecewise_graph", "sglang_qwen3-8b_decode"),
        "vllm_piecewise_graph_capture",
    ],
)
def test_no_advice_that_an_engines_user_cannot_follow(recordings: Path, name: str) -> None:
    result = diagnose(read_trace(recordings / "llm" / f"{name}.json.gz"))
    advice = [
        *(f"{item.fix.text} {item.fix.code}" for item in result.findings),
        *(note.fix for note in result.notes),
        *(item.how_to_record for item in result.not_checked),
    ]
    assert not [text for text in advice if TORCH.search(text)]
