"""The machine that measures: what makes its times comparable, and whether others disturbed it.

Facts come from files of the kernel and from ``nvidia-smi``; what cannot be learned is left out, never guessed. Needs no
torch.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torchtriage.core.names import word_list
from torchtriage.core.samples import Machine
from torchtriage.core.units import format_share

ROOT = Path("/")

# Environment variables that change speed, and nothing else: no token or path of a stranger's.
VARIABLES = word_list("""
    AMD_SERIALIZE_KERNEL CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
    CUDA_VISIBLE_DEVICES GOMP_CPU_AFFINITY HIP_LAUNCH_BLOCKING HIP_VISIBLE_DEVICES KMP_AFFINITY KMP_BLOCKTIME
    MKL_NUM_THREADS NCCL_ALGO NCCL_BUFFSIZE NCCL_IB_DISABLE NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_PROTO
    NCCL_SHM_DISABLE NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_WAIT_POLICY PYTORCH_ALLOC_CONF
    PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_TUNABLEOP_ENABLED
    ROCR_VISIBLE_DEVICES TOKENIZERS_PARALLELISM TORCHDYNAMO_DISABLE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
    TORCH_COMPILE_DISABLE TORCH_DISTRIBUTED_DEBUG TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT
""")

STOLEN = 0.01
"""Share of all CPU time that a hypervisor took: above, other guests set the pace."""
CROWDED = 0.85
"""Share of all CPU time in use by whomever: above, with others in it, processes wait in line."""
LEAST_OTHERS = 0.1
"""... cores that others use; the rest of a quiet machine takes a few hundredths."""
MANY_OTHERS = 0.25
"""Share of all CPU time used by others: above, caches, memory and clock are shared for certain."""
CPU_BOUND = 0.8
"""CPU time over the shortest wall time of a program that computes and seldom waits."""
UNSTEADY = 0.05
"""Quartile range of wall times over their median; CPU times of the same runs have a third."""
LEAST_WATCHED_S = 0.5
"""The kernel counts CPU time in steps of 10 ms."""
LEAST_SESSIONS = 5


def variables() -> dict[str, str]:
    """Return those environment variables that change speed and are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def cpu_name(root: Path = ROOT) -> str:
    """Return the processor's model name, else the architecture."""
    text = _text(root / "proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if found:
        return found.group(1).strip()
    return platform.machine() if text else platform.processor() or platform.machine()


def allowed_cpus() -> int | None:
    """Return how many processors this process may use; None where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def driver_version(root: Path = ROOT) -> str | None:
    """Return the version of the NVIDIA or AMD driver; None without one."""
    for name in ("proc/driver/nvidia/version", "sys/module/amdgpu/version"):
        text = _text(root / name)
        if text:
            found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
            return found.group() if found else None
    return None


def gather_machine(root: Path = ROOT) -> Machine:
    """Return what is known about this machine, sorted by name.

    ``root`` : where ``proc`` and ``sys`` are.
    """
    fields = {
        "architecture": platform.machine(),
        "cores": _cores(root),
        "cpu": cpu_name(root),
        "driver": driver_version(root) or "",
        "governor": _text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
        "host": platform.node(),
        "kernel": platform.release(),
        "memory": _memory(root),
        "os": platform.system(),
        **_gpus(root),
    }
    # in a file that others read: one line each
    lines = ((name, " ".join(value.split())) for name, value in fields.items())
    return Machine(tuple(sorted((name, value) for name, value in lines if value)))


def _cores(root: Path) -> str:
    """Return ``4``, or ``4 of 16`` where the process may use fewer than there are."""
    there = os.cpu_count() or 0
    usable = float(allowed_cpus() or there)
    words = _text(root / "sys/fs/cgroup/cpu.max").split()
    with contextlib.suppress(ValueError, ZeroDivisionError, IndexError):
        usable = min(usable, int(words[0]) / int(words[1]))
    if not there:
        return ""
    return f"{usable:g} of {there}" if usable < there else str(there)


def _memory(root: Path) -> str:
    """Return the main memory in whole GiB: what a kernel keeps to itself differs by version."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return f"{max(round(int(found.group(1)) / 2**20), 1)} GiB" if found else ""


def _gpus(root: Path) -> dict[str, str]:
    rows = _nvidia()
    if rows:
        memory = {f"{round(float(row[1]) / 1024)} GiB" for row in rows if row[1].replace(".", "", 1).isdigit()}
        return {
            "gpu": ", ".join(sorted({row[0] for row in rows})),
            "gpus": str(len(rows)),
            "gpu memory": ", ".join(sorted(memory)),
        }
    # AMD's driver lists processors too; those have no SIMD units
    names = []
    for path in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        found = dict(line.split(None, 1) for line in _text(path).splitlines() if " " in line)
        if found.get("simd_count", "0").strip() != "0":
            names.append(f"AMD gfx target {found.get('gfx_target_version', '?').strip()}")
    return {"gpu": ", ".join(sorted(set(names))), "gpus": str(len(names))} if names else {}


def _nvidia() -> list[list[str]]:
    """Return name and memory in MiB of each GPU; nothing without ``nvidia-smi``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    rows = [[cell.strip() for cell in line.rsplit(",", 1)] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == 2]


@dataclass(frozen=True)
class Reading:
    """CPU time of the whole machine since its start, in seconds; ``at_s`` is monotonic."""

    at_s: float
    busy_s: float
    stolen_s: float
    n_cores: int


@dataclass(frozen=True)
class HostUse:
    """What the machine did while one process ran.

    ``own_s`` : CPU time of the process and its children; ``others_s`` of all others; ``stolen_s`` taken by the
    hypervisor. ``others_s`` and ``stolen_s`` are None where the kernel reports nothing.
    """

    wall_s: float
    own_s: float | None
    others_s: float | None = None
    stolen_s: float | None = None
    n_cores: int = 1


@dataclass(frozen=True)
class Noise:
    """Whether others disturbed what was measured; ``str()`` is what is stored and shown."""

    status: Literal["quiet", "noisy", "not checked"]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return ``quiet``, or the status and why."""
        return f"{self.status}: {'; '.join(self.reasons)}" if self.reasons else self.status


def read_host(root: Path = ROOT) -> Reading | None:
    """Return how much CPU time was used so far; None where the kernel does not report it."""
    try:
        lines = read_kernel_file(f"{root}/proc/stat").decode().splitlines()
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        # user nice system idle iowait irq softirq steal; guests are part of user and nice
        ticks = [int(word) for word in lines[0].split()[1:9]]
    except (AttributeError, ValueError, IndexError, OSError):
        return None
    if not lines[0].startswith("cpu ") or len(ticks) < 8:
        return None
    n_cores = sum(line.startswith("cpu") for line in lines) - 1
    busy = sum(ticks) - ticks[3] - ticks[4] - ticks[7]
    return Reading(time.monotonic(), busy / ticks_per_s, ticks[7] / ticks_per_s, max(n_cores, 1))


@cache
def _calls() -> Any:
    import ctypes

    library = ctypes.PyDLL(None, use_errno=True)
    library.open.argtypes = (ctypes.c_char_p, ctypes.c_int)
    library.read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    library.read.restype = ctypes.c_ssize_t
    return library, ctypes.create_string_buffer, ctypes.get_errno


def read_kernel_file(path: str) -> bytes:
    """Return what is in a file of ``/proc``; raises OSError.

    The usual way gives the interpreter's lock up at each of some five calls, and where threads are busy waits for a
    turn each time, tens of milliseconds; such a file is read in microseconds.
    """
    if sys.platform == "win32":
        return Path(path).read_bytes()
    library, make_buffer, errno = _calls()
    buffer = make_buffer(1 << 15)
    file = library.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
    if file < 0:
        raise OSError(errno(), os.strerror(errno()), path)
    text = b""
    while (n_bytes := library.read(file, buffer, len(buffer))) > 0:
        text += buffer[:n_bytes]
    failed = errno()
    library.close(file)
    if n_bytes < 0:
        raise OSError(failed, os.strerror(failed), path)
    return text


def use_between(before: Reading | None, after: Reading | None, *, wall_s: float, own_s: float | None) -> HostUse:
    """Return what the machine did between two readings around a process.

    ``wall_s`` : how long the process ran; ``own_s`` : its CPU time with that of its children.
    """
    if before is None or after is None or own_s is None:
        return HostUse(wall_s, own_s)
    # ticks are counted by sampling: a short process may have more than the whole machine
    others_s = max(after.busy_s - before.busy_s - own_s, 0.0)
    stolen_s = max(after.stolen_s - before.stolen_s, 0.0)
    return HostUse(wall_s, own_s, others_s, stolen_s, after.n_cores)


def judge_noise(uses: Sequence[HostUse]) -> Noise:
    """Say whether the machine was quiet while these processes ran.

    Noisy is: the hypervisor took more than 1 % of CPU time; others used a quarter of it, or a tenth of a core while
    85 % was in use; or wall times of programs that compute vary by more than 5 % (quartile range over median, five
    processes or more) where their CPU times vary by a third of that or less. What varies with its CPU time is the
    program's own.
    """
    if not uses:
        return Noise("not checked", ("nothing was run",))
    reasons = []
    watched = [use for use in uses if use.others_s is not None and use.stolen_s is not None]
    wall_s = sum(item.wall_s for item in watched)
    enough = len(watched) == len(uses) and wall_s >= LEAST_WATCHED_S
    if enough:
        n_cores = max(item.n_cores for item in watched)
        all_s = wall_s * n_cores
        own_s = sum(item.own_s or 0.0 for item in watched)
        others_s = sum(item.others_s or 0.0 for item in watched)
        stolen = sum(item.stolen_s or 0.0 for item in watched) / all_s
        if stolen > STOLEN:
            reasons.append(f"{format_share(stolen)} of CPU time was stolen by the hypervisor")
        crowded = (own_s + others_s) / all_s >= CROWDED and others_s / wall_s >= LEAST_OTHERS
        if crowded or others_s / all_s >= MANY_OTHERS:
            reasons.append(f"other processes used {others_s / wall_s:.2g} of {n_cores} cores meanwhile")
    if unsteady := _wall_against_cpu(uses):
        reasons.append(unsteady)
    if reasons:
        return Noise("noisy", tuple(reasons))
    if enough:
        return Noise("quiet")
    if watched and wall_s < LEAST_WATCHED_S:
        return Noise("not checked", (f"ran for {wall_s:.2g} s, too short to be sure",))
    return Noise("not checked", ("the system does not report what other processes use",))


def _wall_against_cpu(uses: Sequence[HostUse]) -> str | None:
    pairs = [(use.wall_s, use.own_s) for use in uses if use.own_s]
    if len(pairs) < LEAST_SESSIONS:
        return None
    wall_s, cpu_s = zip(*pairs, strict=True)
    # against the shortest run: the others may have waited
    if statistics.median(cpu_s) / min(wall_s) < CPU_BOUND:
        return None
    wall_spread, cpu_spread = _spread(wall_s), _spread(cpu_s)
    if wall_spread <= UNSTEADY or cpu_spread > wall_spread / 3:
        return None
    return (
        f"wall time varies by {format_share(wall_spread)} where CPU time varies by"
        f" {format_share(cpu_spread)}: processes waited for a core"
    )


def _spread(values: Sequence[float]) -> float:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
