"""Names that frameworks give to their groups; labelled from what each framework puts into them."""

from __future__ import annotations

import pytest

from torchtriage.diagnose.ranks.group_roles import Exchanged, layout, role_by_exchange, role_by_name

MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "TP",
    "PIPELINE_MODEL_PARALLEL_GROUP": "PP",
    "DATA_PARALLEL_GROUP": "DP",
    "DATA_PARALLEL_GROUP_WITH_CP": "DP",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO": "DP",
    "CONTEXT_PARALLEL_GROUP": "CP",
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUP": "CP",
    "MODEL_PARALLEL_GROUP": "TP+PP",
    "EMBEDDING_GROUP": "PP",
    "POSITION_EMBEDDING_GROUP": "PP",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "TP+DP",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "TP+CP",
    "TENSOR_AND_EXPERT_PARALLEL_GROUP": "TP+EP",
    "CONTEXT_AND_MODEL_PARALLEL_GROUP": "TP+PP+CP",
    "EXPERT_MODEL_PARALLEL_GROUP": "EP",
    "EXPERT_TENSOR_PARALLEL_GROUP": "TP",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "TP+EP",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "TP+PP+EP",
    "EXPERT_DATA_PARALLEL_GROUP": "DP",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "",
}
MESHES = {
    "mesh_tp": "TP",
    "mesh_dp_shard": "DP",
    "mesh_dp_replicate": "DP",
    "mesh_dp_shard_cp": "DP",
    "mesh_dp_cp": "DP",
    "dp_cp": "DP",
    "mesh_pp": "PP",
    "mesh_cp": "CP",
    "mesh_ep": "EP",
    "mesh_dp_shard_in_ep": "DP",
    "mesh_infer_tp": "TP",
    "mesh_tensor_parallel": "TP",
    "mesh_fsdp": "DP",
    "mesh_sp": "CP",
    "mesh_ulysses": "CP",
    "mesh_seq_p": "CP",
    "mesh_dp_shard_tp": "TP+DP",
}
ENGINES = {
    "tp:0": "TP",
    "pp:0": "PP",
    "attention_tp": "TP",
    "moe_tp": "TP",
    "moe_ep": "EP",
    "moe_dp": "DP",
    "dcp": "CP",
    "ep_size_4": "EP",
    "TensorParallelGroup": "TP",
}
NONE = ("", "0", "default_pg", "undefined", "stream 1", "world", "mesh_default", "mesh_dim_0", "mesh_nvlink", "gloo")


@pytest.mark.parametrize(("name", "role"), [*MEGATRON.items(), *MESHES.items(), *ENGINES.items()])
def test_a_name_of_a_framework_says_the_role(name: str, role: str) -> None:
    assert role_by_name(name) == role


@pytest.mark.parametrize("name", NONE)
def test_other_names_say_none(name: str) -> None:
    assert role_by_name(name) == ""


def test_a_name_without_end_is_read_in_part() -> None:
    assert role_by_name("x_" * 10_000_000 + "tp") == ""


def exchanged(
    kinds: dict[str, tuple[float, float]],
    forward: dict[str, tuple[float, float]] | None = None,
    *,
    repeated: float = 0,
    by_rank: tuple[tuple[int, int], ...] = (),
    phased: bool = True,
) -> Exchanged:
    return Exchanged(kinds, forward or {}, repeated, by_rank, phased)


@pytest.mark.parametrize(
    ("said", "role"),
    [
        # two all-reduces a layer and pass
        (exchanged({"allreduce": (96, 96e6)}, {"allreduce": (48, 48e6)}, repeated=48), "TP"),
        # its backward pass computes the forward pass again
        (exchanged({"allreduce": (144, 144e6)}, {"allreduce": (48, 48e6)}, repeated=48), "TP"),
        # sequence parallelism: gathered before and scattered after each block
        (
            exchanged(
                {"allgather": (96, 96e6), "reducescatter": (96, 96e6)},
                {"allgather": (48, 48e6), "reducescatter": (48, 48e6)},
                repeated=48,
            ),
            "TP",
        ),
        # buckets of DDP, buffers broadcast in the forward pass
        (exchanged({"allreduce": (5, 100e6), "broadcast": (2, 5e4)}, {"broadcast": (2, 5e4)}), "DP"),
        # a loss is averaged over all ranks as well
        (exchanged({"allreduce": (6, 100e6)}, {"allreduce": (1, 4)}, repeated=1), "DP"),
        (exchanged({"allgather": (64, 1e9), "reducescatter": (32, 1e9)}, {"allgather": (32, 5e8)}), "DP"),
        (exchanged({"dispatch": (32, 32)}, {"dispatch": (16, 16)}), "EP"),
        (exchanged({"send": (4, 4e6), "recv": (4, 4e6)}, by_rank=((4, 0), (4, 4), (0, 4))), "PP"),
        (exchanged({"send": (4, 4e6), "recv": (4, 4e6)}, by_rank=((4, 4), (4, 4), (4, 4))), "unknown"),
        (exchanged({"alltoall": (8, 1e8)}, {"alltoall": (4, 5e7)}), "unknown"),
        (exchanged({"alltoall": (4, 9e7), "allreduce": (5, 1e8)}), "unknown"),
        (exchanged({"allreduce": (96, 96e6)}, repeated=0, phased=False), "unknown"),
        (exchanged({"allgather": (1, 4e5)}), "unknown"),
        (exchanged({}), "unknown"),
    ],
)
def test_what_a_group_exchanges_says_its_role(said: Exchanged, role: str) -> None:
    found = role_by_exchange(said)
    assert found.role == role
    assert found.how
    assert (found.told_by == "") == (role == "unknown")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), ""),
        ((3,), ""),
        ((0, 1, 2, 3), "adjacent"),
        ((3, 1, 2, 2), "adjacent"),
        ((0, 8, 16), "every 8th"),
        ((0, 2), "every 2nd"),
        ((1, 12), "every 11th"),
        ((0, 1, 4), "irregular"),
        ((-5, 10**12), "every 1,000,000,000,005th"),
    ],
)
def test_how_members_lie(ranks: tuple[int, ...], text: str) -> None:
    assert layout(ranks) == text
