"""Fit a neural ODE to a pendulum with friction (RK4, L-BFGS)."""
import copy
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)  # L-BFGS line search stalls in single precision


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, s):
        return self.net(s)


def rk4(f, s, dt):
    k1 = f(s)
    k2 = f(s + 0.5 * dt * k1)
    k3 = f(s + 0.5 * dt * k2)
    k4 = f(s + dt * k3)
    return s + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)


def integrate(f, s0, dt, n):
    out = [s0]
    for _ in range(n):
        out.append(rk4(f, out[-1], dt))
    return torch.stack(out, dim=1)


def pendulum(s):
    return torch.stack([s[..., 1], -torch.sin(s[..., 0]) - 0.15 * s[..., 1]], -1)


class Fitter:
    def __init__(self, n_traj=48, n_steps=25, dt=0.1, seed=0):
        rng = np.random.RandomState(seed)
        s0 = torch.from_numpy(rng.uniform([-1.5, -1.0], [1.5, 1.0], size=(n_traj, 2)))
        with torch.no_grad():
            self.truth = integrate(pendulum, s0, dt, n_steps)
        self.truth += 0.01 * torch.from_numpy(rng.randn(*self.truth.shape))
        self.s0, self.dt, self.n_steps = self.truth[:, 0].clone(), dt, n_steps
        self.field = Field()
        self.opt = torch.optim.LBFGS(self.field.parameters(), max_iter=4, history_size=10, line_search_fn="strong_wolfe")
        self.evals = 0
        self.best, self.best_state = math.inf, None

    def closure(self):
        self.opt.zero_grad()
        pred = integrate(self.field, self.s0, self.dt, self.n_steps)
        loss = (pred - self.truth).pow(2).mean()
        z = self.s0.detach().requires_grad_(True)
        div = torch.autograd.grad(self.field(z).sum(), z, create_graph=True)[0]
        loss = loss + 1e-5 * div.pow(2).mean()
        loss.backward()
        self.evals += 1
        return loss

    def fit(self, n_outer):
        curve = []
        for it in range(1, n_outer + 1):
            loss = self.opt.step(self.closure).item()
            curve.append(loss)
            if loss < self.best:
                self.best = loss
                self.best_state = copy.deepcopy(self.field.state_dict())
            if it % 4 == 0:
                with torch.no_grad():
                    far = integrate(self.field, self.s0[:4], self.dt, 2 * self.n_steps)
                print(f"iter {it:3d}  loss {loss:.3e}  evals {self.evals}  |s| {far.norm(dim=-1).mean().item():.3f}")
        return np.array(curve)


if __name__ == "__main__":
    torch.manual_seed(0)
    fitter = Fitter()
    curve = fitter.fit(n_outer=12)
    fitter.field.load_state_dict(fitter.best_state)
    torch.save(fitter.best_state, os.path.join(tempfile.mkdtemp(), "field.pt"))
    print(f"loss {curve[0]:.3e} -> {fitter.best:.3e} in {fitter.evals} evaluations")
