"""What the process' own PyTorch can tell: device memory, recompilations, graph breaks.

Nothing is imported that the service has not imported itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torchtriage.monitor.metrics import Value

__all__ = ["read"]


def read() -> list[Value]:
    """Return what can be told now; a part that fails is left out."""
    values: list[Value] = []
    for part in (_memory, _compilation, _utilization):
        try:
            values += part()
        except Exception:  # noqa: PERF203 - a lost GPU must not cost the other numbers
            continue
    return values


def _memory() -> Iterator[Value]:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for device in range(cuda.device_count()):
        labels = {"device": str(device)}
        yield "device_allocated_bytes", labels, cuda.memory_allocated(device)
        yield "device_reserved_bytes", labels, cuda.memory_reserved(device)


def _compilation() -> Iterator[Value]:
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if frames is not None and hasattr(frames, "FRAME_COMPILE_COUNTER"):
        times = list(frames.FRAME_COMPILE_COUNTER.values())
        yield "compile_recompiles_total", {}, sum(max(n - 1, 0) for n in times)
    if utils is None or not hasattr(utils, "counters"):
        return
    counters: Any = utils.counters
    yield "compile_graph_breaks_total", {}, sum(list(counters["graph_break"].values()))
    hits = counters["inductor"]["fxgraph_cache_hit"]
    hits += counters["aot_autograd"]["autograd_cache_hit"]
    yield "compile_cache_hits_total", {}, hits


def _utilization() -> Iterator[Value]:
    torch: Any = sys.modules.get("torch")
    nvml: Any = sys.modules.get("pynvml")
    if nvml is None or torch is None or not torch.cuda.is_initialized():
        return
    nvml.nvmlInit()
    for device in range(nvml.nvmlDeviceGetCount()):
        rates = nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByIndex(device))
        yield "device_utilization_ratio", {"device": str(device)}, rates.gpu / 100
