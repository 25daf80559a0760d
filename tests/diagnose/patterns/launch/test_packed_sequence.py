"""LCH076 packed-sequence, on built traces; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.core.engine import READER_VARIABLE
from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.launch.packed_sequence import find

T, BATCH, N, WIDTH, HIDDEN = 50, 32, 1000, 64, 128
FLAGS = ["", "", "", "", "True", "1", "0.", "True", "False"]
STATE = [1, BATCH, HIDDEN]
DIMS = [[N, WIDTH], [T], [STATE, STATE], [[4 * HIDDEN, WIDTH], [4 * HIDDEN, HIDDEN]], [], [], [], [], []]
NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def steps(
    us: float = 2000,
    *,
    dims: Any = DIMS,
    dtype: str = "float",
    flags: list[str] = FLAGS,
    back: bool = True,
    vendor: str = "cpu",
) -> list[Claim]:
    """Four steps of 20 ms, each with a layer, and twice its time in the backward pass."""
    builder = TraceBuilder(vendor=vendor)
    for step in range(4):
        at = 20_000 * step
        builder.step(step, at, 20_000)
        builder.op("aten::lstm", at + 10, us, dims=dims, types=[dtype], concrete=flags)
        builder.op("aten::addmm", at + 20, 30, seq=100 * step)
        if back:
            builder.op(NODE, at + 10_000, 2 * us, seq=100 * step)
        if vendor != "cpu":
            builder.launch(at + 30, 5, at + 40, 100)
    return builder.claims(find)


def changed(at: int, value: Any) -> list[Any]:
    return [*DIMS[:at], value, *DIMS[at + 1 :]]


def test_its_time_and_that_of_its_backward_pass() -> None:
    (claim,) = steps()
    filled = N / (T * BATCH)
    assert claim.evidence["host_ms_per_step"] == 6.0
    assert claim.evidence["share_filled"] == filled
    (edit,) = claim.edits
    assert (edit.factor, edit.best) == (pytest.approx(0.5 / filled), pytest.approx(0.05 / filled))
    assert "computes 50 time steps one after another; the padded batch, in one call, would be 62" in claim.message


def test_without_a_backward_pass_less_goes() -> None:
    (claim,) = steps(dims=changed(0, [T * BATCH, WIDTH]), back=False)
    assert claim.evidence["host_ms_per_step"] == 2.0
    assert claim.edits[0].factor == pytest.approx(0.8)


@pytest.mark.parametrize(("width", "worst"), [(1000, 0.5), (1200, 0.8)])
def test_of_large_time_steps_less_goes(width: int, worst: float) -> None:
    (claim,) = steps(dims=changed(0, [N, width]))  # 20 sequences at a time, 8 * 128 * (width + 128) operations for each
    assert claim.edits[0].factor == pytest.approx(min(worst * T * BATCH / N, 1.0))


def test_mostly_full_or_nothing() -> None:
    assert steps(dims=changed(0, [T * BATCH // 2, WIDTH]))
    assert not steps(dims=changed(0, [T * BATCH // 2 - 1, WIDTH]))


@pytest.mark.parametrize(
    "given",
    [
        {"us": 100},
        {"vendor": "nvidia"},
        {"dtype": "double"},
        {"flags": [*FLAGS[:-1], "True"]},
        {"flags": []},
        {"dims": [[BATCH, T, WIDTH], [STATE, STATE], DIMS[3], [], [], [], [], [], []]},
        {"dims": changed(1, [7])},
        {"dims": changed(2, [[1, BATCH, 32], STATE])},
        {"dims": changed(2, [])},
        {"dims": []},
    ],
    ids=[
        *("short", "device", "double", "both-directions", "unknown", "padded", "few-steps", "projected"),
        *("no-state", "no-shapes"),
    ],
)
def test_what_is_fast_or_something_else(given: dict[str, Any]) -> None:
    assert steps(**given) == []


@pytest.mark.parametrize("reader", ["", "python"])
def test_programs_without_recurrent_layers(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READER_VARIABLE, reader)
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        builder.step(step, 1000 * step, 1000).op("aten::mm", 1000 * step + 10, 500)
    assert builder.claims(find) == []


@pytest.mark.torch
def test_what_torch_records(tmp_path: Any) -> None:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    from torchtriage import load
    from torchtriage.core.trace.op_inputs import inputs_of
    from torchtriage.diagnose.patterns.launch.packed_sequence import _packed

    lstm = torch.nn.LSTM(8, 16, batch_first=True)
    packed = pack_padded_sequence(torch.randn(4, 12, 8), torch.tensor([12, 9, 7, 3]), batch_first=True)
    with torch.profiler.profile(record_shapes=True) as profile:
        lstm(packed)
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = load(tmp_path / "trace.json")
    (call,), _ = inputs_of(trace, trace.named("aten::lstm").nonzero()[0])
    assert _packed(call)[:3] == (12, 4, 31)
