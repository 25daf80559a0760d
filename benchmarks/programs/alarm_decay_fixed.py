#!/usr/bin/env python
"""Alarm forecasting from machine event logs.

Every sensor of a plant emits discrete events (mostly silence).  The model sees the
last day of the log, summarises it with a bank of learnable exponentially decaying
memories (as in a neural Hawkes process / "time surface"), and says for each sensor
whether it will raise an alarm within the next 30 minutes.
"""
import itertools
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 3
SENSORS = 24
WINDOW = 1440            # one day in minutes
HORIZON = 30
SCALES = 40
BATCH = 64
STEPS = 500
REPORT = 50


# --------------------------------------------------------------------------- data
def simulate_log(minutes, seed):
    """Sparse self- and cross-exciting event counts, shape (minutes, sensors)."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.001, 0.006, SENSORS)
    link = (rng.random((SENSORS, SENSORS)) < 0.12) * rng.uniform(0.0, 0.05, (SENSORS, SENSORS))
    decay = rng.uniform(0.8, 0.97, SENSORS)
    excite = np.zeros(SENSORS)
    log = np.zeros((minutes, SENSORS), dtype=np.float32)
    for t in range(minutes):
        lam = np.minimum(base + excite, 0.6)
        ev = (rng.random(SENSORS) < lam).astype(np.float32)
        log[t] = ev
        excite = excite * decay + ev @ link
    return torch.from_numpy(log)


def alarms_ahead(log):
    """1 where a sensor has two or more events in the HORIZON minutes that follow."""
    c = F.pad(log.cumsum(0), (0, 0, 1, 0))
    ahead = c[HORIZON:] - c[:-HORIZON]
    return (ahead >= 2).float()


def window_batches(log, labels, gen):
    views = log.unfold(0, WINDOW, 1)                 # (starts, sensors, WINDOW), no copy
    last = labels.size(0) - WINDOW
    while True:
        start = torch.randint(0, last, (BATCH,), generator=gen)
        yield views[start], labels[start + WINDOW]


# -------------------------------------------------------------------------- model
class DecayBank(nn.Module):
    """memory_k(t) = sum over past events of exp(-rate_k * age), rates are learned."""

    def __init__(self, scales, fastest=2.0, slowest=1 / 600):
        super().__init__()
        spread = torch.linspace(np.log(slowest), np.log(fastest), scales)
        self.log_rate = nn.Parameter(spread)
        self.register_buffer("age", torch.arange(WINDOW - 1, -1, -1).float())

    def forward(self, events):
        kernel = torch.exp(-self.log_rate.exp()[:, None] * self.age)
        return torch.log1p(events @ kernel.t())


class AlarmNet(nn.Module):
    def __init__(self, width=96, layers=2):
        super().__init__()
        self.bank = DecayBank(SCALES)
        self.inp = nn.Linear(SCALES, width)
        self.sensor = nn.Parameter(torch.randn(SENSORS, width) * 0.1)
        self.mix = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True,
                                       norm_first=True)
            for _ in range(layers))
        self.out = nn.Linear(width, 1)

    def forward(self, events):
        h = self.inp(self.bank(events)) + self.sensor
        for layer in self.mix:
            h = layer(h)
        return self.out(h).squeeze(-1)


# ----------------------------------------------------------------------- training
class Meter:
    def __init__(self):
        self.total, self.hits, self.n = torch.zeros(()), torch.zeros(()), 0

    def add(self, loss, logits, y):
        self.total += loss.detach()
        self.hits += ((logits.detach() > 0) == (y > 0.5)).float().mean()
        self.n += 1

    def flush(self):
        a, b = self.total.item() / self.n, self.hits.item() / self.n
        self.__init__()
        return a, b


def main():
    torch.set_flush_denormal(True)
    torch.manual_seed(SEED)
    log = simulate_log(30_000, SEED)
    labels = alarms_ahead(log)
    print(f"{int(log.sum())} events, {labels.mean():.3f} of the labels are alarms")

    net = AlarmNet()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=1e-2, fused=True)
    pos_weight = (1 - labels.mean()) / labels.mean()
    batches = window_batches(log, labels, torch.Generator().manual_seed(SEED))
    meter = Meter()

    t0 = time.perf_counter()
    for step, (x, y) in enumerate(itertools.islice(batches, STEPS), 1):
        logits = net(x)
        loss = F.binary_cross_entropy_with_logits(logits, y, pos_weight=pos_weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.add(loss, logits, y)
        if step % REPORT == 0:
            avg, acc = meter.flush()
            half_lives = (np.log(2) / net.bank.log_rate.detach().exp()).sort().values
            print(f"{step:4d}  bce {avg:.4f}  acc {acc:.3f}  half-lives "
                  f"{half_lives[0]:.2f} .. {half_lives[-1]:.0f} min")
    secs = time.perf_counter() - t0
    print(f"{STEPS} steps, {1000 * secs / STEPS:.2f} ms/step")


if __name__ == "__main__":
    main()
