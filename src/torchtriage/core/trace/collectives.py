"""Which device work is communication, by behaviour and an open list, never by one name alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

# NCCL and RCCL; vLLM's and SGLang's custom all-reduces (multimem_all_reduce, cross_device_reduce);
# torch symmetric memory (one_shot/two_shot); NVSHMEM and DeepEP kernels of MoE dispatch
# in lower case, and what may not stand before a word after its first letters: ten times as fast, and names are long
_COMMUNICATION = re.compile(
    r"nccl|rccl|multimem_|cross_device_reduce|one_shot_all|two_shot_all|symm_mem|nvshmem"
    r"|deep_?ep(?![a-z])|ep(?<![a-z]ep)::(?:inter|intra)node"
    r"|all(?<!small)(?<!blockall)(?<!block_all)(?<!warpall)(?<!warp_all)_?reduce"
    r"|all(?<!small)_?gather|reduce_?scatter|all_?to_?all"
)

# Inductor names a kernel after the graph nodes around it, collectives included; it computes all
# the same
_GENERATED = r"^triton_(poi|red|per|tem|unk|for|mm)_"


_KERNELS: WeakKeyDictionary[Trace, NDArray[np.bool_]] = WeakKeyDictionary()
"""What :func:`communicates` has found out."""


def communicates(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[n]: kernels that move data between ranks."""
    out = _KERNELS.get(trace)
    if out is None:
        kernels = trace.kind == Kind.KERNEL
        rows = np.flatnonzero(kernels)
        named = trace.rows_where(rows, lambda name: _COMMUNICATION.search(name.lower())) & ~trace.matches(
            rows, _GENERATED
        )
        out = _KERNELS[trace] = trace.mask_of(rows[named]) | trace.where_detail("collective", bool, kernels)
    return out


def host_collectives(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[n]: collectives that threads of the host carry out, from start to end.

    Only these backends: an ``nccl:`` annotation lasts as long as enqueueing does.
    """
    return trace.matching(r"^(gloo|mpi):", Kind.ANNOTATION)
