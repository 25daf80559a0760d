"""Load forecasting with a temporal conv net: callbacks, early stopping, checkpoints, heartbeat thread."""
import copy
import os
import tempfile
import threading
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

HORIZONS = [1, 6, 24]


class LoadWindows(Dataset):
    """Sliding windows over one long multivariate series; a window is a view, not a copy."""

    def __init__(self, series, length, stride):
        self.series, self.length = series, length
        self.starts = range(0, series.shape[1] - length - max(HORIZONS), stride)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s = self.starts[i]
        end = s + self.length
        targets = torch.stack([self.series[0, end + h - 1] for h in HORIZONS])
        return self.series[:, s:end], targets


class TCN(nn.Module):
    def __init__(self, channels, width=96, depth=4):
        super().__init__()
        self.inp = nn.Conv1d(channels, width, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 3, dilation=2 ** k, padding=2 ** k) for k in range(depth))
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in HORIZONS)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + F.gelu(block(h))
        last = h[:, :, -1]
        return torch.cat([self.heads[HORIZONS.index(hz)](last) for hz in HORIZONS], 1)


class Heartbeat(threading.Thread):
    def __init__(self, state, every=0.2):
        super().__init__(daemon=True)
        self.state, self.every, self.done = state, every, threading.Event()
        self.ticks = 0

    def run(self):
        while not self.done.wait(self.every):
            self.ticks += 1
            self.state["alive_at"] = self.state["step"]


class BestWeights:
    def __init__(self, patience=3):
        self.best, self.state, self.bad, self.patience = float("inf"), None, 0, patience

    def update(self, value, model):
        if value < self.best:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def make_series(hours, channels, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).float()
    rows = [torch.sin(t * 6.2832 / p) for p in (24, 168, 12, 8760)]
    base = torch.stack([rows[k % 4] * (1 + 0.1 * k) for k in range(channels)])
    return base + 0.2 * torch.randn(channels, hours, generator=g)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    err = sum(F.l1_loss(model(x), y, reduction="sum").item() for x, y in loader)
    model.train()
    return err / (len(loader.dataset) * len(HORIZONS))


def main():
    torch.manual_seed(0)
    train = DataLoader(LoadWindows(make_series(16_000, 8, 1), 168, 10), batch_size=32,
                       shuffle=True, drop_last=True)
    valid = DataLoader(LoadWindows(make_series(3_000, 8, 2), 168, 24), batch_size=64)
    model = TCN(8)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=3 * len(train))
    recent, keeper, state = deque(maxlen=20), BestWeights(), {"step": 0, "alive_at": 0}
    beat = Heartbeat(state)
    beat.start()
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(3):
            for x, y in train:
                loss = F.smooth_l1_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                opt.step()
                sched.step()
                recent.append(loss.item())
                state["step"] += 1
                smooth = sum(recent) / len(recent)
                if state["step"] % 25 == 0:
                    print(f"step {state['step']:3d} loss {smooth:.4f} grad {float(norm):.3f}")
            mae = validate(model, valid)
            torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(folder, "last.pt"))
            print(f"epoch {epoch} valid mae {mae:.4f}")
            if keeper.update(mae, model):
                break
    beat.done.set()
    beat.join()
    model.load_state_dict(keeper.state)
    print(f"best mae {keeper.best:.4f}, restored {validate(model, valid):.4f}")


if __name__ == "__main__":
    main()
