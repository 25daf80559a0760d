"""Who recorded a trace: vendor, devices, versions, profiler flags and place in the job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.core.trace.accelerators import ASCEND_DEVICE
from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

_FLAGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")

INFLATION = {(False, False): 1.5, (True, False): 2.0, (False, True): 2.0, (True, True): 2.2}
"""Profiled over real host time by (shapes, stacks); catalogue 1.5, measured on tiny ops."""


ACCELERATORS = {"tpu": "TPU", "npu": "NPU", "mtia": "MTIA", "xpu": "XPU", "hpu": "HPU", "other": "accelerator"}
"""What people call a device that is no GPU of NVIDIA or AMD, by vendor."""


@dataclass(frozen=True)
class Origin:
    """Facts about the recording; anything not recorded is None or empty."""

    vendor: str
    """``cuda``, ``rocm``, ``tpu``, ``mtia``, ``xpu``, ``npu``, ``hpu``, ``other`` or ``cpu``."""
    device_names: tuple[str, ...]
    capability: tuple[int, int] | None
    n_multiprocessors: int | None
    memory_bytes: int | None
    flags: tuple[str, ...]
    rank: int | None
    world_size: int | None
    backend: str
    base_time_ns: int | None
    inflation: float
    """How much longer host work looks under this profiler than without it."""

    @property
    def accelerator(self) -> str:
        """What its device is called where it is no GPU of NVIDIA or AMD; empty for those, and without a device."""
        return ACCELERATORS.get(self.vendor, "")

    @property
    def device_word(self) -> str:
        """What people call its devices: ``GPU`` unless it is another accelerator."""
        return self.accelerator or "GPU"


def find_origin(trace: Trace) -> Origin:
    """Read the top-level keys, and the event names where the keys are silent."""
    meta = trace.meta
    devices = [item for item in _listed(meta.get("deviceProperties")) if isinstance(item, dict)]
    first = devices[0] if devices else {}
    names = tuple(str(item.get("name") or "") for item in devices)
    distributed = meta.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    shapes = bool(meta.get("record_shapes")) or trace.has_shapes
    stacks = bool(meta.get("with_stack")) or trace.has_stacks
    flags = [flag for flag in _FLAGS if meta.get(flag)]
    for flag, present in (("record_shapes", trace.has_shapes), ("with_stack", trace.has_stacks)):
        if present and flag not in flags:
            flags.append(flag)
    major, minor = _int(first.get("computeMajor")), _int(first.get("computeMinor"))
    vendor = _vendor(trace, meta, names)
    return Origin(
        vendor=vendor,
        device_names=names if vendor != "cpu" else (),
        capability=(major, minor or 0) if major is not None else None,
        n_multiprocessors=_int(first.get("numSms")),
        memory_bytes=_int(first.get("totalGlobalMem")),
        flags=tuple(flags),
        rank=_int(distributed.get("rank")),
        world_size=_int(distributed.get("world_size")),
        backend=str(distributed.get("backend") or ""),
        base_time_ns=_int(meta.get("baseTimeNanoseconds")),
        inflation=INFLATION[shapes, stacks],
    )


def _vendor(trace: Trace, meta: dict[str, Any], device_names: tuple[str, ...]) -> str:
    if trace.report.recorder and "vendor" in meta and trace.works.any():
        return str(meta["vendor"])  # its reader knows
    if "roctracer_version" in meta or any(key.startswith("hip_") for key in meta):
        return "rocm"
    runtime = {trace.names[code] for code in set(trace.name[trace.kind == Kind.RUNTIME].tolist())}
    if any(name.startswith("hip") for name in runtime):
        return "rocm"
    if any(re.match(r"cuda|cu[A-Z]", name) for name in runtime):
        return "cuda"
    if ASCEND_DEVICE in trace.labels.values():
        return "npu"
    cats = " ".join(trace.cats).lower()
    for vendor, sign in (("mtia", "mtia"), ("xpu", "xpu_"), ("hpu", "hpu"), ("npu", "enqueue")):
        if sign in cats:
            return vendor
    if "privateuse1" in cats or (trace.kind == Kind.DEVICE_OTHER).any():
        return "other"
    if trace.works.any():
        # device rows alone, without calls: ROCm names its devices after the maker, mostly
        return "rocm" if any(name.startswith("AMD ") for name in device_names) else "cuda"
    return "cpu"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(value) if isinstance(value, str) else None
    except ValueError:
        return None
