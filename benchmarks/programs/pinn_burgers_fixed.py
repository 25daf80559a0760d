"""Burgers' equation with a small physics-informed network.

u_t + u u_x - nu u_xx = 0,  x in [-1, 1], t in [0, 1],  u(0, x) = -sin(pi x)
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    n_colloc: int = 200
    n_init: int = 128
    n_bound: int = 64
    width: int = 48
    depth: int = 5
    lr: float = 2e-3
    iters: int = 25
    seed: int = 7


class MLP(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        dims = [2] + [width] * depth + [1]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:])])
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, z):
        for layer in self.layers[:-1]:
            z = torch.tanh(layer(z))
        return self.layers[-1](z)


def derivative(u, z):
    """du/dz for every collocation point."""
    g, = torch.autograd.grad(u, z, torch.ones_like(u), create_graph=True)
    return g


class BurgersPINN:
    def __init__(self, cfg):
        self.cfg = cfg
        self.nu = 0.01 / math.pi
        self.net = MLP(cfg.width, cfg.depth)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, gamma=0.999)
        rng = np.random.RandomState(cfg.seed)
        x0 = rng.uniform(-1, 1, size=(cfg.n_init, 1)).astype(np.float32)
        tb = rng.uniform(0, 1, size=(cfg.n_bound, 1)).astype(np.float32)
        side = rng.choice([-1.0, 1.0], size=(cfg.n_bound, 1)).astype(np.float32)
        self.z0 = torch.from_numpy(np.hstack([np.zeros_like(x0), x0]))
        self.u0 = -torch.sin(math.pi * self.z0[:, 1:])
        self.zb = torch.from_numpy(np.hstack([tb, side]))
        self.rng = rng

    def sample_collocation(self):
        z = self.rng.uniform([0, -1], [1, 1], size=(self.cfg.n_colloc, 2)).astype(np.float32)
        return torch.from_numpy(z).requires_grad_(True)

    def residual(self, z):
        u = self.net(z).squeeze(1)
        du = derivative(u, z)
        u_t, u_x = du[:, 0], du[:, 1]
        u_xx = torch.autograd.grad(u_x.sum(), z, create_graph=True)[0][:, 1]
        return u_t + u * u_x - self.nu * u_xx

    def step(self):
        self.opt.zero_grad()
        res = self.residual(self.sample_collocation())
        loss_f = res.pow(2).mean()
        loss_0 = (self.net(self.z0) - self.u0).pow(2).mean()
        loss_b = self.net(self.zb).pow(2).mean()
        loss = loss_f + loss_0 + loss_b
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.opt.step()
        self.sched.step()
        return loss.item(), loss_f.item(), loss_0.item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    pinn = BurgersPINN(cfg)
    history = []
    for it in range(1, cfg.iters + 1):
        total, pde, init = pinn.step()
        history.append(total)
        if it % 5 == 0:
            lr = pinn.sched.get_last_lr()[0]
            print(f"it {it:4d}  loss {total:.5f}  pde {pde:.5f}  init {init:.5f}  lr {lr:.2e}")
    with torch.no_grad():
        xs = torch.linspace(-1, 1, 101).unsqueeze(1)
        grid = torch.cat([torch.full_like(xs, 0.5), xs], dim=1)
        u = pinn.net(grid)
    print(f"u(0.5, .) in [{u.min():.3f}, {u.max():.3f}], best loss {min(history):.5f}")


if __name__ == "__main__":
    main()
