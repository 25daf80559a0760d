"""Leaky integrate-and-fire layer with eligibility traces and a delayed reward.

dt = 1 ms.  One trial = stimulus, silence, reward.
"""
import math

import numpy as np
import torch

DT = 1.0
TAU_MEM = 20.0
TAU_PRE = 10.0
TAU_POST = 12.0
TAU_ELIG = 40.0
V_TH = 1.0
ETA = 0.02
N_IN = 400
N_OUT = 300


class Layer:
    def __init__(self, n_in, n_out, seed):
        g = torch.Generator().manual_seed(seed)
        self.w = torch.rand(n_out, n_in, generator=g) * 0.12
        self.v = torch.zeros(n_out)
        self.pre = torch.zeros(n_in)
        self.post = torch.zeros(n_out)
        self.elig = torch.zeros(n_out, n_in)
        self.d_mem = math.exp(-DT / TAU_MEM)
        self.d_pre = math.exp(-DT / TAU_PRE)
        self.d_post = math.exp(-DT / TAU_POST)
        self.d_elig = math.exp(-DT / TAU_ELIG)

    def step(self, spikes_in):
        self.v.mul_(self.d_mem).addmv_(self.w, spikes_in)
        spikes = (self.v > V_TH).float()
        self.v.mul_(1.0 - spikes)
        self.pre.mul_(self.d_pre).add_(spikes_in)
        self.post.mul_(self.d_post).add_(spikes)
        self.elig.mul_(self.d_elig)
        if spikes.any() or spikes_in.any():
            self.elig.addr_(spikes, self.pre, alpha=1.0)
            self.elig.addr_(self.post, spikes_in, alpha=-0.6)
        return spikes

    def reward(self, r):
        self.w.add_(self.elig, alpha=ETA * r).clamp_(0.0, 0.25)


class Task:
    """Two groups of inputs; the first half of the outputs should answer group A."""

    def __init__(self, n_in, seed):
        self.rng = np.random.RandomState(seed)
        self.rates = np.zeros((2, n_in), dtype=np.float32)
        self.rates[0, : n_in // 4] = 0.08
        self.rates[1, n_in // 4: n_in // 2] = 0.08

    def stimulus(self, label, steps):
        p = self.rates[label]
        return torch.from_numpy((self.rng.rand(steps, len(p)) < p).astype(np.float32))

    @staticmethod
    def score(counts, label):
        half = len(counts) // 2
        a, b = counts[:half].sum().item(), counts[half:].sum().item()
        return (a - b) / (a + b + 1e-6) * (1 if label == 0 else -1)


class Recorder:
    """Spike raster of the whole session, one row per millisecond."""

    def __init__(self, n):
        self.rows = []

    def add(self, spikes):
        self.rows.append(spikes)

    def rates(self):
        return torch.stack(self.rows).mean(0) * 1000.0 / DT


def run_trial(layer, task, rec, label, t_stim, t_wait):
    counts = torch.zeros(N_OUT)
    stim = task.stimulus(label, t_stim)
    for t in range(t_stim):
        spikes = layer.step(stim[t])
        counts += spikes
        rec.add(spikes)
    r = task.score(counts, label)
    layer.reward(r)
    quiet = torch.zeros(N_IN)
    for t in range(t_wait):
        rec.add(layer.step(quiet))
    return r, counts.sum().item()


def main(n_trials=30, t_stim=50, t_wait=70):
    layer = Layer(N_IN, N_OUT, seed=0)
    task = Task(N_IN, seed=0)
    rec = Recorder(N_OUT)
    rewards, fired = [], []
    for trial in range(n_trials):
        label = trial % 2
        r, n = run_trial(layer, task, rec, label, t_stim, t_wait)
        rewards.append(r)
        fired.append(n)
        if trial % 5 == 4:
            print(f"trial {trial + 1:3d}  reward {np.mean(rewards[-5:]):+.3f}  spikes {np.mean(fired[-5:]):.0f}  w {layer.w.mean():.4f}")
    rates = rec.rates()
    print("mean rate %.1f Hz, busiest %.1f Hz" % (rates.mean().item(), rates.max().item()))
    print("done, weights in [%.3f, %.3f]" % (layer.w.min().item(), layer.w.max().item()))


if __name__ == "__main__":
    main()
