"""Matrix factorisation with BPR loss and popularity-weighted negatives."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_users: int = 20_000
    n_items: int = 120_000
    dim: int = 32
    n_interactions: int = 60_000
    batch_users: int = 64
    n_neg: int = 8
    steps: int = 80
    lr: float = 0.3
    seed: int = 11


def make_interactions(cfg):
    rng = np.random.RandomState(cfg.seed)
    users = rng.randint(0, cfg.n_users, cfg.n_interactions)
    cluster = users % 50
    items = (rng.zipf(1.3, cfg.n_interactions) * 50 + cluster) % cfg.n_items
    return users, items


class NegativeSampler:
    """Draws negatives for each user in proportion to count ** 0.75, as in word2vec."""

    def __init__(self, items, n_items, seed):
        counts = np.bincount(items, minlength=n_items).astype(np.float64) + 1.0
        weights = counts ** 0.75
        self.p = weights / weights.sum()
        self.cdf = self.p.cumsum()
        self.cdf /= self.cdf[-1]
        self.rng = np.random.RandomState(seed)

    def draw(self, n):
        return self.cdf.searchsorted(self.rng.random_sample(n), side="right")


class BPR(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.n_users, cfg.dim, sparse=True)
        self.item = nn.Embedding(cfg.n_items, cfg.dim, sparse=True)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)

    def forward(self, u, pos, neg):
        eu = self.user(u)
        s_pos = (eu * self.item(pos)).sum(-1, keepdim=True)
        s_neg = torch.einsum("bd,bnd->bn", eu, self.item(neg))
        return s_pos - s_neg


def iterate(cfg, users, items, sampler):
    order = np.random.RandomState(cfg.seed + 1).permutation(len(users))
    for start in range(0, cfg.steps * cfg.batch_users, cfg.batch_users):
        idx = order[start:start + cfg.batch_users]
        neg = np.stack([sampler.draw(cfg.n_neg) for _ in idx])
        yield (torch.from_numpy(users[idx]), torch.from_numpy(items[idx]), torch.from_numpy(neg))


def train(cfg):
    torch.manual_seed(cfg.seed)
    users, items = make_interactions(cfg)
    sampler = NegativeSampler(items, cfg.n_items, cfg.seed + 2)
    model = BPR(cfg)
    opt = torch.optim.Adagrad(model.parameters(), lr=cfg.lr)
    losses = []
    for u, pos, neg in iterate(cfg, users, items, sampler):
        diff = model(u, pos, neg)
        loss = -F.logsigmoid(diff).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if len(losses) % 20 == 0:
            print(f"step {len(losses):4d}  bpr {np.mean(losses[-20:]):.4f}")
    return model, losses


@torch.no_grad()
def recall_at(model, users, items, k=50, n_eval=200):
    scores = model.user.weight[torch.from_numpy(users[:n_eval])] @ model.item.weight.T
    top = scores.topk(k, dim=1).indices
    hit = (top == torch.from_numpy(items[:n_eval])[:, None]).any(1)
    return hit.float().mean().item()


if __name__ == "__main__":
    cfg = Config()
    model, losses = train(cfg)
    users, items = make_interactions(cfg)
    print(f"final loss {np.mean(losses[-10:]):.3f}  recall@50 {recall_at(model, users, items):.2f}")
