"""Real jobs of several ranks with a straggler put in: is it named, and what was promised.

    python benchmarks/stragglers.py [--ranks 2] [--out FOLDER] [NAME…]

Each job trains a small network with DistributedDataParallel over gloo, once with the fault and the
profiler, and with and without the fault unprofiled, turn by turn. Printed: who is named with what
cause, the saving promised, and the one measured without a profiler. Needs torch and an idle
machine with more cores than ranks: with fewer, ranks take time from each other.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

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
WIDTH, BATCH, N_LAYERS = 512, 32, 6
WAIT, WARMUP, ACTIVE = 5, 3, 10


def work(rank: int, fault: str, n_ranks: int, port: int, folder: str, profiled: bool) -> None:
    """Train on one rank; writes its trace, or its step times."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):  # type: ignore[misc]
        delay_s = 0.02 / BATCH if fault == "loader" and rank == 1 else 0.0

        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, _index: int) -> tuple[Any, int]:
            if self.delay_s:
                time.sleep(self.delay_s)
            return torch.zeros(WIDTH), 1

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=n_ranks)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(N_LAYERS)]
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*layers, nn.Linear(WIDTH, 10)), bucket_cap_mb=2
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = BATCH * 12 if fault == "batch" and rank == 1 else BATCH
    batches = iter(DataLoader(Samples(), batch_size=BATCH, num_workers=0))
    inputs, labels = torch.zeros(size, WIDTH), torch.zeros(size, dtype=torch.long)
    garbage = [[[i] for i in range(300_000)] if fault == "gc" and rank == 1 else []]
    trace = Path(folder) / f"rank{rank}.json.gz"
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda one: one.export_chrome_trace(str(trace)),
    )
    times = []
    if profiled:
        profiler.start()
    for step in range(WAIT + WARMUP + ACTIVE):
        begun = time.perf_counter()
        next(batches)
        optimizer.zero_grad()
        if fault == "forward" and rank == 1:
            time.sleep(0.02)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        if fault == "sleep" and rank == 1:
            time.sleep(0.02)
        optimizer.step()
        if fault == "log" and rank == 0:
            with Path(folder, "log.txt").open("a") as log:
                log.write(f"{step} {loss.item()}\n")
            torch.save(model.state_dict(), Path(folder) / "checkpoint.pt")
        if fault == "gc" and rank == 1:
            gc.collect()
        if profiled:
            profiler.step()
        times.append(time.perf_counter() - begun)
    if profiled:
        profiler.stop()
    median_ms = statistics.median(times[WAIT + WARMUP :]) * 1e3
    (Path(folder) / f"step_ms_{rank}").write_text(str(median_ms))
    del garbage
    dist.barrier()
    dist.destroy_process_group()


def run(fault: str, n_ranks: int, folder: Path, *, profiled: bool) -> float:
    """Run a job; return its median step time in ms."""
    import socket

    from torch import multiprocessing

    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    multiprocessing.spawn(work, (fault, n_ranks, port, str(folder), profiled), nprocs=n_ranks)
    return statistics.median(
        float((folder / f"step_ms_{rank}").read_text()) for rank in range(n_ranks)
    )


def main() -> None:
    """Run the jobs and print the table."""
    import torchtriage as tt

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"Of {', '.join(FAULTS)}.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="Unprofiled runs of each side.")
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
        with_ms, without_ms = [], []
        for _ in range(args.rounds):
            with_ms.append(run(name, args.ranks, out / "plain", profiled=False))
            without_ms.append(run("balanced", args.ranks, out / "plain", profiled=False))
        before, after = statistics.median(with_ms), statistics.median(without_ms)
        right = "yes" if named == FAULTS[name] else f"no, {FAULTS[name] or 'nothing'}"
        print(
            f"{name:10}{named or 'nothing':32}{promised:>16}{before - after:14.1f}{before:10.1f}"
            f"  {right}",
            flush=True,
        )


if __name__ == "__main__":
    main()
