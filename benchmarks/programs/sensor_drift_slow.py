"""Online anomaly detection over a simulated stream of plant sensors."""
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn


@dataclass
class StreamConfig:
    channels: int = 8
    chunk: int = 256
    window: int = 32
    chunks: int = 160
    sigma: float = 4.0
    seed: int = 21


@dataclass
class Report:
    alarms: int = 0
    hits: int = 0
    planted: int = 0
    losses: list = field(default_factory=list)


def plant(cfg):
    """Yields (values, anomaly positions); values is chunk x channels."""
    rng = np.random.default_rng(cfg.seed)
    phase = rng.uniform(0, 2 * math.pi, cfg.channels)
    period = rng.uniform(20, 90, cfg.channels)
    for n in range(cfg.chunks):
        t = np.arange(n * cfg.chunk, (n + 1) * cfg.chunk)[:, None]
        x = np.sin(2 * math.pi * t / period + phase) + rng.normal(0, 0.1, (cfg.chunk, cfg.channels))
        where = []
        if n > 20 and rng.random() < 0.3:
            pos = int(rng.integers(cfg.window, cfg.chunk))
            x[pos, rng.integers(cfg.channels)] += rng.choice([-4.0, 4.0])
            where.append(pos)
        yield torch.from_numpy(x.astype(np.float32)), where


class Forecaster(nn.Module):
    def __init__(self, channels, window, hidden=96):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(channels * window, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, channels))

    def forward(self, x):
        return self.net(x)


def make_windows(series, window):
    xs, ys = [], []
    for i in range(len(series) - window):
        xs.append(series[i:i + window])
        ys.append(series[i + window])
    return torch.stack(xs), torch.stack(ys)


class Detector:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Forecaster(cfg.channels, cfg.window)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.tail = None
        self.residuals = []

    def threshold(self):
        mean = np.mean(self.residuals)
        std = np.std(self.residuals)
        return mean + self.cfg.sigma * std

    def update(self, values):
        series = values if self.tail is None else torch.cat([self.tail, values])
        self.tail = values[-self.cfg.window:]
        x, y = make_windows(series, self.cfg.window)
        pred = self.model(x)
        loss = nn.functional.smooth_l1_loss(pred, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        err = (pred.detach() - y).abs()
        self.residuals.extend(err.flatten().tolist())
        flagged = (err > self.threshold()).any(dim=1).nonzero().flatten()
        offset = len(values) - len(y)
        return loss.item(), (flagged + offset).tolist()


def run(cfg):
    torch.manual_seed(cfg.seed)
    detector, report = Detector(cfg), Report()
    for n, (values, planted) in enumerate(plant(cfg)):
        loss, flagged = detector.update(values)
        report.losses.append(loss)
        report.alarms += len(flagged)
        report.planted += len(planted)
        report.hits += sum(p in flagged for p in planted)
        if n % 40 == 39:
            print(f"chunk {n + 1}: loss {np.mean(report.losses[-40:]):.4f} threshold {detector.threshold():.3f}")
    return report


if __name__ == "__main__":
    r = run(StreamConfig())
    print(f"planted {r.planted}, found {r.hits}, alarms {r.alarms}, final loss {r.losses[-1]:.4f}")
