#!/usr/bin/env python3
# Shape classification of scanned parts with dynamic edge convolutions.
import argparse
import types

import torch
import torch.nn as nn
import torch.nn.functional as F


def config(small):
    if small:
        return types.SimpleNamespace(clouds=2, points=96, k=6, widths=(8, 8, 16), classes=5, iters=3)
    return types.SimpleNamespace(clouds=8, points=4096, k=20, widths=(32, 32, 64), classes=40, iters=200)


def neighbours(x, k):
    """x: (B, N, C) -> indices of the k closest points of every point, (B, N, k)."""
    inner = torch.bmm(x, x.transpose(1, 2))
    norm = x.square().sum(-1)
    dist = norm.unsqueeze(2) - 2.0 * inner + norm.unsqueeze(1)
    return dist.topk(k, dim=-1, largest=False, sorted=False).indices


def take(x, idx):
    """Rows of x (B, N, C) at idx (B, N, k) -> (B, N, k, C)."""
    b, n, c = x.shape
    base = torch.arange(b, device=x.device).view(b, 1, 1) * n
    return x.reshape(b * n, c).index_select(0, (idx + base).reshape(-1)).view(b, n, -1, c)


class EdgeConv(nn.Module):
    def __init__(self, c_in, c_out, k):
        super().__init__()
        self.k = k
        self.lin = nn.Linear(2 * c_in, c_out)
        self.norm = nn.LayerNorm(c_out)

    def forward(self, x):
        with torch.no_grad():
            idx = neighbours(x, self.k)
        near = take(x, idx)
        centre = x.unsqueeze(2).expand_as(near)
        edge = self.lin(torch.cat([centre, near - centre], dim=-1))
        return F.gelu(self.norm(edge.amax(dim=2)))


class PartNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.widths
        self.convs = nn.ModuleList(EdgeConv(a, b, cfg.k) for a, b in zip((3,) + w[:-1], w))
        self.mix = nn.Linear(sum(w), 256)
        self.head = nn.Sequential(nn.Linear(512, 128), nn.GELU(), nn.Linear(128, cfg.classes))

    def forward(self, pts):
        feats, x = [], pts
        for conv in self.convs:
            x = conv(x)
            feats.append(x)
        x = F.gelu(self.mix(torch.cat(feats, -1)))
        return self.head(torch.cat([x.amax(1), x.mean(1)], -1))


class ScanStream:
    """Noisy superellipsoids; the exponents decide the class."""

    def __init__(self, cfg, device):
        self.cfg, self.device = cfg, device

    def __iter__(self):
        c = self.cfg
        for _ in range(c.iters):
            label = torch.randint(0, c.classes, (c.clouds,), device=self.device)
            e = 0.4 + 2.0 * label.float().view(-1, 1, 1) / c.classes
            d = F.normalize(torch.randn(c.clouds, c.points, 3, device=self.device), dim=-1)
            pts = d.sign() * d.abs().pow(e)
            yield pts + 0.01 * torch.randn_like(pts), label


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    cfg = config(parser.parse_args().small)
    torch.manual_seed(21)
    torch.set_float32_matmul_precision("high")
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    model = PartNet(cfg).to(dev)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=dev.type == "cuda")
    losses = []
    for pts, label in ScanStream(cfg, dev):
        # STEP
        loss = F.cross_entropy(model(pts), label)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        losses.append(loss.detach())

    print("mean loss", torch.stack(losses).mean().item())
