"""Jobs of many ranks with a known culprit, simulated from the rows of recorded ranks.

    python benchmarks/simulate_jobs.py make OUT --data FOLDER [--jobs 72] [--large 1000]
    python benchmarks/simulate_jobs.py score OUT [dev|held] [--all]

``make`` cuts one step of a recorded rank (Megatron on A100, DLRM on V100) into stretches between its collectives and
runs them again on N ranks: a host that launches, a stream that computes, streams that communicate. A collective begins
on each rank when that rank has come and ends on all at once, after the last has; nothing here knows torchtriage. Each
rank and step has jitter of its own, each host a clock. One fault is put in, the same job is simulated without it, and
the difference of the steps is the true saving. Labels are written beside the jobs before anything is analysed; half of
the jobs are ``held``, by the hash of their name.

The Megatron recording holds a forward pass only: its backward pass is the same rows on the thread of autograd, with
kernels twice as long. Sizes of messages are made up, durations of transfers follow from them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("healthy", "stall", "device", "loader", "link", "stage", "expert")
GPUS_PER_HOST = 8
NVLINK, NETWORK = 200e3, 20e3
"""Bytes per microsecond on the bus."""
LATENCY_US = {"host": 12.0, "network": 35.0}
LAUNCH_US, BETWEEN_US = 4.0, 1.2
ITEM_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2}
TRUNCATED = 30
"""PyTorch writes no more of a list than this."""
COMPUTE, FIRST_COMM = 7, 20
MAIN, AUTOGRAD = 0, 1
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
MOST_ITEMS = 800
DEVICES = {
    "megatron": {
        "name": "NVIDIA A100-SXM4-80GB",
        "totalGlobalMem": 85174583296,
        "computeMajor": 8,
        "computeMinor": 0,
        "numSms": 108,
        "warpSize": 32,
    },
    "dlrm": {
        "name": "Tesla V100-SXM2-32GB",
        "totalGlobalMem": 34079899648,
        "computeMajor": 7,
        "computeMinor": 0,
        "numSms": 80,
        "warpSize": 32,
    },
}
RECORDINGS = {
    "megatron": "gpu2/jobs/astra-sim__astra-sim__megatron-tp8/rank{}.json.gz",
    "dlrm": "traces/distributed/dlrm_v100_8ranks/worker{}_*.json.gz",
}
MIN_TRUE_SHARE = 0.05
"""A fault that costs less of a step is made stronger: nobody could say what it is."""

# -- rows of a recorded rank ---------------------------------------------------------------------


@dataclass
class Row:
    """A row of the host: its place in the block, and what it starts on the device."""

    at: float
    dur: float
    text: str
    """JSON without times, ids and thread; ``%`` fields in the order of :meth:`Writer.row`."""
    sync: bool = False
    works: list[tuple[float, str]] = field(default_factory=list)


@dataclass
class Block:
    """Rows between two collectives."""

    phase: str
    rows: list[Row]
    length: float


def _text(event: dict[str, Any]) -> str:
    args = {
        k: v for k, v in event.get("args", {}).items() if k not in ("External id", "correlation", "Ev Idx", "stream", "device", "context")
    }
    body = json.dumps({"cat": event["cat"], "name": event["name"]})[1:-1].replace("%", "%%")
    more = json.dumps(args)[1:-1].replace("%", "%%")
    return '{"ph":"X",' + body + ',"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{%s' + (more and "," + more) + "}}"


def read_blocks(path: Path) -> list[Block]:
    """Cut a middle step of a recording at its collectives."""
    events = [e for e in json.loads(gzip.open(path).read())["traceEvents"] if e.get("ph") == "X"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
    step = steps[len(steps) // 2]
    begin, end = step["ts"], step["ts"] + step["dur"]
    works = defaultdict(list)
    for e in events:
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and "nccl" not in e["name"].lower():
            works[e["args"].get("correlation")].append(e)
    marks = [e for e in events if e["cat"] == "user_annotation" and begin <= e["ts"] < end and e is not step]
    backward = {e["tid"] for e in events if e["name"].startswith("autograd::engine")} - {step["tid"]}
    host = [e for e in events if e["cat"] in ("cpu_op", "cuda_runtime", "cuda_driver") and begin <= e["ts"] < end]
    host.sort(key=lambda e: (e["ts"], -e["dur"]))
    units: list[list[dict[str, Any]]] = []
    until: dict[Any, float] = {}
    current: dict[Any, list[dict[str, Any]]] = {}
    for e in host:
        if e["ts"] >= until.get(e["tid"], 0.0):
            until[e["tid"]] = e["ts"] + e["dur"]
            units.append([e])
            current[e["tid"]] = units[-1]
        else:
            current[e["tid"]].append(e)

    def phase(e: dict[str, Any]) -> str:
        around = [m["name"] for m in marks if m["ts"] <= e["ts"] < m["ts"] + m["dur"]]
        if any("ptimizer" in name for name in around):
            return "optimizer"
        return "backward" if e["tid"] in backward else "forward"

    blocks: list[Block] = []
    rows: list[Row] = []
    at, was = 0.0, ""

    def close() -> None:
        nonlocal rows, at
        if rows:
            blocks.append(Block(was, rows, at + 5.0))
        rows, at = [], 0.0

    last = begin
    for unit in units:
        if any("nccl" in e["name"] or "c10d" in e["name"] or "record_param" in e["name"] for e in unit):
            close()
            last = unit[0]["ts"] + unit[0]["dur"]
            continue
        if phase(unit[0]) != was:
            close()
            was = phase(unit[0])
            last = unit[0]["ts"]
        # what this recording once waited for is no part of the program
        at += min(max(unit[0]["ts"] - last, 0.0), 60.0)
        squeezed = min(1.0, 400.0 / max(unit[0]["dur"], 1.0))
        for e in unit:
            rel = at + (e["ts"] - unit[0]["ts"]) * squeezed
            started = [(float(w["dur"]), _text(w)) for w in works.get(e["args"].get("correlation"), [])]
            sync = e["name"] in SYNCS or (
                e["name"] == "cudaMemcpyAsync"
                and any("DtoH" in w["name"] for w in works.get(e["args"]["correlation"], []))
            )
            runtime = e["cat"].startswith("cuda_")
            rows.append(Row(rel, e["dur"] * squeezed, _text(e), sync, started if runtime else []))
        at += unit[0]["dur"] * squeezed
        last = unit[0]["ts"] + unit[0]["dur"]
    close()
    return blocks


# -- the job -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """One thing a rank's program does in a step.

    ``what`` : block, comm, wait, item (a scalar read), gap (Python), load, open or close (a range).
    """

    what: str
    block: int = -1
    scale: float = 1.0
    thread: int = MAIN
    role: str = ""
    op: str = ""
    nelems: int = 0
    dtype: str = "Float"
    key: str = ""
    us: float = 0.0
    name: str = ""
    peer: int = 0
    """Of a send or receive: the stage on the other side, relative."""


@dataclass
class Spec:
    """A job: its layout, its program's kind, its fault."""

    name: str
    base: str
    tp: int
    dp: int
    pp: int
    ep: int
    n_steps: int
    kernel_scale: float
    seq: bool
    named: bool
    seed: int
    kind: str = "healthy"
    culprit: int = -1
    """Rank, stage, or place of the group in its role."""
    strength: float = 0.0
    link_role: str = ""
    micro: int = 1
    layers: int = 3
    place: int = 0

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.dp * self.pp

    def coords(self, rank: int) -> tuple[int, int, int]:
        """Return (pp, dp, tp) of a rank, as Megatron numbers them."""
        return rank // (self.tp * self.dp), rank // self.tp % self.dp, rank % self.tp

    def rank(self, pp: int, dp: int, tp: int) -> int:
        """Return the rank at a place."""
        return (pp * self.dp + dp) * self.tp + tp

    def groups(self) -> dict[str, list[list[int]]]:
        """Return the members of every group by role."""
        out: dict[str, list[list[int]]] = {"world": [list(range(self.world))]}
        out["tp"] = [[self.rank(p, d, t) for t in range(self.tp)] for p in range(self.pp) for d in range(self.dp)]
        out["dp"] = [[self.rank(p, d, t) for d in range(self.dp)] for p in range(self.pp) for t in range(self.tp)]
        out["pp"] = [[self.rank(p, d, t) for p in range(self.pp)] for d in range(self.dp) for t in range(self.tp)]
        if self.ep > 1:
            out["ep"] = [line[at : at + self.ep] for line in out["dp"] for at in range(0, self.dp, self.ep)]
        return {role: some for role, some in out.items() if role == "world" or len(some[0]) > 1}


def program(spec: Spec, blocks: dict[str, list[int]], stage: int, n_layers: int) -> list[Item]:
    """Return what a rank of a stage does in one step."""
    fwd, bwd, opt = blocks["forward"], blocks["backward"], blocks["optimizer"]
    out = [Item("load", us=300.0), Item("gap", us=150.0, name="python")]
    dense = spec.dp > 1
    elements = 6_000_000 if spec.base == "megatron" else 400_000
    p2p = 2048 * 4096

    def comm(
        role: str, op: str, nelems: int, key: str = "", dtype: str = "Float", peer: int = 0, thread: int = MAIN
    ) -> Item:
        return Item("comm", role=role, op=op, nelems=nelems, key=key, dtype=dtype, peer=peer, thread=thread)

    def layer(at: int, thread: int, scale: float) -> Iterator[Item]:
        half = fwd if thread == MAIN or not bwd else bwd
        pick = [half[(2 * at + side) % len(half)] for side in (0, 1)]
        for side, block in enumerate(pick):
            if side and spec.ep > 1:
                yield comm("ep", "alltoallv_single", 1_500_000, dtype="BFloat16", thread=thread)
            yield Item("block", block, scale, thread, name="expert" if side and spec.ep > 1 else "")
            if side and spec.ep > 1:
                yield comm("ep", "alltoallv_single", 1_500_000, dtype="BFloat16", thread=thread)
            if spec.tp > 1:
                yield comm("tp", "allreduce", 4 * 2048 * 4096, dtype="BFloat16", thread=thread)

    def forward(mb: int) -> Iterator[Item]:
        if stage > 0:
            yield comm("pp", "recv", p2p, f"rf{mb}", "BFloat16", -1)
            yield Item("wait", key=f"rf{mb}")
        yield Item("open", name="## forward ##")
        for at in range(n_layers):
            yield from layer(at, MAIN, 1.0)
        yield Item("close")
        if stage < spec.pp - 1:
            yield comm("pp", "send", p2p, f"sf{mb}", "BFloat16", 1)

    def backward(mb: int, last: bool) -> Iterator[Item]:
        if stage < spec.pp - 1:
            yield comm("pp", "recv", p2p, f"rb{mb}", "BFloat16", 1)
            yield Item("wait", key=f"rb{mb}")
        yield Item("open", name="## backward ##")
        for at in range(n_layers):
            yield from layer(at, AUTOGRAD, 1.0 if bwd else 2.0)
            if last and dense:
                yield comm("dp", "allreduce", elements, f"g{at}", thread=AUTOGRAD)
        yield Item("close")
        if stage > 0:
            yield comm("pp", "send", p2p, f"sb{mb}", "BFloat16", -1)

    # 1F1B: as many forward passes ahead as there are stages behind
    ahead = min(spec.pp - stage, spec.micro)
    order = [("f", mb) for mb in range(ahead)]
    for mb in range(spec.micro):
        order.append(("b", mb))
        if mb + ahead < spec.micro:
            order.append(("f", mb + ahead))
    for way, mb in order:
        out.extend(forward(mb) if way == "f" else backward(mb, mb == spec.micro - 1))
    out.extend(Item("wait", key=f"g{at}") for at in range(n_layers if dense else 0))
    out += [Item("open", name="Optimizer.step#Adam.step"), *(Item("block", at) for at in opt), Item("close")]
    # the norm of the gradients, or the loss, is read every step
    out += [Item("item"), Item("gap", us=250.0, name="python")]
    return out


# -- the simulation ------------------------------------------------------------------------------


class Exchange:
    """A collective, or a send with its receive: when each came, and when all are done."""

    def __init__(self, n: int, transfer_us: float) -> None:
        """Wait for ``n`` ranks."""
        self.left, self.transfer_us, self.last, self.end = n, transfer_us, 0.0, -1.0
        self.waiting: list[int] = []

    def come(self, at: float, ready: list[int]) -> None:
        """One rank's kernel runs."""
        self.last = max(self.last, at)
        self.left -= 1
        if not self.left:
            self.end = self.last + self.transfer_us
            ready.extend(self.waiting)


class Simulation:
    """All ranks of a job; ``times[rank]`` : begin of each step, and the end of the last."""

    def __init__(self, spec: Spec, blocks: list[Block], *, fault: bool, write: Path | None = None) -> None:
        """Prepare the groups, the programs and the noise."""
        self.spec, self.blocks, self.fault, self.write = spec, blocks, fault, write
        self.groups = spec.groups()
        self.of = {
            role: {rank: at for at, some in enumerate(groups) for rank in some} for role, groups in self.groups.items()
        }
        self.names: dict[tuple[str, int], str] = {}
        for role, groups in self.groups.items():
            for at in range(len(groups)):
                self.names[role, at] = str(len(self.names))
        by_phase: dict[str, list[int]] = {"forward": [], "backward": [], "optimizer": []}
        for at, block in enumerate(blocks):
            by_phase[block.phase].append(at)
        more = int(self.strength("stage"))
        self.programs = [
            program(spec, by_phase, stage, spec.layers + (more if stage == spec.culprit else 0))
            for stage in range(spec.pp)
        ]
        rng = np.random.default_rng(spec.seed)
        n, most = spec.world, MOST_ITEMS
        # equal with and without the fault
        shape = n, spec.n_steps, most
        self.pace = rng.lognormal(0.0, 0.02, (n, spec.n_steps, 1)) * rng.lognormal(0.0, 0.03, shape)
        self.hiccup = np.where(rng.random(shape) < 0.001, rng.uniform(100, 700, shape), 0)
        self.speed = rng.normal(1.0, 0.006, n).clip(0.97, 1.03)
        self.wire = rng.lognormal(0.0, 0.03, 4096)
        n_hosts = -(-n // GPUS_PER_HOST)
        self.clock = rng.uniform(-4000, 4000, n_hosts) * (n_hosts > 1)
        self.exchanges: dict[tuple[Any, ...], Exchange] = {}
        self.ready: list[int] = []
        self.writers: list[Writer] = []
        self.times: list[list[float]] = [[] for _ in range(n)]

    def run(self) -> None:
        """Let ranks go on until all are done, then write what they did."""
        ranks = [self._rank(rank) for rank in range(self.spec.world)]
        self.ready = list(range(len(ranks)))
        left = len(ranks)
        while self.ready:
            rank = self.ready.pop()
            need = next(ranks[rank], None)
            if need is None:
                left -= 1
            else:
                need.waiting.append(rank)
        assert not left, f"{self.spec.name}: {left} ranks wait for ever"
        for writer in self.writers:
            writer.save()

    def step_us(self) -> float:
        """Return the mean step, the first left out."""
        return float(np.mean([np.diff(times)[1:] for times in self.times]))

    def strength(self, kind: str) -> float:
        """Return how strong the fault is, 0 where it is another or left out."""
        return self.spec.strength if self.fault and self.spec.kind == kind else 0.0

    def _exchange(self, item: Item, rank: int, step: int, counts: dict[Any, int]) -> tuple[Exchange, int]:
        spec = self.spec
        place = self.of[item.role][rank]
        members = self.groups[item.role][place]
        if item.peer:
            other = members[members.index(rank) + item.peer]
            pair = (rank, other) if item.op == "send" else (other, rank)
            key: tuple[Any, ...] = ("p2p", *pair, counts[item.role, item.op, item.peer])
            counts[item.role, item.op, item.peer] += 1
            n = 2
        else:
            key = (item.role, place, counts[item.role])
            counts[item.role] += 1
            n = len(members)
        if key not in self.exchanges:
            far = len({one // GPUS_PER_HOST for one in members}) > 1
            factor = {"allreduce": 2 * (n - 1) / n, "alltoallv_single": (n - 1) / n}.get(item.op, 1.0)
            rate = NETWORK if far else NVLINK
            us = LATENCY_US["network" if far else "host"] + item.nelems * ITEM_BYTES[item.dtype] * factor / rate
            us *= self.wire[hash(key[1:]) % len(self.wire)] if n > 1 else 1.0
            if item.role == spec.link_role and place == spec.culprit and self.strength("link"):
                us *= self.strength("link")
            if item.role == "ep" and spec.culprit in members and self.strength("expert"):
                us *= 1 + (self.strength("expert") - 1) * 0.5
            self.exchanges[key] = Exchange(n, us)
        return self.exchanges[key], place

    def _rank(self, rank: int) -> Iterator[Exchange]:
        spec = self.spec
        stage = spec.coords(rank)[0]
        writer = Writer(self, rank) if self.write is not None else None
        now = 1000.0 + 40.0 * (rank % 7)
        device = 0.0
        streams: dict[str, Exchange | None] = {}
        pending: dict[str, Exchange] = {}
        counts: dict[Any, int] = defaultdict(int)
        culprit = rank == spec.culprit
        slow = self.strength("device") if culprit else 0.0
        speed = self.speed[rank] * (slow or 1.0) * spec.kernel_scale
        items = self.programs[stage]
        stall_at = [at for at, item in enumerate(items) if item.what == "block"]
        stall_at = stall_at[spec.place % len(stall_at)]
        for step in range(spec.n_steps):
            self.times[rank].append(now)
            opened: list[tuple[str, float]] = []
            for at, item in enumerate(items):
                pace = self.pace[rank, step, at]
                now += self.hiccup[rank, step, at]
                if item.what == "block":
                    if culprit and at == stall_at:
                        now += self.strength("stall")
                    scale = item.scale * speed
                    if item.name == "expert" and culprit and self.strength("expert"):
                        scale *= self.strength("expert")
                    now, device = self._block(writer, self.blocks[item.block], now, device, pace, scale, item.thread)
                elif item.what == "comm":
                    one, place = self._exchange(item, rank, step, counts)
                    lane = f"{item.role}{item.op}{item.peer}" if item.peer else item.role
                    before = streams.get(lane)
                    if before is not None:
                        if before.end < 0:
                            yield before
                        start = max(device, before.end + BETWEEN_US)
                    else:
                        start = device
                    call = now + 22.0 * pace
                    start = max(start + BETWEEN_US, call + LAUNCH_US)
                    one.come(start, self.ready)
                    streams[lane] = one
                    if writer:
                        writer.comm(item, place, now, call, pace, start, one, lane, step)
                    now += 45.0 * pace
                    if item.key:
                        pending[item.key] = one
                    else:
                        if one.end < 0:
                            yield one
                        device = max(device, one.end)
                elif item.what == "wait":
                    one = pending.pop(item.key)
                    if one.end < 0:
                        yield one
                    device = max(device, one.end)
                    now += 3.0
                elif item.what == "item":
                    begun = now
                    device = max(device + BETWEEN_US, now + 15.0 + LAUNCH_US) + 2.0
                    now = max(now + 25.0, device + 5.0)
                    if writer:
                        writer.item(begun, device, now)
                elif item.what == "gap":
                    now += item.us * pace
                elif item.what == "load":
                    begun, us = now, item.us * pace
                    if culprit:
                        us += self.strength("loader") * self.pace[rank, step, -1]
                    now += us
                    if writer:
                        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
                        writer.mark(name, begun, us)
                    now += 5.0
                elif item.what == "open":
                    opened.append((item.name, now))
                    now += 2.0
                elif item.what == "close":
                    name, begun = opened.pop()
                    now += 2.0
                    if writer:
                        writer.mark(name, begun, now - begun)
            if writer:
                writer.mark(f"ProfilerStep#{spec.place % 50 + step}", self.times[rank][-1], now - self.times[rank][-1])
                writer.pack()
            now += 2.0
        self.times[rank].append(now)
        if writer:
            writer.now = now
            self.writers.append(writer)

    def _block(
        self, writer: Writer | None, block: Block, now: float, device: float, pace: float, scale: float, thread: int
    ) -> tuple[float, float]:
        shift = 0.0
        for row in block.rows:
            at = now + row.at * pace + shift
            dur = row.dur * pace
            if row.works:
                begun = []
                for work_us, _ in row.works:
                    start = max(device + BETWEEN_US, at + dur * 0.5 + LAUNCH_US)
                    device = start + work_us * scale
                    begun.append((start, work_us * scale))
            if row.sync:
                # rows around it end later; they are written with what they had
                waited = max(device + 3.0 - (at + dur), 0.0)
                shift += waited
                dur += waited
            if writer:
                writer.row(row, at, dur, thread, begun if row.works else [])
        return now + block.length * pace + shift, device


class Writer:
    """The recording of one rank, as PyTorch 2.x writes it."""

    def __init__(self, simulation: Simulation, rank: int) -> None:
        """Prepare what its rows share."""
        self.simulation, self.rank, self.spec = simulation, rank, simulation.spec
        self.pid, self.tids = 4000 + rank, (4000 + rank, 90000 + rank)
        self.device = rank % GPUS_PER_HOST
        self.lines: list[str] = []
        self.packed: list[bytes] = []
        self.now = 0.0
        self.number = 1000
        self.lanes: dict[str, int] = {}
        self.seq: dict[str, int] = defaultdict(int)
        self.late: list[tuple[str, tuple[Any, ...], Exchange]] = []

    def row(self, row: Row, at: float, dur: float, thread: int, works: list[tuple[float, float]]) -> None:
        """Write a row of the host, and what it starts."""
        self.number += 1
        ids = f'"External id":{self.number}'
        if works:
            ids = f'"correlation":{self.number},' + ids
        self.lines.append(row.text % (self.pid, self.tids[thread], at, dur, ids))
        for (start, length), (_, text) in zip(works, row.works, strict=True):
            both = (
                f'"External id":{self.number},"correlation":{self.number},'
                f'"device":{self.device},"context":1,"stream":{COMPUTE}'
            )
            self.lines.append(text % (self.device, COMPUTE, start, length, both))

    def mark(self, name: str, at: float, dur: float) -> None:
        """Write a range of the main thread."""
        self._add("user_annotation", name, self.pid, self.tids[MAIN], at, dur, {})

    def _add(self, cat: str, name: str, pid: int, tid: int, at: float, dur: float, args: dict[str, Any]) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(at, 3), "dur": round(dur, 3)}
        self.lines.append(json.dumps({**event, "args": args}))

    def item(self, begun: float, end: float, now: float) -> None:
        """Write the read of a scalar."""
        main = self.tids[MAIN]
        self.number += 2
        copy = {"correlation": self.number, "External id": self.number}
        self._add("cpu_op", "aten::item", self.pid, main, begun, now - begun, {"External id": self.number - 1})
        self._add(
            "cpu_op",
            "aten::_local_scalar_dense",
            self.pid,
            main,
            begun + 3,
            now - begun - 4,
            {"External id": self.number},
        )
        self._add("cuda_runtime", "cudaMemcpyAsync", self.pid, main, begun + 8, 7, copy)
        sync = {"correlation": self.number + 1, "External id": self.number}
        self._add("cuda_runtime", "cudaStreamSynchronize", self.pid, main, begun + 16, now - begun - 18, sync)
        on = {"device": self.device, "context": 1, "stream": COMPUTE, "bytes": 4, **copy}
        self._add("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", self.device, COMPUTE, end - 2, 2, on)
        self.number += 1

    def comm(
        self,
        item: Item,
        place: int,
        begun: float,
        call: float,
        pace: float,
        start: float,
        one: Exchange,
        lane: str,
        step: int,
    ) -> None:
        """Write a collective: its operators, the launch, and, once its end is known, its kernel."""
        spec = self.spec
        members = self.simulation.groups[item.role][place]
        name = self.simulation.names[item.role, place]
        shown = (
            f"[{', '.join(map(str, members))}]"
            if len(members) <= TRUNCATED
            else (f"[{', '.join(map(str, members[:TRUNCATED]))}, ...]")
        )
        self.seq[item.role] += 1
        more = self._extra(item, step)
        details = {
            "Collective name": item.op,
            "In msg nelems": int(item.nelems * more),
            "Out msg nelems": int(item.nelems * more),
            "Group size": len(members),
            "dtype": item.dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": name,
            "Process Group Description": f"mesh_{item.role}" if spec.named else "undefined",
            "Process Group Ranks": shown,
        }
        if spec.seq:
            details["Seq"] = self.seq[item.role]
        if item.peer:
            other = members[members.index(self.rank) + item.peer]
            details |= (
                {"Src Rank": self.rank, "Dst Rank": other}
                if item.op == "send"
                else {"Src Rank": other, "Dst Rank": self.rank}
            )
        tid = self.tids[item.thread]
        word = {"alltoallv_single": "all_to_all", "allreduce": "all_reduce"}.get(item.op, item.op)
        self.number += 1
        first = self.number
        self._add("cpu_op", f"c10d::{word}_", self.pid, tid, begun + 1, 43 * pace, {"External id": first})
        self._add(
            "cpu_op", "record_param_comms", self.pid, tid, begun + 3, 40 * pace, {"External id": first + 1, **details}
        )
        self._add("user_annotation", f"nccl:{word}", self.pid, tid, begun + 5, 36 * pace, {"External id": first + 2})
        for at, what in ((8, "cudaEventRecord"), (12, "cudaStreamWaitEvent")):
            self._add(
                "cuda_runtime",
                what,
                self.pid,
                tid,
                begun + at * pace,
                1.5,
                {"External id": first + 2, "correlation": first + 3},
            )
            first += 1
        on = {"External id": first, "correlation": first + 4}
        self._add("cuda_runtime", "cudaLaunchKernelExC", self.pid, tid, call - 3 * pace, 5 * pace, on)
        self.number = first + 5
        kernel = {
            "allreduce": f"ncclDevKernel_AllReduce_Sum_{'f32' if item.dtype == 'Float' else 'bf16'}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        }
        text = kernel.get(item.op, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
        stream = self.lanes.setdefault(lane, FIRST_COMM + 4 * len(self.lanes))
        args = {
            "queued": 0,
            "device": self.device,
            "context": 1,
            "stream": stream,
            **on,
            "grid": [24, 1, 1],
            "block": [544, 1, 1],
            **details,
        }
        self.late.append((text, (stream, start, args), one))

    def _extra(self, item: Item, step: int) -> float:
        spec, simulation = self.spec, self.simulation
        if item.role != "ep":
            return 1.0
        skew = simulation.strength("expert") if self.rank == spec.culprit else 0.0
        return skew or float(simulation.pace[self.rank, step, 0])

    def pack(self) -> None:
        """Keep the lines so far smaller: a thousand ranks run at once."""
        self.packed.append(zlib.compress(",\n".join(self.lines).encode(), 1))
        self.lines = []

    def save(self) -> None:
        """Write the file, when all ranks are done."""
        spec, now = self.spec, self.now
        rng = np.random.default_rng(self.rank)
        for text, (stream, start, args), one in self.late:
            end = one.end + float(rng.uniform(-1.5, 1.5))
            self._add("kernel", text, self.device, stream, start, end - start, args)
        simulation = self.simulation
        config = [
            {
                "pg_name": simulation.names[role, at],
                "pg_desc": "default_pg" if role == "world" else f"mesh_{role}" if spec.named else "undefined",
                "backend_config": "cuda:nccl",
                "pg_size": len(some),
                "ranks": some,
            }
            for role, groups in simulation.groups.items()
            for at, some in enumerate(groups)
            if self.rank in some
        ]
        host = self.rank // GPUS_PER_HOST
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self.device, **DEVICES[spec.base]}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": spec.world,
                "pg_count": len(simulation.names),
                "pg_config": config,
                "nccl_version": "2.21.5",
            },
            "trace_id": f"{spec.seed:016X}{self.rank:016X}",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1_750_000_000_000_000_000 + round(float(simulation.clock[host]) * 1000),
        }
        main = self.tids[MAIN]
        lines = [
            json.dumps(
                {"name": "process_name", "ph": "M", "ts": 0, "pid": self.pid, "tid": 0, "args": {"name": "python"}}
            ),
            json.dumps(
                {
                    "name": "thread_name",
                    "ph": "M",
                    "ts": 0,
                    "pid": self.pid,
                    "tid": main,
                    "args": {"name": f"thread {main} (python)"},
                }
            ),
            *(zlib.decompress(one).decode() for one in self.packed),
            *self.lines,
            json.dumps(
                {
                    "ph": "X",
                    "cat": "Trace",
                    "name": "PyTorch Profiler (0)",
                    "pid": "Spans",
                    "tid": "PyTorch Profiler",
                    "ts": 900,
                    "dur": round(now - 900, 3),
                    "args": {"Op count": 0},
                }
            ),
        ]
        assert simulation.write is not None
        with gzip.open(simulation.write / f"rank{self.rank}.json.gz", "wt", compresslevel=1) as file:
            file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}")
        self.lines, self.late, self.packed = [], [], []


# -- the cases -----------------------------------------------------------------------------------

LAYOUTS = {
    # ranks: (tp, pp), the rest is data parallel
    8: ((1, 1), (2, 2), (8, 1), (4, 1)),
    16: ((1, 1), (2, 4), (8, 1), (4, 2)),
    32: ((1, 1), (4, 4), (8, 1), (8, 2)),
    64: ((1, 1), (8, 4), (8, 1), (4, 2)),
    128: ((1, 1), (8, 4), (8, 1)),
    256: ((8, 4), (1, 1)),
    1000: ((8, 1), (1, 1)),
}
SIZES = (8, 8, 8, 8, 16, 16, 16, 32, 32, 64)


def cases(n_jobs: int, large: int, seed: int) -> list[Spec]:
    """Return the jobs; their strengths are found by simulation."""
    out = []
    for number in range(n_jobs):
        rng = np.random.default_rng([seed, number])
        kind = ("stall", "device", "loader", "link", "stage", "expert", "healthy")[number % 7]
        world = SIZES[int(rng.integers(len(SIZES)))]
        if large and number >= n_jobs - 2:
            world, kind = large, ("stall", "healthy")[n_jobs - 1 - number]
        tp, pp = LAYOUTS[world][int(rng.integers(len(LAYOUTS[world])))] if world in LAYOUTS else (1, 1)
        if kind == "stage" and pp == 1:
            tp, pp = (2, 2) if world == 8 else (world // 8 if world <= 64 else 8, 4)
        ep = 1
        if kind == "expert" or (kind in ("healthy", "stall") and rng.random() < 0.2):
            tp, pp = (1 if world <= 8 else 2, 1)
            ep = min(8, world // tp)
        dp = world // tp // pp
        base = "dlrm" if tp == pp == ep == 1 else "megatron"
        device_bound = kind in ("device", "expert", "stage") or rng.random() < 0.4
        scale = (20.0 if base == "dlrm" else 2.0) if device_bound else 1.0
        spec = Spec(
            f"job{number:03d}_{world}",
            base,
            tp,
            dp,
            pp,
            ep,
            n_steps=int(rng.integers(6, 9)) if world < 256 else 6,
            kernel_scale=scale * float(rng.uniform(0.9, 1.2)),
            seq=bool(rng.random() < 0.7),
            named=bool(rng.random() < 0.6),
            seed=int(rng.integers(1 << 30)),
            kind=kind,
            micro=pp * int(rng.integers(1, 3)) if pp > 1 else 1,
            layers=int(rng.integers(2, 5)) if world < 256 else 2,
            place=int(rng.integers(1000)),
        )
        if kind in ("stall", "device", "loader", "expert"):
            spec.culprit = int(rng.integers(world))
        elif kind == "stage":
            spec.culprit = int(rng.integers(pp))
        elif kind == "link":
            roles = [role for role, groups in spec.groups().items() if role in ("dp", "tp") and len(groups) > 1]
            if not roles:  # one group has no peers
                spec.tp, spec.dp = 2, world // 2
                spec.base, roles = "megatron", ["tp", "dp"]
            spec.link_role = roles[int(rng.integers(len(roles)))]
            spec.culprit = int(rng.integers(len(spec.groups()[spec.link_role])))
        out.append(spec)
    return out


def _first_strength(spec: Spec, step_us: float) -> float:
    share = np.random.default_rng([spec.seed, 1]).uniform(0.08, 0.4)
    if spec.kind in ("stall", "loader"):
        return float(step_us * share)
    if spec.kind == "stage":
        return 1.0
    return float({"link": 2.5, "device": 1.0, "expert": 1.5}.get(spec.kind, 1.0) + share)


def make_one(spec: Spec, data: Path, out: Path) -> dict[str, Any]:
    """Simulate a job with and without its fault; write its label, then its recordings."""
    pattern = RECORDINGS[spec.base].format(spec.seed % 8)
    blocks = read_blocks(next(data.glob(pattern)))
    if spec.base == "megatron":
        # ten layers from the middle: attention and perceptron in turns
        blocks = blocks[3:23]
        blocks.append(Block("optimizer", blocks[0].rows, blocks[0].length))
    healthy = Simulation(spec, blocks, fault=False)
    healthy.run()
    without = healthy.step_us()
    spec.strength = _first_strength(spec, without)
    step = without
    for _ in range(8):
        if spec.kind == "healthy":
            break
        faulty = Simulation(spec, blocks, fault=True)
        faulty.run()
        step = faulty.step_us()
        if step - without >= MIN_TRUE_SHARE * step:
            break
        spec.strength = spec.strength + 1 if spec.kind == "stage" else spec.strength * 1.4
    # work of a stage or an expert moves to the others
    kept = {"stage": 1 / spec.pp, "expert": 1 / spec.ep}.get(spec.kind, 0.0)
    groups = spec.groups()
    ranks = []
    if spec.kind in ("stall", "device", "loader", "expert"):
        ranks = [spec.culprit]
    elif spec.kind == "stage":
        ranks = [rank for rank in range(spec.world) if spec.coords(rank)[0] == spec.culprit]
    elif spec.kind == "link":
        ranks = groups[spec.link_role][spec.culprit]
    half = "held" if int(hashlib.sha256(spec.name.encode()).hexdigest(), 16) % 2 else "dev"
    label = {
        **spec.__dict__,
        "half": half,
        "world": spec.world,
        "ranks": ranks,
        "step_ms": step / 1e3,
        "true_saving_ms": (step - without) / 1e3 * (1 - kept),
        "group": healthy.names.get((spec.link_role, spec.culprit), ""),
    }
    (out / "labels").mkdir(parents=True, exist_ok=True)
    (out / "labels" / f"{spec.name}.json").write_text(json.dumps(label, indent=1))
    folder = out / half / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    Simulation(spec, blocks, fault=True, write=folder).run()
    return label


# -- the score -----------------------------------------------------------------------------------

JOB_CODES = ("COM036", "COM062", "COM063", "COM064", "COM065", "COM066", "COM067", "COM068")
EXPECTED = {
    "stall": ("COM036",),
    "device": ("COM036",),
    "loader": ("COM036",),
    "link": ("COM068",),
    "stage": ("COM063",),
    "expert": ("COM064", "COM036"),
    "healthy": (),
}


def _numbers(evidence: dict[str, Any], *names: str) -> set[int]:
    out: set[int] = set()
    for name, value in evidence.items():
        if any(part in name for part in names):
            for one in value if isinstance(value, list | tuple) else [value]:
                out |= {one} if isinstance(one, int) and not isinstance(one, bool) else set()
    return out


def judge_one(label: dict[str, Any], job: Any) -> dict[str, Any]:
    """Return what was said of a job against its label."""
    said = [one for one in job.findings if one.code in JOB_CODES and one.severity != "note"]
    kind = label["kind"]
    right = [one for one in said if one.code in EXPECTED[kind]]
    rank = cause = inside = False
    if kind == "healthy":
        rank = cause = not said
    for one in right[:1]:
        evidence = one.evidence
        found = _numbers(evidence, "rank")
        if kind == "stage":
            rank = bool(found & set(label["ranks"])) or label["culprit"] in _numbers(evidence, "stage")
            cause = rank
        elif kind == "link":
            rank = bool(found) and found <= set(label["ranks"])
            cause = rank
        else:
            rank = label["culprit"] in _numbers(evidence, "late_rank", "rank")
            words = str(evidence.get("cause", ""))
            cause = {
                "stall": "device" not in words and "loader" not in words and bool(words),
                "device": "device" in words,
                "loader": "loader" in words,
                "expert": one.code == "COM064",
            }[kind]
        if one.cost is not None:
            inside = one.cost.low_ms <= label["true_saving_ms"] <= one.cost.high_ms
    cost = right[0].cost if right else None
    return {
        "said": " ".join(f"{one.code}({one.severity})" for one in said) or "nothing",
        "detail": right[0].evidence.get("cause", "") if right else "",
        "late": right[0].evidence.get("late_rank", "") if right else "",
        "rank": rank,
        "cause": cause,
        "inside": inside,
        "promised": f"{cost.low_ms:.2f}-{cost.high_ms:.2f}" if cost else "",
    }


def score(out: Path, halves: list[str], *, each: bool) -> None:
    """Analyse every job, and print one table by kind."""
    import torchtriage as tt

    rows = []
    for path in sorted((out / "labels").glob("*.json")):
        label = json.loads(path.read_text())
        folder = out / label["half"] / label["name"]
        files = sorted(folder.glob("rank*.json.gz"))
        if label["half"] not in halves or len(files) < label["world"]:
            continue
        begun = time.perf_counter()
        jobs = tt.analyze_ranks(files).jobs
        verdict = (
            judge_one(label, jobs[0]) if jobs else {"said": "no job", "rank": False, "cause": False, "inside": False}
        )
        rows.append((label, verdict))
        if each:
            layout = f"tp{label['tp']} dp{label['dp']} pp{label['pp']} ep{label['ep']}"
            print(
                f"{label['name']:12} {label['kind']:8} {layout:22} of {label['step_ms']:8.2f} ms"
                f" true {label['true_saving_ms']:7.2f} promised {verdict.get('promised', ''):15}"
                f" rank {label['culprit']:4} named {verdict.get('late', '')!s:4} {verdict.get('detail', ''):20}"
                f" {verdict['said']:30} {'right' if verdict['cause'] and verdict['rank'] else 'WRONG'}"
                f" {time.perf_counter() - begun:.0f} s",
                flush=True,
            )
    print(f"{'kind':10}{'jobs':>6}{'ranks':>14}{'rank right':>12}{'and cause':>11}{'saving inside':>15}{'quiet':>8}")
    for kind in KINDS:
        some = [(label, verdict) for label, verdict in rows if label["kind"] == kind]
        if not some:
            continue
        worlds = [label["world"] for label, _ in some]
        n = len(some)
        rank, cause = sum(v["rank"] for _, v in some), sum(v["rank"] and v["cause"] for _, v in some)
        inside = sum(v["inside"] for _, v in some)
        counts = f"{rank:>12}{cause:>11}{inside:>15}{'':>8}" if kind != "healthy" else f"{'':38}{rank:>8}"
        print(f"{kind:10}{n:>6}{f'{min(worlds)}-{max(worlds)}':>14}{counts}")


def main() -> None:
    """Make the jobs, or score what is said of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("command", choices=("make", "score"))
    parser.add_argument("out", type=Path)
    parser.add_argument("halves", nargs="*", default=["dev", "held"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--jobs", type=int, default=63)
    parser.add_argument("--large", type=int, default=1000, help="ranks of the last two jobs, 0: none")
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="print every job")
    args = parser.parse_args()
    if args.command == "score":
        score(args.out, args.halves, each=args.all)
        return
    specs = cases(args.jobs, args.large, args.seed)
    with ProcessPoolExecutor(args.processes) as pool:
        for label in pool.map(make_one, specs, [args.data] * len(specs), [args.out] * len(specs)):
            print(label["name"], label["half"], f"{label['step_ms']:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
