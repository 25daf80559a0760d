"""Metrics of the process itself: memory, devices, recompilations, graph breaks, ladders, rollouts.

Nothing is imported that the service has not imported itself, and what is not known is left out.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Protocol

from torchtriage.core.process import rss_bytes
from torchtriage.operate.monitor.metrics import Value


class MetricSource(Protocol):
    """Has metrics of its own, such as a ladder or a rollout."""

    def metrics(self) -> Iterable[Value]:
        """Return them as they are now."""


_sources: list[weakref.ref[MetricSource]] = []


def register(source: MetricSource) -> None:
    """Report ``source`` too, as long as something else holds it."""
    _sources.append(weakref.ref(source, _sources.remove))


def unregister(source: MetricSource) -> None:
    """Report ``source``, which was registered, no more."""
    _sources.remove(weakref.ref(source))


def read() -> list[Value]:
    """Return what is known now; a part that fails is left out."""
    values: list[Value] = []
    alive = [source.metrics for reference in list(_sources) if (source := reference()) is not None]
    for part in (_process, _devices, _compilation, *alive):
        try:
            values += part()
        except Exception:  # noqa: PERF203 - a lost GPU must not cost the other numbers
            continue
    return values


def _process() -> Iterator[Value]:
    yield "process_resident_bytes", {}, rss_bytes()
    yield "process_cpu_seconds_total", {}, time.process_time()


def _ecc_errors(cuda: Any, at: int) -> float:
    # torch has no name for it: NVML itself, of the device that torch means
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{cuda.get_device_properties(at).uuid}")
    return int(
        nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    )


READINGS: dict[str, Callable[[Any, int], float]] = {
    "device_allocated_bytes": lambda cuda, at: int(cuda.memory_allocated(at)),
    "device_reserved_bytes": lambda cuda, at: int(cuda.memory_reserved(at)),
    "device_capacity_bytes": lambda cuda, at: int(cuda.get_device_properties(at).total_memory),
    # through nvidia-ml-py where it is installed; torch knows which of NVML's devices is its own
    "device_utilization_ratio": lambda cuda, at: int(cuda.utilization(at)) / 100,
    "device_power_watts": lambda cuda, at: int(cuda.power_draw(at)) / 1000,
    "device_temperature_celsius": lambda cuda, at: int(cuda.temperature(at)),
    "device_ecc_errors_total": _ecc_errors,
}


def _devices() -> Iterator[Value]:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for at, device in enumerate(_device_names(cuda.device_count())):
        for name, reading in READINGS.items():
            try:
                yield name, {"device": device}, reading(cuda, at)
            except Exception:  # noqa: PERF203 - a MIG slice has memory and no utilization
                continue


def _device_names(n: int) -> list[str]:
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        names = [name.strip() for name in os.environ.get(variable, "").split(",")]
        if len(set(names)) == n and all(names):
            return names
    return [str(at) for at in range(n)]


CACHES = {"autograd": ("aot_autograd", "autograd_cache"), "inductor": ("inductor", "fxgraph_cache")}


def _compilation() -> Iterator[Value]:
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if frames is not None and hasattr(frames, "FRAME_COMPILE_COUNTER"):
        times = list(frames.FRAME_COMPILE_COUNTER.values())
        yield "compile_recompiles_total", {}, sum(max(n - 1, 0) for n in times)
    if utils is None or not hasattr(utils, "counters"):
        return
    counters: Any = utils.counters  # get: indexing would add to what dynamo may be walking over
    yield "compile_graph_breaks_total", {}, sum(list(counters.get("graph_break", {}).values()))
    for cache, (group, name) in CACHES.items():
        counts = counters.get(group, {})
        yield "compile_cache_hits_total", {"cache": cache}, counts.get(f"{name}_hit", 0)
        yield "compile_cache_misses_total", {"cache": cache}, counts.get(f"{name}_miss", 0)
