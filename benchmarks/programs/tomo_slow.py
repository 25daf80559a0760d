"""Sparse-view tomography: reconstruct a stack of slices by gradient descent on a
data term plus smoothed total variation.  The projector is a plain matrix with its
own autograd function so that the weighting by the detector noise happens in place."""
import math
import time
from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class Config:
    side: int = 60
    angles: int = 48
    bins: int = 76
    slices: int = 1
    iters: int = 300
    lr: float = 0.04
    tv: float = 2e-3
    eps: float = 1e-3
    seed: int = 7


def build_projector(cfg):
    """Pixel-driven parallel beam system matrix, (angles*bins, side*side)."""
    c = (np.arange(cfg.side) + 0.5) / cfg.side - 0.5
    xx, yy = np.meshgrid(c, c)
    rows = []
    for k in range(cfg.angles):
        th = math.pi * k / cfg.angles
        t = xx.ravel() * math.cos(th) + yy.ravel() * math.sin(th)
        pos = (t / math.sqrt(2) + 0.5) * (cfg.bins - 1)
        block = np.maximum(0.0, 1.0 - np.abs(pos[None, :] - np.arange(cfg.bins)[:, None]))
        rows.append(block)
    return torch.from_numpy(np.concatenate(rows, 0).astype(np.float32) / cfg.side)


def phantom(cfg, gen):
    c = torch.linspace(-0.5, 0.5, cfg.side)
    yy, xx = torch.meshgrid(c, c, indexing="ij")
    out = torch.zeros(cfg.slices, cfg.side, cfg.side)
    for s in range(cfg.slices):
        for _ in range(5):
            cx, cy = (torch.rand(2, generator=gen) - 0.5) * 0.6
            rad = 0.05 + 0.15 * torch.rand(1, generator=gen)
            val = 0.5 + torch.rand(1, generator=gen)
            out[s] += val * (((xx - cx) ** 2 + (yy - cy) ** 2) < rad ** 2)
    return out


class WeightedProjection(torch.autograd.Function):
    """y = w * (A x), x given as (pixels, slices)."""

    @staticmethod
    def forward(ctx, A, x, w):
        y = A @ x
        ctx.save_for_backward(A, x, w)
        return y.mul_(w)

    @staticmethod
    def backward(ctx, g):
        A, x, w = ctx.saved_tensors
        gw = g * w
        grad_x = A.t() @ gw
        grad_A = gw @ x.t()
        return grad_A, grad_x, None


def total_variation(img, eps):
    dx = img[:, :, 1:] - img[:, :, :-1]
    dy = img[:, 1:, :] - img[:, :-1, :]
    mag = dx[:, :-1, :] ** 2 + dy[:, :, :-1] ** 2
    return torch.sqrt(mag + eps ** 2).sum()


class Reconstruction:
    def __init__(self, cfg, A, sino, w):
        self.cfg, self.A, self.sino, self.w = cfg, A, sino, w
        self.img = torch.zeros(cfg.slices, cfg.side, cfg.side, requires_grad=True)
        self.opt = torch.optim.Adam([self.img], lr=cfg.lr)
        self.history = []

    def objective(self):
        flat = self.img.reshape(self.cfg.slices, -1).t()
        proj = WeightedProjection.apply(self.A, flat, self.w)
        data = 0.5 * (proj - self.w * self.sino).pow(2).sum()
        return data + self.cfg.tv * total_variation(self.img, self.cfg.eps)

    def iterate(self):
        self.opt.zero_grad()
        loss = self.objective()
        loss.backward()
        self.opt.step()
        with torch.no_grad():
            self.img.clamp_(min=0.0)
        self.history.append(loss.item())


def main():
    cfg = Config()
    gen = torch.Generator().manual_seed(cfg.seed)
    A = build_projector(cfg)
    truth = phantom(cfg, gen)
    sino = A @ truth.reshape(cfg.slices, -1).t()
    sino += 0.01 * torch.randn(sino.shape, generator=gen)
    w = 0.5 + torch.rand(sino.shape[0], 1, generator=gen)
    rec = Reconstruction(cfg, A, sino, w)
    t0 = time.perf_counter()
    for it in range(cfg.iters):
        rec.iterate()
        if it % 60 == 0:
            rmse = (rec.img.detach() - truth).pow(2).mean().sqrt().item()
            print(f"iter {it:4d} objective {rec.history[-1]:.4f} rmse {rmse:.4f}")
    dt = time.perf_counter() - t0
    print(f"final {rec.history[-1]:.5f}  {dt / cfg.iters * 1e3:.3f} ms per step")


if __name__ == "__main__":
    main()
