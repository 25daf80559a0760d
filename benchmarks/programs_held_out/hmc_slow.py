"""Hamiltonian Monte Carlo for a Poisson regression with a Gaussian-process
latent rate (log-Gaussian Cox process on a line), kernel hyper-parameters fixed."""
import math
import time
from typing import Callable, NamedTuple

import torch
from torch.distributions import MultivariateNormal, Poisson


class State(NamedTuple):
    q: torch.Tensor
    logp: torch.Tensor
    grad: torch.Tensor


def matern32(x, scale, length):
    d = (x[:, None] - x[None, :]).abs() * (math.sqrt(3.0) / length)
    return scale ** 2 * (1 + d) * torch.exp(-d)


def simulate(x, gen):
    rate = torch.exp(1.2 + torch.sin(3 * x) + 0.5 * torch.cos(7 * x))
    return torch.poisson(rate, generator=gen)


def make_posterior(x, counts, scale=1.0, length=0.35, offset=1.0):
    cov = matern32(x, scale, length) + 1e-3 * torch.eye(len(x))
    loc = torch.full((len(x),), offset)

    def log_posterior(f):
        prior = MultivariateNormal(loc, covariance_matrix=cov)
        likelihood = Poisson(f.exp(), validate_args=False)
        return prior.log_prob(f).sum() + likelihood.log_prob(counts).sum()

    return log_posterior


def evaluate(fn: Callable, q: torch.Tensor) -> State:
    q = q.detach().requires_grad_(True)
    logp = fn(q)
    (grad,) = torch.autograd.grad(logp, q)
    return State(q.detach(), logp.detach(), grad)


class DualAveraging:
    """Step-size adaptation after Hoffman & Gelman."""

    def __init__(self, eps, target=0.8):
        self.mu, self.target = math.log(10 * eps), target
        self.h, self.t, self.log_bar = 0.0, 0, math.log(eps)

    def update(self, accept):
        self.t += 1
        w = 1 / (self.t + 10)
        self.h = (1 - w) * self.h + w * (self.target - accept)
        log_eps = self.mu - math.sqrt(self.t) / 0.05 * self.h
        k = self.t ** -0.75
        self.log_bar = k * log_eps + (1 - k) * self.log_bar
        return math.exp(log_eps)

    def final(self):
        return math.exp(self.log_bar)


class HMC:
    def __init__(self, fn, dim, leapfrogs, eps, gen):
        self.fn, self.leapfrogs, self.eps, self.gen = fn, leapfrogs, eps, gen
        self.state = evaluate(fn, torch.ones(dim))
        self.adapt = DualAveraging(eps)

    def transition(self, warm):
        p = torch.randn(self.state.q.shape, generator=self.gen)
        h0 = self.state.logp - 0.5 * p.dot(p)
        s = self.state
        for _ in range(self.leapfrogs):
            p = p + 0.5 * self.eps * s.grad
            s = evaluate(self.fn, s.q + self.eps * p)
            p = p + 0.5 * self.eps * s.grad
        delta = (s.logp - 0.5 * p.dot(p) - h0).item()
        accept = math.exp(min(0.0, delta)) if math.isfinite(delta) else 0.0
        if torch.rand((), generator=self.gen).item() < accept:
            self.state = s
        if warm:
            self.eps = self.adapt.update(accept)
        return accept


def ess(chain):
    """Crude effective sample size from the first negative autocorrelation on."""
    z = chain - chain.mean(0)
    n = len(z)
    spec = torch.fft.rfft(z, 2 * n, dim=0)
    acf = torch.fft.irfft(spec * spec.conj(), dim=0)[:n]
    acf = acf / acf[0].clamp_min(1e-12)
    alive = (acf > 0).long().cumprod(0)
    return n / (2 * (acf * alive).sum(0) - 1).clamp_min(1.0)


def main(dim=220, warmup=80, draws=180):
    torch.set_default_dtype(torch.float64)
    gen = torch.Generator().manual_seed(13)
    x = torch.linspace(-1.5, 1.5, dim)
    counts = simulate(x, gen)
    sampler = HMC(make_posterior(x, counts), dim, leapfrogs=12, eps=0.02, gen=gen)
    kept, rates = [], []
    t0 = time.perf_counter()
    for i in range(warmup + draws):
        acc = sampler.transition(i < warmup)
        if i == warmup - 1:
            sampler.eps = sampler.adapt.final()
        if i >= warmup:
            kept.append(sampler.state.q)
            rates.append(acc)
        if i % 60 == 0:
            print(f"{i:4d} eps {sampler.eps:.4f} logp {sampler.state.logp.item():.3f}")
    dt = time.perf_counter() - t0
    chain = torch.stack(kept)
    print(f"accept {sum(rates) / len(rates):.3f} ess {ess(chain).median().item():.2f} mean {chain.mean().item():.4f}")
    print(f"{dt / (warmup + draws) * 1e3:.3f} ms per step")


if __name__ == "__main__":
    main()
