"""Sample reaction trajectories from a neural ODE with an adaptive Dormand-Prince 5(4) solver."""
import argparse

import torch
from torch import nn

A = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


class Kinetics(nn.Module):
    """Autonomous vector field for the log concentrations, conditioned on the temperature."""

    def __init__(self, species, hidden):
        super().__init__()
        self.inp = nn.Linear(species + 1, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, species)
        self.temperature = None

    def forward(self, y):
        h = torch.tanh(self.inp(torch.cat([y, self.temperature], dim=1)))
        h = torch.tanh(self.mid(h))
        return 9.0 * self.out(h) - 0.5 * y


def attempt(f, y, k1, h):
    ks = [k1]
    for row in A[1:]:
        increment = row[0] * ks[0]
        for c, k in zip(row[1:], ks[1:]):
            if c:
                increment = torch.add(increment, k, alpha=c)
        y_new = y + h * increment
        ks.append(f(y_new))
    error = E[0] * ks[0]
    for c, k in zip(E[1:], ks[1:]):
        if c:
            error = torch.add(error, k, alpha=c)
    return y_new, ks[-1], h * error


class Dopri5:
    def __init__(self, f, rtol, atol, max_attempts):
        self.f, self.rtol, self.atol, self.max_attempts = f, rtol, atol, max_attempts

    def ratio(self, y, y_new, error):
        scale = self.atol + self.rtol * torch.maximum(y.abs(), y_new.abs())
        return (error / scale).square().mean().sqrt()

    def solve(self, y, t_end):
        t = y.new_zeros(())
        h = y.new_full((), 0.02)
        k1 = self.f(y)
        for _ in range(self.max_attempts):
            h = torch.minimum(h, t_end - t)
            y_new, k_new, error = attempt(self.f, y, k1, h)
            err = self.ratio(y, y_new, error)
            accept = err <= 1.0
            t = torch.where(accept, t + h, t)
            y = torch.where(accept, y_new, y)
            k1 = torch.where(accept, k_new, k1)
            h = h * (0.9 * err.clamp(min=1e-8).pow(-0.2)).clamp(0.2, 5.0)
        return y


@torch.no_grad()
def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    ap.add_argument("--batch", type=int, default=8192)
    ap.add_argument("--hidden", type=int, default=1024)
    ap.add_argument("--rounds", type=int, default=120)
    ap.add_argument("--rtol", type=float, default=1e-5)
    a = ap.parse_args()
    if a.small:
        a.batch, a.hidden, a.rounds = 16, 32, 4
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(12)

    species = 48
    field = Kinetics(species, a.hidden).to(device).eval()
    solver = Dopri5(field, a.rtol, 1e-6, max_attempts=24)
    mean = torch.zeros(species, device=device)
    for n in range(a.rounds):
        # STEP
        field.temperature = 0.5 + torch.rand(a.batch, 1, device=device)
        y0 = 2.0 * torch.randn(a.batch, species, device=device)
        y1 = solver.solve(y0, t_end=1.0)
        mean += (y1.mean(0) - mean) / (n + 1)
    print("mean final state", mean[:4].tolist())


if __name__ == "__main__":
    main()
