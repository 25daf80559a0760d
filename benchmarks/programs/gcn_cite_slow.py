"""GCN on a random citation-like graph."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=900)
parser.add_argument("--avg-degree", type=int, default=6)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--classes", type=int, default=7)
parser.add_argument("--features", type=int, default=200)
parser.add_argument("--dropout", type=float, default=0.5)
parser.add_argument("--epochs", type=int, default=18)
parser.add_argument("--seed", type=int, default=1)


def random_graph(n, deg, classes, d, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    src = rng.integers(0, n, n * deg // 2)
    dst = rng.integers(0, n, n * deg // 2)
    same = y[src] == y[dst]
    keep = same | (rng.random(len(src)) < 0.3)
    edges = np.stack([src[keep], dst[keep]])
    x = (rng.random((n, d)) < 0.02).astype(np.float32)
    x[np.arange(n), y * (d // classes)] = 1.0
    return edges, torch.from_numpy(x), torch.from_numpy(y)


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        a_hat = adj + torch.eye(adj.shape[0])
        d_inv_sqrt = torch.diag(a_hat.sum(dim=1).pow(-0.5))
        norm = d_inv_sqrt @ a_hat @ d_inv_sqrt
        return norm @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, d, h, c, p):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = GraphConv(d, h), GraphConv(h, h), GraphConv(h, c)
        self.p = p

    def forward(self, x, adj):
        h = F.dropout(F.relu(self.conv1(x, adj)), self.p, self.training)
        h = F.dropout(F.relu(self.conv2(h, adj)), self.p, self.training)
        return self.conv3(h, adj)


def accuracy(logits, y, idx):
    return (logits[idx].argmax(1) == y[idx]).float().mean().item()


def macro_f1(logits, y, idx, n_classes):
    pred, true = logits[idx].argmax(1), y[idx]
    cm = torch.zeros(n_classes, n_classes)
    cm.index_put_((true, pred), torch.ones(len(idx)), accumulate=True)
    tp = cm.diag()
    return (2 * tp / (cm.sum(0) + cm.sum(1)).clamp(min=1)).mean().item()


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    edges, x, y = random_graph(args.nodes, args.avg_degree, args.classes, args.features, args.seed)
    adj = torch.zeros(args.nodes, args.nodes)
    adj[edges[0], edges[1]] = 1.0
    adj = torch.maximum(adj, adj.t())
    perm = torch.randperm(args.nodes)
    idx_train, idx_val, idx_test = perm[:300], perm[300:600], perm[600:]

    model = GCN(args.features, args.hidden, args.classes, args.dropout)
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    best, best_test, start = 0.0, 0.0, time.time()
    for epoch in range(args.epochs):
        model.train()
        opt.zero_grad()
        out = model(x, adj)
        loss = F.cross_entropy(out[idx_train], y[idx_train])
        loss.backward()
        opt.step()

        model.eval()
        with torch.no_grad():
            logits = model(x, adj)
        val = accuracy(logits, y, idx_val)
        if val > best:
            best, best_test = val, accuracy(logits, y, idx_test)
        if epoch % 5 == 0:
            f1 = macro_f1(logits, y, idx_val, args.classes)
            print(f"epoch {epoch:03d} loss {loss.item():.4f} val {val:.3f} f1 {f1:.3f}")
    print(f"best val {best:.3f}, test {best_test:.3f}")
    print(f"{args.epochs} epochs, {args.nodes} nodes, {edges.shape[1]} edges")


if __name__ == "__main__":
    main()
