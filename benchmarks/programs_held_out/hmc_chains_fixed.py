"""Hamiltonian Monte Carlo for a hierarchical logistic regression, many chains in one batch."""
import math
from typing import Callable, List

import torch
import torch.nn.functional as F


def make_data(n=700, d=24, groups=10, seed=3):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    group = torch.randint(0, groups, (n,), generator=g)
    beta = torch.randn(d, generator=g) * 0.5
    offset = torch.randn(groups, generator=g) * 0.8
    y = torch.bernoulli(torch.sigmoid(x @ beta + offset[group]), generator=g)
    return x, group, y


def make_potential(x, group, y, groups=10):
    d = x.shape[1]
    onehot = F.one_hot(group, groups).float()

    def potential(theta):
        beta, offset, log_tau = theta[:, :d], theta[:, d:d + groups], theta[:, -1]
        logits = beta @ x.T + offset @ onehot.T
        nll = F.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none").sum(1)
        prior = 0.5 * beta.pow(2).sum(1)
        prior = prior + 0.5 * (offset / log_tau.exp()[:, None]).pow(2).sum(1) + groups * log_tau
        return nll + prior + 0.5 * log_tau.pow(2)

    return potential, d + groups + 1


def grad_of(potential, theta):
    theta = theta.detach().requires_grad_(True)
    u = potential(theta)
    (g,) = torch.autograd.grad(u.sum(), theta)
    return u.detach(), g


def leapfrog(potential, theta, p, eps, n_steps):
    _, g = grad_of(potential, theta)
    for _ in range(n_steps):
        p = p - 0.5 * eps * g
        theta = theta + eps * p
        u, g = grad_of(potential, theta)
        p = p - 0.5 * eps * g
    return theta, p, u


def split_rhat(draws):
    n = draws.shape[0] // 2
    halves = torch.cat([draws[:n], draws[n:2 * n]], dim=1)
    means = halves.mean(0)
    within = halves.var(0).mean(0)
    between = n * means.var(0)
    return (((n - 1) / n * within + between / n) / within).sqrt()


def effective_size(draws):
    n, chains, _ = draws.shape
    centred = draws - draws.mean(0)
    size = 2 ** math.ceil(math.log2(2 * n))
    spec = torch.fft.rfft(centred, n=size, dim=0)
    acov = torch.fft.irfft(spec.abs().pow(2), n=size, dim=0)[:n] / n
    rho = acov.mean(1) / acov[0].mean(0)
    positive = (rho > 0.05).float().cumprod(0)
    return n * chains / (1 + 2 * (rho * positive)[1:].sum(0))


class History:
    def __init__(self, report_every):
        self.draws: List[torch.Tensor] = []
        self.report_every = report_every
        self.accept = 0.0

    def __call__(self, it, theta, accepted):
        self.draws.append(theta.clone())
        self.accept += accepted.float().mean().item()
        if len(self.draws) < 8 or it % self.report_every:
            return
        draws = torch.stack(self.draws)
        rhat, ess = split_rhat(draws), effective_size(draws)
        print(f"iter {it:4d}  accept {self.accept / it:.3f}  max rhat {rhat.max():.3f}  min ess {ess.min():.1f}")


def sample(potential, theta, iterations, eps, n_steps, callbacks: List[Callable], seed=0):
    g = torch.Generator().manual_seed(seed)
    u = potential(theta).detach()
    for it in range(1, iterations + 1):
        p0 = torch.randn(theta.shape, generator=g)
        jitter = 0.8 + 0.4 * torch.rand((), generator=g)
        prop, p, u_new = leapfrog(potential, theta, p0, eps * jitter, n_steps)
        log_ratio = u + 0.5 * p0.pow(2).sum(1) - u_new - 0.5 * p.pow(2).sum(1)
        accepted = torch.rand(len(theta), generator=g).log() < log_ratio
        theta = torch.where(accepted[:, None], prop, theta)
        u = torch.where(accepted, u_new, u)
        for callback in callbacks:
            callback(it, theta, accepted)
    return theta


def main():
    torch.manual_seed(0)
    x, group, y = make_data()
    potential, dim = make_potential(x, group, y)
    history = History(report_every=40)
    sample(potential, 0.1 * torch.randn(24, dim), 200, 0.06, 10, [history])
    tail = torch.stack(history.draws[80:])
    print("posterior mean of log tau:", round(tail[..., -1].mean().item(), 3))
    print("first coefficients:", [round(v, 3) for v in tail.mean((0, 1))[:4].tolist()])


if __name__ == "__main__":
    main()
