# Next-item recommendation with a small causal transformer (SASRec with full softmax).
# Synthetic shop: every user mixes a few "interests", items follow each other inside an interest.
import json
import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

conf = SimpleNamespace(
    n_users=3000, n_items=2500, n_interests=25,
    max_len=50, dim=64, heads=2, layers=2, dropout=0.1,
    batch=64, lr=1e-3, steps=90, log_every=30, seed=11,
)
PAD = 0


def make_histories(c, rng):
    """Item ids start at 1. Lengths are long-tailed like in the usual review data sets."""
    members = np.array_split(rng.permutation(np.arange(1, c.n_items + 1)), c.n_interests)
    histories = []
    for _ in range(c.n_users):
        n = int(np.clip(rng.lognormal(2.9, 0.75), 5, 120))
        likes = rng.choice(c.n_interests, size=rng.integers(1, 4), replace=False)
        at = {k: int(rng.integers(len(members[k]))) for k in likes}
        seq = []
        for _ in range(n):
            k = rng.choice(likes)
            at[k] = (at[k] + int(rng.geometric(0.6))) % len(members[k])
            seq.append(int(members[k][at[k]]))
        histories.append(seq)
    return histories


class SequenceBatches:
    """Left-padded (input, target) batches; the last item of every history is kept for the test."""

    def __init__(self, histories, c):
        self.c = c
        self.rng = np.random.default_rng(c.seed + 1)
        n, L = len(histories), c.max_len
        self.inputs = np.full((n, L), PAD, dtype=np.int64)
        self.targets = np.full((n, L), PAD, dtype=np.int64)
        self.test_inputs = np.full((n, L), PAD, dtype=np.int64)
        self.test_item = np.array([h[-1] for h in histories])
        for u, h in enumerate(histories):
            train = h[:-1][-(L + 1):]
            k = len(train) - 1
            self.inputs[u, L - k:] = train[:-1]
            self.targets[u, L - k:] = train[1:]
            recent = h[:-1][-L:]
            self.test_inputs[u, L - len(recent):] = recent

    def __iter__(self):
        while True:
            order = self.rng.permutation(len(self.inputs))
            for i in range(0, len(order) - self.c.batch + 1, self.c.batch):
                pick = order[i:i + self.c.batch]
                yield torch.from_numpy(self.inputs[pick]), torch.from_numpy(self.targets[pick])


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv = nn.Linear(c.dim, 3 * c.dim)
        self.proj = nn.Linear(c.dim, c.dim)
        self.ff = nn.Sequential(nn.Linear(c.dim, 2 * c.dim), nn.GELU(), nn.Linear(2 * c.dim, c.dim))

    def forward(self, x, mask):
        b, l, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, l, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(att.transpose(1, 2).reshape(b, l, d))
        return x + self.ff(self.n2(x))


class SASRec(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.items = nn.Embedding(c.n_items + 1, c.dim, padding_idx=PAD)
        self.position = nn.Embedding(c.max_len, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        self.drop = nn.Dropout(c.dropout)
        self.bias = nn.Parameter(torch.zeros(c.n_items + 1))
        self.register_buffer("causal", torch.ones(c.max_len, c.max_len).tril().bool())
        self.register_buffer("diag", torch.eye(c.max_len).bool())
        nn.init.normal_(self.items.weight, std=0.05)
        nn.init.normal_(self.position.weight, std=0.02)

    def encode(self, seq):
        x = self.drop(self.items(seq) * 8.0 + self.position.weight)
        mask = (self.causal & (seq != PAD)[:, None, :]) | self.diag       # (B, L, L)
        for block in self.blocks:
            x = block(x, mask[:, None])
        return self.norm(x)

    def score(self, h):
        return F.linear(h, self.items.weight, self.bias)

    def training_loss(self, seq, target):
        logits = self.score(self.encode(seq))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)

    @torch.inference_mode()
    def rank(self, seq, item):
        s = self.score(self.encode(seq)[:, -1])
        s[:, PAD] = -1e9
        return (s > s.gather(1, item[:, None])).sum(1)


def evaluate(model, data, c, n=512):
    model.eval()
    ranks = [model.rank(torch.from_numpy(data.test_inputs[i:i + 128]), torch.from_numpy(data.test_item[i:i + 128]))
             for i in range(0, n, 128)]
    model.train()
    r = torch.cat(ranks).float()
    hit = (r < 10).float()
    return {"hit@10": round(hit.mean().item(), 4), "ndcg@10": round((hit / torch.log2(r + 2)).mean().item(), 4)}


torch.manual_seed(conf.seed)
histories = make_histories(conf, np.random.default_rng(conf.seed))
data = SequenceBatches(histories, conf)
model = SASRec(conf)
optimizer = torch.optim.Adam(model.parameters(), lr=conf.lr, betas=(0.9, 0.98), fused=True)
print(json.dumps({"users": len(histories), "items": conf.n_items,
                  "mean length": round(float(np.mean([len(h) for h in histories])), 1)}))

losses, clock, spent = [], time.perf_counter(), 0.0
for step, (seq, target) in enumerate(data, start=1):
    loss = model.training_loss(seq, target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if step % conf.log_every == 0:
        spent += time.perf_counter() - clock
        print(step, f"loss {torch.stack(losses).mean():.4f}", evaluate(model, data, conf))
        losses.clear()
        clock = time.perf_counter()
    if step == conf.steps:
        break
print(f"{conf.steps} steps, {spent:.1f} s training, {1e3 * spent / conf.steps:.1f} ms/step")
