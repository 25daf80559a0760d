# === cell 1: imports ===
import math
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader
from sklearn.preprocessing import StandardScaler

np.random.seed(0)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# === cell 2: data (hourly load of 6 feeders, three years) ===
HOURS = 24 * 365 * 3
t = np.arange(HOURS)
cols = []
for k in range(6):
    day = np.sin(2 * np.pi * (t + 3 * k) / 24)
    week = 0.4 * np.sin(2 * np.pi * t / (24 * 7) + k)
    year = 0.8 * np.cos(2 * np.pi * t / (24 * 365))
    cols.append(50 + 10 * k + 8 * day + 6 * week + 5 * year + np.random.randn(HOURS))
load = np.stack(cols, axis=1)
train, val = load[: int(0.8 * HOURS)], load[int(0.8 * HOURS):]
print(train.shape, val.shape)


# === cell 3: dataset ===
class WindowDataset(Dataset):
    def __init__(self, series, lookback=72, horizon=24):
        self.series = series
        self.lookback = lookback
        self.horizon = horizon
        self.scaled = StandardScaler().fit_transform(series)

    def __len__(self):
        return (len(self.series) - self.lookback - self.horizon) // 20

    def __getitem__(self, idx):
        idx = idx * 20
        x = self.scaled[idx: idx + self.lookback]
        y = self.scaled[idx + self.lookback: idx + self.lookback + self.horizon]
        return x, y


def to_float(items):
    xs, ys = zip(*items)
    return torch.from_numpy(np.stack(xs)).float(), torch.from_numpy(np.stack(ys)).float()


train_dl = DataLoader(WindowDataset(train), batch_size=32, shuffle=True, drop_last=True, collate_fn=to_float)
val_dl = DataLoader(WindowDataset(val), batch_size=64, collate_fn=to_float)


# === cell 4: model ===
class PositionalEncoding(nn.Module):
    def __init__(self, d, max_len=512):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(max_len, d)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Forecaster(nn.Module):
    def __init__(self, n_feat=6, d=96, horizon=24):
        super().__init__()
        self.inp = nn.Linear(n_feat, d)
        self.pos = PositionalEncoding(d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(d, horizon * n_feat)
        self.horizon, self.n_feat = horizon, n_feat

    def forward(self, x):
        h = self.enc(self.pos(self.inp(x)))
        return self.out(h[:, -1]).view(-1, self.horizon, self.n_feat)


model = Forecaster().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
loss_fn = nn.MSELoss()

# === cell 5: training ===
model.train()
losses = []
for xb, yb in train_dl:
    xb, yb = xb.to(device), yb.to(device)
    pred = model(xb)
    loss = loss_fn(pred, yb)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    losses.append(loss.item())
    if len(losses) % 10 == 0:
        print(f"batch {len(losses)}  loss {np.mean(losses[-10:]):.4f}")

# === cell 6: quick check on one validation batch ===
model.eval()
with torch.no_grad():
    xb, yb = next(iter(val_dl))
    mae = (model(xb.to(device)) - yb.to(device)).abs().mean().item()
print(f"val MAE (scaled) {mae:.4f}")
