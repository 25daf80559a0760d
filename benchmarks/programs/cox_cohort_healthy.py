# DeepSurv-like survival model on a simulated cohort: the network outputs a log hazard,
# trained with the Breslow partial likelihood over large mini-batches.
import time
from typing import NamedTuple

import torch
import torch.nn as nn


class Cohort(NamedTuple):
    x: torch.Tensor
    cats: torch.Tensor
    time: torch.Tensor
    event: torch.Tensor

    def take(self, idx):
        return Cohort(*(f[idx] for f in self))


def simulate(n, n_cont, cards, gen):
    x = torch.randn(n, n_cont, generator=gen)
    cats = torch.stack([torch.randint(0, c, (n,), generator=gen) for c in cards], 1)
    risk = 0.8 * x[:, 0] - 0.6 * x[:, 1] * x[:, 2] + 0.5 * (x[:, 3] > 0).float()
    risk = risk + 0.7 * torch.sin(2 * x[:, 4]) + 0.2 * (cats[:, 0] % 3).float()
    t = -torch.rand(n, generator=gen).clamp_min(1e-6).log() * torch.exp(-risk)
    censor = -torch.rand(n, generator=gen).clamp_min(1e-6).log() * 1.7
    return Cohort(x, cats, torch.minimum(t, censor), (t <= censor).float())


class HazardNet(nn.Module):
    def __init__(self, n_cont, cards, emb=8, width=384, depth=3):
        super().__init__()
        self.embs = nn.ModuleList(nn.Embedding(c, emb) for c in cards)
        layers, d = [], n_cont + emb * len(cards)
        for _ in range(depth):
            layers += [nn.Linear(d, width), nn.LayerNorm(width), nn.SELU()]
            d = width
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(d, 1, bias=False)

    def forward(self, x, cats):
        parts = [e(cats[:, i]) for i, e in enumerate(self.embs)]
        return self.out(self.body(torch.cat([x, *parts], 1))).squeeze(1)


def partial_likelihood(log_h, time_, event):
    """Negative Breslow log partial likelihood, mean over the events."""
    order = time_.argsort(descending=True)
    log_h, event = log_h[order], event[order]
    log_risk = torch.logcumsumexp(log_h, 0)
    return ((log_risk - log_h) * event).sum() / event.sum().clamp_min(1)


@torch.no_grad()
def c_index(model, cohort, n_pairs, gen):
    """Concordance, estimated from random comparable pairs."""
    model.eval()
    h = model(cohort.x, cohort.cats)
    model.train()
    i = torch.randint(0, len(h), (n_pairs,), generator=gen)
    j = torch.randint(0, len(h), (n_pairs,), generator=gen)
    first = torch.where(cohort.time[i] < cohort.time[j], i, j)
    other = i + j - first
    ok = (cohort.event[first] > 0) & (i != j)
    return (h[first] > h[other])[ok].float().mean().item()


class Plateau:
    """Halve the step size when the validation index has not improved."""

    def __init__(self, opt, patience=2):
        self.opt, self.patience = opt, patience
        self.best, self.bad = 0.0, 0

    def __call__(self, value):
        if value > self.best + 1e-4:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad > self.patience:
            self.bad = 0
            for group in self.opt.param_groups:
                group["lr"] *= 0.5


def epoch_batches(cohort, size, gen):
    perm = torch.randperm(len(cohort.time), generator=gen)
    for lo in range(0, len(perm) - size + 1, size):
        yield cohort.take(perm[lo:lo + size])


N_CONT, CARDS = 24, (6, 12, 4, 30)
BATCH, EPOCHS = 1536, 10

torch.manual_seed(31)
gen = torch.Generator().manual_seed(31)
train_set = simulate(24000, N_CONT, CARDS, gen)
valid_set = simulate(2000, N_CONT, CARDS, gen)
print(f"events: {train_set.event.mean():.1%} of {len(train_set.time)} patients")

net = HazardNet(N_CONT, CARDS)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
plateau = Plateau(opt)

tic = time.perf_counter()
steps = 0
for epoch in range(1, EPOCHS + 1):
    losses = []
    for batch in epoch_batches(train_set, BATCH, gen):
        log_h = net(batch.x, batch.cats)
        loss = partial_likelihood(log_h, batch.time, batch.event)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        losses.append(loss.detach())
        steps += 1
    ci = c_index(net, valid_set, 20000, gen)
    plateau(ci)
    print(f"epoch {epoch:2d}  loss {torch.stack(losses).mean().item():.4f}  c-index {ci:.4f}")
toc = time.perf_counter() - tic
print(f"{toc / steps * 1e3:.2f} ms/step over {steps} steps")
