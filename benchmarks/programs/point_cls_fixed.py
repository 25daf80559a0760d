# PointNet++-like classifier on toy shapes (sphere / box / torus / cone)
import os
import random
import tempfile

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

SEED = 42
N_POINTS = 512
N_CENTROIDS = 64
K = 16
BATCH = 8
EPOCHS = 2


def make_shape(kind, n, rng):
    u, v = rng.uniform(0, 2 * np.pi, n), rng.uniform(0, 1, n)
    if kind == 0:
        z = 2 * v - 1
        p = np.stack([np.sqrt(1 - z ** 2) * np.cos(u), np.sqrt(1 - z ** 2) * np.sin(u), z], 1)
    elif kind == 1:
        p = rng.uniform(-1, 1, (n, 3))
        ax = rng.randint(0, 3, n)
        p[np.arange(n), ax] = np.sign(p[np.arange(n), ax])
    elif kind == 2:
        t = 2 * np.pi * v
        p = np.stack([(1 + 0.3 * np.cos(t)) * np.cos(u), (1 + 0.3 * np.cos(t)) * np.sin(u), 0.3 * np.sin(t)], 1)
    else:
        p = np.stack([(1 - v) * np.cos(u), (1 - v) * np.sin(u), 2 * v - 1], 1)
    return (p + rng.normal(0, 0.02, p.shape)).astype(np.float32)


def farthest_points(xyz, m):
    """Indices [B, m] of points that are far from one another; xyz is [B, N, 3]."""
    b, n, _ = xyz.shape
    rows = torch.arange(b)
    picked = torch.zeros(b, m, dtype=torch.long)
    dist = torch.full((b, n), float("inf"))
    for i in range(1, m):
        last = xyz[rows, picked[:, i - 1]]
        gap = (xyz - last[:, None, :]).pow(2).sum(-1)
        dist = torch.minimum(dist, gap)
        picked[:, i] = dist.argmax(dim=1)
    return picked


def group(xyz, picked, k):
    rows = torch.arange(xyz.shape[0])
    centers = xyz[rows[:, None], picked]
    d = torch.cdist(centers, xyz)
    idx = d.topk(k, largest=False).indices
    neighbours = xyz[rows[:, None, None], idx]
    return neighbours - centers[:, :, None, :], centers


class SetAbstraction(nn.Module):
    def __init__(self, n_cls=4):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.glob = nn.Sequential(nn.Linear(67, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, n_cls))

    def forward(self, xyz):
        picked = farthest_points(xyz, N_CENTROIDS)
        patches, centers = group(xyz, picked, K)
        feat = self.local(patches).max(dim=2).values
        feat = self.glob(torch.cat([feat, centers], -1)).max(dim=1).values
        return self.head(feat)


def batches(x, y, size):
    for epoch in range(EPOCHS):
        order = np.random.permutation(len(x))
        for s in range(0, len(order) - size + 1, size):
            sel = order[s:s + size]
            jitter = np.random.normal(0, 0.01, x[sel].shape).astype(np.float32)
            yield torch.from_numpy(x[sel] + jitter), torch.from_numpy(y[sel])


random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)
rng = np.random.RandomState(SEED)
train_y = np.arange(120) % 4
train_x = np.stack([make_shape(k, N_POINTS, rng) for k in train_y])

model = SetAbstraction()
print("parameters:", sum(p.numel() for p in model.parameters()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
seen = correct = 0
for step, (clouds, labels) in enumerate(batches(train_x, train_y, BATCH), start=1):
    logits = model(clouds)
    loss = criterion(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += len(labels)
    correct += (logits.argmax(1) == labels).sum().item()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f} acc {correct / seen:.3f}")

path = os.path.join(tempfile.mkdtemp(), "pointnet.pth")
torch.save(model.state_dict(), path)
print("saved", os.path.basename(path))
