"""Features: what they say of a window, and what they must not depend on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from builder import TraceBuilder
from numpy.typing import NDArray

from torchtriage.core.trace import Trace
from torchtriage.diagnose.detector.families import FRAME_FAMILIES, HOST_FAMILIES, WORK_FAMILIES, Table, family_codes
from torchtriage.diagnose.detector.features import BASE, NAMES, window_features


def cpu() -> TraceBuilder:
    return TraceBuilder(vendor="cpu")


def windows(*edges_us: float) -> NDArray[np.int64]:
    edges_ns = np.array(edges_us) * 1000
    return np.stack([edges_ns[:-1], edges_ns[1:]], axis=1).astype(np.int64)


def told(trace: Trace, windows_ns: NDArray[np.int64], name: str) -> list[float]:
    column = window_features(trace, windows_ns)[:, NAMES.index(name)]
    return [round(float(value), 4) for value in column]


def busy_program() -> TraceBuilder:
    """Two steps with everything that features look at."""
    builder = cpu()
    for step in range(2):
        at = 1000.5 * step
        builder.step(step, at, 1000)
        builder.frame("train.py(10): main", at, 1000)
        builder.frame("<built-in method collect of module>", at + 700, 100)
        builder.annotation("Optimizer.step#SGD.step", at + 800, 150)
        for k in range(4):
            builder.op("aten::linear", at + 100 * k, 60, dims=[[8, 4, 16]], types=["float"], seq=k)
            builder.op("aten::addmm", at + 100 * k + 10, 40.5, dims=[[8, 4]], types=["double"])
    return builder


# -- what must not matter ------------------------------------------------------------------------


def test_names_are_as_many_as_columns_and_each_is_its_own() -> None:
    found = window_features(busy_program().build(), windows(0, 500, 1000, 1500, 2000))
    assert found.shape == (4, len(NAMES))
    assert len(set(NAMES)) == len(NAMES)
    assert np.isfinite(found).all()


def test_no_windows_and_nothing_in_them_are_no_error() -> None:
    assert window_features(busy_program().build(), windows(0)).shape == (0, len(NAMES))
    bare = cpu().event("x", "unheard_of", 0, 1.5).build()
    found = window_features(bare, windows(0, 10, 20))
    assert np.isfinite(found).all()
    assert found[:, NAMES.index("quiet host")].tolist() == [1, 1]


def test_the_clock_and_the_order_of_windows_change_nothing() -> None:
    builder = busy_program()
    edges = windows(0, 300, 700, 1000.5, 1300.5, 1700.5, 2001)
    found = window_features(builder.build(), edges)
    assert np.array_equal(window_features(builder.build(), edges[::-1]), found[::-1])
    for event in builder.events:
        event["ts"] += 10_000_000
    later = window_features(builder.build(), edges + 10_000_000_000)
    np.testing.assert_allclose(later, found, rtol=1e-6)


def test_windows_with_the_same_inside_look_the_same_wherever_they_lie() -> None:
    builder = cpu().step(0, 0, 400)
    for at in (10, 110, 310):
        builder.op("aten::mm", at, 50, dims=[[4, 4]], types=["float"])
    found = window_features(builder.build(), windows(0, 100, 200, 300, 400))[:, : len(BASE)]
    places = [NAMES.index(name) for name in BASE if "longest quiet" in name or "again" in name]
    inside = np.delete(found, places, axis=1)  # these look at what is before and after
    assert np.array_equal(inside[1], inside[3])
    assert not np.array_equal(inside[1], inside[2])


def test_damaged_shapes_are_unknown_inputs() -> None:
    builder = cpu().step(0, 0, 100)
    for at, dims in enumerate(([["x"]], "no", [[1, 2**70]], [None], [[True, 2]], [[]])):
        builder.op("aten::mm", 10 * at, 5, dims=dims, types={"a": 1}, strides=7)
    (known,) = told(builder.build(), windows(0, 100), "inputs known inputs")
    assert known == round(1 / 6, 4)  # only the one of giant size


# -- what they say -------------------------------------------------------------------------------


def test_own_times_of_all_families_add_up_to_what_is_covered() -> None:
    builder = cpu().op("aten::linear", 0, 100).op("aten::addmm", 10, 30).op("aten::mm", 90, 9.5)
    found = window_features(builder.build(), windows(0, 50, 200))
    times = [NAMES.index(f"host time {name}") for name, _ in HOST_FAMILIES]
    np.testing.assert_allclose(found[:, times].sum(axis=1), [1, 50 / 150], rtol=1e-6)


def test_a_row_over_two_windows_counts_in_each_with_its_time_there() -> None:
    trace = cpu().op("aten::cat", 25, 50.5).build()
    assert told(trace, windows(0, 50, 100), "host time join") == [0.5, 0.51]
    assert told(trace, windows(0, 50, 100), "host count join") == [1, 0]


def test_time_without_operators_is_quiet_and_its_longest_stretch_reaches_over_windows() -> None:
    trace = cpu().step(0, 0, 400).op("aten::mm", 0, 50).op("aten::mm", 350, 50.5).build()
    edges = windows(0, 100, 200, 300, 400)
    assert told(trace, edges, "quiet host") == [0.5, 1, 1, 0.5]
    assert told(trace, edges, "longest quiet") == [3, 3, 3, 3]


def test_the_same_operator_again_and_a_period_of_them() -> None:
    def shares(*names: str) -> tuple[float, float]:
        builder = cpu()
        for at, name in enumerate(names):
            builder.op(name, 10 * at, 5.5)
        trace = builder.build()
        edges = windows(0, 100)
        return told(trace, edges, "same op again")[0], told(trace, edges, "in a period")[0]

    assert shares("aten::mm", "aten::add", "aten::cat", "aten::sum") == (0, 0)
    assert shares("aten::mm", "aten::mm", "aten::mm", "aten::mm") == (0.75, 0)
    assert shares("aten::mm", "aten::add", "aten::mm", "aten::add") == (0, 0.5)


def test_children_are_no_repetition() -> None:
    builder = cpu().op("aten::linear", 0, 90).op("aten::mm", 10, 20).op("aten::mm", 40, 20.5)
    assert told(builder.build(), windows(0, 100), "same op again") == [0]


@pytest.mark.parametrize(
    ("name", "types", "dims", "strides"),
    [
        ("inputs double", ["double"], [[8, 4]], None),
        ("inputs half", ["c10::BFloat16"], [[8, 4]], None),
        ("inputs batch of one", ["float"], [[1, 3, 4]], None),
        ("inputs small", ["float"], [[8, 4]], None),
        ("inputs large", ["float"], [[1024, 1024]], None),
        ("inputs rows last", ["float"], [[2, 3, 4, 4]], [[48, 1, 12, 3]]),
        ("inputs layouts differ", ["float", "float"], [[2, 3, 4, 4], [8, 3, 3, 3]], [[48, 16, 4, 1], [27, 1, 9, 3]]),
    ],
)
def test_inputs_are_told(name: str, types: list[str], dims: object, strides: object) -> None:
    builder = cpu().op("aten::add", 0, 5, types=["float"], dims=[[2, 90, 90]])
    builder.op("aten::add", 10, 5.5, types=types, dims=dims, strides=strides)
    assert told(builder.build(), windows(0, 100), name) == [0.5]


def test_tracked_operators_count_by_themselves_when_nothing_goes_backward() -> None:
    builder = cpu().op("aten::mm", 0, 5, seq=1).op("aten::mm", 10, 5.5)
    name = "inputs tracked without backward"
    assert told(builder.build(), windows(0, 100), name) == [0.5]
    builder.op("autograd::engine::evaluate_function: MmBackward0", 50, 10, seq=1, fwd=1)
    assert told(builder.build(), windows(0, 40), name) == [0]


def test_joins_that_grow_are_told() -> None:
    def share(*sizes: int) -> float:
        builder = cpu()
        for at, size in enumerate(sizes):
            builder.op("aten::cat", 10 * at, 5.5, dims=[[size, 4]], types=["float"])
        return told(builder.build(), windows(0, 100), "inputs inputs grow")[0]

    assert share(4, 4, 4, 4, 4) == 0
    assert share(4, 8, 12, 16, 20) == 0.8


def test_frames_count_with_their_own_time() -> None:
    trace = busy_program().build()
    assert told(trace, windows(600, 800), "frame time collect") == [0.5]
    assert told(trace, windows(600, 800), "frame time other") == [0.5]


def test_a_device_is_told_by_what_it_does_and_when_it_waits() -> None:
    builder = TraceBuilder().step(0, 0, 400)
    builder.launch(0, 5, 10, 90, "sm90_xmma_gemm_f32")
    builder.copy(200, 5, 210, 40, kind="HtoD (Pageable -> Device)")
    builder.profiler_stop(390, 5.5)
    trace = builder.build()
    edges = windows(0, 100, 200, 300, 400)
    assert told(trace, edges, "device busy") == [0.9, 0, 0.4, 0]
    assert told(trace, edges, "device time matmul") == [0.9, 0, 0, 0]
    assert told(trace, edges, "device time copy_to_device") == [0, 0, 0.4, 0]
    assert told(trace, edges, "device pageable copies") == [0, 0, 1, 0]


def test_beside_the_trace_a_window_is_told_less_the_median() -> None:
    builder = cpu()
    for at, dur in enumerate((20.5, 20.5, 40.5)):
        builder.op("aten::mm", 50 * at, dur)
    trace, edges = builder.build(), windows(0, 50, 100, 150)
    assert told(trace, edges, "host time matmul") == [0.41, 0.41, 0.81]
    assert told(trace, edges, "host time matmul, beside the trace") == [0, 0, 0.4]


# -- families ------------------------------------------------------------------------------------


def family(name: str, table: Table) -> str:
    return table[int(family_codes([name], table)[0])][0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", "matmul"),
        ("aten::linear", "matmul"),
        ("aten::bmm", "batched matmul"),
        ("aten::baddbmm", "batched matmul"),
        ("aten::pow", "power"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "loader here"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "loader"),
        ("aten::convolution_backward", "convolution"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::native_batch_norm", "norm"),
        ("aten::_softmax", "softmax"),
        ("aten::_log_softmax_backward_data", "softmax"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::gelu_backward", "activation"),
        ("aten::tanh", "activation"),
        ("aten::add_", "pointwise"),
        ("aten::addcmul_", "update"),
        ("aten::_fused_adamw_", "foreach"),
        ("aten::_foreach_add_", "foreach"),
        ("aten::_local_scalar_dense", "read"),
        ("aten::_to_copy", "convert"),
        ("aten::t", "view"),
        ("aten::transpose", "view"),
        ("aten::to", "convert"),
        ("aten::topk", "reduce"),
        ("aten::zero_", "fill"),
        ("aten::zeros_like", "allocate"),
        ("aten::empty_strided", "allocate"),
        ("aten::cat", "join"),
        ("aten::nll_loss2d_forward", "loss"),
        ("autograd::engine::evaluate_function: AddBackward0", "engine"),
        ("ConvolutionBackward0", "engine"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("cudaLaunchKernel", "launch"),
        ("hipMemcpyWithStream", "device_copy"),
        ("cudaStreamSynchronize", "sync"),
        ("", "other"),
        ("my::own_thing", "other"),
    ],
)
def test_what_is_on_the_host_has_its_family(name: str, expected: str) -> None:
    assert family(name, HOST_FAMILIES) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "copy_to_device"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "matmul"),
        ("void cudnn::bn_bw_1C11_kernel_new<float>", "norm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>", "fill"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor", "pointwise"),
        ("triton_poi_fused_add_0", "compiled"),
        ("mystery", "other"),
    ],
)
def test_what_is_on_a_device_has_its_family(name: str, expected: str) -> None:
    assert family(name, WORK_FAMILIES) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nn.Module: Linear_0", "module"),
        ("<built-in function collect>", "collect"),
        ("<built-in function sleep>", "sleep"),
        ("torch/utils/data/dataloader.py(700): __next__", "loader"),
        ("torch/optim/adam.py(200): step", "optimizer"),
        ("torch/nn/functional.py(1): relu", "torch"),
        ("train.py(10): main", "other"),
    ],
)
def test_frames_have_their_family(name: str, expected: str) -> None:
    assert family(name, FRAME_FAMILIES) == expected


def test_no_name_of_the_benchmark_is_looked_for() -> None:
    text = json.dumps([HOST_FAMILIES, WORK_FAMILIES, FRAME_FAMILIES])
    assert not [one for one in ("train.py", "tt:", "Samples", "swin", "resnet") if one in text]
