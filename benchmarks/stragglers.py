"""Real jobs of several ranks with a straggler put in: is it named, and what was promised.

    python benchmarks/stragglers.py [--ranks 2] [--out FOLDER] [NAME…]

Each job trains a small network with DistributedDataParallel over gloo: once with the fault and the
profiler, and once without a profiler, ten steps with the fault and ten without in turns. Printed:
who is named with what cause, the saving promised, and the difference of the median steps. The
network sleeps where it would compute, so that ranks take no cores from each other. Needs torch.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from straggler_watch import N_LAYERS, WIDTH, free_port, join, sleeping_layer

FAULTS = {
    "balanced": "",
    "sleep": "rank 1, between python",
    "forward": "rank 1, between python",
    "loader": "rank 1, loader python",
    "batch": "rank 1, backward op",
    "log": "rank 0, between python",
    "gc": "rank 1, between python",
}
"""Name to what has to be said of it, nothing for a balanced job."""
BATCH = 32
FORWARD_S, BACKWARD_S = 0.05e-3, 0.1e-3
"""What each layer takes for one sample."""
WAIT, WARMUP, ACTIVE = 5, 3, 10
BLOCK, N_BLOCKS = 10, 12
"""Steps without a profiler, in turns with and without the fault; the first two of each left out."""


def work(rank: int, fault: str, n_ranks: int, port: int, folder: str, profiled: bool) -> None:
    """Train on one rank; writes its trace, or its step times."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):  # type: ignore[misc]
        delay_s = 0.0

        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, _index: int) -> tuple[Any, int]:
            if self.delay_s:
                time.sleep(self.delay_s)
            return torch.zeros(WIDTH), 1

    join(rank, n_ranks, port)
    torch.manual_seed(0)
    layer = sleeping_layer(FORWARD_S, BACKWARD_S)
    layers = [layer() for _ in range(N_LAYERS)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)), bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Samples(), batch_size=BATCH, num_workers=0))
    inputs, labels = torch.zeros(BATCH * 2, WIDTH), torch.zeros(BATCH * 2, dtype=torch.long)
    garbage = [[[i] for i in range(200_000)] if fault == "gc" and rank == 1 else []]
    trace = Path(folder) / f"rank{rank}.json.gz"
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda one: one.export_chrome_trace(str(trace)),
    )
    times = []
    if profiled:
        profiler.start()
    for step in range(WAIT + WARMUP + ACTIVE if profiled else BLOCK * N_BLOCKS):
        begun = time.perf_counter()
        on = profiled or step // BLOCK % 2 == 0
        late = on and rank == 1
        Samples.delay_s = 0.02 / BATCH if fault == "loader" and late else 0.0
        size = BATCH * 2 if fault == "batch" and late else BATCH
        next(batches)
        optimizer.zero_grad()
        if fault == "forward" and late:
            time.sleep(0.02)
        loss = nn.functional.cross_entropy(model(inputs[:size]), labels[:size])
        loss.backward()
        if fault == "sleep" and late:
            time.sleep(0.02)
        optimizer.step()
        if fault == "log" and on and rank == 0:
            with Path(folder, "log.txt").open("a") as log:
                log.write(f"{step} {loss.item()}\n")
            torch.save(model.state_dict(), Path(folder) / "checkpoint.pt")
        if fault == "gc" and late:
            gc.collect()
        if profiled:
            profiler.step()
        times.append(time.perf_counter() - begun)
    if profiled:
        profiler.stop()
    (Path(folder) / f"times_{rank}").write_text(" ".join(map(str, times)))
    del garbage
    dist.barrier()
    dist.destroy_process_group()


def run(fault: str, n_ranks: int, folder: Path, *, profiled: bool) -> list[list[float]]:
    """Run a job; return the step times of each rank in seconds."""
    from torch import multiprocessing

    folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.spawn(work, (fault, n_ranks, free_port(), str(folder), profiled), nprocs=n_ranks)
    return [[float(text) for text in (folder / f"times_{rank}").read_text().split()] for rank in range(n_ranks)]


def measured(times: list[list[float]]) -> tuple[float, float]:
    """Return the median step in ms with and without the fault, mean over ranks."""
    sides = []
    for side in (0, 1):
        steps = [step for step in range(BLOCK, BLOCK * N_BLOCKS) if step // BLOCK % 2 == side and step % BLOCK >= 2]
        sides.append(statistics.mean(statistics.median(one[at] for at in steps) for one in times))
    return sides[0] * 1e3, sides[1] * 1e3


def main() -> None:
    """Run the jobs and print the table."""
    import torchtriage as tt

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"Of {', '.join(FAULTS)}.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="Keep the traces here.")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp())
    print(f"{'fault':10}{'named':32}{'promised ms':>16}{'measured ms':>14}{'of step':>10}  right")
    for name in args.names or FAULTS:
        folder = out / f"{name}_{args.ranks}"
        run(name, args.ranks, folder, profiled=True)
        (job,) = tt.analyze_ranks(sorted(folder.glob("*.json.gz"))).jobs
        late = [one for one in job.findings if one.code == "COM036"]
        named = promised = ""
        if late and late[0].cost:
            named = f"rank {late[0].evidence['late_rank']}, {late[0].evidence['cause']}"
            promised = f"{late[0].cost.low_ms:.1f}-{late[0].cost.high_ms:.1f}"
        before, after = measured(run(name, args.ranks, out / "plain", profiled=False))
        right = "yes" if named == FAULTS[name] else f"no, {FAULTS[name] or 'nothing'}"
        print(
            f"{name:10}{named or 'nothing':32}{promised:>16}{before - after:14.1f}{before:10.1f}  {right}", flush=True
        )


if __name__ == "__main__":
    main()
