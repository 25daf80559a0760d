"""Dopamine-modulated STDP in a sheet of leaky integrate-and-fire neurons.

An input population projects onto an output population through a plastic matrix.  Odours are
presented in blocks (the same odour for a while, as in the animal experiments); a reward follows
when the output group that belongs to the odour fires more than the others.  Every synapse has an
eligibility trace; weights move by  reward * eligibility  at the end of a trial.
"""
from dataclasses import dataclass, field
import time

import torch


@dataclass
class NeuronParams:
    tau_m: float = 12.0        # ms, membrane
    tau_s: float = 4.0         # ms, synaptic current
    v_th: float = 1.0
    refractory: int = 3        # ms


@dataclass
class PlasticityParams:
    tau_pre: float = 6.0       # ms
    tau_post: float = 6.0
    tau_elig: float = 8.0
    a_plus: float = 1.0
    a_minus: float = 0.45
    rate: float = 0.008
    w_max: float = 0.06


@dataclass
class Experiment:
    n_in: int = 640
    n_out: int = 480
    odours: int = 4
    block: int = 40            # trials with the same odour
    trials: int = 400
    trial_ms: int = 24
    rate_on: float = 0.10      # spikes per ms of an input that belongs to the odour
    seed: int = 21
    neuron: NeuronParams = field(default_factory=NeuronParams)
    plast: PlasticityParams = field(default_factory=PlasticityParams)


def decay(tau):
    return float(torch.exp(torch.tensor(-1.0 / tau)))


class OdourSource:
    """Poisson spikes in the glomeruli of the odour that is presented"""

    def __init__(self, ex, gen):
        self.ex, self.gen = ex, gen
        self.member = torch.zeros(ex.odours, ex.n_in)
        size = ex.n_in // ex.odours
        for o in range(ex.odours):
            self.member[o, o * size:(o + 1) * size] = 1.0

    def spikes(self, odour):
        p = self.ex.rate_on * self.member[odour]
        return (torch.rand(self.ex.n_in, generator=self.gen) < p).float()


class LIFLayer:
    def __init__(self, n, par):
        self.par = par
        self.v, self.i = torch.zeros(n), torch.zeros(n)
        self.hold = torch.zeros(n)
        self.k_m, self.k_s = decay(par.tau_m), decay(par.tau_s)

    def step(self, drive):
        self.i.mul_(self.k_s).add_(drive)
        self.v.mul_(self.k_m).add_(self.i)
        self.v.masked_fill_(self.hold > 0, 0.0)
        out = (self.v >= self.par.v_th).float()
        self.v.mul_(1 - out)
        self.hold.sub_(1).clamp_(min=0).add_(out * self.par.refractory)
        return out


class RewardedSynapses:
    """plastic matrix (post, pre) with pair-based STDP feeding an eligibility trace"""

    def __init__(self, ex, gen):
        par = self.par = ex.plast
        self.w = torch.rand(ex.n_out, ex.n_in, generator=gen) * par.w_max
        self.elig = torch.zeros(ex.n_out, ex.n_in)
        self.pre, self.post = torch.zeros(ex.n_in), torch.zeros(ex.n_out)
        self.k_pre, self.k_post, self.k_e = decay(par.tau_pre), decay(par.tau_post), decay(par.tau_elig)

    def current(self, pre_spikes):
        return self.w @ pre_spikes

    def trace(self, pre_spikes, post_spikes):
        self.pre.mul_(self.k_pre).add_(pre_spikes)
        self.post.mul_(self.k_post).add_(post_spikes)
        self.elig.mul_(self.k_e)
        fired = post_spikes.nonzero().squeeze(1)
        if len(fired):
            self.elig[fired] += self.par.a_plus * self.pre
        seen = pre_spikes.nonzero().squeeze(1)
        if len(seen):
            self.elig[:, seen] -= self.par.a_minus * self.post.unsqueeze(1)

    def reward(self, r):
        self.w.add_(self.elig, alpha=self.par.rate * r).clamp_(0.0, self.par.w_max)


class Session:
    def __init__(self, ex):
        self.ex = ex
        self.gen = torch.Generator().manual_seed(ex.seed)
        self.source = OdourSource(ex, self.gen)
        self.syn = RewardedSynapses(ex, self.gen)
        self.out = LIFLayer(ex.n_out, ex.neuron)
        self.inhibition = 0.0
        self.expected = 0.5

    def trial(self, odour):
        ex = self.ex
        counts = torch.zeros(ex.n_out)
        for _ in range(ex.trial_ms):
            s = self.source.spikes(odour)
            o = self.out.step(self.syn.current(s) - self.inhibition)
            self.inhibition = 0.9 * self.inhibition + 0.0008 * o.sum()
            self.syn.trace(s, o)
            counts += o
        groups = counts.view(ex.odours, -1).mean(1)
        share = (groups[odour] / groups.sum().clamp_min(1e-6)).item()
        self.syn.reward(share - self.expected * 0.5)
        self.expected += 0.05 * (share - self.expected)
        return share, counts.mean().item()


def run(ex):
    session = Session(ex)
    shares, begin = [], time.perf_counter()
    for k in range(ex.trials):
        share, rate = session.trial((k // ex.block) % ex.odours)
        shares.append(share)
        if (k + 1) % ex.block == 0:
            last = sum(shares[-ex.block:]) / ex.block
            print(f"trial {k + 1:4d}  odour {(k // ex.block) % ex.odours}  share {last:.4f}  "
                  f"spikes/trial {rate:.3f}  mean w {session.syn.w.mean().item():.5f}", flush=True)
    print(f"{(time.perf_counter() - begin) / ex.trials * 1e3:.2f} ms/step")


if __name__ == "__main__":
    run(Experiment())
