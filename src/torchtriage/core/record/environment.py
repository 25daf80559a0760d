"""What a run ran on and with: facts that change speed, and nothing else.

Environment variables are taken from a list, so no token or path of a stranger's ends in a file.
Nothing is started to learn a fact: a device that the script does not use is not asked.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from torchtriage.core.machine import allowed_cpus, cpu_name, driver_version, variables

_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def gather() -> dict[str, Any]:
    """Return the facts as JSON values; what cannot be learned is None or absent, never guessed."""
    import torch

    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "driver": driver_version(),
        "devices": _asked(_device_names, []),
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu_count": os.cpu_count(),
        "cpus_allowed": allowed_cpus(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "host_allocator": _host_allocator(),
        "flags": _asked(_flags, {}),
        "variables": variables(),
        "loaders": _asked(_loaders, []),
        "compile": _asked(_compile, {}),
        "distributed": _asked(_distributed, {}),
    }


def _asked(question: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return question()
    except Exception:
        return otherwise


def _device_names() -> list[str]:
    import torch

    from torchtriage.core.record.profiler_capture import devices

    names = []
    for kind in devices():
        module = getattr(torch, kind)
        names += [str(module.get_device_name(index)) for index in range(module.device_count())]
    return names


def _host_allocator() -> str | None:
    loaded = os.environ.get("LD_PRELOAD", "")
    return next((name for name in _ALLOCATORS if name in loaded), None)


def _flags() -> dict[str, Any]:
    import torch

    backends: Any = torch.backends
    flags = {
        "matmul_precision": torch.get_float32_matmul_precision,
        "cuda_matmul_tf32": lambda: backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": lambda: backends.cudnn.allow_tf32,
        "cudnn_benchmark": lambda: backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: backends.cudnn.deterministic,
        "cudnn_enabled": lambda: backends.cudnn.enabled,
        "fp16_reduced_precision_reduction": (lambda: backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "anomaly_mode": torch.is_anomaly_enabled,
        "default_dtype": lambda: str(torch.get_default_dtype()),
        "mkldnn": torch.backends.mkldnn.is_available,
        "flash_attention": lambda: backends.cuda.flash_sdp_enabled(),
    }
    return {name: _asked(ask, None) for name, ask in flags.items()}


def _loaders() -> list[dict[str, Any]]:
    """Return the settings of the DataLoaders that are alive, most workers first."""
    import torch.utils.data

    names = ("batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last")
    # type(), not isinstance(): a proxy may run code of its own when it is asked for its class
    loaders = [loader for loader in gc.get_objects() if issubclass(type(loader), torch.utils.data.DataLoader)]
    seen = []
    for loader in loaders:
        settings = {name: _plain(getattr(loader, name, None)) for name in names}
        settings["dataset"] = type(getattr(loader, "dataset", None)).__qualname__
        settings["start_method"] = _start_method(loader)
        seen.append(settings)
    return sorted(seen, key=lambda loader: -(loader["num_workers"] or 0))


def _start_method(loader: Any) -> str | None:
    import multiprocessing

    context = getattr(loader, "multiprocessing_context", None)
    if context is not None:
        return str(context.get_start_method())
    return multiprocessing.get_start_method(allow_none=True)


def _compile() -> dict[str, Any]:
    """Return how ``torch.compile`` was set up and what it did, empty where it was not used."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    utils = sys.modules.get("torch._dynamo.utils")
    if frames is None or utils is None or not utils.counters.get("frames"):
        return {}
    dynamo: Any = sys.modules.get("torch._dynamo.config")
    inductor: Any = sys.modules.get("torch._inductor.config")
    return {
        "frames": {name: int(count) for name, count in utils.counters["frames"].items()},
        "graph_breaks": sum(utils.counters.get("graph_break", {}).values()),
        "recompile_limit": _asked(lambda: dynamo.cache_size_limit, None),
        "assume_static": _asked(lambda: dynamo.assume_static_by_default, None),
        "automatic_dynamic": _asked(lambda: dynamo.automatic_dynamic_shapes, None),
        "cudagraphs": _asked(lambda: inductor.triton.cudagraphs, None),
        "max_autotune": _asked(lambda: inductor.max_autotune, None),
        "freezing": _asked(lambda: inductor.freezing, None),
    }


def _distributed() -> dict[str, Any]:
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {
        "backend": str(torch.distributed.get_backend()),
        "world_size": torch.distributed.get_world_size(),
        "rank": torch.distributed.get_rank(),
    }


def process_rank() -> int | None:
    """Return this process' rank: of the process group, else of the launcher; None without."""
    return _of_group("get_rank", "RANK")


def world_size() -> int | None:
    """Return how many processes the job has, found as :func:`process_rank` is."""
    return _of_group("get_world_size", "WORLD_SIZE")


def _of_group(function: str, variable: str) -> int | None:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(getattr(dist, function)())
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(type(value))
