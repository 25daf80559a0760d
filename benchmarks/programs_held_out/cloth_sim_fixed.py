"""System identification of a hanging cloth by differentiating through a mass-spring simulator.

Unknown: stiffness of the structural, shear and bend springs per region, air drag, wind.
Observed: noisy positions of some marker particles over the whole rollout.
"""
import argparse
import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rest:
    """Everything about the sheet that never changes."""
    pos: torch.Tensor          # (N, 3)
    i: torch.Tensor            # (S,) spring ends
    j: torch.Tensor
    kind: torch.Tensor         # (S,) 0 structural, 1 shear, 2 bend
    region: torch.Tensor       # (S,) quarter of the sheet
    length: torch.Tensor       # (S, 1)
    free: torch.Tensor         # (N, 1) 0 at the pinned corners


def build_sheet(n: int, spacing: float) -> Rest:
    ids = torch.arange(n * n).view(n, n)
    rows, cols = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    pos = torch.stack([cols * spacing, rows * spacing, 0.0 * rows], -1).view(-1, 3).float()
    ends, kinds = [], []

    def connect(a, b, kind):
        ends.append(torch.stack([a.reshape(-1), b.reshape(-1)]))
        kinds.append(torch.full((a.numel(),), kind))

    connect(ids[:, :-1], ids[:, 1:], 0)
    connect(ids[:-1], ids[1:], 0)
    connect(ids[:-1, :-1], ids[1:, 1:], 1)
    connect(ids[:-1, 1:], ids[1:, :-1], 1)
    connect(ids[:, :-2], ids[:, 2:], 2)
    connect(ids[:-2], ids[2:], 2)
    i, j = torch.cat(ends, dim=1)
    half = (n - 1) * spacing / 2
    region = (pos[i, 0] > half).long() * 2 + (pos[i, 1] > half).long()
    free = torch.ones(n * n, 1)
    free[[0, n - 1]] = 0.0
    return Rest(pos, i, j, torch.cat(kinds), region, (pos[i] - pos[j]).norm(dim=-1, keepdim=True), free)


class Material(torch.nn.Module):
    def __init__(self, stiffness=(3.0, 2.2, 1.2), drag=-1.6, wind=(0.0, 0.0, 0.0)):
        super().__init__()
        base = torch.tensor(stiffness).view(3, 1).repeat(1, 4)
        self.log_k = torch.nn.Parameter(base)
        self.log_drag = torch.nn.Parameter(torch.tensor(drag))
        self.wind = torch.nn.Parameter(torch.tensor(wind))

    def springs(self, rest: Rest) -> torch.Tensor:
        return torch.exp(self.log_k)[rest.kind, rest.region].unsqueeze(-1)

    def describe(self) -> str:
        k = torch.exp(self.log_k.detach()).mean(1).tolist()
        wind = ", ".join(f"{w:.2f}" for w in self.wind.tolist())
        return f"k = {k[0]:.1f} / {k[1]:.1f} / {k[2]:.1f}, drag {self.log_drag.exp().item():.3f}, wind ({wind})"


class ClothSimulator:
    gravity = torch.tensor([0.0, 2.0, -1.0])

    def __init__(self, rest: Rest, dt: float, steps: int):
        self.rest, self.dt, self.steps = rest, dt, steps

    def acceleration(self, x, v, k, drag, wind):
        r = self.rest
        d = x.index_select(0, r.j) - x.index_select(0, r.i)
        dist = torch.linalg.vector_norm(d, dim=-1, keepdim=True)
        pull = d * (k * (1.0 - r.length / dist))
        f = torch.zeros_like(x).index_add(0, r.i, pull).index_add(0, r.j, -pull)
        return f + self.gravity - drag * (v - wind)

    def rollout(self, material: Material):
        """Symplectic Euler; returns positions and velocities of every particle at every step."""
        rest = self.rest
        k = material.springs(rest)
        drag, wind = torch.exp(material.log_drag), material.wind
        x, v = rest.pos, torch.zeros_like(rest.pos)
        xs, vs = [], []
        for _ in range(self.steps):
            v = (v + self.dt * self.acceleration(x, v, k, drag, wind)) * rest.free
            x = x + self.dt * v
            xs.append(x)
            vs.append(v)
        return torch.stack(xs), torch.stack(vs)


class MarkerLoss:
    """Marker misfit over time plus a mild penalty on jerky motion of the whole sheet."""

    def __init__(self, markers, observed, smooth=1e-4):
        self.markers, self.observed, self.smooth = markers, observed, smooth

    def __call__(self, xs, vs):
        misfit = (xs[:, self.markers] - self.observed).square().mean()
        jerk = (vs[1:] - vs[:-1]).square().mean()
        return misfit + self.smooth * jerk, misfit


def synthetic_observation(sim, markers, noise, gen):
    truth = Material(stiffness=(3.6, 2.6, 0.9), drag=-1.0, wind=(0.6, 0.0, 0.8))
    with torch.no_grad():
        truth.log_k.add_(0.15 * torch.randn(truth.log_k.shape, generator=gen))
        xs, _ = sim.rollout(truth)
    print("truth:   ", truth.describe())
    return xs[:, markers] + noise * torch.randn(xs[:, markers].shape, generator=gen)


def fit(sim, loss_fn, iters, lr):
    material = Material()
    opt = torch.optim.Adam(material.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, iters)
    history, start = [], time.perf_counter()
    for it in range(iters):
        opt.zero_grad()
        loss, misfit = loss_fn(*sim.rollout(material))
        loss.backward()
        opt.step()
        sched.step()
        history.append(misfit.item())
        if (it + 1) % 10 == 0:
            print(f"iter {it + 1:3d}  misfit {history[-1]:.3e}  {material.describe()}")
    took = time.perf_counter() - start
    print(f"{iters} iterations in {took:.1f} s, {1e3 * took / iters:.1f} ms each")
    return material


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--side", type=int, default=28)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--dt", type=float, default=0.03)
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=5)
    a = p.parse_args()
    gen = torch.Generator().manual_seed(a.seed)
    sim = ClothSimulator(build_sheet(a.side, 0.1), a.dt, a.steps)
    markers = torch.randperm(a.side ** 2, generator=gen)[:60]
    observed = synthetic_observation(sim, markers, 0.003, gen)
    fit(sim, MarkerLoss(markers, observed), a.iters, a.lr)


if __name__ == "__main__":
    main()
