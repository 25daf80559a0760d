# Churn model on a wide customer table.  Columns come from independent feature
# builders, the way a feature store hands them out, and are assembled once.
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Config:
    rows: int = 150_000
    numeric: int = 160
    batch: int = 4096
    steps: int = 420
    width: int = 64
    lr: float = 2e-3
    seed: int = 11
    report: int = 70


FEATURES = {}


def feature(prefix, count):
    def register(fn):
        FEATURES[prefix] = (fn, count)
        return fn
    return register


@feature("tenure", 40)
def tenure(rng, base, k):
    return np.log1p(np.abs(base + 0.1 * k + 0.3 * rng.standard_normal(base.size, dtype=np.float32)))


@feature("usage", 60)
def usage(rng, base, k):
    return base * math.cos(k) + rng.standard_normal(base.size, dtype=np.float32)


@feature("billing", 40)
def billing(rng, base, k):
    return np.clip(base, -1.0, 1.0) + 0.5 * rng.standard_normal(base.size, dtype=np.float32)


@feature("support", 20)
def support(rng, base, k):
    return (rng.standard_normal(base.size, dtype=np.float32) > 0.8 + 0.02 * k).astype(np.float32)


class CustomerTable:
    """Holds standardised features (rows x columns) and a binary target."""

    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        base = rng.standard_normal(cfg.rows, dtype=np.float32)
        columns, self.names = [], []
        for prefix, (fn, count) in FEATURES.items():
            for k in range(count):
                columns.append(self.standardise(fn(rng, base, k)))
                self.names.append(f"{prefix}_{k}")
        assert len(columns) == cfg.numeric
        self.x = torch.from_numpy(np.stack(columns, axis=1))
        score = 0.8 * base + 0.3 * columns[3] * columns[50]
        noise = rng.standard_normal(cfg.rows, dtype=np.float32)
        self.y = torch.from_numpy((score + 0.5 * noise > 0.7).astype(np.float32))

    @staticmethod
    def standardise(col):
        return (col - col.mean()) / (col.std() + 1e-6)

    def __len__(self):
        return self.x.shape[0]


class Batches:
    """Endless shuffled mini-batches over a table."""

    def __init__(self, table, size, seed):
        self.table, self.size = table, size
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.table), generator=self.gen)
            for lo in range(0, len(order) - self.size + 1, self.size):
                idx = order[lo:lo + self.size]
                yield self.table.x.index_select(0, idx), self.table.y.index_select(0, idx)


class ChurnNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(cfg.numeric, cfg.width)
        self.norm = nn.BatchNorm1d(cfg.width)
        self.hidden = nn.Linear(cfg.width, cfg.width)
        self.out = nn.Linear(cfg.width, 1)

    def forward(self, x):
        h = torch.relu(self.norm(self.inp(x)))
        h = h + torch.relu(self.hidden(h))
        return self.out(h).squeeze(-1)


def warmup_cosine(step, total, warm=30):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def main(cfg):
    torch.manual_seed(cfg.seed)
    table = CustomerTable(cfg)
    net = ChurnNet(cfg)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: warmup_cosine(s, cfg.steps))
    loss_fn = nn.BCEWithLogitsLoss()
    running, hits = torch.zeros(()), torch.zeros(())
    started = time.perf_counter()
    for step, (x, y) in zip(range(1, cfg.steps + 1), Batches(table, cfg.batch, cfg.seed)):
        logits = net(x)
        loss = loss_fn(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        running += loss.detach()
        hits += ((logits > 0) == (y > 0.5)).float().mean()
        if step % cfg.report == 0:
            print(f"{step:4d} loss {running / cfg.report:.4f} acc {hits / cfg.report:.4f}", flush=True)
            running.zero_()
            hits.zero_()
    took = time.perf_counter() - started
    print(f"s/step {took / cfg.steps:.5f} loop {took:.2f}")


if __name__ == "__main__":
    main(Config())
