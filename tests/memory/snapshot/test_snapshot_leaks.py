"""A snapshot's history: steps are found, and what each of them leaves behind is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memory.recorder import BACKWARD, FORWARD, KIB, MIB, TRAIN, Recorder, frame, read, together

from torchtriage.memory.leaks import growth_test
from torchtriage.memory.snapshot import snapshot_leaks
from torchtriage.memory.snapshot.attribution import Owners
from torchtriage.memory.snapshot.result import Opinion
from torchtriage.memory.snapshot.timeline import timeline

AT = 0x10_0000_0000
BATCH = [frame("/home/me/train.py", 12, "main")]
KEPT = [frame("/home/me/train.py", 15, "main")]
LAYERS = [
    [
        frame("/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward"),
        frame("/home/me/model.py", 40 + layer, "forward"),
        *TRAIN,
    ]
    for layer in range(4)
]


def loop(
    n_steps: int,
    *,
    keep: dict[int, list[Any]] | None = None,
    kept_until: int = 1000,
    marks: bool = False,
    frames: list[Any] = KEPT,
    size: int = 64 * KIB,
) -> Recorder:
    """Steps of batch, forward, backward; ``keep`` adds kept blocks per step until a step."""
    one = Recorder()
    one.reserve(AT, 1024 * MIB)
    free = AT + 256 * MIB
    for step in range(n_steps):
        if marks:
            one.annotate(f"ProfilerStep#{step}", "START")
        one.alloc(AT, 1 * MIB, BATCH)
        one.alloc(AT + 1 * MIB, 4 * MIB, FORWARD)
        for stack in (keep or {0: frames}).values() if step < kept_until else ():
            one.alloc(free, size, stack)
            free += size
        one.alloc(AT + 8 * MIB, 2 * MIB, BACKWARD)
        one.free(AT + 1 * MIB, BACKWARD)
        one.free(AT + 8 * MIB, BACKWARD)
        one.free(AT, BATCH)
        if marks:
            one.annotate(f"ProfilerStep#{step}", "END")
    return one


def judged(*recorders: Recorder) -> Opinion:
    """Return the opinion on recorders of devices 0, 1, ..., in one file."""
    told = read(together(*recorders))
    return snapshot_leaks.judge_snapshot(Owners.of(told), [timeline(told, device) for device in told.devices])


def test_level_memory_is_no_leak() -> None:
    opinion = judged(loop(20, kept_until=0))
    assert not opinion.findings
    assert opinion.sentence.startswith("No leak: allocated memory changed by 0 B")


def test_a_cache_that_fills_is_no_leak() -> None:
    assert not judged(loop(20, kept_until=9)).findings


def test_what_each_step_replaces_is_no_leak() -> None:
    one = loop(0)
    for step in range(20):
        one.alloc(AT, 1 * MIB, BATCH)
        one.alloc(AT + (16 + step % 2 * 8) * MIB, 8 * MIB, KEPT)
        if step:
            one.free(AT + (16 + (step + 1) % 2 * 8) * MIB, KEPT)
        one.free(AT, BATCH)
    assert not judged(one).findings


@pytest.mark.parametrize("n_steps", [8, 40])
def test_growth_in_every_second_step_is_not_called_no_leak(n_steps: int) -> None:
    one = Recorder()
    for step in range(n_steps):
        one.annotate(f"ProfilerStep#{step}", "START")
        one.alloc(AT, 1 * MIB, BATCH)
        if step % 2:
            one.reserve(AT + step * 64 * MIB, 64 * MIB)
            one.alloc(AT + step * 64 * MIB, 64 * MIB, KEPT)
        one.free(AT, BATCH)
        one.annotate(f"ProfilerStep#{step}", "END")
    opinion = judged(one)
    assert not opinion.findings
    assert opinion.sentence.startswith("Leak: not certain. Allocated memory grew by ")
    assert "from me/train.py:15 main (" in opinion.sentence
    assert "cache" not in opinion.sentence
    assert [missing.code for missing in opinion.not_checked] == [growth_test.CODE]


@pytest.mark.parametrize(("n_steps", "at"), [(12, 7), (40, 22), (1000, 600)])
def test_what_is_kept_once_is_no_leak(n_steps: int, at: int) -> None:
    one = Recorder()
    one.reserve(AT, 64 * MIB)
    for step in range(n_steps):
        one.annotate(f"ProfilerStep#{step}", "START")
        one.alloc(AT, 1 * MIB, BATCH)
        if step == at:
            one.alloc(AT + 8 * MIB, 2 * MIB, KEPT)
        one.free(AT, BATCH)
        one.annotate(f"ProfilerStep#{step}", "END")
    assert judged(one).sentence.startswith("No leak: allocated memory changed by 2.00 MiB")


def test_a_device_without_steps_is_not_checked() -> None:
    other = Recorder(device=1)
    other.reserve(2 * AT, 1024 * MIB)
    other.alloc(2 * AT, 512 * MIB, KEPT)
    opinion = judged(loop(20, kept_until=0), other)
    assert opinion.sentence.startswith("GPU 0: No leak")
    (missing,) = opinion.not_checked
    assert missing.missing == ("history of 7 similar steps on device 1",)


def test_a_list_that_is_built_once_is_not_steps() -> None:
    one = Recorder()
    for layer in range(12):
        one.reserve(AT + layer * 64 * MIB, 64 * MIB)
        one.alloc(AT + layer * 64 * MIB, 32 * MIB, KEPT)
        one.alloc(AT + (layer * 64 + 32) * MIB, 32 * MIB, BATCH)
    opinion = judged(one)
    assert not opinion.findings
    assert [missing.code for missing in opinion.not_checked] == [growth_test.CODE]


def test_layers_are_not_steps() -> None:
    """A forward that is still under way keeps each layer's output; that is not a leak."""
    one = Recorder()
    one.reserve(AT, 1024 * MIB)
    for layer in range(24):
        one.alloc(AT + layer * MIB, 1 * MIB, LAYERS[0])
    opinion = judged(one)
    assert not opinion.findings
    assert [missing.code for missing in opinion.not_checked] == [growth_test.CODE]


def test_a_loop_over_parameters_is_not_steps() -> None:
    one = loop(1, kept_until=0)
    for parameter in range(30):
        one.alloc(AT + (400 + parameter) * MIB, 1 * MIB, KEPT)
    for _ in range(200):
        one.alloc(AT, 1 * MIB, FORWARD)
        one.free(AT, FORWARD)
    assert not judged(one).findings


@pytest.mark.parametrize("marks", [False, True])
def test_a_list_that_grows_is_told_with_its_line(marks: bool) -> None:
    (finding,) = judged(loop(20, marks=marks)).findings
    assert finding.code == "MEM029"
    assert finding.place.frame is not None
    assert (finding.place.frame.line, finding.place.frame.exact) == (15, True)
    assert finding.evidence["growth_bytes_per_step"] == 64 * KIB
    assert finding.evidence["kept_bytes_per_step"] == 64 * KIB
    assert finding.evidence["kind"] == "tensor"
    assert finding.certainty == ("certain" if marks else "likely")


def test_many_stacks_of_the_forward_are_a_graph() -> None:
    (finding,) = judged(loop(20, keep=dict(enumerate(LAYERS)))).findings
    assert finding.evidence["kind"] == "graph"
    assert finding.evidence["kept_bytes_per_step"] == 4 * 64 * KIB
    assert "autograd graph is kept" in finding.message


def test_a_hook_is_told_by_its_name() -> None:
    hook = [frame("/home/me/train.py", 31, "save_hook"), *TRAIN]
    (finding,) = judged(loop(20, frames=hook)).findings
    assert finding.evidence["kind"] == "hook"


def test_too_few_steps_are_not_checked() -> None:
    opinion = judged(loop(6))
    assert not opinion.findings
    assert opinion.sentence == ""
    assert opinion.not_checked[0].how_to_record


def test_kept_losses_do_no_harm() -> None:
    assert not judged(loop(20, size=512)).findings


def test_reserved_that_grows_alone_is_named() -> None:
    one = loop(0)
    for step in range(20):
        one.alloc(AT, 1 * MIB, BATCH)
        one.reserve(AT + (2000 + 20 * step) * MIB, 20 * MIB)
        one.free(AT, BATCH)
    opinion = judged(one)
    assert not opinion.findings
    assert "the allocator's cache or fragmentation, not a leak" in opinion.sentence


def test_steps_by_marks_and_by_period_agree() -> None:
    one = read(loop(20, marks=True))
    owners, told = Owners.of(one), timeline(one, 0)
    marked = snapshot_leaks.find_steps(owners, told)
    assert marked is not None
    assert len(marked.row) == 20
    other = read(loop(20))
    period = snapshot_leaks.find_steps(Owners.of(other), timeline(other, 0))
    assert period is not None
    assert len(period.row) == 20
    assert "period" in period.basis


def test_growth_is_drawn_with_its_line_and_its_stacks() -> None:
    keep = {0: KEPT, 1: BATCH}
    (told,) = judged(loop(12, keep=keep, size=MIB)).growth
    assert told.is_leak
    assert told.steps == tuple(range(1, 12))
    assert set(np.diff(told.held_bytes)) == {2 * MIB}
    assert told.slope_bytes == told.slope_low_bytes == told.slope_high_bytes == 2 * MIB
    at_middle = told.held_bytes[told.steps.index(int(told.middle_step))]
    assert told.middle_bytes == at_middle
    assert {one.label for one in told.areas} == {"me/train.py:12 main", "me/train.py:15 main"}
    for area in told.areas:
        # what is left behind by a step: nothing at the first boundary, one block more at each
        assert area.values == tuple(range(0, 11 * MIB, MIB))


def test_level_memory_is_drawn_without_a_leak() -> None:
    (told,) = judged(loop(12, kept_until=0)).growth
    assert not told.is_leak
    assert told.areas == ()
    assert (told.slope_low_bytes, told.slope_high_bytes) == (0, 0)
