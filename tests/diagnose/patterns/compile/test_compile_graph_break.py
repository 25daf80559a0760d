"""CMP030: a compiled function split into several graphs."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.compile.compile_graph_break import find

GRAPH = "## Call CompiledFxGraph fabc ##"


def call(builder, at, *, frame="0", version="0", until=300.0, inner=None):
    """Add a call of compiled code: look-up 10, region up to ``until``, graph 40-100."""
    number = f": {frame}/{version}" if frame else ""
    builder.op("TorchDynamo Cache Lookup", at, 10)
    builder.op(f"Torch-Compiled Region{number}", at + 10, until - 10)
    builder.op("Pregraph bytecode", at + 15, 5)
    builder.annotation(GRAPH, at + 40, 60)
    return builder


def job(*, vendor="cpu", nested=True, number="1", break_op=False, every=1, resumed=False, steps=5):
    """Add steps of 1 ms; each calls a function that is split once, 90 us apart."""
    builder = TraceBuilder(vendor=vendor)
    for index in range(steps):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        call(builder, at + 100)
        if nested and index % every == 0:
            call(builder, at + 150 + 0, frame=number, until=200)
            if resumed:
                builder.frame("train.py(7): torch_dynamo_resume_in_f_at_7", at + 160, 180)
        if break_op:
            builder.op("aten::is_nonzero", at + 202, 5)
    return builder


def seams(claim):
    return (claim.spans[:, 1] - claim.spans[:, 0]).tolist()


def test_quiet_on_separate_functions():
    builder = job(nested=False)
    for index in range(5):
        call(builder, 1000 * index + 500, frame="1")
    assert not builder.claims(find)


def test_quiet_on_recursion():
    assert not job(number="0").claims(find)


def test_quiet_in_few_steps():
    assert not job(every=4).claims(find)


def test_quiet_without_compiled_code():
    assert not TraceBuilder(vendor="cpu").op("aten::mm", 0, 5).claims(find)


def fixed(**options):
    """Add a split function: the first graph ends at 200, the second starts at 290."""
    builder = TraceBuilder(vendor="cpu")
    for index in range(5):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        call(builder, at + 100, until=400)
        call(builder, at + 250, frame=options.get("number", "1"), until=200)
        if options.get("op"):
            builder.op("aten::is_nonzero", at + 210, 20)
        if options.get("between"):
            builder.frame("torch/_dynamo/eval_frame.py(1423): _fn", at + 205, 30)
            builder.frame(options["between"], at + 210, 20)
        if options.get("resumed"):
            builder.frame("train.py(7): torch_dynamo_resume_in_f_at_7", at + 265, 150)
    return builder


def test_from_graph_to_graph():
    trace = fixed().build()
    (claim,) = find(trace)
    assert claim.certainty == "likely"
    assert claim.time_class == "host"
    assert seams(claim) == [90_000] * 5
    assert claim.gain_low == pytest.approx(1 / trace.origin.inflation)
    assert claim.evidence["n_graphs_per_step"] == 2
    assert "1 call of compiled code per step is split into 2 graphs;" in claim.message
    assert claim.evidence["seam_ms_per_step"] == pytest.approx(0.09)
    (edit,) = claim.edits
    # 90 of the 390 us of the outer region
    assert edit.hopeful == pytest.approx(300 / 390)
    assert edit.factor == pytest.approx(1 - 90 / 390 / trace.origin.inflation)


def test_operators_in_between_are_not_the_breaks():
    (claim,) = find(fixed(op=True).build())
    assert sum(seams(claim)) == 5 * 70_000
    assert claim.evidence["ops_at_breaks"] == ["aten::is_nonzero"]


def test_quiet_on_a_function_kept_from_compilation():
    assert not fixed(between="train.py(3): helper").claims(find)


def test_the_compiler_keeps_functions_of_its_own_from_compilation():
    wrapper = "torch/_functorch/_aot_autograd/runtime_wrappers.py(300): runtime_wrapper"
    (claim,) = find(fixed(between=wrapper).build())
    assert seams(claim) == [90_000] * 5


def test_builds_without_numbers():
    (claim,) = find(fixed(number="").build())
    assert seams(claim) == [90_000] * 5


def test_a_resumed_frame_names_the_line():
    trace = fixed(resumed=True).build()
    (claim,) = find(trace)
    assert claim.certainty == "certain"
    assert claim.evidence["breaks_at"] == ["train.py:7"]
    assert "at train.py:7" in claim.message
    assert trace.name_of(claim.anchor).endswith("resume_in_f_at_7")


def test_with_a_device_only_what_starves_it():
    builder = fixed()
    builder.meta["deviceProperties"] = [{"id": 0, "name": "GPU"}]
    for index in range(5):
        at = 1000.0 * index
        # busy until 215: of the 90 us seam, launches come 75 us late at most
        builder.launch(at + 150, 5, at + 160, 55)
        builder.launch(at + 300, 5, at + 310, 55)
    (claim,) = find(builder.build())
    assert claim.time_class == "idle"
    assert sum(seams(claim)) == 5 * 90_000
