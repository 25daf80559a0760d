"""Simulation: a long ring of phase oscillators that feel their neighbours with
several transmission delays; order parameters are recorded per block."""
import argparse
import math
import time

import torch


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--units", type=int, default=16384)
    p.add_argument("--blocks", type=int, default=440)
    p.add_argument("--substeps", type=int, default=16)
    p.add_argument("--memory", type=int, default=256)
    p.add_argument("--taps", type=int, nargs="+", default=[3, 17, 61, 140, 233])
    p.add_argument("--coupling", type=float, default=1.1)
    p.add_argument("--dt", type=float, default=0.02)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


class DelayLine:
    """The last `depth` states of all units; read(d) is the state d steps ago."""

    def __init__(self, first, depth):
        self.depth, self.head = depth, 0
        self.data = first.repeat(depth, 1)

    def push(self, state):
        self.head = (self.head + 1) % self.depth
        self.data[self.head] = state

    def read(self, d):
        return self.data[(self.head - d) % self.depth]


class Ring:
    def __init__(self, args, gen):
        n = args.units
        self.phase = 2 * math.pi * torch.rand(n, generator=gen)
        self.omega = 1.0 + 0.15 * torch.randn(n, generator=gen)
        self.kick = torch.zeros(n)
        self.line = DelayLine(self.phase, args.memory)
        self.taps = args.taps
        self.gain = args.coupling / (2 * len(args.taps))
        self.dt = args.dt
        self.pull = torch.empty(n)
        self.side = torch.empty(n)

    def neighbours(self, past):
        """Mean of the left and the right neighbour on a ring."""
        out = self.side
        torch.add(past[:-2], past[2:], out=out[1:-1])
        out[0] = past[-1] + past[1]
        out[-1] = past[-2] + past[0]
        return out.mul_(0.5)

    def step(self):
        self.pull.zero_()
        for d in self.taps:
            self.pull.add_(self.neighbours(self.line.read(d)))
        drive = self.pull.div_(len(self.taps)).sub_(self.phase).sin_()
        self.phase.add_(self.omega, alpha=self.dt)
        self.phase.add_(drive, alpha=2 * self.gain * self.dt * len(self.taps))
        self.phase.add_(self.kick, alpha=self.dt)
        self.line.push(self.phase)


class Stimulus:
    """A travelling bump that pushes a few hundred neighbouring units."""

    def __init__(self, units, width=300, stride=41):
        self.units, self.width, self.stride = units, width, stride
        self.shape = torch.hann_window(width, periodic=False) * 2.0
        self.at = 0

    def apply(self, ring):
        ring.kick.zero_()
        self.at = (self.at + self.stride) % (self.units - self.width)
        ring.kick[self.at:self.at + self.width] = self.shape


def order(phase, patch=256):
    """Global and local Kuramoto order parameters."""
    z = torch.polar(torch.ones_like(phase), phase)
    local = z.view(-1, patch).mean(1).abs().mean()
    return torch.stack([z.mean().abs(), local])


def main():
    args = parse()
    gen = torch.Generator().manual_seed(args.seed)
    ring = Ring(args, gen)
    stim = Stimulus(args.units)
    record = torch.empty(args.blocks, 2)
    t0 = time.perf_counter()
    for block in range(args.blocks):
        stim.apply(ring)
        for _ in range(args.substeps):
            ring.step()
        record[block] = order(ring.phase)
        if block % 60 == 0:
            r = record[block].tolist()
            print(f"block {block:3d} global {r[0]:.4f} local {r[1]:.4f}")
    dt = time.perf_counter() - t0
    tail = record[-args.blocks // 3:].mean(0).tolist()
    print(f"order, last third: global {tail[0]:.5f} local {tail[1]:.5f}")
    print(f"{dt / args.blocks * 1e3:.3f} ms per block")


if __name__ == "__main__":
    main()
