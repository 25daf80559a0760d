"""Real jobs with and without a late rank, watched while they train: who is named, where its time goes, what it costs.

    python benchmarks/straggler_watch.py [--half dev|held|all] [--out FILE] [NAME…]
    python benchmarks/straggler_watch.py --cost

Each job trains over gloo on the ranks of this machine; the network sleeps where it would compute, so that ranks take no
cores from each other. What has to be said of a case was written before the watch existed; half of the cases, by a hash
of their names, were left alone while it was made. Needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH, BATCH, N_LAYERS = 256, 16, 4
FORWARD_S, BACKWARD_S = 0.08e-3, 0.16e-3
"""What each layer takes for one sample: 15 ms of a step."""
STEPS = 320


@dataclass(frozen=True)
class Case:
    """A job, and what has to be told: rank and phase in turn, nothing of a healthy one.

    ``fault`` : rank, kind, milliseconds, first step and step behind the last; several for one that moves.
    ``loop`` : ddp, manual (all-reduces each gradient itself), fsdp (FSDP2), gan (two networks) or accumulate.
    ``phases`` : of a late rank, any of which is right.
    """

    name: str
    loop: str = "ddp"
    ranks: int = 3
    faults: tuple[tuple[int, str, float, int, int], ...] = ()
    told: tuple[tuple[int, tuple[str, ...]], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def _late(name: str, rank: int, kind: str, ms: float, *phases: str, **more: Any) -> Case:
    loop, ranks = more.pop("loop", "ddp"), more.pop("ranks", 3)
    return Case(name, loop, ranks, ((rank, kind, ms, 0, STEPS),), ((rank, phases),), more)


CASES = (
    _late("loader", 1, "loader", 8, "loader"),
    _late("loader worker", 2, "loader", 150, "loader", workers=1),
    _late("iterator of its own", 1, "loader", 8, "loader", wrapped=True),
    _late("forward", 0, "forward", 8, "forward"),
    _late("forward of two", 1, "forward", 5, "forward", ranks=2),
    _late("backward", 2, "backward", 8, "backward"),
    _late("twice the batch", 1, "batch", 2, "backward", "forward"),
    _late("optimizer", 1, "optimizer", 8, "optimizer"),
    _late("between", 2, "between", 8, "between"),
    _late("saves each step", 0, "save", 8, "between"),
    _late("collects garbage", 1, "gc", 0, "between"),
    _late("every fifth step", 1, "fifth", 40, "between"),
    _late("manual all-reduce", 1, "forward", 8, "forward", loop="manual"),
    _late("manual backward", 2, "backward", 8, "backward", loop="manual"),
    _late("FSDP2 forward", 1, "forward", 8, "forward", loop="fsdp"),
    _late("FSDP2 loader", 2, "loader", 8, "loader", loop="fsdp"),
    _late("FSDP2 backward", 0, "backward", 8, "backward", loop="fsdp"),
    _late("GAN generator", 2, "forward", 8, "forward", loop="gan"),
    _late("GAN loader", 1, "loader", 8, "loader", loop="gan"),
    _late("accumulation", 1, "forward", 4, "forward", loop="accumulate"),
    _late("accumulation loader", 2, "loader", 4, "loader", loop="accumulate"),
    _late("compiled", 1, "forward", 8, "forward", compiled=True),
    _late("buffers of rank 0", 0, "loader", 8, "loader", buffers=True),
    _late("buffers of rank 1", 1, "between", 8, "between", buffers=True),
    _late("evaluation between", 2, "loader", 8, "loader", evaluate=30),
    _late("four ranks", 3, "backward", 6, "backward", ranks=4),
    _late("noisy", 1, "forward", 10, "forward", jitter=4),
    _late("lengths differ", 1, "loader", 12, "loader", lengths=True),
    Case("ends", faults=((1, "loader", 8, 0, 100),), told=((1, ("loader",)), (-1, ())), options={"steps": 240}),
    Case(
        "moves",
        faults=((1, "loader", 8, 0, 100), (2, "forward", 8, 100, 240)),
        told=((1, ("loader",)), (2, ("forward",))),
        options={"steps": 240},
    ),
    Case("begins late", faults=((2, "between", 8, 120, 240),), told=((2, ("between",)),), options={"steps": 240}),
    Case("healthy"),
    Case("healthy, two ranks", ranks=2),
    Case("healthy, four ranks", ranks=4),
    Case("healthy, workers", options={"workers": 1}),
    Case("healthy, noisy", options={"jitter": 4}),
    Case("healthy, lengths differ", options={"lengths": True}),
    Case("healthy, manual", "manual"),
    Case("healthy, FSDP2", "fsdp"),
    Case("healthy, GAN", "gan"),
    Case("healthy, accumulation", "accumulate"),
    Case("healthy, compiled", options={"compiled": True}),
    Case("healthy, buffers", options={"buffers": True}),
    Case("healthy, evaluation between", options={"evaluate": 30}),
    Case("healthy, all save", faults=tuple((rank, "save", 8, 0, STEPS) for rank in range(3))),
    Case("healthy, all load slowly", faults=tuple((rank, "loader", 8, 0, STEPS) for rank in range(3))),
    Case("healthy, one stall", faults=((1, "between", 400, 70, 71),)),
    Case("healthy, slow start", faults=((1, "between", 60, 0, 4),)),
)


def half(case: Case) -> str:
    """Return ``dev`` or ``held``: the latter half was left alone while the watch was made."""
    return ("dev", "held")[hashlib.sha256(case.name.encode()).digest()[0] % 2]


def join(rank: int, n_ranks: int, port: int) -> None:
    """Make this process a rank of a job on this machine."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n_ranks)


def sleeping_layer(
    forward_s: float,
    backward_s: float,
    late_s: Callable[[], float] = float,
    wrap: Callable[[Any], Any] = lambda run: run,
) -> Any:
    """Return a layer that sleeps for each sample; ``late_s`` : how much longer on the way back, in all layers."""
    from torch import autograd, nn

    class Work(autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_ctx: Any, values: Any) -> Any:
            time.sleep(forward_s * len(values))
            return values.clone()

        @staticmethod
        def backward(_ctx: Any, grads: Any) -> Any:
            time.sleep(backward_s * len(grads) + late_s() / N_LAYERS)
            return grads

    work = wrap(Work.apply)

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, values: Any) -> Any:
            return self.linear(work(values))

    return Layer


def work(rank: int, cases: list[Case], port: int, folder: str) -> None:
    """Be one rank of some jobs in turn: starting a process takes longer than a job."""
    import torch
    import torch.distributed as dist

    join(rank, cases[0].ranks, port)
    for number, case in enumerate(cases):
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = False  # it refuses buckets as small as these
        (Path(folder) / str(number)).mkdir(exist_ok=True)
        train(rank, case, Path(folder) / str(number))
        dist.barrier()
        gc.collect()
        if rank == 0:
            tell(case, json.loads((Path(folder) / str(number) / "watch.json").read_text()), Path(folder))
    dist.destroy_process_group()


def train(rank: int, case: Case, folder: Path) -> None:
    """Train on one rank; the first writes what was told."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    import torchtriage as tt

    options = case.options
    step = 0

    def late_s(*kinds: str) -> float:
        return sum(ms for who, kind, ms, a, b in case.faults if who == rank and kind in kinds and a <= step < b) / 1e3

    whole = {"wrap": torch._dynamo.disable} if options.get("compiled") else {}
    new_layer = sleeping_layer(FORWARD_S, BACKWARD_S, lambda: late_s("backward"), **whole)

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH) if options.get("buffers") else nn.Identity()
            self.layers = nn.Sequential(*[new_layer() for _ in range(N_LAYERS)])
            self.head = nn.Linear(WIDTH, WIDTH)

        def forward(self, values: Any) -> Any:
            self.pause()
            return self.head(self.layers(self.norm(values)))

        def pause(self) -> None:
            if late_s("forward"):
                time.sleep(late_s("forward"))

    if options.get("compiled"):
        Net.pause = torch._dynamo.disable(Net.pause)

    class Samples(Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, _index: int) -> Any:
            if late_s("loader"):
                time.sleep(late_s("loader") / BATCH)
            return torch.zeros(WIDTH)

    class Optimizer(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            time.sleep(late_s("optimizer"))
            return super().step(closure)

    torch.manual_seed(0)
    noise = torch.Generator().manual_seed(100 + rank)
    lengths = torch.Generator().manual_seed(7 + rank)
    net = Net()
    if options.get("compiled"):
        net = torch.compile(net, backend="aot_eager")
    critic = None
    if case.loop == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (case.ranks,))
        for layer in net.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    elif case.loop != "manual":
        net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.3)
    if case.loop == "gan":
        critic = nn.parallel.DistributedDataParallel(nn.Sequential(new_layer(), nn.Linear(WIDTH, 1)))
    optimizer = Optimizer(net.parameters(), lr=0.01)
    second = None if critic is None else torch.optim.SGD(critic.parameters(), lr=0.01)
    workers = {"num_workers": options["workers"], "multiprocessing_context": "fork"} if "workers" in options else {}
    loader: Any = DataLoader(Samples(), batch_size=BATCH, **workers)
    models = [net] if critic is None else [net, critic]
    watch = tt.StragglerWatch(*models, optimizer=second or optimizer, out=Path(folder) / "watch.json")
    garbage = [[[i] for i in range(60_000)] if any(k == "gc" and r == rank for r, k, *_ in case.faults) else []]
    watch.start()
    plain = (torch.stack([Samples()[0] for _ in range(BATCH)]) for _ in range(1 << 20))
    batches = iter(watch.batches(plain)) if options.get("wrapped") else iter(loader)
    for step in range(options.get("steps", STEPS)):
        for micro in range(4 if case.loop == "accumulate" else 1):
            batch = next(batches)
            size = BATCH
            if options.get("lengths"):
                size = int(torch.randint(BATCH // 2, BATCH + 1, (1,), generator=lengths))
            if late_s("batch"):
                batch = torch.cat([batch, batch])
                size *= 2
            if options.get("jitter"):
                time.sleep(float(torch.rand(1, generator=noise)) * options["jitter"] / 1e3)
            last = micro == 3 or case.loop != "accumulate"
            with contextlib.nullcontext() if last else net.no_sync():
                out = net(batch[:size])
                if critic is not None:
                    loss = critic(out).mean()
                else:
                    loss = out.square().mean()
                loss.backward()
        if case.loop == "manual":
            for parameter in net.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
        time.sleep(late_s("between"))
        if step % 5 == 0 and late_s("fifth"):
            time.sleep(late_s("fifth"))
        if len(garbage[0]):
            gc.collect()
        if late_s("save"):
            torch.save(net.state_dict(), Path(folder) / f"checkpoint{rank}.pt")
            time.sleep(late_s("save"))
        optimizer.step()
        optimizer.zero_grad()
        if critic is not None and second is not None:
            critic(net(batch).detach()).mean().backward()
            second.step()
            second.zero_grad()
        if options.get("evaluate") and step % options["evaluate"] == 0:
            with torch.no_grad():
                for _ in range(10):
                    net(next(batches))
    watch.stop()


def run(cases: list[Case], folder: Path) -> None:
    """Run jobs of as many ranks each."""
    from torch import multiprocessing

    multiprocessing.spawn(work, (cases, free_port(), str(folder)), nprocs=cases[0].ranks)


def free_port() -> int:
    """Return a port of this machine that nobody listens to."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def tell(case: Case, found: dict[str, Any], folder: Path) -> None:
    """Print a job's line, and keep it."""
    right = is_right(case, found["told"])
    said = " | ".join(one["text"] for one in found["told"])
    print(f"{'right' if right else 'WRONG'}  {case.name:30}{said}", flush=True)
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps({"case": case.name, "half": half(case), "right": right, **found}) + "\n")


def is_right(case: Case, told: list[dict[str, Any]]) -> bool:
    """Return whether what was told is what has to be: nothing else, in this order; -1 : that it ended."""
    said = []
    for one in told:
        if one["what"] != "late":
            return False
        said.append((-1 if one["kind"] in ("ended", "absent") else one["rank"], next(iter(one["phases"]))))
    if len(case.told) > 1 and case.told[-1][0] != -1:
        said = [one for one in said if one[0] != -1]  # who moved has ended before, or after
    if len(said) != len(case.told):
        return False
    return all(
        rank == want and (rank == -1 or phase in phases)
        for (rank, phase), (want, phases) in zip(said, case.told, strict=True)
    )


def cost(rank: int, port: int, folder: str) -> None:
    """Train with the watch's hooks and without them in turns, block by block; writes the steps of each kind."""
    import threading

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import torchtriage as tt

    join(rank, 2, port)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = iter(DataLoader(TensorDataset(torch.zeros(1 << 17, 16)), batch_size=4))
    weights = torch.randn(1400, 1400)  # 8 MB: each step finds the caches cold, as behind a network's own work
    steps_us: dict[str, list[float]] = {"timed": [], "counted": [], "without": []}
    watch = tt.StragglerWatch(net, optimizer=optimizer).start()
    for pair in range(COST_PAIRS):
        for side in ("with", "without") if pair % 2 else ("without", "with"):
            if side == "without":
                watch._hooks.remove()
            for step in range(COST_STEPS):
                kind = side if side == "without" else "timed" if watch._clock.timed else "counted"
                begun = time.thread_time()
                batch = next(batches)
                begun_work, until = time.thread_time(), time.perf_counter() + 0.019
                while time.perf_counter() < until:
                    torch.mm(weights[:64], weights)
                worked = time.thread_time() - begun_work
                net(batch[0]).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step >= COST_STEPS // 6:  # the first ones after a change are longer
                    steps_us[kind].append((time.thread_time() - begun - worked) * 1e6)
            if side == "without":
                watch._hooks.install()
    thread = next(thread for thread in threading.enumerate() if thread.name == "torchtriage-stragglers")
    thread_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    thread_us = thread_s * 1e6 / COST_PAIRS / COST_STEPS / 2
    (Path(folder) / f"cost{rank}.json").write_text(json.dumps(steps_us | {"thread": [thread_us]}))
    watch.stop()
    dist.barrier()
    dist.destroy_process_group()


COST_PAIRS, COST_STEPS = 120, 24


def measure_cost() -> None:
    """Print what a step of 20 ms takes more of the loop's processor time: medians, as others are on the cores, too."""
    from torch import multiprocessing

    from torchtriage.core.record.phase_clock import MOST_SKIPPED

    folder = tempfile.mkdtemp()
    multiprocessing.spawn(cost, (free_port(), folder), nprocs=2)
    for rank in range(2):
        steps_us = json.loads((Path(folder) / f"cost{rank}.json").read_text())
        timed_us, counted_us, plain_us = (statistics.median(steps_us[kind]) for kind in ("timed", "counted", "without"))
        mean_us = counted_us + (timed_us - counted_us) / MOST_SKIPPED - plain_us
        print(
            f"rank {rank}: a timed step takes {timed_us - plain_us:.1f} µs more than {plain_us:.0f}, a counted one "
            f"{counted_us - plain_us:.1f}, the mean {mean_us:.1f}; the watch's thread {steps_us['thread'][0]:.1f}"
        )


def main() -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--half", choices=("dev", "held", "all"), default="all")
    parser.add_argument("--out", type=Path, default=None, help="Keep what was told in this folder.")
    parser.add_argument("--cost", action="store_true", help="Measure what watching costs instead.")
    args = parser.parse_args()
    if args.cost:
        measure_cost()
        return
    cases = [case for case in CASES if args.half in ("all", half(case)) and (not args.names or case.name in args.names)]
    folder = args.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "told.jsonl").exists():  # goes on where it stopped
        done = {json.loads(line)["case"] for line in (folder / "told.jsonl").read_text().splitlines()}
        cases = [case for case in cases if case.name not in done]
    for n_ranks in sorted({case.ranks for case in cases}, key=lambda n: n != 3):
        run([case for case in cases if case.ranks == n_ranks], folder)
    told = [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]
    print(f"{sum(one['right'] for one in told)} of {len(told)} right")


if __name__ == "__main__":
    main()
