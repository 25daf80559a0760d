"""DCGAN on procedurally drawn 32x32 shapes (hinge loss).

usage: python shapes_gan.py [--iters 110] [--batch 64]
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def draw_shapes(n, size=32, seed=0):
    """Random discs, squares and rings in random colours, values in [-1, 1]."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:size, 0:size].astype(np.float32)
    out = np.empty((n, 3, size, size), dtype=np.float32)
    for i in range(n):
        cx, cy = rng.uniform(9, size - 9, 2)
        r = rng.uniform(4, 9)
        kind = rng.integers(3)
        if kind == 0:
            m = (xx - cx) ** 2 + (yy - cy) ** 2 < r * r
        elif kind == 1:
            m = np.maximum(abs(xx - cx), abs(yy - cy)) < r
        else:
            d = np.sqrt((xx - cx) ** 2 + (yy - cy) ** 2)
            m = abs(d - r) < 2
        fg, bg = rng.uniform(0, 1, 3), rng.uniform(-1, -0.4, 3)
        out[i] = np.where(m[None], fg[:, None, None], bg[:, None, None])
    return torch.from_numpy(out)


class Generator(nn.Module):
    def __init__(self, zdim=64, ch=48):
        super().__init__()
        self.fc = nn.Linear(zdim, ch * 4 * 4 * 4, bias=False)
        self.ch = ch
        self.body = nn.Sequential(
            nn.BatchNorm2d(ch * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ch * 4, ch * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ch * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ch), nn.ReLU(True),
            nn.ConvTranspose2d(ch, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.body(self.fc(z).view(-1, self.ch * 4, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, ch=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, ch, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch, ch * 2, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch * 2, ch * 4, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Flatten(), nn.Linear(ch * 4 * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def set_requires_grad(net, flag):
    for p in net.parameters():
        p.requires_grad_(flag)


class GANTrainer:
    def __init__(self, args):
        self.args = args
        self.G = Generator(args.zdim)
        self.D = Discriminator()
        self.opt_g = torch.optim.Adam(self.G.parameters(), 2e-4, betas=(0.5, 0.999), fused=True)
        self.opt_d = torch.optim.Adam(self.D.parameters(), 2e-4, betas=(0.5, 0.999), fused=True)

    def forward_g(self, n):
        self.fake = self.G(torch.randn(n, self.args.zdim))

    def backward_d(self):
        pred_real = self.D(self.real)
        pred_fake = self.D(self.fake)
        loss = F.relu(1 - pred_real).mean() + F.relu(1 + pred_fake).mean()
        loss.backward(retain_graph=True)   # fake is used again for G below
        return loss

    def backward_g(self):
        loss = -self.D(self.fake).mean()
        loss.backward()
        return loss

    def step(self, real):
        self.real = real
        self.forward_g(real.size(0))

        set_requires_grad(self.D, True)
        self.opt_d.zero_grad()
        loss_d = self.backward_d()
        self.opt_d.step()

        set_requires_grad(self.D, False)
        self.opt_g.zero_grad()
        loss_g = self.backward_g()
        self.opt_g.step()
        return loss_d.detach(), loss_g.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=110)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--zdim", type=int, default=64)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    data = draw_shapes(2048, seed=args.seed)
    trainer = GANTrainer(args)
    sum_d, sum_g = torch.zeros(()), torch.zeros(())

    t0 = time.perf_counter()
    for it in range(1, args.iters + 1):
        idx = torch.randint(0, data.size(0), (args.batch,))
        loss_d, loss_g = trainer.step(data[idx])
        sum_d += loss_d
        sum_g += loss_g
        if it % 22 == 0:
            print(f"iter {it:4d}  D {sum_d.item() / 22:.4f}  G {sum_g.item() / 22:.4f}")
            sum_d.zero_(), sum_g.zero_()
    dt = time.perf_counter() - t0
    print(f"finished, {1e3 * dt / args.iters:.2f} ms/it")


if __name__ == "__main__":
    main()
