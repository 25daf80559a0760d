"""Churn model: grid search with k-fold cross-validation, command-line style."""
import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=3000)
    p.add_argument("--folds", type=int, default=4)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--lrs", type=float, nargs="+", default=[3e-3, 1e-3])
    p.add_argument("--hidden", type=int, nargs="+", default=[32, 64, 96])
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def make_table(n, seed):
    g = torch.Generator().manual_seed(seed)
    usage = torch.randn(n, 24, generator=g).cumsum(1)
    plan = torch.randint(0, 2, (n, 8), generator=g).float()
    score = usage[:, -1] * 0.3 - usage[:, 5] * 0.2 + plan[:, 0] - plan[:, 1]
    churn = (score + torch.randn(n, generator=g) > 0.5).long()
    return torch.cat([usage, plan], 1), churn


def neighbour_features(train_x, train_y, query_x, ks=(5, 25, 100)):
    """Local churn rates among the nearest training customers."""
    cols = []
    for chunk in query_x.split(1000):
        dist = torch.cdist(chunk, train_x)
        near = dist.topk(max(ks) + 1, largest=False).indices[:, 1:]
        votes = train_y[near].float()
        cols.append(torch.stack([votes[:, :k].mean(1) for k in ks], 1))
    return torch.cat(cols)


def prepare_fold(x, y, fold, folds):
    held = torch.arange(len(x)) % folds == fold
    mean, std = x[~held].mean(0), x[~held].std(0)
    z = (x - mean) / std
    feats = torch.cat([z, neighbour_features(z[~held], y[~held], z)], 1)
    return feats, held


def build(in_dim, hidden):
    return nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), nn.Dropout(0.1),
                         nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def train_one(data, rows, lr, hidden, args):
    torch.manual_seed(args.seed)
    model = build(data.tensors[0].shape[1], hidden)
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    loader = DataLoader(Subset(data, rows), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model.train()
    for _ in range(args.epochs):
        for xb, yb in loader:
            opt.zero_grad()
            F.cross_entropy(model(xb), yb).backward()
            opt.step()
    return model.eval()


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    args = parse_args()
    x, y = make_table(args.rows, args.seed)
    results = {}
    trials = list(itertools.product(args.lrs, args.hidden, range(args.folds)))
    for lr, hidden, fold in trials:
        feats, held = prepare_fold(x, y, fold, args.folds)
        rows = (~held).nonzero().squeeze(1).tolist()
        model = train_one(TensorDataset(feats, y), rows, lr, hidden, args)
        acc = accuracy(model, feats[held], y[held])
        results.setdefault((lr, hidden), []).append(acc)

    for (lr, hidden), accs in results.items():
        print(f"lr={lr:<7g} hidden={hidden:<4d} acc={sum(accs) / len(accs):.4f}")
    best = max(results, key=lambda k: sum(results[k]))
    print("best:", best)


if __name__ == "__main__":
    main()
