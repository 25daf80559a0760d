# Hamiltonian Monte Carlo for a small Bayesian neural network (one hidden layer),
# several data sets' worth of points in one batch.  Potential = -log posterior.
from dataclasses import dataclass, field
from typing import NamedTuple
import time

import torch
import torch.nn.functional as F


@dataclass
class Config:
    n_data: int = 2000
    n_in: int = 12
    hidden: int = 64
    samples: int = 120
    burn_in: int = 30
    n_leapfrog: int = 8
    step_size: float = 1e-3
    target_accept: float = 0.8
    noise: float = 0.3
    prior_std: float = 1.0
    seed: int = 3
    sizes: list = field(default_factory=list)


class State(NamedTuple):
    q: torch.Tensor
    p: torch.Tensor


class Posterior:
    """Flat-parameter log posterior of an MLP with Gaussian likelihood."""

    def __init__(self, cfg, x, y):
        self.cfg, self.x, self.y = cfg, x, y
        self.shapes = [(cfg.hidden, cfg.n_in), (cfg.hidden,), (cfg.hidden, cfg.hidden),
                       (cfg.hidden,), (1, cfg.hidden), (1,)]
        self.numel = [int(torch.tensor(s).prod()) for s in self.shapes]
        self.dim = sum(self.numel)

    def unpack(self, q):
        return [w.view(s) for w, s in zip(q.split(self.numel), self.shapes)]

    def forward(self, q, x):
        w1, b1, w2, b2, w3, b3 = self.unpack(q)
        h = torch.tanh(F.linear(x, w1 / self.cfg.n_in ** 0.5, b1))
        h = torch.tanh(F.linear(h, w2 / self.cfg.hidden ** 0.5, b2))
        return F.linear(h, w3 / self.cfg.hidden ** 0.5, b3).squeeze(-1)

    def potential(self, q):
        res = self.y - self.forward(q, self.x)
        nll = 0.5 * (res / self.cfg.noise).square().sum()
        prior = 0.5 * (q / self.cfg.prior_std).square().sum()
        return nll + prior

    def value_and_grad(self, q):
        q = q.detach().requires_grad_(True)
        u = self.potential(q)
        (g,) = torch.autograd.grad(u, q)
        return u.detach(), g


class Integrator:
    def __init__(self, posterior):
        self.posterior = posterior
        self.last_u = None

    def kick(self, state, dt):
        self.last_u, g = self.posterior.value_and_grad(state.q)
        return State(state.q, state.p - dt * g)

    @staticmethod
    def drift(state, dt):
        return State(state.q + dt * state.p, state.p)

    def step(self, state, eps):
        state = self.kick(state, 0.5 * eps)
        state = self.drift(state, eps)
        state = self.kick(state, 0.5 * eps)
        return state

    def trajectory(self, state, eps, n):
        for _ in range(n):
            state = self.step(state, eps)
        return state, self.last_u


class HMC:
    def __init__(self, cfg, posterior, gen):
        self.cfg, self.posterior, self.gen = cfg, posterior, gen
        self.integrator = Integrator(posterior)
        self.eps = cfg.step_size

    def start(self):
        q = torch.randn(self.posterior.dim, generator=self.gen) * 0.5
        u, _ = self.posterior.value_and_grad(q)
        return q, u

    def propose(self, q, u):
        p = torch.randn(q.shape, generator=self.gen)
        h0 = u + 0.5 * p.square().sum()
        state, u_new = self.integrator.trajectory(State(q, p), self.eps, self.cfg.n_leapfrog)
        h1 = u_new + 0.5 * state.p.square().sum()
        log_alpha = min(0.0, float(h0 - h1))
        accept = float(torch.rand((), generator=self.gen).log()) < log_alpha
        return (state.q, u_new, True, log_alpha) if accept else (q, u, False, log_alpha)

    def adapt(self, log_alpha, it):
        rate = 0.3 / (it + 1) ** 0.5
        prob = 2.718281828 ** log_alpha
        self.eps *= 2.718281828 ** (rate * (prob - self.cfg.target_accept))


def make_data(cfg, gen):
    x = torch.randn(cfg.n_data, cfg.n_in, generator=gen)
    y = torch.sin(x[:, 0] * 1.5) + 0.5 * x[:, 1] * x[:, 2] - 0.3 * x[:, 3].abs()
    return x, y + cfg.noise * torch.randn(cfg.n_data, generator=gen)


def summarise(kept, posterior, x, y):
    with torch.no_grad():
        preds = torch.stack([posterior.forward(q, x) for q in kept])
    rmse = (preds.mean(0) - y).square().mean().sqrt().item()
    return rmse, preds.std(0).mean().item()


def run(cfg: Config):
    gen = torch.Generator().manual_seed(cfg.seed)
    x, y = make_data(cfg, gen)
    xt, yt = make_data(Config(n_data=1000), gen)
    posterior = Posterior(cfg, x, y)
    sampler = HMC(cfg, posterior, gen)
    q, u = sampler.start()
    kept, accepted = [], 0
    t0 = time.perf_counter()
    for it in range(cfg.burn_in + cfg.samples):
        q, u, ok, log_alpha = sampler.propose(q, u)
        accepted += ok
        if it < cfg.burn_in:
            sampler.adapt(log_alpha, it)
        elif it % 3 == 0:
            kept.append(q)
        if it % 20 == 0:
            print(f"it {it:4d}  U {float(u):12.3f}  eps {sampler.eps:.2e}  acc {accepted / (it + 1):.2f}")
    dt = time.perf_counter() - t0
    rmse, spread = summarise(kept, posterior, xt, yt)
    print(f"test rmse {rmse:.4f}  spread {spread:.4f}  dim {posterior.dim}")
    n = cfg.burn_in + cfg.samples
    print(f"{n} transitions in {dt:.1f} s ({1000 * dt / n:.1f} ms/transition)")


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    run(Config())
