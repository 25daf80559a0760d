"""What a rank of a simulated job does: rows of a recorded rank, cut at its collectives, and their order in a step."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["AUTOGRAD", "MAIN", "Block", "Item", "Row", "Spec", "program", "read_blocks"]

MAIN, AUTOGRAD = 0, 1
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")

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
        k: v
        for k, v in event.get("args", {}).items()
        if k not in ("External id", "correlation", "Ev Idx", "stream", "device", "context")
    }
    body = json.dumps({"cat": event["cat"], "name": event["name"]})[1:-1].replace("%", "%%")
    more = json.dumps(args)[1:-1].replace("%", "%%")
    return '{"ph":"X",' + body + ',"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{%s' + (more and "," + more) + "}}"


def read_blocks(path: Path) -> list[Block]:
    """Cut a middle step of a recording at its collectives."""
    with gzip.open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
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


def program(spec: Spec, blocks: dict[str, list[int]], stage: int, n_layers: float) -> list[Item]:
    """Return what a rank of a stage does in one step; of a part of a layer each kernel and message is shorter."""
    parts = [min(1.0, n_layers - at) for at in range(math.ceil(n_layers))]
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
                yield comm("tp", "allreduce", int(parts[at] * 4 * 2048 * 4096), dtype="BFloat16", thread=thread)

    def forward(mb: int) -> Iterator[Item]:
        if stage > 0:
            yield comm("pp", "recv", p2p, f"rf{mb}", "BFloat16", -1)
            yield Item("wait", key=f"rf{mb}")
        yield Item("open", name="## forward ##")
        for at, part in enumerate(parts):
            yield from layer(at, MAIN, part)
        yield Item("close")
        if stage < spec.pp - 1:
            yield comm("pp", "send", p2p, f"sf{mb}", "BFloat16", 1)

    def backward(mb: int, last: bool) -> Iterator[Item]:
        if stage < spec.pp - 1:
            yield comm("pp", "recv", p2p, f"rb{mb}", "BFloat16", 1)
            yield Item("wait", key=f"rb{mb}")
        yield Item("open", name="## backward ##")
        for at, part in enumerate(parts):
            yield from layer(at, AUTOGRAD, part if bwd else 2 * part)
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
    out.extend(Item("wait", key=f"g{at}") for at in range(len(parts) if dense else 0))
    out += [Item("open", name="Optimizer.step#Adam.step"), *(Item("block", at) for at in opt), Item("close")]
    # the norm of the gradients, or the loss, is read every step
    out += [Item("item"), Item("gap", us=250.0, name="python")]
    return out
