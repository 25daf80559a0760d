"""BYOL-style pretraining of a PointNet on synthetic clouds, SAM optimiser for the projector study."""
import copy
import gc
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(2)
rng = np.random.default_rng(2)
BS, N, ITERS = 8, 384, 66
TAU, RHO = 0.99, 0.05


class PointNet(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.mlp1 = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 128), nn.GELU())
        self.mlp2 = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, dim))

    def forward(self, p):
        h = self.mlp1(p)
        if self.training and torch.is_grad_enabled():
            h = checkpoint(self.mlp2, h, use_reentrant=False)
        else:
            h = self.mlp2(h)
        return h.amax(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = PointNet()
        self.proj = nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, p):
        return self.proj(self.enc(p))


class SAM:
    """two gradient evaluations per update (Foret et al.)"""

    def __init__(self, params, base, rho):
        self.params, self.base, self.rho = list(params), base, rho
        self.saved = []

    @torch.no_grad()
    def ascend(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        self.saved = [p.detach().clone() for p in self.params]
        for p in self.params:
            p.add_(p.grad * (self.rho / (norm + 1e-12)))
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, s in zip(self.params, self.saved):
            p.copy_(s)
        self.saved = []
        self.base.step()
        self.base.zero_grad()


def clouds(n):
    kind = rng.integers(0, 3, n)
    u = rng.normal(size=(n, N, 3))
    sphere = u / np.linalg.norm(u, axis=-1, keepdims=True)
    cube = np.clip(u, -1, 1)
    disc = u * np.array([1, 1, 0.05])
    out = np.where(kind[:, None, None] == 0, sphere, np.where(kind[:, None, None] == 1, cube, disc))
    return torch.from_numpy(out.astype(np.float32))


def view(p):
    q, _ = torch.linalg.qr(torch.randn(p.size(0), 3, 3, dtype=torch.float64))
    p = (p.double() @ q).float()
    keep = torch.randperm(N)[: N * 3 // 4]
    return p[:, keep] * (0.8 + 0.4 * torch.rand(p.size(0), 1, 1)) + 0.01 * torch.randn(p.size(0), len(keep), 3)


def byol_loss(net, pred, za, zb, a, b):
    l1 = 2 - 2 * F.cosine_similarity(pred(net(a)), zb).mean()
    l2 = 2 - 2 * F.cosine_similarity(pred(net(b)), za).mean()
    return l1 + l2


online = Net()
target = copy.deepcopy(online).requires_grad_(False)
pred = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
params = list(online.parameters()) + list(pred.parameters())
base = torch.optim.AdamW(params, lr=5e-4, weight_decay=1e-3)
sam = SAM(params, base, RHO)
times, trace = [], []

for it in range(ITERS):
    t0 = time.perf_counter()
    x = clouds(BS)
    a, b = view(x), view(x)
    with torch.no_grad():
        za, zb = target(a), target(b)

    loss = byol_loss(online, pred, za, zb, a, b)
    loss.backward()
    sam.ascend()
    byol_loss(online, pred, za, zb, a, b).backward()
    sam.descend()

    with torch.no_grad():
        for pt, po in zip(target.parameters(), online.parameters()):
            pt.lerp_(po, 1 - TAU)

    trace.append(loss.item())
    times.append(time.perf_counter() - t0)
    if it % 11 == 10:
        snapshot = copy.deepcopy(pred)
        gc.collect()
        with torch.no_grad():
            std = F.normalize(target(a), dim=1).std(0).mean()
        print(f"it {it} loss {np.mean(trace[-11:]):.4f} std {std:.4f} |pred| {sum(p.norm() for p in snapshot.parameters()):.2f}")

print(f"final {trace[-1]:.4f}, median step {1e3 * np.median(times[2:]):.1f} ms")
