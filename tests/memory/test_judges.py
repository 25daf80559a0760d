"""What is said about recordings small enough to be judged by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.memory.recorder import (
    BACKWARD,
    FORWARD,
    GIB,
    KIB,
    MIB,
    TRAIN,
    A,
    B,
    C,
    D,
    Recorder,
    frame,
    read,
    together,
    training_step,
)

from torchtriage.memory.snapshot.fragmentation import (
    AWAITING,
    LARGE,
    OTHER_POOL,
    OTHER_STREAM,
    PIECES,
    PRIVATE,
    WHOLE,
    free_at,
    segments_at,
)
from torchtriage.memory.snapshot.result import DeviceMemory, MemoryPart, MemoryPeak, MemoryResult, OutOfMemory
from torchtriage.memory.snapshot.timeline import timeline
from torchtriage.memory.snapshot.verdict import judge


def judged(recorder: Recorder) -> tuple[MemoryResult, DeviceMemory]:
    snapshot = read(recorder)
    assert snapshot.check() == []
    result = judge(snapshot)
    assert not result.crashes
    return result, result.devices[-1]


def peak_of(recorder: Recorder) -> MemoryPeak:
    peak = judged(recorder)[1].peak
    assert peak is not None
    return peak


def reserved(size: int, **options: Any) -> Recorder:
    recorder = Recorder()
    recorder.reserve(A, size, **options)
    return recorder


def sizes(parts: tuple[MemoryPart, ...]) -> dict[str, int]:
    return {part.name: part.size_bytes for part in parts}


# -- quiet first -------------------------------------------------------------------------------


def test_a_training_step_has_nothing_to_complain_about() -> None:
    recorder = reserved(512 * MIB)
    recorder.alloc(A, 500 * MIB, FORWARD)
    result, _ = judged(recorder)
    assert not result.findings


def test_free_memory_alone_is_no_fragmentation() -> None:
    # most is reserved while nearly all of it is used; that it is free later is a cache
    recorder = reserved(4 * GIB)
    recorder.alloc(A, 4 * GIB - MIB, FORWARD)
    recorder.free(A)
    result, device = judged(recorder)
    assert not [finding for finding in result.findings if finding.code == "MEM049"]
    assert device.fragmentation is not None
    assert device.fragmentation.free_bytes == MIB


def test_whole_free_segments_are_no_fragmentation() -> None:
    # any tensor can use them, and they are given back before a request fails
    recorder = reserved(4 * GIB)
    recorder.reserve(B, 4 * GIB)
    recorder.alloc(A, 4 * GIB - MIB, FORWARD)
    result, device = judged(recorder)
    assert not [finding for finding in result.findings if finding.code == "MEM049"]
    assert device.fragmentation is not None
    assert (device.fragmentation.free_bytes, device.fragmentation.gap_bytes) == (4 * GIB + MIB, MIB)


def test_gaps_are_judged_when_most_is_allocated_not_when_most_is_reserved() -> None:
    recorder = reserved(4 * GIB)
    recorder.alloc(A, 4 * GIB - MIB, FORWARD)
    recorder.free(A)
    recorder.reserve(B, GIB)
    recorder.alloc(A + GIB, MIB, FORWARD)  # a gap, long after the peak
    result, _ = judged(recorder)
    assert not [finding for finding in result.findings if finding.code == "MEM049"]


def test_whole_pages_of_expandable_segments_are_no_gaps() -> None:
    recorder = reserved(4 * GIB, is_expandable=True)
    recorder.alloc(A, GIB, FORWARD)
    _, device = judged(recorder)
    assert device.fragmentation is not None
    assert (device.fragmentation.free_bytes, device.fragmentation.gap_bytes) == (3 * GIB, 0)


def test_gaps_without_the_peak_in_the_history_are_not_judged() -> None:
    recorder = reserved(4 * GIB, recorded=False)
    recorder.alloc(A, GIB, recorded=False)
    recorder.alloc(A + 2 * GIB, GIB, recorded=False)
    recorder.free(A)
    result, _ = judged(recorder)
    assert not [finding for finding in result.findings if finding.code == "MEM049"]
    assert "Fragmentation: not checked" in result.verdict[2]


def test_a_few_free_megabytes_are_nobodys_problem() -> None:
    recorder = reserved(100 * MIB)
    recorder.alloc(A, 10 * MIB, FORWARD)
    result, _ = judged(recorder)
    assert not result.findings
    assert "too little to matter" in result.verdict[2]


def churned(n_rounds: int, frames: list[Any] = FORWARD) -> Recorder:
    recorder = Recorder()
    for _ in range(n_rounds):
        recorder.reserve(A, GIB)
        recorder.alloc(A, GIB - MIB, FORWARD)
        recorder.free(A)
        recorder.release(A, frames)
    recorder.reserve(A, GIB)
    return recorder


def test_segments_given_back_a_few_times_are_changes_of_phase() -> None:
    assert not judged(churned(3))[0].findings
    recorder = Recorder()
    recorder.reserve(B, 32 * GIB)
    recorder.alloc(B, 32 * GIB - MIB, FORWARD)  # the rounds are small beside it
    for _ in range(8):
        recorder.reserve(A, GIB)
        recorder.release(A)
    assert not judged(recorder)[0].findings


def test_segments_taken_and_given_back_again_and_again_are_found() -> None:
    (found,) = judged(churned(8))[0].findings
    assert found.code == "MEM027"
    assert (found.evidence["taken_bytes"], found.evidence["given_bytes"]) == (9 * GIB, 8 * GIB)
    assert "made room" in found.message
    assert "expandable_segments" in found.fix.code
    emptied = [frame("/opt/lib/python3.11/site-packages/torch/cuda/memory.py", 222, "empty_cache"), *TRAIN]
    (found,) = judged(churned(8, emptied))[0].findings
    assert "empty_cache" in found.message
    assert found.place.frame is not None
    assert found.place.frame.file == "/home/me/train.py"


# -- the peak ----------------------------------------------------------------------------------


def test_the_peak_by_phase_purpose_and_line() -> None:
    peak = peak_of(training_step())
    assert peak.allocated_bytes == (64 + 100 + 8 + 64 + 20) * MIB
    assert sizes(peak.phases) == {"forward": 108 * MIB, "backward": 84 * MIB, "other": 64 * MIB}
    assert sizes(peak.categories) == {
        "activations": 100 * MIB,
        "parameters": 64 * MIB,
        "gradients": 64 * MIB,
        "temporaries": 20 * MIB,
        "workspace": 8 * MIB,
    }
    assert sizes(peak.modules)["torch.nn.modules.linear"] == 108 * MIB
    top = peak.lines[0]
    assert top.label == "me/model.py:41 forward"
    assert (top.size_bytes, top.n_allocations, top.category) == (108 * MIB, 2, "activations")
    assert top.frame is not None
    assert (top.frame.line, top.frame.exact) == (41, True)
    assert [frame.function for frame in top.stack] == ["forward", "main"]
    assert peak.lines[1].label == "backward: MmBackward0"


def test_optimizer_state_is_what_init_group_makes() -> None:
    recorder = training_step()
    recorder.alloc(A + 256 * MIB, 200 * MIB, FORWARD)
    peak = peak_of(recorder)
    assert sizes(peak.categories)["optimizer state"] == 50 * MIB
    assert sizes(peak.phases)["optimizer"] == 50 * MIB


def test_the_optimizers_own_annotation_tells_the_phase_without_its_frames() -> None:
    recorder = reserved(64 * MIB)
    recorder.annotate("Optimizer.step#Mine.step", "START")
    recorder.alloc(A, 32 * MIB, [frame("/home/me/mine.py", 3, "apply")])
    recorder.annotate("Optimizer.step#Mine.step", "END")
    assert sizes(peak_of(recorder).phases) == {"optimizer": 32 * MIB}


def test_modules_that_are_built_make_parameters() -> None:
    recorder = reserved(64 * MIB)
    linear = "/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py"
    recorder.alloc(A, 32 * MIB, [frame(linear, 99, "__init__"), *TRAIN])
    peak = peak_of(recorder)
    assert sizes(peak.categories) == {"parameters": 32 * MIB}
    assert sizes(peak.phases) == {"other": 32 * MIB}


def test_operators_of_tensors_are_no_backward_pass() -> None:
    tensor = frame("/opt/lib/python3.11/site-packages/torch/_tensor.py", 39, "wrapped")
    recorder = reserved(64 * MIB)
    recorder.alloc(A, 32 * MIB, [tensor, *FORWARD])
    assert sizes(peak_of(recorder).phases) == {"forward": 32 * MIB}


def test_a_graph_that_is_dropped_is_no_backward_pass() -> None:
    drop = [frame("??", 0, "torch::autograd::generated::MulBackward0::~MulBackward0()"), *TRAIN]
    recorder = reserved(64 * MIB)
    recorder.alloc(A, 32 * MIB, [frame("/home/me/loss.py", 8, "loss"), *TRAIN])
    recorder.free(A, drop)
    assert sizes(peak_of(recorder).categories) == {"unknown": 32 * MIB}


def test_what_was_there_before_counts_apart() -> None:
    recorder = reserved(64 * MIB, recorded=False)
    recorder.alloc(A, 16 * MIB, recorded=False)
    recorder.alloc(A + 16 * MIB, 8 * MIB, recorded=False)
    recorder.free(A + 16 * MIB)  # known by its end alone
    recorder.alloc(A + 32 * MIB, 32 * MIB, FORWARD)
    peak = peak_of(recorder)
    assert peak.allocated_bytes == 48 * MIB
    assert peak.before_bytes == 16 * MIB
    lives = timeline(read(recorder), 0)
    assert lives.allocated_bytes[0] == 24 * MIB
    assert lives.reserved_bytes[0] == 64 * MIB


def test_requests_are_rounded_as_the_allocator_does() -> None:
    recorder = reserved(2 * MIB)
    recorder.alloc(A, 1)
    recorder.alloc(A + 512, 513)
    recorder.free(A)
    _, device = judged(recorder)
    assert device.peak is not None
    assert device.peak.allocated_bytes == 512 + 1024
    assert (device.requested_bytes, device.allocated_bytes) == (513, 1024)


def test_requests_are_rounded_as_the_recorded_settings_say() -> None:
    recorder = Recorder()
    for at in (A, B):
        recorder.reserve(at, 1536 * MIB)
        recorder.alloc(at, 1100 * MIB)
    for at in (A, B):
        recorder.free(at)
    document = recorder.dump()
    document["allocator_settings"]["roundup_power2_divisions"] = {str(1 << i): 2 for i in range(16)}
    (device,) = judge(read(document)).devices
    assert device.peak is not None
    assert device.peak.allocated_bytes == 3 * GIB
    assert device.fragmentation is not None
    assert device.fragmentation.gap_bytes == 0


@pytest.mark.parametrize("divisions", ["many", float("inf"), 1e30, -1])
def test_settings_that_are_not_pytorchs_do_no_harm(divisions: Any) -> None:
    document = training_step().dump()
    document["allocator_settings"]["roundup_power2_divisions"] = {"1": divisions}
    (device,) = judge(read(document)).devices
    assert device.peak is not None
    assert device.peak.allocated_bytes >= 256 * MIB


def test_an_address_used_again_is_another_life() -> None:
    recorder = reserved(64 * MIB)
    for size in (MIB, 2 * MIB, 3 * MIB):
        recorder.alloc(A, size)
        recorder.free(A)
    lives = timeline(read(recorder), 0)
    assert lives.lives.size_bytes.tolist() == [MIB, 2 * MIB, 3 * MIB]
    assert lives.peak_bytes == 3 * MIB
    assert lives.allocated_bytes.min() == 0


def test_a_history_without_requests_to_free_is_read_by_their_completion() -> None:
    recorder = training_step()
    document = recorder.dump()
    trace = document["device_traces"][0]
    trace[:] = [entry for entry in trace if entry["action"] != "free_requested"]
    device = judge(read(document)).devices[0]
    assert device.peak is not None
    assert device.peak.allocated_bytes == 256 * MIB


# -- out of memory -----------------------------------------------------------------------------


def failed(recorder: Recorder) -> tuple[MemoryResult, OutOfMemory]:
    result, device = judged(recorder)
    (mortem,) = device.out_of_memory
    assert sum(part.size_bytes for part in mortem.parts) == mortem.free_bytes
    assert mortem.free_bytes == mortem.reserved_bytes - mortem.allocated_bytes
    assert [finding.code for finding in result.findings if finding.code == "MEM048"] == ["MEM048"]
    assert not [finding for finding in result.findings if finding.code == "MEM049"]
    return result, mortem


def test_each_free_byte_has_one_cause() -> None:
    recorder = reserved(100 * MIB)
    recorder.alloc(A, 40 * MIB)
    recorder.alloc(A + 50 * MIB, 50 * MIB)  # 10 MiB between them
    recorder.reserve(B, 30 * MIB, stream=7)
    recorder.reserve(C, 2 * MIB)
    recorder.alloc(C, 256 * KIB)
    recorder.reserve(D, 60 * MIB, pool=(0, 3))
    recorder.reserve(D + GIB, 20 * MIB)
    recorder.alloc(D + GIB, 10 * MIB)
    recorder.free(D + GIB, completed=False)
    recorder.oom(64 * MIB, 5 * MIB)
    _, mortem = failed(recorder)
    assert sizes(mortem.parts) == {
        # 10 MiB between two tensors, 10 MiB beside what waits
        PIECES: 20 * MIB,
        OTHER_STREAM: 30 * MIB,
        OTHER_POOL: 2 * MIB - 256 * KIB,
        PRIVATE: 60 * MIB,
        AWAITING: 10 * MIB,
    }
    assert mortem.device_free_bytes == 5 * MIB
    assert mortem.would_fit


def test_fragmentation_is_told_from_too_much_alive() -> None:
    full = reserved(100 * MIB)
    full.alloc(A, 90 * MIB, FORWARD)
    full.oom(64 * MIB, 5 * MIB)
    result, mortem = failed(full)
    assert not mortem.would_fit
    assert mortem.sentences[-2:] == (
        "All free memory together was 49.0 MiB too little: too much was alive.",
        "me/model.py:41 forward held most: 90.0 MiB in 1 allocation.",
    )
    assert "An allocation of 64.0 MiB failed at /home/me/model.py:41 forward" in result.verdict[0]
    assert "me/model.py:41 forward" in result.findings[0].fix.text

    holes = reserved(220 * MIB)
    holes.alloc(A + 60 * MIB, 20 * MIB, FORWARD)
    holes.alloc(A + 140 * MIB, 20 * MIB, FORWARD)
    holes.oom(64 * MIB, 0)
    result, mortem = failed(holes)
    assert mortem.next_would_fit
    assert mortem.largest_bytes == 60 * MIB
    assert "fragmentation is the cause" in " ".join(mortem.sentences)
    assert "expandable_segments" in result.findings[0].fix.code


def test_gaps_that_hold_the_request_but_not_the_next_are_not_the_cause() -> None:
    recorder = reserved(100 * MIB)
    recorder.alloc(A + 40 * MIB, 20 * MIB, FORWARD)
    recorder.oom(64 * MIB, 0)
    result, mortem = failed(recorder)
    assert (mortem.would_fit, mortem.next_would_fit) == (True, False)
    assert "too much was alive" in mortem.sentences[-2]
    assert "expandable_segments" not in result.findings[0].fix.code


def test_memory_of_other_streams_is_no_fragmentation() -> None:
    recorder = reserved(100 * MIB)
    recorder.alloc(A, 90 * MIB, FORWARD)
    recorder.reserve(B, 200 * MIB, stream=5)
    recorder.oom(64 * MIB, 0)
    _, mortem = failed(recorder)
    assert mortem.would_fit
    assert "cached for other streams" in mortem.sentences[-2]


def test_whole_segments_and_large_pieces_are_named_as_such() -> None:
    recorder = reserved(100 * MIB)
    recorder.reserve(B, 200 * MIB)
    recorder.alloc(B, 20 * MIB)
    recorder.oom(64 * MIB, 0)
    _, mortem = failed(recorder)
    assert sizes(mortem.parts) == {WHOLE: 100 * MIB, LARGE: 180 * MIB}


def test_segments_given_back_before_are_no_part_of_it() -> None:
    recorder = reserved(100 * MIB)
    recorder.alloc(A, 60 * MIB)
    recorder.reserve(B, 50 * MIB)
    recorder.release(B)
    recorder.oom(64 * MIB, 0)
    recorder.reserve(C, 300 * MIB)
    _, mortem = failed(recorder)
    assert mortem.reserved_bytes == 100 * MIB


def test_only_the_last_of_many_failures_are_told_in_full() -> None:
    recorder = reserved(100 * MIB)
    recorder.alloc(A, 60 * MIB)
    for _ in range(50):
        recorder.oom(64 * MIB, 0)
    result, device = judged(recorder)
    assert device.n_out_of_memory == 50
    assert len(device.out_of_memory) == 20
    assert result.findings[0].message.startswith("50 failed allocations")


def test_expandable_segments_grow_and_shrink_in_pages() -> None:
    recorder = reserved(60 * MIB, recorded=False, is_expandable=True)
    recorder.alloc(A, 10 * MIB, recorded=False)
    for action, at in (("segment_map", 20), ("segment_map", 40), ("segment_unmap", 80)):
        recorder._entry(action, A + at * MIB, 20 * MIB, [], 0)
    snapshot = read(recorder)
    lives = timeline(snapshot, 0)
    # what was unmapped last was there before, beside the first 20 MiB
    assert lives.reserved_bytes.tolist() == [40 * MIB, 60 * MIB, 80 * MIB, 60 * MIB]
    for row, sizes in enumerate(([20, 20, 20], [20, 20, 20, 20], [60])):
        found = segments_at(snapshot, lives, row)
        assert sum(segment.end - segment.start for segment in found) == sum(sizes) * MIB
        assert all(a.end <= b.start for a, b in pairwise(found))
        free = free_at(snapshot, lives, row, found)
        assert free.size_bytes.sum() == (sum(sizes) - 10) * MIB


# -- fragmentation -----------------------------------------------------------------------------


def test_memory_that_no_tensor_could_use_is_a_finding() -> None:
    recorder = reserved(2 * GIB)
    recorder.alloc(A, GIB, FORWARD)
    recorder.alloc(A + GIB + 512 * MIB, 512 * MIB, FORWARD)
    result, device = judged(recorder)
    found = [finding for finding in result.findings if finding.code == "MEM049"]
    assert len(found) == 1
    assert found[0].evidence["free_bytes"] == 512 * MIB
    assert device.fragmentation is not None
    assert device.fragmentation.largest_bytes == 512 * MIB


def test_expandable_segments_are_not_advised_where_they_are_on() -> None:
    for fails in (True, False):
        recorder = reserved(2 * GIB, is_expandable=True)
        for place in range(0, 128, 2):
            recorder.alloc(A + place * 16 * MIB, 16 * MIB, FORWARD)
        if fails:
            recorder.oom(64 * MIB, 0)
        document = recorder.dump()
        document["allocator_settings"]["expandable_segments"] = True
        (found,) = (one for one in judge(read(document)).findings if one.code in ("MEM048", "MEM049"))
        assert found.code == ("MEM048" if fails else "MEM049")
        assert found.fix.text.startswith("Segments grow already: ")
        assert "expandable" not in found.fix.code


# -- several devices ---------------------------------------------------------------------------


def test_what_was_found_for_one_device_is_not_said_of_another() -> None:
    one, other = Recorder(), Recorder(device=1)
    attention = [frame("??", 0, "at::_ops::softmax::call(at::Tensor const&)"), frame("/home/me/attn.py", 40, "attend")]
    for recorder, at, size, stack in ((one, A, 4 * GIB, attention), (other, C, GIB, FORWARD)):
        recorder.reserve(at, 8 * size)
        for place in range(8):
            recorder.alloc(at + place * size, size, stack)
        recorder.oom(GIB, 0)
    result = judge(read(together(one, other)))
    fixes = {found.evidence["device"]: found.fix.text for found in result.findings if found.code == "MEM048"}
    assert "attn.py:40" in fixes[0]
    assert "attn.py" not in fixes[1]
    assert "model.py:41" in fixes[1]


def test_settings_are_replayed_for_the_device_with_most_and_said_to_be() -> None:
    busy, full = Recorder(), Recorder(device=1)
    busy.reserve(A, 128 * MIB)
    for _ in range(100):
        busy.alloc(A, 128 * MIB)
        busy.free(A)
    full.reserve(C, 4 * GIB)
    full.alloc(C, 4 * GIB)
    result = judge(read(together(busy, full)))
    assert result.advice.startswith("GPU 1: No allocator setting can save")


# -- the picture -------------------------------------------------------------------------------


def test_the_picture_adds_up_at_every_moment() -> None:
    snapshot = read(training_step())
    lives = timeline(snapshot, 0)
    (device,) = judge(snapshot).devices
    picture = device.picture
    assert picture is not None
    drawn = np.array([area.values for area in picture.areas]).sum(axis=0)
    assert drawn.tolist() == lives.allocated_bytes.tolist()
    assert picture.reserved_bytes == tuple(lives.reserved_bytes.tolist())
    (row,) = picture.segments
    assert row.pieces[0][0] == 0
    assert row.pieces[-1][1] == row.size_bytes
    assert all(a[1] == b[0] for a, b in pairwise(row.pieces))
    assert row.allocated_bytes == 256 * MIB


def test_many_moments_and_owners_are_merged_and_keep_the_peak() -> None:
    recorder = reserved(GIB)
    for i in range(3000):
        where = [frame("/home/me/model.py", i % 90, "forward"), *TRAIN]
        recorder.alloc(A, (1 + i * 7919 % 1000) * KIB, where)
        recorder.alloc(A + 4 * MIB, 4 * KIB, BACKWARD)
        recorder.free(A)
        recorder.free(A + 4 * MIB)
    snapshot = read(recorder)
    lives = timeline(snapshot, 0)
    (device,) = judge(snapshot).devices
    picture = device.picture
    assert picture is not None
    assert len(picture.entries) <= 602
    assert len(picture.areas) <= 24
    drawn = np.array([area.values for area in picture.areas]).sum(axis=0)
    assert drawn.max() == lives.peak_bytes
    rows = np.array(picture.entries) + 1
    assert drawn.tolist() == lives.allocated_bytes[rows].tolist()


def test_judging_says_what_is_done_next() -> None:
    said: list[str] = []
    judge(read(training_step()), said.append)
    assert said[0] == "who allocated"
    assert "memory over time, device 0" in said
    assert "replaying the history" in said
    assert said[-1] == "checkpointing"
