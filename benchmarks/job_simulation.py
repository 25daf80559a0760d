"""Ranks that run side by side: a host that launches, a device that computes, collectives that all must come to.

A collective begins on a rank when its kernel can run there, and ends on all ranks when the last has come and the
message has been sent. Nothing here knows torchtriage.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from job_program import MAIN, Block, Item, Row, Spec, program

__all__ = ["GPUS_PER_HOST", "Simulation"]

GPUS_PER_HOST = 8
NVLINK, NETWORK = 200e3, 20e3
"""Bytes per microsecond on the bus."""
LATENCY_US = {"host": 12.0, "network": 35.0}
LAUNCH_US, BETWEEN_US = 4.0, 1.2
ITEM_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2}
TRUNCATED = 30
"""PyTorch writes no more of a list than this."""
COMPUTE, FIRST_COMM = 7, 20
MOST_ITEMS = 800
"""Of a rank's step."""
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
        # without the fault the same layers are shared out evenly
        more = spec.strength if spec.kind == "stage" else 0.0
        layers = [
            spec.layers + (more * (stage == spec.culprit) if fault else more / spec.pp) for stage in range(spec.pp)
        ]
        self.programs = [program(spec, by_phase, stage, n_layers) for stage, n_layers in enumerate(layers)]
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
        kind = "AllReduce_Sum_f32_RING_LL" if item.dtype == "Float" else "AllReduce_Sum_bf16_RING_LL"
        text = f"ncclDevKernel_{kind if item.op == 'allreduce' else 'SendRecv'}(ncclDevKernelArgsStorage<4096ul>)"
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
