import argparse

import numpy as np
import torch
from torch import nn

KB = 8.617333e-5
FS = 0.0982269


class PairPotential(nn.Module):
    def __init__(self, n_types=2, n_basis=32, cutoff=6.0):
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("centres", torch.linspace(0.8, cutoff, n_basis))
        self.gamma = float(n_basis) ** 2 / cutoff ** 2
        self.embed = nn.Embedding(n_types, 16)
        self.net = nn.Sequential(nn.Linear(n_basis + 32, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, r, zi, zj):
        basis = torch.exp(-self.gamma * (r[:, None] - self.centres) ** 2)
        env = 0.5 * (torch.cos(torch.pi * r / self.cutoff) + 1)
        z = self.embed(zi) + self.embed(zj)
        return (self.net(torch.cat([basis, z, z.square()], dim=1)).squeeze(1) * env).sum()


class System:
    def __init__(self, pos, types, masses, box, device="cuda"):
        t = lambda a, **k: torch.as_tensor(a, device=device, **k)
        self.pos = t(pos, dtype=torch.float32)
        self.types = t(types, dtype=torch.long)
        self.mass = t(masses, dtype=torch.float32)[:, None]
        self.box = t(box, dtype=torch.float32)
        self.vel = torch.zeros_like(self.pos)

    def wrap(self, d):
        return d - self.box * torch.round(d / self.box)

    def temperature(self):
        return (self.mass * self.vel.square()).sum() / (3 * len(self.pos) * KB)


def neighbours(system, cutoff):
    d = system.wrap(system.pos[:, None] - system.pos[None])
    r2 = d.square().sum(dim=-1)
    i, j = torch.nonzero(r2 < cutoff ** 2, as_tuple=True)
    keep = i < j
    return i[keep], j[keep]


class Langevin:
    def __init__(self, system, model, dt=1.0, temp=300.0, friction=0.01):
        self.s, self.model = system, model.eval().requires_grad_(False)
        self.dt, self.temp = dt * FS, temp
        self.c1 = float(np.exp(-friction * dt))
        self.c2 = torch.sqrt((1 - self.c1 ** 2) * KB * temp / system.mass)
        self.force, self.energy = self.forces()

    def forces(self):
        i, j = neighbours(self.s, self.model.cutoff)
        pos = self.s.pos.detach().requires_grad_(True)
        r = self.s.wrap(pos[i] - pos[j]).norm(dim=1)
        e = self.model(r, self.s.types[i], self.s.types[j])
        (g,) = torch.autograd.grad(e, pos)
        return -g, e.detach()

    @torch.no_grad()
    def step(self):
        s = self.s
        s.vel += 0.5 * self.dt * self.force / s.mass
        s.pos += 0.5 * self.dt * s.vel
        s.vel = self.c1 * s.vel + self.c2 * torch.randn_like(s.vel)
        s.pos += 0.5 * self.dt * s.vel
        s.pos %= s.box
        with torch.enable_grad():
            self.force, self.energy = self.forces()
        s.vel += 0.5 * self.dt * self.force / s.mass


def run(system, model, n_steps, out, every=1000):
    md = Langevin(system, model)
    log, frames = [], []
    for step in range(n_steps):
        md.step()
        if step % every == 0:
            temp, energy = system.temperature().item(), md.energy.item()
            log.append((step, temp, energy))
            frames.append(system.pos.cpu().numpy())
            print(f"{step:8d} T {temp:8.2f} E {energy:12.4f}")
    np.savez(out, log=np.array(log), frames=np.stack(frames))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("start")
    ap.add_argument("weights")
    ap.add_argument("--steps", type=int, default=500_000)
    a = ap.parse_args()
    z = np.load(a.start)
    net = PairPotential().cuda()
    net.load_state_dict(torch.load(a.weights, map_location="cuda", weights_only=True))
    run(System(z["pos"], z["types"], z["masses"], z["box"]), net, a.steps, "traj.npz")
