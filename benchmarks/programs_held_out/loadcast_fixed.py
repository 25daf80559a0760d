# Probabilistic electricity-load forecasting: rolling back-test of an autoregressive GRU
import argparse
import math
import torch
from torch import nn


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--series", type=int, default=24)
    p.add_argument("--context", type=int, default=48)
    p.add_argument("--horizon", type=int, default=24)
    p.add_argument("--samples", type=int, default=12)
    p.add_argument("--windows", type=int, default=9)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


def make_load(n, length, gen):
    t = torch.arange(length).float()
    phase = torch.rand(n, 1, generator=gen) * 24
    level = 1.0 + torch.rand(n, 1, generator=gen)
    daily = torch.sin(2 * math.pi * (t + phase) / 24)
    weekly = 0.4 * torch.sin(2 * math.pi * (t + phase) / 168)
    return level + daily + weekly + 0.1 * torch.randn(n, length, generator=gen)


def calendar(start, steps):
    h = torch.arange(start, start + steps).float()
    return torch.stack([
        torch.sin(2 * math.pi * h / 24), torch.cos(2 * math.pi * h / 24),
        torch.sin(2 * math.pi * h / 168), torch.cos(2 * math.pi * h / 168),
    ], dim=-1)


class LoadModel(nn.Module):
    """GRU over (previous value, calendar features) with a Gaussian head."""

    def __init__(self, hidden=48):
        super().__init__()
        self.rnn = nn.GRU(5, hidden, batch_first=True)
        self.mu = nn.Linear(hidden, 1)
        self.log_sigma = nn.Linear(hidden, 1)

    def forward(self, values, cal, state=None):
        x = torch.cat([values.unsqueeze(-1), cal], dim=-1)
        out, state = self.rnn(x, state)
        last = out[:, -1]
        return self.mu(last).squeeze(-1), self.log_sigma(last).squeeze(-1).exp(), state


def sample_paths(model, context, start, horizon, samples, gen):
    b, c = context.shape
    history = context.repeat_interleave(samples, 0)
    cal = calendar(start, c + horizon).expand(b * samples, -1, -1)
    path, state, fed = [], None, 0
    for h in range(horizon):
        mu, sigma, state = model(history[:, fed:], cal[:, fed: c + h], state)
        fed = c + h
        nxt = mu + sigma * torch.randn(b * samples, generator=gen)
        path.append(nxt)
        history = torch.cat([history, nxt.unsqueeze(1)], dim=1)
    return torch.stack(path, 1).view(b, samples, horizon)


def crps(paths, target):
    err = (paths - target.unsqueeze(1)).abs().mean(1)
    spread = (paths.unsqueeze(1) - paths.unsqueeze(2)).abs().mean((1, 2))
    return err - 0.5 * spread


def backtest_jobs(load, args):
    """Yields (first hour, context, truth) for each window and group of series."""
    for w in range(args.windows):
        start = w * args.horizon
        cut = start + args.context
        for lo in range(0, args.series, args.batch):
            rows = load[lo: lo + args.batch]
            yield start, rows[:, start:cut], rows[:, cut: cut + args.horizon]


def fit_head(model, load, args):
    # the recurrent part is a fixed reservoir; only the heads are fitted here
    opt = torch.optim.Adam(list(model.mu.parameters()) + list(model.log_sigma.parameters()), lr=0.02)
    model.rnn.requires_grad_(False)
    for it in range(30):
        s = (it * 5) % 100
        mu, sigma, _ = model(load[:, s: s + args.context], calendar(s, args.context).expand(len(load), -1, -1))
        y = load[:, s + args.context]
        nll = (sigma.log() + 0.5 * ((y - mu) / sigma) ** 2).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
    return nll.item()


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    load = make_load(args.series, args.context + args.horizon * (args.windows + 1), gen)
    model = LoadModel()
    print(f"head fitted, nll {fit_head(model, load, args):.3f}")
    model.eval()
    scores, covered = [], []
    with torch.no_grad():
        for start, context, truth in backtest_jobs(load, args):
            paths = sample_paths(model, context, start, args.horizon, args.samples, gen)
            scores.append(crps(paths, truth))
            lo, hi = paths.quantile(0.1, dim=1), paths.quantile(0.9, dim=1)
            covered.append(((truth >= lo) & (truth <= hi)).float())
    scores = torch.cat(scores)
    print(f"windows {args.windows}  CRPS {scores.mean():.3f}")
    print(f"CRPS first hour {scores[:, 0].mean():.3f}  last hour {scores[:, -1].mean():.3f}")
    print(f"80% interval coverage {torch.cat(covered).mean():.2f}")


if __name__ == "__main__":
    main()
