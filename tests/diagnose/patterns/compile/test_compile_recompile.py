"""CMP031: compiled again and again, or not at all."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.compile.compile_recompile import find


def job(versions, *, frames=None, steps=True, numbered=True, dims=False):
    """Add steps of 10 ms; a step with a version compiles it for 5 ms, None calls version 0."""
    builder = TraceBuilder(vendor="cpu")
    for index, version in enumerate(versions):
        at = 10_000.0 * index
        if steps:
            builder.step(index, at, 10_000)
        builder.op("aten::randn", at + 10, 20)
        builder.op("TorchDynamo Cache Lookup", at + 100, 10)
        if version is not None:
            builder.op("dynamo", at + 200, 5100)
            builder.op("entire_frame_compile", at + 250, 5000)
            builder.op("_compile.compile_inner (dynamo_timed)", at + 260, 4900)
        frame = frames[index] if frames else 0
        number = f": {frame}/{version or 0}" if numbered else ""
        builder.op(f"Torch-Compiled Region{number}", at + 6000, 500)
        builder.annotation("## Call CompiledFxGraph fabc ##", at + 6100, 300)
        builder.op("aten::addmm", at + 6150, 100, dims=[[index + 8, 128], [128, 128]] if dims else None)
    return builder


def test_quiet_on_the_second_shape():
    assert not job([0, 1, None, None, None]).claims(find)


def test_quiet_on_frames_compiled_once_each():
    assert not job([0, 0, 0, 0, 0], frames=[0, 1, 2, 3, 4]).claims(find)


def test_quiet_on_the_first_step():
    assert not job([3, None, None, None]).claims(find)


def test_quiet_on_buckets_that_are_all_compiled():
    assert not job([None] * 5).claims(find)


def test_again_in_most_steps():
    trace = job([0, 1, 2, 3, 4, 5], dims=True).build()
    assert trace.steps.steady.tolist() == [False, True, True, True, True, True]
    (claim,) = find(trace)
    assert (claim.certainty, claim.always, claim.time_class) == ("certain", True, "host")
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [5_100_000] * 5
    assert claim.gain_low == pytest.approx(1 / trace.origin.inflation)
    assert claim.evidence["n_steps_with_recompilation"] == 5
    assert claim.evidence["median_compilation_ms"] == pytest.approx(5.1)
    assert claim.evidence["compilation_ms_per_step"] == pytest.approx(5.1)
    assert claim.evidence["versions"] == [1, 5]
    assert claim.evidence["input_shapes"][0] == "[[9, 128], [128, 128]]"
    (edit,) = claim.edits
    assert edit.kind == "drop"
    assert len(edit.rows) == 5


def test_now_and_then_is_reported_although_no_steady_step_holds_it():
    (claim,) = find(job([None, None, 1, None, None, 2, None, None, None, None]).build())
    assert claim.always
    assert claim.evidence["compilation_ms_per_step"] == 0
    assert claim.message.startswith("compiled code is compiled again in 2 of 9 later steps")


def test_builds_without_numbers_need_more_of_them():
    assert not job([0, 1, 2, None, None], numbered=False).claims(find)
    (claim,) = find(job([0, 1, 2, 3, None], numbered=False).build())
    assert claim.certainty == "likely"


def test_without_steps_to_tell_apart():
    (claim,) = find(job([0, 1, 2], steps=False).build())
    assert "2 times in the window" in claim.message
    assert "n_steps_with_recompilation" not in claim.evidence


def uncompiled(*, regions=1, base=True, after="aten::linear", steps=5):
    meta = {"baseTimeNanoseconds": 1} if base else {}
    builder = TraceBuilder(vendor="cpu", **meta)
    for index in range(steps):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        if regions:
            builder.op("TorchDynamo Cache Lookup", at + 10, 5)
            builder.op("Torch-Compiled Region: 1/0", at + 20, 50)
        builder.op("TorchDynamo Cache Lookup", at + 100, 5)
        if after:
            builder.op(after, at + 110, 50)
    return builder


def test_quiet_where_a_region_follows_each_look_up():
    assert not uncompiled(after="Torch-Compiled Region: 0/0").claims(find)


def test_quiet_where_a_look_up_ends_the_step():
    assert not uncompiled(after="").claims(find)


def test_quiet_on_builds_that_name_no_regions():
    assert not uncompiled(regions=0, base=False).claims(find)


@pytest.mark.parametrize("regions", [0, 1])
def test_a_look_up_that_finds_nothing(regions):
    (claim,) = find(uncompiled(regions=regions).build())
    assert (claim.certainty, claim.always, claim.time_class) == ("likely", True, "none")
    assert claim.evidence["n_uncompiled_calls_per_step"] == 1
    assert claim.evidence["n_calls_per_step"] == 1 + regions
    assert len(claim.rows) == 5
