"""KRN025: product, softmax, product; not every softmax is attention."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import missing_needs
from torchtriage.diagnose.patterns.kernel import far_below_roof
from torchtriage.diagnose.patterns.kernel.attention_unfused import PATTERN, find

HALF = ["c10::Half", "c10::Half"]
H100 = "NVIDIA H100 80GB HBM3"


class Line(TraceBuilder):
    """Ops one after the other on the host, their kernels one after the other far behind."""

    def __init__(self, *, twice=False, **kw):
        super().__init__(**{"device": H100, **kw})
        self.twice = twice
        self.at, self.free = 0.0, 10_000.0

    def run(self, op, dims, dur, *, types=HALF, kernel="kernel", tid=1):
        self.op(op, self.at, 8, dims=dims, types=types, tid=tid)
        if self.twice:
            self.op(op, self.at + 1, 6, dims=dims, types=types, tid=tid)
        self.launch(self.at + 2, 3, self.free, dur, name=kernel, tid=tid)
        self.at += 10
        self.free += dur
        return self


def attention(line, *, length=1024, keys=None, head=64, heads=16, between=True, types=HALF, softmax="aten::_softmax"):
    keys = length if keys is None else keys
    scores = [heads, length, keys]
    line.run("aten::bmm", [[heads, length, head], [heads, head, keys]], 100, types=types)
    if between:
        line.run("aten::div", [scores, []], 200, types=types)
    line.run(softmax, [scores, [], []], 300, types=types)
    return line.run("aten::bmm", [scores, [heads, keys, head]], 100, types=types)


def test_quiet_on_fused_attention():
    line = Line().run("aten::_flash_attention_forward", [[1, 1024, 16, 64]] * 3, 500)
    assert not line.claims(find)


@pytest.mark.parametrize("shape", [["a", "b"], [None, 4, 4], [10**30, 512, 512], [[16], 8, 8], {}])
def test_quiet_on_shapes_that_are_none(shape):
    line = attention(Line())
    for event in line.events:
        if event["name"] == "aten::_softmax":
            event["args"]["Input Dims"] = [shape, [], []]
    assert not line.claims(find)


def test_its_kernels_are_not_blamed_for_their_speed_as_well():
    gemm = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
    line = Line()
    for _ in range(4):
        line.run("aten::bmm", [[16, 1024, 64], [16, 64, 1024]], 1000, kernel=gemm)
        line.run("aten::_softmax", [[16, 1024, 1024], [], []], 300)
        line.run("aten::bmm", [[16, 1024, 1024], [16, 1024, 64]], 1000, kernel=gemm)
    alone = Line()
    for _ in range(4):
        alone.run("aten::bmm", [[16, 1024, 64], [16, 64, 1024]], 1000, kernel=gemm)
    assert list(far_below_roof.find(alone.build()))
    assert line.claims(find)
    assert not list(far_below_roof.find(line.build()))


def test_quiet_on_the_softmax_of_a_classifier():
    line = Line().run("aten::addmm", [[1000], [256, 512], [512, 1000]], 100)
    line.run("aten::_softmax", [[256, 1000], [], []], 300)
    line.run("aten::addmm", [[10], [256, 512], [512, 10]], 100)
    assert not line.claims(find)


def test_quiet_when_the_scores_are_not_used_by_a_product():
    line = Line().run("aten::bmm", [[16, 1024, 64], [16, 64, 1024]], 100)
    line.run("aten::_softmax", [[16, 1024, 1024], [], []], 300)
    line.run("aten::bmm", [[16, 512, 512], [16, 512, 64]], 100)
    assert not line.claims(find)


def test_quiet_when_the_products_have_another_batch():
    line = Line().run("aten::bmm", [[8, 1024, 64], [8, 64, 1024]], 100)
    line.run("aten::_softmax", [[16, 1024, 1024], [], []], 300)
    line.run("aten::bmm", [[8, 1024, 1024], [8, 1024, 64]], 100)
    assert not line.claims(find)


def test_quiet_when_the_products_belong_to_another_thread():
    line = Line().run("aten::bmm", [[16, 1024, 64], [16, 64, 1024]], 100)
    line.run("aten::_softmax", [[16, 1024, 1024], [], []], 300)
    line.run("aten::bmm", [[16, 1024, 1024], [16, 1024, 64]], 100, tid=2)
    assert not line.claims(find)


@pytest.mark.parametrize("kw", [{"length": 127}, {"length": 1, "keys": 4096}, {"head": 257}])
def test_quiet_on_shapes_that_gain_nothing(kw):
    assert not attention(Line(), **kw).claims(find)


def test_quiet_below_5_percent():
    line = attention(Line()).run("aten::relu", [[1]], 20_000)
    assert not line.claims(find)


def test_chain_kernels_without_the_neighbours():
    line = Line().run("aten::addmm", [[64], [1024, 64], [64, 64]], 50)
    line.run("aten::bmm", [[16, 1024, 64], [16, 64, 1024]], 100)
    line.run("aten::_softmax", [[16, 1024, 1024], [], []], 300)
    # the projection of the values runs inside the chain, but is none of its work
    line.run("aten::addmm", [[64], [1024, 64], [64, 64]], 70)
    line.run("aten::bmm", [[16, 1024, 1024], [16, 1024, 64]], 100)
    line.run("aten::gelu", [[1024, 64]], 40)
    (claim,) = find(line.build())
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [100_000, 300_000, 100_000]


def test_cost_against_a_fused_kernel():
    (claim,) = find(attention(Line()).build())
    flop = 4 * 16 * 1024 * 1024 * 64
    fast, slow = flop / (0.6 * 989_000), flop / (0.4 * 989_000)
    assert claim.certainty == "likely"
    assert claim.time_class == "compute"
    assert np.allclose(claim.gain_high, 1 - fast / 700_000)
    assert np.allclose(claim.gain_low, min(500 / 700, 1 - slow / 700_000))
    assert claim.evidence["query_length"] == 1024
    assert claim.evidence["head_dimension"] == 64
    assert claim.evidence["softmax_ms_per_step"] == pytest.approx(0.3)
    assert claim.evidence["chain_ms_per_step"] == pytest.approx(0.7)
    assert claim.evidence["n_chains_per_step"] == 1


def test_narrow_heads_promise_no_more_than_64():
    (claim,) = find(attention(Line(), head=16).build())
    flop = 4 * 16 * 1024 * 1024 * 64
    assert np.allclose(claim.gain_high, 1 - flop / (0.6 * 989_000) / 700_000)


def test_cost_on_an_unknown_device_is_what_stands_beside_the_products():
    (claim,) = find(attention(Line(device="Unheard of")).build())
    assert np.allclose(claim.gain_high, 500 / 700)
    assert np.allclose(claim.gain_low, 500 / 700 / 2)


def test_fp32_is_a_hint_without_a_promise():
    (claim,) = find(attention(Line(), types=["float", "float"]).build())
    assert claim.certainty == "hint"
    assert np.all(np.asarray(claim.gain_low) == 0)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "an op inside itself"])
def test_backward_chain(twice):
    line = Line(twice=twice)
    scores, side = [16, 1024, 1024], [16, 1024, 64]
    line.run("aten::bmm", [[16, 1024, 1024], side], 100)  # values: scores^T @ gradient
    line.run("aten::bmm", [side, [16, 64, 1024]], 100)  # gradient of the scores
    line.run("aten::_softmax_backward_data", [scores, scores, [], []], 300)
    line.run("aten::bmm", [[16, 64, 1024], scores], 100)
    line.run("aten::bmm", [scores, side], 100)
    (claim,) = find(line.build())
    assert len(claim.rows) == 5
    flop = 2 * 1.25 * 4 * 16 * 1024 * 1024 * 64
    assert np.allclose(claim.gain_high, 1 - flop / (0.6 * 989_000) / 700_000)


def test_an_op_written_inside_itself_counts_once():
    # autocast does that, and so did builds of 2021
    (claim,) = find(attention(Line(twice=True)).build())
    assert len(claim.rows) == 4
    assert np.allclose(claim.gain_low, 500 / 700)


def test_the_math_fallback_names_its_own_fix():
    line = attention(Line(), between=False)
    line.op("aten::_scaled_dot_product_attention_math", 0, 100)
    (claim,) = find(line.build())
    assert claim.evidence["math_fallback"] is True
    assert "sdpa_kernel" in claim.fix.code


def test_grouped_steps_count_per_step():
    line = Line()
    for index in range(4):
        line.at, line.free = 10_000.0 * index, 10_000.0 * index + 200
        start = line.at
        attention(line)
        line.step(index, start - 5 if index else 0, 9_900)
    (claim,) = find(line.build())
    assert claim.evidence["n_chains_per_step"] == 1
    assert claim.evidence["chain_ms_per_step"] == pytest.approx(0.7)


LONG = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, c10::Half, float, float, Epilogue>(float*)"
SHORT = "void (anonymous namespace)::softmax_warp_forward<c10::Half, float, float, 7, false, false>(float*)"
PLAIN = (
    ("aten::bmm", 100),
    ("aten::div", 200),
    ("aten::_softmax", 300),
    ("aten::copy_", 100),
    ("aten::bmm", 100),
    ("aten::copy_", 10),
    ("aten::addmm", 100),
)


def without_shapes(*work, kernel=LONG):
    line = Line()
    for op, dur in work:
        line.run(op, None, dur, types=None, kernel=kernel if op == "aten::_softmax" else "kernel")
    return line.build()


def test_without_shapes_the_order_of_the_operators_says_it():
    trace = without_shapes(*PLAIN, *PLAIN)
    assert not missing_needs(PATTERN, trace)
    (claim,) = find(trace)
    assert claim.certainty == "hint"
    assert claim.message == (
        "attention as separate product, softmax and product takes 1.60 ms in the window, 88 % of the kernel time"
    )
    assert claim.evidence["n_chains_per_step"] == 2
    assert "query_length" not in claim.evidence
    assert np.allclose(claim.gain_low, 1 - 2 * 200 / 800)
    assert np.allclose(claim.gain_high, 1 - 0.1 * 200 / 800)
    assert missing_needs(PATTERN, TraceBuilder(vendor="cpu").op("aten::bmm", 0, 100).build()) == ["sizes"]


def test_without_shapes_nothing_is_promised_in_single_precision():
    (claim,) = find(without_shapes(*PLAIN, kernel=LONG.replace("c10::Half", "float")))
    assert np.all(np.asarray(claim.gain_low) == 0)
    assert np.allclose(claim.gain_high, 600 / 800)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param((("aten::mm", 100), *PLAIN[1:]), id="a layer makes the scores"),
        pytest.param((*PLAIN[:3], ("aten::topk", 50), *PLAIN[3:]), id="a router chooses"),
        pytest.param((*PLAIN[:4], ("aten::mm", 100), *PLAIN[5:]), id="a layer reads the softmax"),
        pytest.param((*PLAIN, ("aten::mean", 100)), id="the weights are averaged"),
        pytest.param((("aten::bmm", 700), *PLAIN[1:]), id="few queries"),
        pytest.param(tuple((op, dur / 40) for op, dur in PLAIN), id="too short to tell"),
    ],
)
def test_without_shapes_quiet_where_the_order_is_another(work):
    assert not list(find(without_shapes(*work)))


def test_without_shapes_quiet_on_short_rows_and_other_threads():
    assert not list(find(without_shapes(*PLAIN, kernel=SHORT)))
    line = Line()
    for op, dur in PLAIN:
        line.run(op, None, dur, types=None, kernel=LONG, tid=2 if op == "aten::bmm" else 1)
    assert not line.claims(find)


def test_without_shapes_pooling_after_attention_reads_no_weights():
    assert list(find(without_shapes(*PLAIN, ("aten::mean", 10))))


class Cpu(TraceBuilder):
    """Ops one after the other on the host of a machine without a device."""

    def __init__(self):
        super().__init__(vendor="cpu")
        self.at = 0.0

    def run(self, op, dims, dur, *, types=("float", "float"), **_):
        self.op(op, self.at, dur, dims=dims, types=list(types))
        self.at += dur
        return self


def backward_chain(line):
    scores, side = [16, 1024, 1024], [16, 1024, 64]
    line.run("aten::bmm", [scores, side], 100).run("aten::bmm", [side, [16, 64, 1024]], 100)
    line.run("aten::_softmax_backward_data", [scores, scores, [], []], 300)
    return line.run("aten::bmm", [[16, 64, 1024], scores], 100).run("aten::bmm", [scores, side], 100)


def test_quiet_on_a_cpu_with_dropout():
    # scaled_dot_product_attention with dropout is the same chain there
    line = Cpu().run("aten::bmm", [[16, 1024, 64], [16, 64, 1024]], 100)
    line.run("aten::_softmax", [[16, 1024, 1024], [], []], 300)
    line.run("aten::bernoulli_", [[16, 1024, 1024], [], []], 300)
    line.run("aten::bmm", [[16, 1024, 1024], [16, 1024, 64]], 100)
    assert not line.claims(find)


@pytest.mark.parametrize("call", ["aten::_scaled_dot_product_attention_math", "aten::_native_multi_head_attention"])
def test_quiet_on_a_cpu_inside_the_calls_of_torch(call):
    line = attention(Cpu())
    line.op(call, 0, 700)
    assert not line.claims(find)


def test_quiet_on_a_cpu_below_5_percent_of_the_step():
    line = attention(Cpu()).run("aten::relu", [[1]], 20_000)
    assert not line.claims(find)


def test_quiet_on_the_host_of_a_device_that_was_not_recorded():
    line = attention(Cpu()).call("cudaLaunchKernel", 5, 1)
    assert not line.claims(find)


def test_inference_on_a_cpu():
    line = Cpu().run("aten::bmm", [[16, 1024, 64], [16, 64, 1024]], 100)
    line.run("aten::_softmax", [[16, 1024, 1024], [], []], 300)
    line.run("aten::addmm", [[64], [1024, 64], [64, 64]], 70)
    line.run("aten::bmm", [[16, 1024, 1024], [16, 1024, 64]], 100)
    (claim,) = find(line.build())
    assert (claim.certainty, claim.time_class) == ("likely", "host")
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [400_000, 100_000]
    assert np.allclose(claim.gain_low, 0.1)
    assert np.allclose(claim.gain_high, 0.75)
    assert claim.evidence["share_of_step"] == pytest.approx(500 / 570, abs=1e-4)
    assert claim.message == (
        "attention as separate product, softmax and product over 1,024 x 1,024 scores takes"
        " 500 µs of 570 µs in the window"
    )


def test_a_cpus_python_files_called_like_layers_are_no_work_of_theirs():
    line = attention(Cpu())
    line.frame("train_convnet.py(1): main", 0, line.at)
    (claim,) = find(line.build())
    assert claim.evidence["share_of_step"] == pytest.approx(1)


def test_training_on_a_cpu_promises_nothing_and_shows_the_forward_pass():
    line = backward_chain(attention(Cpu(), between=False))
    trace = line.build()
    (claim,) = find(trace)
    assert claim.certainty == "hint"
    assert np.all(np.asarray(claim.gain_low) == 0)
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [500_000, 700_000]
    assert np.asarray(claim.gain_high).tolist() == [0.75, 0.25]
    assert trace.name_of(claim.anchor) == "aten::_softmax"
    assert claim.evidence["training"] is True
