"""Day-ahead electricity load forecasting with a dilated causal conv net.

Every region's hourly history lives in an .npz shard written by the ingest job.
"""
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONTEXT, HORIZON = 336, 24


def ingest(folder, regions, hours, seed):
    """Writes one shard per region: load curve plus weather covariates."""
    rng = np.random.default_rng(seed)
    hour = np.arange(hours, dtype=np.float32)
    for r in range(regions):
        daily = np.sin(2 * np.pi * (hour + rng.integers(24)) / 24)
        weekly = 0.4 * np.sin(2 * np.pi * hour / 168 + r)
        temp = np.cumsum(rng.standard_normal(hours).astype(np.float32)) * 0.02
        load = 10 + r + 2 * daily + weekly - 0.3 * temp + 0.2 * rng.standard_normal(hours)
        weather = np.stack([temp, np.cos(temp), rng.standard_normal(hours)], axis=1)
        np.savez(os.path.join(folder, f"region_{r:03d}.npz"),
                 load=load.astype(np.float32), weather=weather.astype(np.float32))


class RegionShard:
    def __init__(self, path):
        self.archive = np.load(path)
        self.hours = len(self.archive["load"])
        load = self.archive["load"]
        self.mean, self.std = float(load.mean()), float(load.std())

    def window(self, lo, hi):
        load = (self.archive["load"][lo:hi] - self.mean) / self.std
        weather = self.archive["weather"][lo:hi]
        return load, weather


class Windows(Dataset):
    def __init__(self, folder, stride):
        names = sorted(os.listdir(folder))
        self.shards = [RegionShard(os.path.join(folder, n)) for n in names]
        span = CONTEXT + HORIZON
        self.index = [(s, lo) for s, shard in enumerate(self.shards)
                      for lo in range(0, shard.hours - span, stride)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        shard, lo = self.index[i]
        load, weather = self.shards[shard].window(lo, lo + CONTEXT + HORIZON)
        past = np.concatenate([load[:CONTEXT, None], weather[:CONTEXT]], axis=1)
        return past.T.copy(), load[CONTEXT:].copy()


class CausalBlock(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(ch, 2 * ch, 3, dilation=dilation)
        self.mix = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        a, b = self.conv(nn.functional.pad(x, (self.pad, 0))).chunk(2, dim=1)
        return x + self.mix(torch.tanh(a) * torch.sigmoid(b))


class Forecaster(nn.Module):
    quantiles = (0.1, 0.5, 0.9)

    def __init__(self, ch=16, levels=5):
        super().__init__()
        self.stem = nn.Conv1d(4, ch, 1)
        self.blocks = nn.Sequential(*[CausalBlock(ch, 2 ** i) for i in range(levels)])
        self.head = nn.Linear(ch * 8, HORIZON * len(self.quantiles))

    def forward(self, past):
        h = self.blocks(self.stem(past))[:, :, -8:]
        return self.head(h.flatten(1)).view(-1, HORIZON, len(self.quantiles))


def pinball(pred, target, quantiles):
    q = pred.new_tensor(quantiles)
    diff = target.unsqueeze(-1) - pred
    return torch.maximum(q * diff, (q - 1) * diff).mean()


def train(folder, epochs, seed=9):
    torch.manual_seed(seed)
    data = Windows(folder, stride=293)
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    net = Forecaster()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    step, t0 = 0, time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for past, future in loader:
            loss = pinball(net(past), future, net.quantiles)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            step += 1
        print(f"epoch {epoch} pinball {total / len(loader):.4f}", flush=True)
    dt = time.perf_counter() - t0
    print(f"s/step {dt / step:.5f} steps {step} total {dt:.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        ingest(tmp, regions=24, hours=26_000, seed=1)
        train(tmp, epochs=2)
