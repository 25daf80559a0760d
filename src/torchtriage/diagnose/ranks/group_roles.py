"""What a process group is for: tensor, data, pipeline, expert or context parallelism, and what says so.

A name that frameworks give to their groups says it; else what the group exchanges, and in which part of the step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

UNKNOWN = "unknown"
N_REPEATED = 4
"""All-reduces of one size in a step's forward pass: two layers of tensor parallelism."""
MIN_FORWARD = 0.2
"""Of what a group reduces: activations are reduced in the forward pass as often as in the backward pass, or half as
often where the backward pass computes them again; statistics and losses are small."""
MIN_GRADIENTS = 0.9
"""Of what a group reduces, outside the forward pass."""
MOST = 0.5
FEW = 0.1

# https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py
# https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/parallel_dims.py
# https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/utils/groups.py
# https://github.com/vllm-project/vllm/blob/main/vllm/distributed/parallel_state.py
_WORDS = {
    "TP": ("tp", "tensor", "etp", "attntp"),
    "DP": ("dp", "data", "ddp", "fsdp", "hsdp", "efsdp", "edp", "replicate", "shard", "zero", "batch", "loss"),
    "PP": ("pp", "vpp", "pipe", "pipeline", "embedding", "embd", "embed"),
    "EP": ("ep", "expert", "experts", "expt", "exp", "moe"),
    "CP": ("cp", "context", "sp", "sequence", "seq", "ulysses", "ring", "hcp", "dcp", "pcp"),
}
_ROLE_OF = {word: role for role, words in _WORDS.items() for word in words}
_ORDER = tuple(_WORDS)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[a-z]+")
MAX_NAME = 200
"""Characters of a name that are looked at."""


class Role(NamedTuple):
    """A role, such as ``TP`` or ``TP+DP``; ``told_by`` : empty where unknown. ``how`` : what says it, or why not."""

    role: str
    told_by: Literal["name", "collectives", ""]
    how: str


class Exchanged(NamedTuple):
    """What the ranks of one group exchange in a step, in the mean; of each kind the number and the bytes.

    ``kinds`` : by :data:`~torchtriage.diagnose.ranks.group_rows.KINDS`; bytes are numbers where no size is known.
    ``forward`` : of these in the forward pass. ``repeated`` : reductions there of the most frequent size. ``by_rank`` :
    sends and receives of each rank in the forward pass. ``phased`` : whether the part of the step is known.
    """

    kinds: dict[str, tuple[float, float]]
    forward: dict[str, tuple[float, float]]
    repeated: float
    by_rank: Sequence[tuple[int, int]]
    phased: bool


def role_by_name(name: str) -> str:
    """Return the role that a name says, empty where it says none.

    What qualifies another word gives way to it: the data parallelism of experts, or one that spans the context's ranks,
    reduces gradients as any other does.
    """
    words = _WORD.findall(_CAMEL.sub("_", name[:MAX_NAME]).lower())
    words = [re.sub(r"(?<=.)(parallel|group){1,2}$", "", word) for word in words]
    said = [role for role in map(_ROLE_OF.get, words) if role]
    found = set(said)
    model = "model" in words or "mp" in words
    if not found:
        return "TP+PP" if model else ""
    if model and "and" in words and not found & {"TP", "PP", "EP"}:
        found |= {"TP", "PP"}
    if "DP" in found:
        found.discard("CP")
        if said[0] == "EP" or {"in", "mod"} & set(words):
            found.discard("EP")
    if found == {"EP", "TP"} and said[0] == "EP" and not model and "and" not in words:
        found.discard("EP")
    return "+".join(role for role in _ORDER if role in found)


def role_by_exchange(exchanged: Exchanged) -> Role:
    """Return the role that shows in what a group exchanges, unknown where several do it alike."""
    kinds, forward = exchanged.kinds, exchanged.forward
    number = {kind: count for kind, (count, _) in kinds.items()}
    whole = sum(number.values())
    if not whole:
        return Role(UNKNOWN, "", "nothing exchanged in the steady steps")
    if number.get("dispatch", 0) > MOST * whole:
        return Role("EP", "collectives", "kernels that send tokens to experts")
    if number.get("send", 0) + number.get("recv", 0) + number.get("sendrecv", 0) > MOST * whole:
        return _by_sends(exchanged)
    if number.get("alltoall", 0) > MOST * whole:
        return Role(UNKNOWN, "", "mostly all-to-alls, as for experts, context and embedding tables")
    if not exchanged.phased:
        return Role(UNKNOWN, "", "no name, and which part of the step enqueued its collectives is not recorded")
    reduced = _bytes(kinds, "allreduce", "reducescatter")
    early = _bytes(forward, "allreduce", "reducescatter")
    if not reduced:
        return Role(UNKNOWN, "", "no name, and nothing is reduced in it")
    if early >= MIN_FORWARD * reduced and exchanged.repeated >= N_REPEATED:
        return Role("TP", "collectives", "reduces again and again in the forward pass, as tensor parallelism does")
    if _bytes(kinds, "alltoall") > FEW * reduced:
        return Role(UNKNOWN, "", "all-to-alls and reductions, as for experts, context and embedding tables")
    if early <= (1 - MIN_GRADIENTS) * reduced:
        if _bytes(kinds, "reducescatter") > MOST * reduced and _bytes(kinds, "allgather") > 0:
            return Role("DP", "collectives", "gathers parameters and scatters gradients, as FSDP does")
        return Role("DP", "collectives", "reduces only outside the forward pass, as gradients are")
    return Role(UNKNOWN, "", "no name, and what it reduces is neither only activations nor only gradients")


def _by_sends(exchanged: Exchanged) -> Role:
    """Return PP where ranks differ: the ends of a pipeline send or receive only, in a ring all do the same."""
    one_way = any((sends == 0) != (receives == 0) for sends, receives in exchanged.by_rank)
    totals = [sends + receives for sends, receives in exchanged.by_rank]
    if one_way or (len(totals) > 2 and max(totals) >= 1.5 * min(totals) > 0):
        return Role("PP", "collectives", "sends and receives that differ between the ends and the middle, as stages do")
    return Role(UNKNOWN, "", "only sends and receives: stages of a pipeline or a ring of context")


def _bytes(kinds: dict[str, tuple[float, float]], *names: str) -> float:
    return sum(kinds[name][1] for name in names if name in kinds)


def layout(ranks: Sequence[int]) -> str:
    """Return how the members of a group lie among the ranks: ``adjacent``, ``every 8th``, or nothing regular."""
    numbers = sorted(set(ranks))
    if len(numbers) < 2:
        return ""
    apart = {right - left for left, right in pairwise(numbers)}
    if apart == {1}:
        return "adjacent"
    return f"every {_ordinal(apart.pop())}" if len(apart) == 1 else "irregular"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number:,}th"
    return f"{number:,}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
