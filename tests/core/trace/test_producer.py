"""Who recorded a trace, from whatever the file says."""

from __future__ import annotations

import pytest
from builder import TraceBuilder


def origin(builder):
    return builder.build().origin


def call(builder, name, cat="cuda_runtime"):
    return builder.event(name, cat, 0, 5, correlation=1)


def test_cuda_with_its_device():
    found = origin(call(TraceBuilder(device="NVIDIA H100 80GB HBM3"), "cudaLaunchKernel"))
    assert found.vendor == "cuda"
    assert found.device_names == ("NVIDIA H100 80GB HBM3",)
    assert found.capability == (9, 0)
    assert found.n_multiprocessors == 132
    assert found.memory_bytes == 85_000_000_000


def test_the_driver_api_is_cuda_too():
    assert origin(call(TraceBuilder(), "cuLaunchKernelEx", "cuda_driver")).vendor == "cuda"


@pytest.mark.parametrize("meta", [{"roctracer_version": 4.1}, {"hip_runtime_version": 60443483}])
def test_rocm_by_its_keys(meta):
    # deviceProperties may have an empty name
    builder = TraceBuilder(device="", **meta)
    builder.launch(0, 5, 10, 5)
    assert origin(builder).vendor == "rocm"


def test_rocm_by_its_calls():
    # the category still says cuda
    assert origin(call(TraceBuilder(device=""), "hipLaunchKernel")).vendor == "rocm"


def test_rocm_by_its_device_when_there_is_nothing_else():
    builder = TraceBuilder(device="AMD Instinct MI210").kernel("igemm", 0, 5, correlation=1)
    assert origin(builder).vendor == "rocm"


def test_device_rows_alone_are_cuda():
    builder = TraceBuilder().kernel("ampere_sgemm", 0, 5, correlation=1)
    assert origin(builder).vendor == "cuda"


@pytest.mark.parametrize(
    ("name", "cat", "vendor"),
    [
        ("urEnqueueKernelLaunch", "xpu_runtime", "xpu"),
        ("runFunction", "mtia_runtime", "mtia"),
        ("fused_kernel", "mtia_ccp_events", "mtia"),
        ("node", "hpu_op", "hpu"),
        ("launch", "enqueue", "npu"),
        ("launch", "privateuse1_runtime", "other"),
    ],
)
def test_other_vendors_by_category(name, cat, vendor):
    builder = call(TraceBuilder(vendor="cpu"), name, cat)
    assert origin(builder).vendor == vendor


def test_xpu_kernels_are_not_cuda():
    builder = call(TraceBuilder(vendor="cpu"), "urEnqueueKernelLaunch", "xpu_runtime")
    assert origin(builder.kernel("gemm", 10, 5, correlation=1)).vendor == "xpu"


def test_a_cpu_recording_on_a_gpu_machine_has_no_device():
    found = origin(TraceBuilder().op("aten::mm", 0, 5))
    assert found.vendor == "cpu"
    assert found.device_names == ()


@pytest.mark.parametrize(
    ("meta", "inflation"),
    [
        ({}, 1.5),
        ({"record_shapes": 1}, 2.0),
        ({"with_stack": 1}, 2.0),
        ({"record_shapes": 1, "with_stack": 1}, 2.2),
        ({"record_shapes": 0, "with_stack": 0, "profile_memory": 1}, 1.5),
    ],
)
def test_flags_from_the_keys(meta, inflation):
    found = origin(TraceBuilder(vendor="cpu", **meta).op("aten::mm", 0, 5))
    assert found.flags == tuple(
        flag
        for flag in ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
        if meta.get(flag)
    )
    assert found.inflation == inflation


def test_flags_from_the_rows_when_the_keys_are_missing():
    builder = TraceBuilder(vendor="cpu").op("aten::mm", 0, 5, dims=[[2, 2], [2, 2]])
    found = origin(builder.frame("train.py(1): main", 0, 9))
    assert set(found.flags) == {"record_shapes", "with_stack"}
    assert found.inflation == 2.2


def test_place_in_the_job():
    info = {"backend": "nccl", "rank": 3, "world_size": 8}
    builder = TraceBuilder(distributedInfo=info, baseTimeNanoseconds=1751410836000000000)
    found = origin(builder.op("aten::mm", 0, 5))
    assert (found.backend, found.rank, found.world_size) == ("nccl", 3, 8)
    assert found.base_time_ns == 1751410836000000000


@pytest.mark.parametrize(
    "info",
    [
        None,
        [],
        "nccl",
        {},
        {"backend": None, "rank": None, "world_size": None},
        {"rank": "three"},
        {"rank": True},
        {"rank": 1.5},
    ],
)
def test_odd_distributed_info_is_nothing(info):
    found = origin(TraceBuilder(vendor="cpu", distributedInfo=info).op("aten::mm", 0, 5))
    assert (found.backend, found.rank, found.world_size) == ("", None, None)


def test_a_rank_written_as_text():
    found = origin(TraceBuilder(vendor="cpu", distributedInfo={"rank": "3"}).op("aten::mm", 0, 5))
    assert found.rank == 3


@pytest.mark.parametrize("value", [None, {}, "none", [None], ["H100"], [[]]])
def test_odd_device_properties_are_nothing(value):
    builder = TraceBuilder(vendor="cpu", deviceProperties=value)
    found = origin(builder.kernel("sgemm", 0, 5, correlation=1))
    assert found.vendor == "cuda"
    assert found.device_names == ()
    assert found.capability is None
    assert found.memory_bytes is None


def test_missing_device_fields_are_none():
    builder = TraceBuilder(vendor="cpu", deviceProperties=[{"id": 0, "name": "X"}])
    found = origin(builder.kernel("sgemm", 0, 5, correlation=1))
    assert found.device_names == ("X",)
    assert (found.capability, found.n_multiprocessors) == (None, None)


@pytest.mark.parametrize("properties", [{"id": 0}, {"id": 0, "name": None}, {"id": 0, "name": ""}])
def test_a_device_without_a_name_has_none(properties):
    builder = TraceBuilder(vendor="cpu", deviceProperties=[properties])
    assert origin(builder.kernel("sgemm", 0, 5, correlation=1)).device_names == ("",)
