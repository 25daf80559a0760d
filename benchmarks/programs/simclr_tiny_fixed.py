"""SimCLR on a tiny in-memory image set. Small because this is just for the ablation table."""
import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self, n=512, size=40, seed=0):
        rng = np.random.default_rng(seed)
        base = rng.integers(0, 255, (16, 3, 8, 8)).astype(np.float32)
        lab = rng.integers(0, 16, n)
        up = np.kron(base, np.ones((1, 1, size // 8, size // 8), dtype=np.float32))
        self.images = (up[lab] + rng.normal(0, 20, (n, 3, size, size))).clip(0, 255).astype(np.uint8)
        self.labels = lab
        self.crop = 32

    def __len__(self):
        return len(self.images)

    def view(self, img):
        i, j = torch.randint(0, img.shape[1] - self.crop + 1, (2,)).tolist()
        x = torch.from_numpy(img[:, i:i + self.crop, j:j + self.crop]).float() / 255
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        b, c, s = (torch.rand(3) * 0.8 + 0.6).tolist()
        x = x * b
        x = (x - x.mean()) * c + x.mean()
        g = x.mean(0, keepdim=True)
        x = (x - g) * s + g
        if torch.rand(()) < 0.2:
            x = g.expand(3, -1, -1)
        return x.clamp(0, 1).contiguous()

    def __getitem__(self, i):
        return self.view(self.images[i]), self.view(self.images[i]), int(self.labels[i])


class Encoder(nn.Module):
    def __init__(self, w=32, dim=64):
        super().__init__()
        layers, c = [], 3
        for o, s in ((w, 1), (2 * w, 2), (4 * w, 2), (4 * w, 2)):
            layers += [nn.Conv2d(c, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
            c = o
        self.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(c, c), nn.ReLU(True), nn.Linear(c, dim))

    def forward(self, x):
        h = self.backbone(x)
        return h, F.normalize(self.head(h), dim=1)


def nt_xent(z, temperature):
    n = z.size(0)
    sim = z @ z.t() / temperature
    sim.masked_fill_(torch.eye(n, dtype=torch.bool), -1e9)
    target = (torch.arange(n) + n // 2) % n
    return F.cross_entropy(sim, target)


@torch.no_grad()
def knn_probe(net, ds):
    net.eval()
    x = torch.from_numpy(ds.images[:256, :, 4:36, 4:36]).float() / 255
    h = F.normalize(net.backbone(x), dim=1)
    s = h @ h.t()
    s.fill_diagonal_(-1)
    lab = torch.from_numpy(ds.labels[:256])
    net.train()
    return (lab[s.argmax(1)] == lab).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--temp", type=float, default=0.2)
    args = ap.parse_args()
    torch.manual_seed(0)
    ds = TwoViews()
    loader = DataLoader(ds, batch_size=args.batch, shuffle=True, drop_last=True,
                        num_workers=args.workers, multiprocessing_context="spawn",
                        persistent_workers=True)
    net = Encoder()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    total = args.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / total)))
    for epoch in range(args.epochs):
        t0 = time.perf_counter()
        losses = []
        for v1, v2, _ in loader:
            _, z = net(torch.cat([v1, v2]))
            loss = nt_xent(z, args.temp)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            losses.append(loss.detach())
        acc = knn_probe(net, ds)
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.4f} knn {acc:.3f} "
              f"({time.perf_counter() - t0:.2f} s)", flush=True)


if __name__ == "__main__":
    main()
