"""Jobs of several ranks with a fault that was put in by who did not know the rules: what is said of them.

    python benchmarks/job_programs.py record FOLDER [NAME ...]
    python benchmarks/job_programs.py score FOLDER [NAME ...]

``programs_jobs`` holds training programs for gloo (DDP, FSDP2, pipelines, experts, tensor parallel layers), each with a
fault and without it, and in ``labels.toml`` which half a program belongs to, which codes name its fault, and which
ranks are late. Half ``held_out`` was not looked at while rules were made. A layer sleeps where it would compute, twice
as long as its times say, and the ranks have a network of their own with 1 Gbit/s, so that they take no cores from each
other: this needs Linux, root (``unshare``, ``tc``), torch, and a machine with nothing else to do. ``score`` prints what
the first finding of each recording is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomllib

PROGRAMS = Path(__file__).parent / "programs_jobs"
LABELS: dict[str, dict[str, Any]] = tomllib.loads((PROGRAMS / "labels.toml").read_text())
SCALE = 2
"""Times as long as its own times say a program sleeps."""
RATE = "1gbit"
NETWORK = f'ip link set lo up; tc qdisc add dev lo root tbf rate {RATE} burst 70kb latency 2s; exec "$@"'
WARMUP, ACTIVE = 2, 10


# -- one job ---------------------------------------------------------------------------------------


def run(name: str, fault: bool, folder: Path) -> None:
    """Record all ranks of a program."""
    import torch.multiprocessing as mp

    source = (PROGRAMS / f"{name}.py").read_text()
    world = int(source.split("world=")[1].split()[0])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    mp.start_processes(_rank, (name, source, world, port, fault, folder), nprocs=world, start_method="fork")


def _rank(rank: int, name: str, source: str, world: int, port: int, fault: bool, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    # head of a program: `#OPTS world=3 stack=1 op=Name`, what its layers are called
    given = dict(item.split("=") for item in source.splitlines()[0].split()[1:])
    names = _names(given["op"], given["stack"] == "1", folder)
    names["WORLD"] = world
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    random.seed(rank)
    exec(compile(source.replace("time.sleep(", "pause("), str(PROGRAMS / f"{name}.py"), "exec"), names)
    names["train"](rank, world, SimpleNamespace(fault=fault, clean=not fault, steps=2 + WARMUP + ACTIVE))
    dist.barrier()
    dist.destroy_process_group()


def _names(op: str, stacks: bool, folder: Path) -> dict[str, Any]:
    """Return what programs use without importing it."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule

    def pause(seconds: float) -> None:
        time.sleep(SCALE * seconds)

    def forward(ctx: Any, x: Any, fwd: float, bwd: float) -> Any:
        ctx.bwd = bwd
        pause(fwd)
        return x.view_as(x)

    def backward(ctx: Any, grad: Any) -> Any:
        pause(ctx.bwd)
        return grad, None, None

    @contextlib.contextmanager
    def recording(_args: Any, rank: int) -> Iterator[Any]:
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=2, warmup=WARMUP, active=ACTIVE, repeat=1),
            on_trace_ready=lambda prof: prof.export_chrome_trace(str(folder / f"rank{rank}.json.gz")),
            record_shapes=True,
            with_stack=stacks,
        ) as prof:
            yield prof

    layer = type(op, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    return {
        "torch": torch,
        "dist": torch.distributed,
        "nn": torch.nn,
        "F": torch.nn.functional,
        "DDP": DistributedDataParallel,
        "contextlib": contextlib,
        "os": os,
        "random": random,
        "time": time,
        "pause": pause,
        "recording": recording,
        "__name__": "program",
        op: layer,
    }


# -- all of them -----------------------------------------------------------------------------------


def record(folder: Path, names: list[str]) -> None:
    """Record programs, each with its fault and without, in a network namespace of its own."""
    for name in names:
        for mode in ("fault", "clean") if LABELS[name]["codes"] else ("clean",):
            place = str(folder / name / mode)
            own = [sys.executable, __file__, "run", place, name, *(["--fault"] if mode == "fault" else [])]
            done = subprocess.run(["unshare", "-n", "sh", "-c", NETWORK, "sh", *own], timeout=600)
            print(
                f"{name:26} {mode:6} {'recorded' if not done.returncode else f'failed: {done.returncode}'}", flush=True
            )


def score(folder: Path, names: list[str]) -> None:
    """Print the first finding of each recording, and how many are right."""
    import torchtriage

    right: dict[tuple[str, str], list[bool]] = {}
    for name in names:
        label = LABELS[name]
        for mode in ("fault", "clean"):
            if not (folder / name / mode).is_dir():
                continue
            (job,) = torchtriage.analyze_ranks(folder / name / mode).jobs
            found = [one for one in job.findings if one.severity != "note"]
            first = found[0] if found else None
            good = not found if mode == "clean" else first is not None and first.code in label["codes"]
            if good and first is not None and label.get("ranks"):
                good = first.ranks is not None and sorted(first.ranks.ranks) == label["ranks"]
            right.setdefault((label["half"], mode), []).append(good)
            text = ", ".join(f"{one.code} {one.severity}" for one in found[:3]) or "nothing"
            verdict = "right" if good else "wrong" if mode == "fault" else "said"
            print(f"{label['half']:22} {name:26} {mode:6} {verdict} {text}")
    for (half, mode), some in sorted(right.items()):
        print(f"{half:22} {'named first' if mode == 'fault' else 'quiet':12} {sum(some)} of {len(some)}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "score", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fault", action="store_true", help="of run, which record calls")
    given = parser.parse_args()
    if given.what == "run":
        run(given.names[0], given.fault, given.folder)
        return
    {"record": record, "score": score}[given.what](given.folder, given.names or list(LABELS))


if __name__ == "__main__":
    main()
