"""Real jobs with and without a late rank, watched while they train: who is named, where its time goes, what it costs.

    python benchmarks/straggler_watch.py [--half dev|held|all] [--out FILE] [NAME…]
    python benchmarks/straggler_watch.py --cost
    python benchmarks/straggler_watch.py --judge 1000

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH, BATCH, N_LAYERS = 256, 16, 4
FORWARD_S, BACKWARD_S = 0.08e-3, 0.16e-3
"""What each layer takes for one sample: 15 ms of a step."""
STEPS = 160


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
    _late("loader worker", 2, "loader", 40, "loader", workers=1),
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
