"""Fit a pairwise potential on a spring network from forces, and roll it out to check its energy drift."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class Settings:
    n_nodes: int = 160
    n_edges: int = 1400
    frames: int = 6
    train_steps: int = 100
    rollout_steps: int = 60
    dt: float = 0.01
    seed: int = 13
    log: list = field(default_factory=list)


class EdgePotential(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, pos, edges):
        a, b = edges
        r = (pos[..., a, :] - pos[..., b, :]).norm(dim=-1, keepdim=True)
        return self.net(r).sum(dim=(-1, -2))


def true_energy(pos, edges, rest):
    a, b = edges
    r = (pos[..., a, :] - pos[..., b, :]).norm(dim=-1)
    return (0.5 * (r - rest).square() + 0.02 * (r - rest) ** 4).sum(-1)


def forces(energy_fn, pos, train=False):
    pos = pos.detach().requires_grad_(True)
    energy = energy_fn(pos)
    (grad,) = torch.autograd.grad(energy.sum(), pos, create_graph=train)
    return energy if train else energy.detach(), -grad


def make_graph(s, gen):
    a = torch.randint(0, s.n_nodes, (s.n_edges,), generator=gen)
    shift = torch.randint(1, s.n_nodes, (s.n_edges,), generator=gen)
    return torch.stack([a, (a + shift) % s.n_nodes])


def fit(s, model, edges, gen):
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.985)
    for step in range(s.train_steps):
        pos = torch.randn(s.frames, s.n_nodes, 3, generator=gen, dtype=torch.float64)
        _, target = forces(lambda p: true_energy(p, edges, 1.5), pos)
        _, pred = forces(lambda p: model(p, edges), pos, train=True)
        loss = (pred - target).square().mean() / target.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            s.log.append(loss.item())
            print(f"fit {step:3d}  relative force error {loss.item():.4f}")


def rollout(s, model, edges, gen):
    """Velocity Verlet with the learned forces; returns the relative drift of the total energy."""
    pos = torch.randn(s.n_nodes, 3, generator=gen, dtype=torch.float64)
    vel = torch.zeros_like(pos)
    pot, f = forces(lambda p: model(p, edges), pos)
    start = pot.item()
    track = [pos]
    for _ in range(s.rollout_steps):
        half = vel + 0.5 * s.dt * f
        pos = pos + s.dt * half
        pot, f = forces(lambda p: model(p, edges), pos)
        vel = half + 0.5 * s.dt * f
        track.append(pos)
    total = pot.item() + 0.5 * vel.square().sum().item()
    spread = torch.stack(track).std(dim=0).mean().item()
    return abs(total - start) / abs(start), spread


def stiffness(model, edges, pos):
    def along(i):
        probe = pos.clone()
        probe[i, 0] += 1e-4
        up = model(probe, edges)
        probe[i, 0] -= 2e-4
        return (up + model(probe, edges) - 2 * model(pos, edges)) / 1e-8

    with torch.no_grad():
        return torch.stack([along(i) for i in range(4)]).mean().item()


if __name__ == "__main__":
    s = Settings()
    torch.manual_seed(s.seed)
    gen = torch.Generator().manual_seed(s.seed)
    edges = make_graph(s, gen)
    model = EdgePotential().double()
    fit(s, model, edges, gen)
    drift, spread = rollout(s, model, edges, gen)
    print(f"rollout energy drift {drift:.2e}  spread {spread:.3f}")
    print(f"mean stiffness {stiffness(model, edges, torch.randn(s.n_nodes, 3, generator=gen).double()):.2f}")
