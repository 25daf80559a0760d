"""Gray-Scott reaction-diffusion on a periodic grid, compiled time step, running diagnostics."""
import argparse

import numpy as np
import torch


def initial_state(n, seed):
    rng = np.random.default_rng(seed)
    u = np.ones((n, n))
    v = np.zeros((n, n))
    for _ in range(12):
        i, j = rng.integers(10, n - 30, 2)
        u[i:i + 20, j:j + 20] = 0.50
        v[i:i + 20, j:j + 20] = 0.25
    u += 0.02 * rng.standard_normal((n, n))
    v += 0.02 * rng.standard_normal((n, n))
    return torch.from_numpy(u).float(), torch.from_numpy(v).float()


def laplacian(a):
    return (
        torch.roll(a, 1, 0) + torch.roll(a, -1, 0) + torch.roll(a, 1, 1) + torch.roll(a, -1, 1) - 4.0 * a
    )


class GrayScott:
    def __init__(self, n, feed, kill, substeps, seed):
        self.u, self.v = initial_state(n, seed)
        self.feed = feed
        self.kill = kill
        self.du, self.dv = 0.16, 0.08
        self.substeps = substeps
        self.mass = []
        self.advance = torch.compile(self._advance)

    def _advance(self, u, v):
        for _ in range(self.substeps):
            uvv = u * v * v
            u = u + self.du * laplacian(u) - uvv + self.feed * (1.0 - u)
            v = v + self.dv * laplacian(v) + uvv - (self.feed + self.kill) * v
        return u, v, v.mean()

    def step(self):
        self.u, self.v, mass = self.advance(self.u, self.v)
        self.mass.append(mass)

    def summary(self, last=10):
        return float(torch.stack(self.mass[-last:]).mean())


def run(args):
    sim = GrayScott(args.n, args.feed, args.kill, args.substeps, args.seed)
    for it in range(args.steps):
        sim.step()
        if it % args.report == 0:
            print(f"t={it * args.substeps:5d}  mean v {sim.summary():.4f}  max v {sim.v.max().item():.3f}")
    return sim


def spectrum_peak(field):
    f = torch.fft.rfft2(field - field.mean()).abs()
    ky, kx = divmod(int(f.argmax()), f.size(1))
    return min(ky, field.size(0) - ky), kx


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--n", type=int, default=320)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--substeps", type=int, default=4)
    p.add_argument("--feed", type=float, default=0.037)
    p.add_argument("--kill", type=float, default=0.06)
    p.add_argument("--report", type=int, default=30)
    p.add_argument("--seed", type=int, default=2)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    sim = run(args)
    ky, kx = spectrum_peak(sim.v)
    print(f"final mean v {sim.summary():.4f}, dominant mode ({ky}, {kx})")


if __name__ == "__main__":
    main()
