"""Real pipelines of several ranks: is the schedule named, and the bubble measured that theory and stage times imply.

    python benchmarks/pipelines.py [--half dev|held] [--out FOLDER] [--read FOLDER] [NAME…]

Each job runs a schedule of torch.distributed.pipelining over gloo, whose stages sleep where they would compute, so
that ranks take no cores from each other. What is expected is computed here, from the sleeps and the order that the
schedule prescribes, and knows nothing of the recordings. Jobs that send without being a pipeline must not be called
one. Names are parted into two halves by their hash; one is for building the rules, one for judging them. Needs torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORWARD_S, INPUT_S, WEIGHT_S = 0.03, 0.03, 0.03
"""What a whole micro-batch takes on one rank of a balanced pipeline; backward is the last two."""
WAIT, WARMUP, ACTIVE = 1, 2, 6
WIDTH, ROWS = 64, 4
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "izb": 2, "zbv": 2}
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "izb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
}
NAMES = (
    *(f"{kind}_p{p}_m{m}" for kind in ("gpipe", "1f1b") for p, m in ((2, 2), (2, 8), (3, 6), (4, 4), (4, 8), (2, 32))),
    *(f"interleaved_p{p}_m{m}" for p, m in ((2, 4), (2, 8), (4, 4), (4, 8), (2, 16))),
    *(f"{kind}_p{p}_m{m}" for kind in ("izb", "zbv") for p, m in ((2, 4), (2, 8), (4, 8), (2, 16))),
    *(f"gpipe_p{p}_m8_slow{slow}" for p, slow in ((2, 1), (4, 2), (3, 0))),
    *(f"1f1b_p{p}_m8_slow{slow}" for p, slow in ((2, 0), (4, 1), (4, 3), (3, 1))),
    *(f"{kind}_p2_m8_slow{slow}" for kind in ("interleaved", "izb", "zbv") for slow in (0, 1)),
    *(f"{kind}_p2_m4_dp2" for kind in ("gpipe", "1f1b", "interleaved")),
    *(f"{kind}_p2_m4_norm" for kind in ("gpipe", "1f1b")),
    "ring_p4",
    "halo_p4",
    "exchange_p4",
)


@dataclass(frozen=True)
class Config:
    """One job: ``slow`` is the rank whose stages take twice as long, -1 for none."""

    name: str
    kind: str
    p: int
    m: int
    v: int
    slow: int
    dp: int
    norm: bool

    @property
    def pipeline(self) -> bool:
        """Whether it is one."""
        return self.kind in SCHEDULES

    def stage_s(self, stage: int) -> tuple[float, float, float]:
        """Return what forward, input gradient and weight gradient of a stage take."""
        times = 2.0 if self.rank_of(stage) == self.slow else 1.0
        return tuple(times * part / self.v for part in (FORWARD_S, INPUT_S, WEIGHT_S))  # type: ignore[return-value]

    def rank_of(self, stage: int) -> int:
        """Return the pipeline rank that holds a stage."""
        if self.kind == "zbv":
            return min(stage, 2 * self.p - 1 - stage)
        return stage % self.p


def config(name: str) -> Config:
    """Return the job of a name."""
    kind, *parts = name.split("_")
    numbers = {part.rstrip("0123456789"): int(re.sub(r"\D", "", part) or 1) for part in parts}
    return Config(
        name,
        kind,
        numbers.get("p", 1),
        numbers.get("m", 1),
        CHUNKS.get(kind, 1),
        numbers.get("slow", -1),
        numbers.get("dp", 1),
        "norm" in parts,
    )


def half(name: str) -> str:
    """Return the half that a name belongs to, by its hash."""
    return "dev" if hashlib.sha256(name.encode()).digest()[0] % 2 == 0 else "held"


# -- what is expected ----------------------------------------------------------------------------


def textbook(kind: str, p: int, m: int) -> list[list[tuple[int, str, int]]]:
    """Return what each rank does in order: stage, F or B, micro-batch."""
    out = []
    for rank in range(p):
        if kind == "gpipe":
            out.append([(rank, kind_of, mb) for kind_of in "FB" for mb in range(m)])
            continue
        warm = min(m, p - rank)
        todo = [(rank, "F", mb) for mb in range(warm)]
        for mb in range(m):
            todo.append((rank, "B", mb))
            if warm + mb < m:
                todo.append((rank, "F", warm + mb))
        out.append(todo)
    return out


def makespan(
    one: Config, orders: list[list[tuple[int, str, int]]], stages_s: list[tuple[float, float, float]]
) -> tuple[float, float]:
    """Return how long a step takes with free communication, and the mean share of it that ranks stand idle.

    ``stages_s`` : what forward, input gradient and weight gradient of each stage take.
    """
    n_stages = one.p * one.v
    done: dict[tuple[int, str, int], float] = {}
    at, place = [0.0] * one.p, [0] * one.p
    busy = [0.0] * one.p
    while any(place[rank] < len(orders[rank]) for rank in range(one.p)):
        moved = False
        for rank in range(one.p):
            while place[rank] < len(orders[rank]):
                stage, what, mb = orders[rank][place[rank]]
                needs = []
                if what == "F" and stage:
                    needs.append((stage - 1, "F", mb))
                if what in "BI":
                    needs.append((stage, "F", mb))
                    if stage + 1 < n_stages:
                        needs.append((stage + 1, "G", mb))
                if what == "W":
                    needs.append((stage, "I", mb))
                if any(need not in done for need in needs):
                    break
                forward, to_input, to_weight = stages_s[stage]
                took = {"F": forward, "B": to_input + to_weight, "I": to_input, "W": to_weight}[what]
                begin = max([at[rank], *(done[need] for need in needs)])
                at[rank] = done[stage, what, mb] = begin + took
                if what in "BI":
                    done[stage, "G", mb] = at[rank]
                busy[rank] += took
                place[rank] += 1
                moved = True
        if not moved:
            raise RuntimeError(f"{one.name}: the order can never run")
    whole = max(at)
    return whole, 1 - sum(busy) / (one.p * whole)


def closed_form(one: Config) -> float | None:
    """Return the share of idle time that books give for a balanced pipeline, None where they give none."""
    if one.slow >= 0 or one.kind not in ("gpipe", "1f1b", "interleaved"):
        return None
    return (one.p - 1) / (one.v * one.m + one.p - 1)


def slept(one: Config, folder: Path) -> list[tuple[float, float, float]]:
    """Return what the passes of each stage really slept, in the mean: a busy machine wakes them late."""
    found: dict[int, list[list[float]]] = {}
    for path in folder.glob("slept*.json"):
        found |= {int(stage): parts for stage, parts in json.loads(path.read_text()).items()}
    n = one.m * ACTIVE
    return [tuple(sum(part[-n:]) / len(part[-n:]) for part in found[stage]) for stage in range(one.p * one.v)]


def expected(one: Config, folder: Path) -> tuple[float, float, float]:
    """Return the share of idle time as planned and as slept, and the share of a step that equal stages would save."""
    if one.kind in ("gpipe", "1f1b"):
        orders = textbook(one.kind, one.p, one.m)
    else:
        # what PyTorch prescribes, as it wrote it before the first step
        listed = json.loads((folder / "order.json").read_text())
        orders = []
        for rank in range(one.p):
            found = [re.fullmatch(r"(\d+)([FBIW])(\d+)", text) for text in listed[rank] if text]
            orders.append([(int(item[1]), item[2], int(item[3])) for item in found if item])
    planned = [one.stage_s(stage) for stage in range(one.p * one.v)]
    mean = tuple(sum(times[part] for times in planned) / len(planned) for part in range(3))
    whole, idle = makespan(one, orders, planned)
    even, _ = makespan(one, orders, [mean] * len(planned))
    return idle, makespan(one, orders, slept(one, folder))[1], 1 - even / whole


# -- the jobs ------------------------------------------------------------------------------------


def work(rank: int, name: str, port: int, folder: str, active: int = ACTIVE) -> None:
    """Run one rank of a job, and write its trace."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    one = config(name)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=one.p * one.dp)
    step = _pipeline(one, rank, folder) if one.pipeline else _other(one, rank)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=active, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(Path(folder) / f"rank{rank}.json.gz")),
    ) as profiler:
        for _ in range(WAIT + WARMUP + active):
            step()
            profiler.step()
    Path(folder, f"slept{rank}.json").write_text(json.dumps(SLEPT))
    dist.barrier()
    dist.destroy_process_group()


SLEPT: dict[int, list[list[float]]] = {}
"""Of each stage of this process, what its forward, input gradient and weight gradient took, pass by pass."""


def sleep(seconds: float, into: list[float]) -> None:
    """Sleep, and note how long it was."""
    begun = time.perf_counter()
    time.sleep(seconds)
    into.append(time.perf_counter() - begun)


def _layer(one: Config, stage: int) -> Any:
    import torch
    from torch import nn

    forward_s, input_s, weight_s = one.stage_s(stage)
    notes = SLEPT.setdefault(stage, [[], [], []])

    class Work(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_ctx: Any, values: Any) -> Any:
            sleep(forward_s, notes[0])
            return values.clone()

        @staticmethod
        def backward(_ctx: Any, grads: Any) -> Any:
            sleep(input_s, notes[1])
            return grads

    class Weight(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_ctx: Any, values: Any) -> Any:
            return values.clone()

        @staticmethod
        def backward(_ctx: Any, grads: Any) -> Any:
            sleep(weight_s, notes[2])
            return grads

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(WIDTH))

        def forward(self, values: Any) -> Any:
            # the weight's gradient is of its own, so that schedules can put it off
            return Work.apply(nn.functional.linear(values, Weight.apply(self.weight)))

    return Layer()


def _pipeline(one: Config, rank: int, folder: str) -> Any:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh

    group = None
    place, replicas = rank, None
    if one.dp > 1:
        mesh = init_device_mesh("cpu", (one.dp, one.p), mesh_dim_names=("dp", "pp"))
        group, replicas = mesh["pp"].get_group(), mesh["dp"].get_group()
        place = rank % one.p
    n_stages = one.p * one.v
    stages = [
        pipelining.PipelineStage(_layer(one, stage), stage, n_stages, torch.device("cpu"), group=group)
        for stage in range(n_stages)
        if one.rank_of(stage) == place
    ]
    kind = getattr(pipelining.schedules, SCHEDULES[one.kind])
    pipe = kind(stages[0] if one.v == 1 else stages, n_microbatches=one.m, loss_fn=nn.functional.mse_loss)
    if rank == 0 and one.v > 1:
        listed = [[str(action) if action else "" for action in pipe.pipeline_order[at]] for at in range(one.p)]
        Path(folder, "order.json").write_text(json.dumps(listed))
    modules = nn.ModuleList(stage.submod for stage in stages)
    optimizer = torch.optim.SGD(modules.parameters(), lr=1e-3)
    inputs, target = torch.zeros(one.m * ROWS, WIDTH), torch.zeros(one.m * ROWS, WIDTH)
    first, last = one.rank_of(0) == place, one.rank_of(n_stages - 1) == place

    def step() -> None:
        optimizer.zero_grad()
        given = (inputs,) if first else ()
        pipe.step(*given, **({"target": target, "losses": []} if last else {}))
        if replicas is not None:
            for parameter in modules.parameters():
                dist.all_reduce(parameter.grad, group=replicas)
        if one.norm:
            total = sum(parameter.grad.square().sum() for parameter in modules.parameters())
            dist.all_reduce(total)
        optimizer.step()

    return step


def _other(one: Config, rank: int) -> Any:
    """Return the step of a job that sends and is no pipeline."""
    import torch
    import torch.distributed as dist

    layers = torch.nn.ModuleList(_layer(one, rank) for _ in range(2))
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    n = one.p

    def swap(values: Any, to: list[int], of: list[int]) -> list[Any]:
        got = [torch.zeros_like(values) for _ in of]
        ops = [dist.P2POp(dist.isend, values, peer) for peer in to]
        ops += [dist.P2POp(dist.irecv, one_of, peer) for one_of, peer in zip(got, of, strict=True)]
        for handle in dist.batch_isend_irecv(ops):
            handle.wait()
        return got

    class Exchange(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_ctx: Any, values: Any) -> Any:
            return _exchange(values, 1)

        @staticmethod
        def backward(_ctx: Any, grads: Any) -> Any:
            return _exchange(grads, -1)

    def _exchange(values: Any, way: int) -> Any:
        values = values.clone()
        if one.kind == "ring":
            # keys and values go round once
            for _ in range(n - 1):
                values = swap(values, [(rank + way) % n], [(rank - way) % n])[0]
                time.sleep(0.005)
            return values
        near = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < n]
        peers = near if one.kind == "halo" else [peer for peer in range(n) if peer != rank]
        return values + 0 * sum(swap(values, peers, peers))

    def step() -> None:
        optimizer.zero_grad()
        values = torch.zeros(ROWS, WIDTH)
        for layer in layers:
            values = Exchange.apply(layer(values))
        values.square().sum().backward()
        for parameter in layers.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return step


def record(name: str, folder: Path) -> None:
    """Run a job; its traces lie in the folder."""
    import socket

    from torch import multiprocessing

    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    made = config(name)
    multiprocessing.spawn(work, (name, port, str(folder)), nprocs=made.p * made.dp)


# -- the table -----------------------------------------------------------------------------------


def judge(name: str, folder: Path) -> str:
    """Return a line of the table: what was expected, what was measured, what was said."""
    import torchtriage as tt

    one = config(name)
    (job,) = tt.analyze_ranks(sorted(folder.glob("rank*.json.gz"))).jobs
    found = {item.code: item for item in job.findings if item.code in ("COM036", "COM062", "COM063")}
    pipes = job.pipelines
    said = " ".join(found) or "-"
    if not one.pipeline:
        right = "yes" if not pipes and not {"COM062", "COM063"} & set(found) else "NO: called a pipeline"
        return f"{name:24}{'':30}{pipes[0].schedule if pipes else 'none':>17}{'':16}  {said:34} {right}"
    idle, true, gain = expected(one, folder)
    form = closed_form(one)
    form_text = f"{form:.1%}" if form is not None else ""
    head = f"{name:24}{form_text:>7}{idle:8.1%}{true:8.1%}{gain:7.1%}"
    if not pipes:
        return f"{head}{'none':>17}  NO: not called a pipeline"
    pipe = pipes[0]
    faults = []
    if pipe.schedule != NAMED[one.kind]:
        faults.append("schedule")
    if abs(pipe.bubble_share - true) > 0.05:
        faults.append("bubble")
    slow = found.get("COM063")
    if gain >= 0.10 and (slow is None or slow.evidence["slow_stage_rank"] % one.p != one.slow):
        faults.append("imbalance missed")
    if gain < 0.01 and slow is not None:
        faults.append("imbalance said")
    if one.slow < 0 and min(idle, true) >= 0.12 and "COM062" not in found:
        faults.append("bubble not said")
    if max(idle, true) <= 0.07 and "COM062" in found:
        faults.append("bubble said")
    if "COM036" in found and found["COM036"].cost and found["COM036"].cost.low_ms > 0:
        faults.append("straggler")
    right = "yes" if not faults else f"NO: {', '.join(faults)}"
    promised = [
        f"{code} {item.cost.share_low:.0%}-{item.cost.share_high:.0%}" for code, item in found.items() if item.cost
    ]
    return f"{head}{pipe.schedule:>17}{pipe.bubble_share:8.1%}{job.step_ms:8.0f}  {', '.join(promised):34} {right}"


NAMED = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "izb": "zero bubble",
    "zbv": "zero bubble",
}
"""What the schedule has to be called."""


def main() -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"Of {', '.join(NAMES)}.")
    parser.add_argument("--half", choices=("dev", "held"), help="Only the names of this half.")
    parser.add_argument("--out", type=Path, default=None, help="Keep the traces here.")
    parser.add_argument("--read", type=Path, default=None, help="Judge the traces that lie here.")
    parser.add_argument("--record", action="store_true", help="Record only.")
    args = parser.parse_args()
    out = args.read or args.out or Path(tempfile.mkdtemp())
    names = [name for name in args.names or NAMES if args.half in (None, half(name))]
    if not args.record:
        print(
            f"{'job':24}{'books':>7}{'planned':>8}{'slept':>8}{'even':>7}{'named':>17}{'bubble':>8}{'step ms':>8}"
            f"  {'promised of the step':34} right"
        )
    for name in names:
        if args.read is None:
            record(name, out / name)
        if not args.record:
            print(judge(name, out / name), flush=True)


if __name__ == "__main__":
    main()
