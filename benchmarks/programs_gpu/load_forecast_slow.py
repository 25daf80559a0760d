"""Day-ahead electricity load forecast for many substations: temporal conv net + quantile loss."""
import argparse

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

QUANTILES = (0.1, 0.5, 0.9)


def make_frame(hours, stations, seed=5):
    rng = np.random.default_rng(seed)
    t = pd.date_range("2021-01-01", periods=hours, freq="h")
    day = np.sin(2 * np.pi * (t.hour.values[:, None] / 24 + rng.random(stations)))
    week = np.cos(2 * np.pi * t.day_of_week.values[:, None] / 7)
    temp = 12 + 9 * np.sin(2 * np.pi * t.day_of_year.values / 365)[:, None] + rng.normal(0, 2, (hours, stations))
    load = 50 + 14 * day + 6 * week - 0.8 * temp + rng.normal(0, 1.5, (hours, stations))
    return pd.DataFrame(load, index=t), pd.DataFrame(temp, index=t)


class Windows:
    """Random windows of load, temperature and calendar; everything lives on the training device."""

    def __init__(self, load, temp, history, horizon, batch, device):
        calendar = np.stack([np.sin(2 * np.pi * load.index.hour / 24), np.cos(2 * np.pi * load.index.hour / 24),
                             np.sin(2 * np.pi * load.index.day_of_week / 7)], axis=-1)
        self.load = torch.tensor(((load - load.mean()) / load.std()).values.T, device=device)
        self.temp = torch.tensor(((temp - temp.mean()) / temp.std()).values.T, device=device)
        self.calendar = torch.tensor(calendar, device=device)
        self.history, self.horizon, self.batch = history, horizon, batch
        self.span = torch.arange(history + horizon, device=device)

    def sample(self):
        stations, hours = self.load.shape
        dev = self.load.device
        s = torch.randint(0, stations, (self.batch, 1), device=dev)
        t = torch.randint(0, hours - len(self.span), (self.batch, 1), device=dev) + self.span
        series = torch.stack([self.load[s, t], self.temp[s, t]], 1)
        x = torch.cat([series, self.calendar[t].transpose(1, 2)], 1)
        return x[:, :, :self.history], series[:, 0, self.history:]


class ResidualBlock(nn.Module):
    def __init__(self, channels, dilation, dropout=0.1):
        super().__init__()
        self.pad = 2 * dilation
        self.conv1 = weight_norm(nn.Conv1d(channels, channels, 3, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(channels, channels, 3, dilation=dilation))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        h = self.drop(torch.relu(self.conv1(nn.functional.pad(x, (self.pad, 0)))))
        h = self.drop(torch.relu(self.conv2(nn.functional.pad(h, (self.pad, 0)))))
        return torch.relu(x + h)


class LoadNet(nn.Module):
    def __init__(self, channels, levels, horizon):
        super().__init__()
        self.inp = nn.Conv1d(5, channels, 1)
        self.blocks = nn.Sequential(*[ResidualBlock(channels, 2 ** i) for i in range(levels)])
        self.out = nn.Linear(channels, horizon * len(QUANTILES))

    def forward(self, x):
        h = self.blocks(self.inp(x))[:, :, -1]
        return self.out(h).view(len(x), -1, len(QUANTILES))


def pinball(pred, target):
    q = pred.new_tensor(QUANTILES)
    diff = target.unsqueeze(-1) - pred
    return torch.maximum(q * diff, (q - 1) * diff).mean()


class Trainer:
    def __init__(self, model, windows, steps):
        self.model, self.windows, self.steps = model, windows, steps
        self.opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, 4e-3, total_steps=steps)
        self.log = []

    def fit(self):
        self.model.train()
        for step in range(self.steps):
            # STEP
            x, y = self.windows.sample()
            loss = pinball(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.log.append(loss.detach())
        return torch.stack(self.log).cpu()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    small = ap.parse_args().small
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    np.random.seed(1)

    hours, stations = (600, 4) if small else (8760, 300)
    history, horizon, batch = (64, 8, 4) if small else (336, 24, 256)
    load, temp = make_frame(hours, stations)
    windows = Windows(load, temp, history, horizon, batch, device)
    model = LoadNet(8 if small else 64, 3 if small else 6, horizon).double().to(device)
    curve = Trainer(model, windows, 4 if small else 200).fit()
    print("first", round(curve[0].item(), 5), "last", round(curve[-1].item(), 5))


if __name__ == "__main__":
    main()
