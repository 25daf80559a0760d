#!/usr/bin/env python
# Node classification on a synthetic citation graph: GraphSAGE (mean) with DropEdge, plain torch.
# usage: citesage_slow.py [epochs]
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 5
N, VOCAB, CLASSES, DEG = 6000, 256, 7, 8
HIDDEN, DROP_EDGE, DROPOUT = 32, 0.3, 0.4
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


def citation_graph(rng):
    """papers cite mostly within their own field; words follow a topic distribution"""
    y = rng.integers(0, CLASSES, N)
    members = [np.flatnonzero(y == c) for c in range(CLASSES)]
    src, dst = [], []
    for i in range(N):
        k = 1 + rng.poisson(DEG - 1)
        same = rng.random(k) < 0.6
        j = np.where(same, rng.choice(members[y[i]], k), rng.integers(0, N, k))
        src.append(j)
        dst.append(np.full(k, i))
    src, dst = np.concatenate(src), np.concatenate(dst)
    keep = src != dst
    src, dst = src[keep], dst[keep]
    topic = rng.dirichlet(np.full(VOCAB, 0.3), CLASSES)
    mix = 0.25 * topic[y] + 0.75 / VOCAB
    words = rng.poisson(mix * 40).astype(np.float32)
    return src, dst, words, y


def drop_edges(edge_index, p, gen):
    keep = torch.rand(edge_index.shape[1], generator=gen) >= p
    return edge_index[:, keep]


def mean_over_neighbours(x, edge_index, n):
    """average of x over the in-neighbours of every node (zero when it has none)"""
    src, dst = edge_index
    total = x.new_zeros(n, x.shape[1])
    total = total.index_add(0, dst, x.index_select(0, src))
    count = torch.bincount(dst, minlength=n).clamp_min(1)
    return total / count.unsqueeze(1)


class SAGELayer(nn.Module):
    """h_i' = W_self h_i + W_nb mean_{j in N(i)} h_j"""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin_self = nn.Linear(d_in, d_out)
        self.lin_nb = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, edge_index):
        agg = mean_over_neighbours(self.lin_nb(x), edge_index, x.shape[0])
        return self.lin_self(x) + agg


class SAGE(nn.Module):
    def __init__(self, d_in, d_hid, n_cls, p):
        super().__init__()
        self.l1 = SAGELayer(d_in, d_hid)
        self.l2 = SAGELayer(d_hid, d_hid)
        self.l3 = SAGELayer(d_hid, n_cls)
        self.n1, self.n2 = nn.LayerNorm(d_hid), nn.LayerNorm(d_hid)
        self.p = p

    def forward(self, x, edge_index):
        h = F.relu(self.n1(self.l1(x, edge_index)))
        h = F.dropout(h, self.p, self.training)
        h = F.relu(self.n2(self.l2(h, edge_index)))
        h = F.dropout(h, self.p, self.training)
        return self.l3(h, edge_index)


class EarlyStop:
    """keeps the best validation score; says when patience is used up"""

    def __init__(self, patience):
        self.best, self.left, self.patience = -1.0, patience, patience

    def __call__(self, score):
        if score > self.best:
            self.best, self.left = score, self.patience
        else:
            self.left -= 1
        return self.left <= 0


@torch.no_grad()
def evaluate(model, x, edge_index, y, masks):
    model.eval()
    pred = model(x, edge_index).argmax(1)
    return [(pred[m] == y[m]).float().mean().item() for m in masks]


rng = np.random.default_rng(SEED)
torch.manual_seed(SEED)
gen = torch.Generator().manual_seed(SEED)

src, dst, words, labels = citation_graph(rng)
edge_index = torch.from_numpy(np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])]))
x = torch.from_numpy(np.log1p(words))
x = x / x.sum(1, keepdim=True).clamp_min(1e-6) * 20
y = torch.from_numpy(labels)
perm = torch.randperm(N, generator=gen)
train_idx, val_idx, test_idx = perm[:600], perm[600:1600], perm[1600:]
print(f"{N} nodes, {edge_index.shape[1]} edges, {VOCAB} features")

model = SAGE(VOCAB, HIDDEN, CLASSES, DROPOUT)
opt = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4, fused=True)
stop = EarlyStop(patience=20)

t0, done = time.perf_counter(), 0
for epoch in range(1, EPOCHS + 1):
    model.train()
    edges = drop_edges(edge_index, DROP_EDGE, gen)
    out = model(x, edges)
    loss = F.cross_entropy(out[train_idx], y[train_idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    done += 1
    if epoch % 20 == 0:
        acc = evaluate(model, x, edge_index, y, (train_idx, val_idx, test_idx))
        print(f"epoch {epoch:4d} loss {loss.item():.4f} train {acc[0]:.3f} val {acc[1]:.3f} test {acc[2]:.3f}", flush=True)
        if stop(acc[1]):
            break
print(f"{(time.perf_counter() - t0) / done * 1e3:.2f} ms/step, {done} epochs")
