import argparse
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    molecules: int = 96
    atoms_per_molecule: int = 24
    species: int = 8
    hidden: int = 128
    layers: int = 4
    rbf: int = 32
    cutoff: float = 4.0
    dt: float = 0.002
    friction: float = 0.5
    temperature: float = 0.6
    md_steps: int = 400


class ElementwiseUpdate(nn.Module):
    """One small network for every chemical element."""

    def __init__(self, species, hidden):
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden)) for _ in range(species))

    def forward(self, h, z):
        out = torch.zeros_like(h)
        for element, net in enumerate(self.nets):
            mask = z == element
            if mask.any():
                out[mask] = net(h[mask])
        return out


class Interaction(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(cfg.rbf, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, cfg.hidden))
        self.update = ElementwiseUpdate(cfg.species, cfg.hidden)

    def forward(self, h, z, basis, envelope, src, dst):
        w = self.filter(basis) * envelope
        message = h.index_select(0, src) * w
        gathered = torch.zeros_like(h).index_add_(0, dst, message)
        return h + self.update(gathered, z)


class Potential(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embedding = nn.Embedding(cfg.species, cfg.hidden)
        self.blocks = nn.ModuleList(Interaction(cfg) for _ in range(cfg.layers))
        self.readout = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden // 2), nn.SiLU(), nn.Linear(cfg.hidden // 2, 1))
        self.register_buffer("centres", torch.linspace(0.5, cfg.cutoff, cfg.rbf))

    def forward(self, pos, z, src, dst):
        r = (pos.index_select(0, src) - pos.index_select(0, dst)).square().sum(-1, keepdim=True).add(1e-6).sqrt()
        basis = torch.exp(-4.0 * (r - self.centres) ** 2)
        envelope = 0.5 * (torch.cos(math.pi * r.clamp(max=self.cfg.cutoff) / self.cfg.cutoff) + 1.0)
        h = self.embedding(z)
        for block in self.blocks:
            h = block(h, z, basis, envelope, src, dst)
        return self.readout(h).sum()


def build_system(cfg, device):
    rng = np.random.default_rng(11)
    n = cfg.molecules * cfg.atoms_per_molecule
    pos = torch.from_numpy(rng.normal(scale=1.6, size=(n, 3)).astype(np.float32)).to(device)
    z = torch.from_numpy(rng.integers(0, cfg.species, size=n)).to(device)
    local = torch.arange(cfg.atoms_per_molecule, device=device)
    i, j = torch.meshgrid(local, local, indexing="ij")
    keep = i != j
    offset = torch.arange(cfg.molecules, device=device)[:, None] * cfg.atoms_per_molecule
    src = (i[keep][None] + offset).reshape(-1)
    dst = (j[keep][None] + offset).reshape(-1)
    return pos, z, src, dst


class Langevin:
    def __init__(self, model, cfg, pos, z, src, dst):
        self.model, self.cfg = model, cfg
        self.pos, self.z, self.src, self.dst = pos, z, src, dst
        self.vel = torch.zeros_like(pos)
        self.c1 = math.exp(-cfg.friction * cfg.dt)
        self.c2 = math.sqrt((1 - self.c1 ** 2) * cfg.temperature)
        self.force = None
        self.energies = []

    def evaluate(self):
        pos = self.pos.requires_grad_(True)
        energy = self.model(pos, self.z, self.src, self.dst)
        force = -torch.autograd.grad(energy, pos)[0]
        self.pos = pos.detach()
        return energy.detach(), force

    def step(self):
        if self.force is None:
            _, self.force = self.evaluate()
        self.vel = self.vel + 0.5 * self.cfg.dt * self.force
        self.pos = self.pos + 0.5 * self.cfg.dt * self.vel
        self.vel = self.c1 * self.vel + self.c2 * torch.randn_like(self.vel)
        self.pos = self.pos + 0.5 * self.cfg.dt * self.vel
        energy, self.force = self.evaluate()
        self.vel = self.vel + 0.5 * self.cfg.dt * self.force
        self.energies.append(energy)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    opts = ap.parse_args()
    cfg = Config()
    if opts.small:
        cfg = Config(molecules=3, atoms_per_molecule=6, species=3, hidden=16, layers=2, rbf=8, md_steps=5)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = Potential(cfg).to(device).requires_grad_(False)
    md = Langevin(model, cfg, *build_system(cfg, device))
    for n in range(cfg.md_steps):
        # STEP
        md.step()
        if (n + 1) % 100 == 0:
            window = torch.stack(md.energies[-100:])
            print(f"step {n + 1}: <E> = {window.mean().item():.5f}")
    print("final energy", md.energies[-1].item())


if __name__ == "__main__":
    main()
