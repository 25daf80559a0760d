"""Sizes are those of NCCL's tests: exact where the recording says name, type, elements and group, unknown elsewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.core.trace.messages import Messages

KERNEL = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"


def messages(trace: Trace) -> Messages:
    return Messages(trace, np.flatnonzero(communicates(trace)))


def one(**args: Any) -> Messages:
    """Return the message of a kernel with the arguments that newer versions write, and others."""
    said = {
        "Collective name": "allreduce",
        "In msg nelems": 1 << 20,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        "Group size": 8,
        **args,
    }
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": 64})
    builder.launch(0, 5, 10, 100, KERNEL, **{key: value for key, value in said.items() if value is not None})
    return messages(builder.build())


@pytest.mark.parametrize(
    ("name", "size", "factor"),
    [
        ("allreduce", 2 << 20, 2 * 7 / 8),
        ("allreduce_coalesced", 2 << 20, 2 * 7 / 8),
        ("_allgather_base", 16 << 20, 7 / 8),
        ("all_gather_into_tensor", 16 << 20, 7 / 8),
        ("_reduce_scatter_base", 2 << 20, 7 / 8),
        ("reduce_scatter_tensor_coalesced", 2 << 20, 7 / 8),
        ("all_to_allv", 2 << 20, 7 / 8),
        ("broadcast", 2 << 20, 1.0),
        ("_reduce_oop", 2 << 20, 1.0),
    ],
)
def test_what_newer_versions_write_to_the_kernel(name: str, size: int, factor: float) -> None:
    found = one(**{"Collective name": name})
    assert (found.names, found.size_bytes.tolist(), found.n_ranks.tolist()) == ([name], [size], [8])
    assert found.bus_factor.tolist() == [factor]


@pytest.mark.parametrize("name", ["send", "barrier", "allreduce_sparse", "gather"])
def test_other_operations_have_no_bus_bandwidth(name: str) -> None:
    assert math.isnan(one(**{"Collective name": name}).bus_factor[0])


@pytest.mark.parametrize(
    "args", [{"In msg nelems": None}, {"In msg nelems": 1 << 60}, {"dtype": "Opaque"}, {"dtype": None}]
)
def test_a_size_that_is_not_said_is_not_known(args: dict[str, Any]) -> None:
    assert one(**args).size_bytes.tolist() == [-1]


@pytest.mark.parametrize(
    ("args", "n"),
    [
        ({"Group size": None}, 8),
        ({"Process Group Ranks": "[0, 1, 2, ..., 63]", "Group size": 64}, 64),
        ({"Process Group Ranks": "[0, 1, 2, ..., 63]", "Group size": None}, 0),
        # the job has 64 ranks; which of them are in the group, nobody says
        ({"Process Group Name": None, "Process Group Ranks": None, "Group size": None}, 0),
        ({"Process Group Ranks": "[0]", "Group size": 1}, 1),
    ],
)
def test_a_group_has_the_members_that_are_said(args: dict[str, Any], n: int) -> None:
    found = one(**args)
    assert found.n_ranks.tolist() == [n]
    assert math.isnan(found.bus_factor[0]) == (n < 2)


def test_a_group_whose_size_the_job_lists() -> None:
    listed = [{"pg_name": "7", "pg_desc": "mesh_tp", "pg_size": 16}]
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": 64, "pg_config": listed})
    builder.launch(0, 5, 10, 100, KERNEL, **{"Collective name": "allreduce", "Process Group Name": "7"})
    found = messages(builder.build())
    assert (found.groups[0][0].what, found.n_ranks.tolist()) == ("mesh_tp", [16])


def older(*, n_kernels: int = 1, n_inputs: int = 8) -> Messages:
    """Return an all-gather as versions before 2.2 record it: on the host, with the shapes."""
    builder = TraceBuilder()
    inputs = ["", "337", "93825114103440", "0", "", "[]", "[]", "0", "1", "4"]
    builder.op(
        "record_param_comms", 0, 50, concrete=[*inputs[: n_inputs - 1], "4"], dims=[[[4, 2048]], *[[]] * (n_inputs - 1)]
    )
    note = {"Input Dims": [[4, 2048]], "Input type": ["c10::Half"]}
    builder.event("nccl:_all_gather_base", "user_annotation", 2, 40, **note)
    for index in range(n_kernels):
        builder.launch(5 + 5 * index, 3, 100 + 200 * index, 100, KERNEL)
    return messages(builder.build())


@pytest.mark.parametrize(("n_inputs", "n"), [(8, 4), (10, 4), (7, 0)])
def test_older_versions_leave_it_around_the_launch(n_inputs: int, n: int) -> None:
    found = older(n_inputs=n_inputs)
    assert (found.names, found.kinds, found.nelems.tolist()) == (["_all_gather_base"], ["allgather"], [4 * 2048])
    assert found.n_ranks.tolist() == [n]
    assert found.size_bytes.tolist() == [4 * 2048 * 2 * 4 if n else -1]


def test_several_kernels_of_one_call_divide_its_message_unknown() -> None:
    assert older(n_kernels=2).size_bytes.tolist() == [-1, -1]
