"""Click-through-rate prediction on a drifting stream (continual learning).

DeepFM over 16 categorical fields and 8 numeric ones.  Day after day the model is
first tested on the new impressions, then trained on them (test-then-train).
Everything is simulated.
"""
import time
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

FIELDS = [110000, 60000, 40000, 12000, 6000, 3000, 1500, 800, 600, 400, 200, 100, 50, 24, 12, 7]
N_NUM = 8
DIM = 16
DAYS = 20
ROWS_PER_DAY = 40 * 1024
BATCH = 1024
LR = 0.02


class ClickStream:
    """Users click by hidden tastes that rotate slowly from one day to the next."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.taste = [self.rng.normal(0, 0.45, n).astype(np.float32) for n in FIELDS]
        self.drift = [self.rng.normal(0, 0.45, n).astype(np.float32) for n in FIELDS]
        self.w_num = self.rng.normal(0, 0.3, N_NUM).astype(np.float32)
        self.offsets = np.concatenate([[0], np.cumsum(FIELDS)[:-1]])

    def day(self, d):
        rng, angle = self.rng, 0.12 * d
        cols, score = [], np.full(ROWS_PER_DAY, -1.4, np.float32)
        for n, a, b in zip(FIELDS, self.taste, self.drift):
            # popularity is heavy-tailed, as in real logs
            c = np.minimum((n * rng.random(ROWS_PER_DAY) ** 3).astype(np.int64), n - 1)
            score += np.cos(angle) * a[c] + np.sin(angle) * b[c]
            cols.append(c)
        num = rng.exponential(1.0, (ROWS_PER_DAY, N_NUM)).astype(np.float32)
        score += np.log1p(num) @ self.w_num
        y = (rng.random(ROWS_PER_DAY) < 1 / (1 + np.exp(-score))).astype(np.float32)
        cat = np.stack(cols, 1) + self.offsets
        return torch.from_numpy(cat), torch.from_numpy(np.log1p(num)), torch.from_numpy(y)


class FeatureTable(nn.Module):
    """All fields share one table; the ids already carry their field's offset."""

    def __init__(self, rows, dim):
        super().__init__()
        self.vectors = nn.Embedding(rows, dim, sparse=True)
        self.first_order = nn.EmbeddingBag(rows, 1, mode="sum", sparse=True)
        nn.init.normal_(self.vectors.weight, std=0.01)
        nn.init.zeros_(self.first_order.weight)

    def forward(self, ids):
        return self.vectors(ids), self.first_order(ids).squeeze(1)


class DeepFM(nn.Module):
    def __init__(self, hidden=(256, 256, 128)):
        super().__init__()
        self.table = FeatureTable(sum(FIELDS), DIM)
        self.num_linear = nn.Linear(N_NUM, 1)
        sizes = (len(FIELDS) * DIM + N_NUM,) + tuple(hidden)
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU(inplace=True)]
        self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, ids, num):
        v, linear = self.table(ids)
        pair = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        deep = self.deep(torch.cat([v.flatten(1), num], 1)).squeeze(1)
        return linear + self.num_linear(num).squeeze(1) + pair + deep


def auc(score, y):
    order = score.argsort()
    ranks = torch.empty(len(y), dtype=torch.double)
    ranks[order] = torch.arange(1, len(y) + 1, dtype=torch.double)
    pos = y.sum().double()
    return ((ranks[y > 0.5].sum() - pos * (pos + 1) / 2) / (pos * (len(y) - pos))).item()


@contextmanager
def clock(book, key):
    t = time.perf_counter()
    yield
    book[key] = book.get(key, 0.0) + time.perf_counter() - t


@torch.no_grad()
def test_day(model, cat, num, y):
    model.eval()
    scores = torch.cat([model(c, n) for c, n in zip(cat.split(8192), num.split(8192))])
    return auc(scores, y)


def train_day(model, opt, cat, num, y):
    model.train()
    loss_fn = nn.BCEWithLogitsLoss()
    total, batches = torch.zeros(()), len(y) // BATCH
    for b in range(batches):
        s = slice(b * BATCH, (b + 1) * BATCH)
        loss = loss_fn(model(cat[s], num[s]), y[s])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    return total.item() / batches, batches


def run(seed=2024):
    torch.manual_seed(seed)
    stream = ClickStream(seed)
    model = DeepFM()
    opt = torch.optim.Adagrad(model.parameters(), lr=LR, initial_accumulator_value=0.01)
    book, steps = {}, 0
    for d in range(DAYS):
        with clock(book, "data"):
            cat, num, y = stream.day(d)
        with clock(book, "test"):
            score = test_day(model, cat, num, y)
        with clock(book, "train"):
            loss, n = train_day(model, opt, cat, num, y)
        steps += n
        print(f"day {d}: auc before training {score:.4f}, train loss {loss:.4f}")
    print("  ".join(f"{k} {v:.2f}s" for k, v in book.items()))
    print(f"{1e3 * book['train'] / steps:.2f} ms/step")


if __name__ == "__main__":
    run()
