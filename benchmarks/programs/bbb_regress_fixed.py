"""Bayes by Backprop on a toy regression, with predictive uncertainty tracked while training."""
import contextlib
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 80
BATCH = 256
N_TRAIN = 4096
MC_TRAIN = 2
MC_EVAL = 8


class BayesLinear(nn.Module):
    def __init__(self, n_in, n_out, prior_sigma=0.5):
        super().__init__()
        self.w_mu = nn.Parameter(torch.randn(n_out, n_in) / math.sqrt(n_in))
        self.w_rho = nn.Parameter(torch.full((n_out, n_in), -4.0))
        self.b_mu = nn.Parameter(torch.zeros(n_out))
        self.b_rho = nn.Parameter(torch.full((n_out,), -4.0))
        self.prior_sigma = prior_sigma

    def forward(self, x):
        w = self.w_mu + F.softplus(self.w_rho) * torch.randn_like(self.w_mu)
        b = self.b_mu + F.softplus(self.b_rho) * torch.randn_like(self.b_mu)
        return F.linear(x, w, b)

    def kl(self):
        total = 0.0
        for mu, rho in ((self.w_mu, self.w_rho), (self.b_mu, self.b_rho)):
            sigma = F.softplus(rho)
            total = total + (
                math.log(self.prior_sigma) - sigma.log()
                + (sigma.pow(2) + mu.pow(2)) / (2 * self.prior_sigma ** 2) - 0.5
            ).sum()
        return total


class BayesMLP(nn.Module):
    def __init__(self, n_in=8, width=96):
        super().__init__()
        self.l1 = BayesLinear(n_in, width)
        self.l2 = BayesLinear(width, width)
        self.l3 = BayesLinear(width, 2)

    def forward(self, x):
        h = F.silu(self.l2(F.silu(self.l1(x))))
        mean, log_var = self.l3(h).chunk(2, dim=-1)
        return mean.squeeze(-1), log_var.squeeze(-1).clamp(-6, 3)

    def kl(self):
        return sum(m.kl() for m in self.modules() if isinstance(m, BayesLinear))


def nll(mean, log_var, y):
    return 0.5 * (log_var + (y - mean).pow(2) / log_var.exp()).mean()


def spread(model, x):
    """Mean epistemic standard deviation over a probe set."""
    with torch.no_grad():
        means = torch.stack([model(x)[0] for _ in range(MC_EVAL)])
        return means.std(dim=0).mean()


@contextlib.contextmanager
def kl_weight(step, warmup=40):
    yield min(1.0, (step + 1) / warmup) / N_TRAIN


torch.manual_seed(3)
x_train = torch.rand(N_TRAIN, 8) * 2 - 1
y_train = torch.sin(3 * x_train[:, 0]) + x_train[:, 1] * x_train[:, 2] + 0.1 * torch.randn(N_TRAIN)
x_probe = torch.rand(512, 8) * 4 - 2

model = BayesMLP()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
curve, best = [], float("inf")
for step in range(STEPS):
    idx = torch.randint(N_TRAIN, (BATCH,))
    x, y = x_train[idx], y_train[idx]
    with kl_weight(step) as beta:
        fit = sum(nll(*model(x), y) for _ in range(MC_TRAIN)) / MC_TRAIN
        loss = fit + beta * model.kl()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    curve.append(spread(model, x_probe))
    best = min(best, fit.item())
    if step % 20 == 0:
        print(f"step {step:3d}  elbo {-loss.item():.4f}  nll {fit.item():.4f}  spread {curve[-1].item():.4f}")

tail = torch.stack(curve[-10:]).mean().item()
print(f"spread: start {curve[0].item():.4f}, end {tail:.4f}; best nll {best:.4f}")
