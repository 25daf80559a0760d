"""LCH106 unrolled-recurrence, on built traces; times in microseconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import lookup
from torchtriage.diagnose.patterns.launch.unrolled_recurrence import PATTERN, find

T, BATCH, WIDTH = 12, 32, 256
WEIGHTS = [[768, 256], [768, 256], [768], [768]]
ROUND = 100.0
FLAGS = ["", "", "", "True", "1", "0.", "True", "False", "False"]
Before = Callable[[TraceBuilder, float, int], None]


def select(b: TraceBuilder, at: float, t: int) -> None:
    b.op("aten::select", at, 2, dims=[[BATCH, T], [], []], concrete=["", "1", str(t)])
    b.op("aten::embedding", at + 3, 10, dims=[[100, WIDTH], [BATCH], [], [], []])
    b.op("aten::view", at + 14, 2, dims=[[BATCH, WIDTH], []])


def gru(b: TraceBuilder, at: float, *, flags: list[str], shape: list[int]) -> None:
    b.op("aten::gru", at, 40, dims=[shape, [1, BATCH, WIDTH], WEIGHTS, *6 * [[]]], concrete=flags)
    b.op("aten::_cudnn_rnn", at + 2, 35, seq=100)


def cell(b: TraceBuilder, at: float, name: str) -> None:
    b.op(f"aten::{name}", at, 40, dims=[[BATCH, WIDTH], [BATCH, WIDTH], *WEIGHTS])


def stepping(
    before: Before = select,
    *,
    name: str = "gru",
    rounds: int = T,
    after: str = "",
    flags: list[str] = FLAGS,
    shape: tuple[int, ...] = (1, BATCH, WIDTH),
    vendor: str = "cuda",
    steps: int = 4,
) -> TraceBuilder:
    """Steps of a loop over time, then a backward pass of as many nodes; each launches a kernel of 5 us."""
    b = TraceBuilder(vendor=vendor)
    wall = 2 * ROUND * rounds + 100
    for step in range(steps):
        begin = wall * step
        b.step(step, begin, wall)
        for t in range(rounds):
            at = begin + ROUND * t
            before(b, at, t)
            if name == "gru":
                gru(b, at + 20, flags=flags, shape=list(shape))
            else:
                cell(b, at + 20, name)
            if vendor != "cpu":
                b.launch(at + 30, 5, at + 40, 5)
            if after:
                b.op(after, at + 62, 20, dims=[[BATCH, 100], [], []])
        for t in range(rounds):
            at = begin + ROUND * (rounds + t)
            b.op("autograd::engine::evaluate_function: CudnnRnnBackward0", at, 90, seq=100)
            if vendor != "cpu":
                b.launch(at + 30, 5, at + 40, 5)
    return b


def test_loud_on_a_layer_called_for_every_time_step() -> None:
    (claim,) = stepping().claims(find)
    assert claim.certainty == "likely"
    assert claim.message.startswith("aten::gru is called 12 times per step for one time step each")
    assert claim.evidence["n_calls_per_step"] == T
    assert claim.evidence["input_shape"] == [1, BATCH, WIDTH]
    assert claim.fix is None


def test_its_cost_is_the_idle_time_of_its_rounds_forward_and_backward() -> None:
    builder = stepping()
    trace = builder.build()
    (claim,) = find(trace)
    idle = trace.steps.judged_ns(claim.spans) / trace.steps.n_steady / 1e3
    # all but the kernels, from the first round to the last node of the backward pass
    assert idle == pytest.approx((2 * T - 1) * (ROUND - 5), rel=0.05)
    assert claim.time_class == "idle"
    gain = 1 - 1 / T
    assert claim.gain_high == pytest.approx(gain)
    assert claim.gain_low == pytest.approx(0.5 * gain / trace.origin.inflation)
    (edit,) = claim.edits
    assert (edit.kind, edit.best) == ("threads", pytest.approx(1 - gain))


def test_the_place_is_the_loop() -> None:
    trace = stepping().build()
    (claim,) = find(trace)
    assert trace.name_of(claim.anchor) == "aten::select"


def test_it_owns_its_time_before_the_rate_of_launching() -> None:
    assert PATTERN.order < min(lookup(code).pattern.order for code in ("LCH014", "HST020"))


def sliced(b: TraceBuilder, at: float, t: int) -> None:
    b.op("aten::slice", at, 2, dims=[[T, BATCH, WIDTH], *4 * [[]]], concrete=["", "0", str(t), str(t + 1), "1"])


def nothing(b: TraceBuilder, at: float, t: int) -> None:
    pass


def unbound(b: TraceBuilder, at: float, t: int) -> None:
    if not t:
        b.op("aten::unbind", at, 2, dims=[[T, BATCH, WIDTH], []], concrete=["", "0"])


@pytest.mark.parametrize("before", [select, sliced, unbound])
@pytest.mark.parametrize("name", ["gru", "lstm_cell", "gru_cell", "rnn_tanh_cell"])
def test_loud_on_inputs_that_are_parts_of_one_tensor(before: Before, name: str) -> None:
    (claim,) = stepping(before, name=name).claims(find)
    assert claim.certainty == "likely"


def test_loud_on_batches_first() -> None:
    (claim,) = stepping(flags=[*FLAGS[:8], "True"], shape=(BATCH, 1, WIDTH)).claims(find)
    assert claim.certainty == "likely"


def backwards(b: TraceBuilder, at: float, t: int) -> None:
    select(b, at, T - 1 - t)


def test_loud_where_the_first_call_makes_the_state() -> None:
    builder = stepping()
    for step in range(4):
        builder.op("aten::zeros", (2 * ROUND * T + 100) * step + 18, 1, dims=[[], [], [], [], []])
    (claim,) = builder.claims(find)
    assert claim.certainty == "likely"


def test_loud_from_the_last_to_the_first() -> None:
    (claim,) = stepping(backwards).claims(find)
    assert claim.certainty == "likely"


def test_loud_on_both_directions_one_after_the_other() -> None:
    def forth_and_back(b: TraceBuilder, at: float, t: int) -> None:
        select(b, at, t if t < T else 2 * T - 1 - t)

    (claim,) = stepping(forth_and_back, rounds=2 * T).claims(find)
    assert claim.certainty == "likely"


def stacked(builder: TraceBuilder, *, weights: list[list[int]]) -> TraceBuilder:
    for event in [event for event in builder.events if event["name"] == "aten::gru_cell"]:
        builder.op("aten::gru_cell", event["ts"] + 41, 20, dims=[[BATCH, WIDTH], [BATCH, WIDTH], *weights])
    return builder


@pytest.mark.parametrize("weights", [WEIGHTS, [[384, 128], [384, 128], [384], [384]]])
def test_layers_above_one_another_are_one_finding(weights: list[list[int]]) -> None:
    (claim,) = stacked(stepping(name="gru_cell"), weights=weights).claims(find)
    assert claim.certainty == "likely"


def test_on_a_cpu_its_host_time() -> None:
    (claim,) = stepping(vendor="cpu").claims(find)
    assert claim.time_class == "host"
    assert "take" in claim.message


# -- what cannot be batched -------------------------------------------------------------------------


def test_a_hint_without_a_saving_where_the_inputs_are_not_seen() -> None:
    (claim,) = stepping(nothing, name="gru_cell").claims(find)
    assert claim.certainty == "hint"
    assert claim.time_class == "none"
    assert not len(claim.spans)


@pytest.mark.parametrize("fed_back", ["aten::argmax", "aten::multinomial", "aten::topk", "aten::item", "aten::cat"])
def test_quiet_on_decoding_that_feeds_its_output_back(fed_back: str) -> None:
    assert not stepping(nothing, after=fed_back).claims(find)


def attended(b: TraceBuilder, at: float, t: int) -> None:
    b.op("aten::select", at, 2, dims=[[BATCH, T], [], []], concrete=["", "1", str(t)])
    b.op("aten::bmm", at + 3, 8, dims=[[BATCH, 1, WIDTH], [BATCH, WIDTH, T]])
    b.op("aten::cat", at + 12, 5, dims=[[[BATCH, WIDTH], [BATCH, WIDTH]], []])


def test_quiet_on_a_decoder_whose_attention_needs_the_last_state() -> None:
    assert not stepping(attended).claims(find)


@pytest.mark.parametrize("name", ["aten::mul", "aten::where"])
def test_quiet_where_the_state_is_changed_between_the_time_steps(name: str) -> None:
    builder = stepping(name="gru_cell")
    for event in [event for event in builder.events if event["name"] == "aten::gru_cell"]:
        builder.op(name, event["ts"] + 62, 5, dims=[[BATCH, WIDTH], [BATCH, 1]])
    assert not builder.claims(find)


def test_quiet_on_unknown_inputs_without_a_backward_pass() -> None:
    builder = stepping(nothing)
    builder.events = [event for event in builder.events if not event["name"].startswith("autograd")]
    assert not builder.claims(find)


# -- what is no loop over time ----------------------------------------------------------------------


def test_quiet_on_whole_sequences() -> None:
    assert not stepping(nothing, shape=(T, BATCH, WIDTH)).claims(find)


def test_quiet_on_a_batch_of_one_that_comes_first() -> None:
    assert not stepping(nothing, flags=[*FLAGS[:8], "True"], shape=(1, T, WIDTH)).claims(find)


def test_quiet_on_both_directions() -> None:
    assert not stepping(flags=[*FLAGS[:7], "True", "False"]).claims(find)


def test_quiet_on_a_few_calls() -> None:
    assert not stepping(rounds=7).claims(find)


def test_quiet_without_the_flags_of_the_layer() -> None:
    builder = stepping()
    for event in builder.events:
        if event["name"] == "aten::gru":
            del event["args"]["Concrete Inputs"]
    assert not builder.claims(find)


def test_quiet_on_the_same_part_in_every_round() -> None:
    def again(b: TraceBuilder, at: float, t: int) -> None:
        select(b, at, 0)

    assert [claim.certainty for claim in stepping(again).claims(find)] == ["hint"]


def test_quiet_below_two_percent_of_the_step() -> None:
    builder = stepping()
    end = max(event["ts"] + event.get("dur", 0) for event in builder.events)
    for step in range(4, 7):
        builder.step(step, end + 200_000 * (step - 4), 200_000)
    assert not builder.claims(find)


def test_rows_are_those_of_all_steps() -> None:
    trace = stepping().build()
    (claim,) = find(trace)
    assert len(claim.rows) == 4 * T
    assert np.unique(trace.name[claim.rows]).tolist() == [trace.name[claim.rows[0]]]
