"""SYN004 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.sync.host_sync_print_log import find

READBACK = "DtoH (Device -> Pageable)"


def read(trace: TraceBuilder, at: float) -> None:
    trace.op("aten::item", at, 30).op("aten::_local_scalar_dense", at + 5, 23)
    trace.copy(at + 8, 16, at + 15, 1, kind=READBACK)


def loop(frame: str = "", *, steps: int = 4, every: int = 1, device: bool = True) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 50)
        if step % every == every - 1:
            if frame:
                trace.frame("train.py(3): log_step", start + 150, 200)
                trace.frame(frame, start + 190, 100)
            if device:
                read(trace, start + 200)
            else:
                trace.op("aten::item", start + 200, 3)
        trace.launch(start + 500, 5, start + 510, 50)
    return trace.profiler_stop(steps * 1000 + 1, 5)


def printing(*, device: bool = True) -> TraceBuilder:
    """Return steps that print a tensor, recorded without stacks."""
    trace = TraceBuilder()
    for step in range(4):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 50)
        at = start + 200
        for name in ("aten::isfinite", "aten::ne", "aten::masked_select", "aten::abs", "aten::max"):
            trace.op(name, at, 4)
            at += 5
        if device:
            read(trace, at)
        trace.op("aten::mul", at + 40, 5)
        trace.launch(start + 500, 5, start + 510, 50)
    return trace.profiler_stop(4001, 5)


def test_quiet_without_a_logging_frame() -> None:
    assert not loop("train.py(9): decide").claims(find)
    assert not loop().claims(find)


def test_quiet_on_cpu_tensors() -> None:
    assert not loop("<built-in function print>", device=False).claims(find)
    assert not printing(device=False).claims(find)


def test_quiet_at_an_interval() -> None:
    assert not loop("<built-in function print>", steps=10, every=5).claims(find)


@pytest.mark.parametrize(
    "frame",
    [
        "<built-in function print>",
        "torch/_tensor_str.py(700): _str",
        "torch/_tensor.py(900): __format__",
        "logging/__init__.py(1480): info",
        "torch/utils/tensorboard/writer.py(360): add_scalar",
        "tqdm/std.py(1400): set_postfix",
        "/usr/lib/python3.11/site-packages/wandb/sdk/wandb_run.py(1): log",
    ],
)
def test_a_value_printed_in_every_step(frame: str) -> None:
    (claim,) = find(loop(frame).build())
    assert claim.certainty == "likely"
    assert claim.evidence["n_reads_per_step"] == 1
    assert claim.evidence["call_sites"] == ["train.py(3): log_step"]


def test_a_printed_tensor_without_stacks() -> None:
    (claim,) = find(printing().build())
    assert claim.evidence["n_reads_per_step"] == 1


def test_the_whole_logging_frame_counts_at_the_high_end() -> None:
    built = loop("<built-in function print>").build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    assert (lengths * claim.gain_high).sum() == pytest.approx(4 * 100_000)
    assert (lengths * claim.gain_low).sum() == pytest.approx(4 * 16_000 / built.origin.inflation)
