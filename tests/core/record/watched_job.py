"""One rank of a job that a straggler watch looks at: a script of test_straggler_watch.py."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import torchtriage as tt
from torchtriage.api import straggler_watch
from torchtriage.operate.stragglers import job

WHAT, FOLDER, RANK = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
STEP_S, LATE_S = 0.01, 0.05
straggler_watch.PERIOD_S = 0.1
job.LOST_S, job.HUNG_S = 3.0, 3.0


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, values, seconds):
        time.sleep(STEP_S)
        return values.clone()

    @staticmethod
    def backward(_ctx, grads):
        time.sleep(STEP_S + late_s("backward"))
        return grads, None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, values):
        time.sleep(late_s("forward"))
        return self.layer(Slow.apply(self.layer(values), 0))


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, _at):
        time.sleep(late_s("loader") / 4)
        return torch.zeros(8)


def late_s(phase):
    return LATE_S * (RANK == 1 and phase == WHAT)


def heard(what):
    with (FOLDER / "heard.txt").open("a") as file:
        file.write(f"{type(what).__name__} {what}\n")
    raise ValueError("a callback of the user's own")


dist.init_process_group("gloo")
torch.set_num_threads(1)
ddp = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
arm = FOLDER / "recorded" if WHAT == "loader" else None
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4))
watch = tt.StragglerWatch(ddp, optimizer=optimizer, every=5, on_late=heard, arm=arm, out=FOLDER / "watch.json")


def step(model):
    loss = model(next(batches)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


with watch:
    for at in range(200 if arm else 40):
        step(ddp)
        if at == 20 and RANK == 1 and WHAT == "dies":
            os._exit(3)
        if at == 20 and RANK == 1 and WHAT == "hangs":
            time.sleep(8)
    if WHAT == "store":  # the rank that holds it goes; the other trains on by itself
        if RANK == 0:
            os._exit(0)
        for _ in range(100):
            step(ddp.module)
    if WHAT == "uneven" and RANK == 1:
        for _ in range(100):
            step(ddp.module)
(FOLDER / f"done{RANK}").write_text(json.dumps(watch.summary()))
if WHAT not in ("dies", "store"):  # a rank that goes first takes the store along, and torch may abort the other
    dist.barrier()
    dist.destroy_process_group()
