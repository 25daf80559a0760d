"""Small training scripts with one known problem each, and the same scripts with it fixed.

Each runs in a process of its own, twice: once under a stopwatch, once under the profiler. Needs
torch; nothing here needs torchtriage.

    python benchmarks/cpu_pairs.py loader before OUT.json TRACE.json.gz
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

N_WARM, N_TIMED, N_PROFILED = 6, 60, 8
SLEEP_S = 0.002
"""What reading one sample takes from a disk or over a network."""


@dataclass(frozen=True)
class Pair:
    """A problem, the code of its pattern, and the script with and without it.

    ``make(fixed)`` returns a function that runs one step. ``ranks`` processes run together;
    ``shapes`` are recorded where the pattern needs them. ``workers`` : how many the fix adds.
    """

    name: str
    what: str
    code: str
    make: Callable[[bool], Callable[[], object]]
    ranks: int = 1
    shapes: bool = False
    workers: int = 0


def _loader(n_workers: int) -> Callable[[bool], Callable[[], object]]:
    def make(fixed: bool) -> Callable[[], object]:
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Slow(Dataset[Any]):
            def __len__(self) -> int:
                return 100_000

            def __getitem__(self, index: int) -> Any:
                time.sleep(SLEEP_S)
                return torch.full((256,), float(index))

        loader = DataLoader(Slow(), batch_size=16, num_workers=n_workers if fixed else 0, persistent_workers=fixed)
        batches: Iterator[Any] = iter(loader)
        train = _trainer(_mlp(256, 512, 4), torch.optim.SGD)

        # the iterator lives as long as the step
        return lambda: train(next(batches))

    return make


def _per_sample(fixed: bool) -> Callable[[], object]:
    import torch

    images = torch.rand(128, 3, 32, 32)
    mean, std = torch.full((3, 1, 1), 0.45), torch.full((3, 1, 1), 0.22)
    train = _trainer(_mlp(3 * 32 * 32, 16, 0), torch.optim.SGD)

    def prepare(image: Any) -> Any:
        return ((image - mean) / std).clamp(-2, 2)

    def step() -> None:
        if fixed:
            batch = prepare(images)
        else:
            batch = torch.stack([prepare(images[index]) for index in range(len(images))])
        train(batch.flatten(1))

    return step


def _optimizer(fixed: bool) -> Callable[[], object]:
    import functools

    import torch

    make = functools.partial(torch.optim.AdamW, foreach=fixed)
    train = _trainer(_mlp(64, 64, 60), make)
    x = torch.randn(16, 64)
    return lambda: train(x)


def _elementwise(fixed: bool) -> Callable[[], object]:
    import torch

    def chain(a: Any, b: Any) -> Any:
        y = a * b + a
        y = torch.sigmoid(y) * y + b
        y = (y - a).abs() + y * 0.5
        return torch.tanh(y) * a + y

    run = torch.compile(chain) if fixed else chain
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return lambda: run(a, b)


def _straggler(fixed: bool) -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(_mlp(256, 512, 4))
    train = _trainer(model, torch.optim.SGD)
    x = torch.randn(32, 256)

    def step() -> None:
        if dist.get_rank() == 1 and not fixed:
            time.sleep(0.02)  # its disk is slow
        train(x)

    return step


def _mlp(n_in: int, width: int, depth: int) -> Any:
    import torch

    torch.manual_seed(0)
    layers: list[Any] = [torch.nn.Linear(n_in, width), torch.nn.ReLU()]
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def _trainer(model: Any, make_optimizer: Callable[..., Any]) -> Callable[[Any], None]:
    optimizer = make_optimizer(model.parameters(), lr=1e-3)

    def train(x: Any) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return train


PAIRS = (
    Pair("loader1", "I/O-bound loader, 0 -> 1 worker", "DAT018", _loader(1), workers=1),
    Pair("loader2", "I/O-bound loader, 0 -> 2 workers", "DAT018", _loader(2), workers=2),
    Pair("loader4", "I/O-bound loader, 0 -> 4 workers", "DAT018", _loader(4), workers=4),
    Pair("per-sample", "128 images one by one -> one batch", "LCH017", _per_sample, shapes=True),
    Pair("optimizer", "AdamW of 124 tensors, foreach off -> on", "LCH016", _optimizer),
    Pair("elementwise", "11 elementwise ops, eager -> compiled", "LCH015", _elementwise, shapes=True),
    Pair("straggler", "2 ranks (gloo), a slow one -> none", "COM036", _straggler, ranks=2),
)


def run(pair: Pair, fixed: bool, trace_path: Path) -> dict[str, float]:
    """Run a script; return its median unprofiled step in ms and write the profiled steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    # one core computes; the others are left to workers and to what else runs on the machine
    torch.set_num_threads(1)
    step = pair.make(fixed)
    for _ in range(N_WARM):
        step()
    times = []
    for _ in range(N_TIMED):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=pair.shapes,
        schedule=schedule(wait=0, warmup=2, active=N_PROFILED, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(trace_path)),
    ) as prof:
        for _ in range(2 + N_PROFILED):
            step()
            prof.step()
    return {"step_ms": statistics.median(times) * 1e3, "mean_ms": statistics.mean(times) * 1e3}


def main(name: str, state: str, out: str, trace: str) -> None:
    """Run one script of a pair as asked by the driver."""
    pair = next(one for one in PAIRS if one.name == name)
    rank = int(os.environ.get("RANK", "0"))
    found = run(pair, state == "after", Path(trace.replace("%r", str(rank))))
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    sys.stdout.flush()
    # worker processes and process groups need no ceremony
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
