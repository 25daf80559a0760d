"""One rank of a job that hangs in a way: hanging_rank.py WAY FOLDER."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

way, folder = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
rank = dist.get_rank()
one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
x = torch.ones(4)
for _ in range(3):
    dist.all_reduce(x)


def write() -> None:
    temporary = folder / "new" / str(rank)
    temporary.write_bytes(_dump_fr_trace())
    temporary.rename(folder / f"rank_{rank}")
    if way == "stopped" and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


threading.Timer(2.0, write).start()


def never() -> None:
    time.sleep(600)


def locked() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


if way == "sleeps" and rank == 1:
    never()
elif way == "locked" and rank == 2:
    locked()
elif way == "other op" and rank == 1:
    dist.broadcast(x, 0)
elif way == "crossed" and rank < 2:
    for group in (one, two) if rank else (two, one):
        dist.all_reduce(x, group=group)
elif way == "fewer steps":
    for _ in range(2 if rank == 2 else 3):
        dist.all_reduce(x)
    if rank == 2:
        dist.all_gather_object([None] * 3, x)
elif way == "no sender":
    if rank == 0:
        dist.recv(x, 1)
    never()
elif way == "subgroup" and rank < 2:
    dist.all_reduce(x, group=one)
    if rank == 0:
        dist.all_reduce(x, group=one)
    never()
elif way == "stopped" and rank == 1:
    never()
dist.all_reduce(x)
never()
