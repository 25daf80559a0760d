"""Attention message passing on 3-D molecules (in the spirit of the equivariant-transformer
codes, scalar features only): learns the energy of random clusters from positions and types."""
import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


# --------------------------------------------------------------------------- data
def random_cluster(rng, n):
    """Grow a cluster: every atom sits 1.0-1.6 away from one placed earlier."""
    pos = np.zeros((n, 3))
    for i in range(1, n):
        while True:
            v = rng.standard_normal(3)
            p = pos[rng.integers(i)] + v / np.linalg.norm(v) * rng.uniform(1.0, 1.6)
            if np.linalg.norm(pos[:i] - p, axis=1).min() > 0.85:
                pos[i] = p
                break
    return pos.astype(np.float32)


def make_graph(rng, n, cutoff):
    pos = random_cluster(rng, n)
    z = rng.integers(0, 5, n)
    diff = pos[:, None] - pos[None]
    dist = np.sqrt((diff ** 2).sum(-1))
    dst, src = np.nonzero((dist < cutoff) & (dist > 0))
    d = dist[dst, src]
    charge = np.array([-1.0, -0.5, 0.1, 0.6, 1.0])[z]
    pair = charge[dst] * charge[src] * np.exp(-d) / d + 0.2 * ((1.1 / d) ** 6 - (1.1 / d) ** 3)
    return dict(
        z=torch.from_numpy(z),
        src=torch.from_numpy(src),
        dst=torch.from_numpy(dst),
        dist=torch.from_numpy(d.astype(np.float32)),
        y=torch.tensor(0.5 * pair.sum(), dtype=torch.float32),
    )


def collate(graphs):
    sizes = torch.tensor([len(g["z"]) for g in graphs])
    shift = torch.cumsum(sizes, 0) - sizes
    return dict(
        z=torch.cat([g["z"] for g in graphs]),
        src=torch.cat([g["src"] + s for g, s in zip(graphs, shift)]),
        dst=torch.cat([g["dst"] + s for g, s in zip(graphs, shift)]),
        dist=torch.cat([g["dist"] for g in graphs]),
        mol=torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        y=torch.stack([g["y"] for g in graphs]),
    )


# --------------------------------------------------------------------------- model
class RadialBasis(nn.Module):
    def __init__(self, cutoff, n_rbf):
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("centers", torch.linspace(0.5, cutoff, n_rbf))
        self.gamma = (n_rbf / cutoff) ** 2

    def forward(self, dist):
        rbf = torch.exp(-self.gamma * (dist.unsqueeze(-1) - self.centers) ** 2)
        envelope = 0.5 * (torch.cos(math.pi * dist / self.cutoff) + 1.0)
        return rbf, envelope.unsqueeze(-1)


class EdgeAttention(nn.Module):
    """SiLU attention with distance filters, aggregated over incoming edges."""

    def __init__(self, dim, heads, n_rbf):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.key_filter = nn.Linear(n_rbf, heads)
        self.value_filter = nn.Linear(n_rbf, dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(x.shape[0], self.heads, -1)

    def message(self, q, k, v, rbf, envelope):
        q, k, v = self.split(q), self.split(k), self.split(v)
        score = (q * k).sum(-1) * self.key_filter(rbf)
        weight = nn.functional.silu(score) * envelope
        return (v * weight.unsqueeze(-1)).flatten(1) * self.value_filter(rbf)

    def forward(self, x, src, dst, rbf, envelope):
        h = self.norm(x)
        q, k, v = self.to_q(h), self.to_k(h), self.to_v(h)
        msg = self.message(q.index_select(0, dst), k.index_select(0, src), v.index_select(0, src), rbf, envelope)
        agg = torch.zeros_like(x).index_add_(0, dst, msg)
        return x + self.out(agg)


class FeedForward(nn.Sequential):
    def __init__(self, dim):
        super().__init__(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + super().forward(x)


class MolNet(nn.Module):
    def __init__(self, dim, layers, heads, cutoff, n_rbf):
        super().__init__()
        self.embed = nn.Embedding(5, dim)
        self.basis = RadialBasis(cutoff, n_rbf)
        self.attention = nn.ModuleList(EdgeAttention(dim, heads, n_rbf) for _ in range(layers))
        self.mlp = nn.ModuleList(FeedForward(dim) for _ in range(layers))
        self.readout = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, batch):
        x = self.embed(batch["z"])
        rbf, envelope = self.basis(batch["dist"])
        for att, mlp in zip(self.attention, self.mlp):
            x = mlp(att(x, batch["src"], batch["dst"], rbf, envelope))
        atom_energy = self.readout(x).squeeze(-1)
        return torch.zeros_like(batch["y"]).index_add_(0, batch["mol"], atom_energy)


# --------------------------------------------------------------------------- training
def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--molecules", type=int, default=360)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--dim", type=int, default=192)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--heads", type=int, default=8)
    ap.add_argument("--cutoff", type=float, default=3.2)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    graphs = [make_graph(rng, int(rng.integers(12, 25)), args.cutoff) for _ in range(args.molecules)]
    ys = torch.stack([g["y"] for g in graphs])
    mean, std = ys.mean(), ys.std()
    degree = np.mean([len(g["src"]) / len(g["z"]) for g in graphs])
    print(f"{len(graphs)} molecules, {degree:.1f} neighbours per atom, energy std {std:.3f}")

    loader = DataLoader(graphs, args.batch, shuffle=True, collate_fn=collate)
    net = MolNet(args.dim, args.layers, args.heads, args.cutoff, n_rbf=24)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4, fused=True)
    begin, steps = time.perf_counter(), 0
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            target = (batch["y"] - mean) / std
            loss = nn.functional.smooth_l1_loss(net(batch), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(target)
            steps += 1
        print(f"epoch {epoch}: train loss {total / len(graphs):.5f}")
    took = time.perf_counter() - begin
    print(f"{steps} steps, {took:.2f} s, {1e3 * took / steps:.1f} ms per step")


if __name__ == "__main__":
    main()
