import argparse
from collections import defaultdict

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


def read_pairs(path):
    pairs = np.loadtxt(path, dtype=np.int64)
    by_user = defaultdict(list)
    for u, i in pairs:
        by_user[int(u)].append(int(i))
    return pairs, by_user


class BPRMF(nn.Module):
    def __init__(self, n_users, n_items, dim=64):
        super().__init__()
        self.user = nn.Embedding(n_users, dim, sparse=True)
        self.item = nn.Embedding(n_items, dim, sparse=True)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)

    def forward(self, u, i, j, reg=1e-4):
        e_u, e_i, e_j = self.user(u), self.item(i), self.item(j)
        rank = -F.logsigmoid((e_u * (e_i - e_j)).sum(dim=1)).mean()
        norm = (e_u.pow(2) + e_i.pow(2) + e_j.pow(2)).sum() / u.shape[0]
        return rank + reg * norm


class Evaluator:
    def __init__(self, seen, truth, k=20):
        self.seen, self.truth, self.k = seen, truth, k
        self.discount = 1.0 / np.log2(np.arange(2, k + 2))

    @torch.no_grad()
    def __call__(self, model):
        items = model.item.weight
        recall, ndcg, n = 0.0, 0.0, 0
        for u, relevant in self.truth.items():
            scores = items @ model.user.weight[u]
            scores[self.seen[u]] = float("-inf")
            top = torch.argsort(scores, descending=True)[:self.k].cpu().numpy()
            hit = np.isin(top, relevant)
            recall += hit.sum() / len(relevant)
            ideal = self.discount[:min(len(relevant), self.k)].sum()
            ndcg += (hit * self.discount).sum() / ideal
            n += 1
        return recall / n, ndcg / n


def train(args):
    pairs, seen = read_pairs(f"{args.data}/train.txt")
    test_pairs, truth = read_pairs(f"{args.data}/test.txt")
    both = np.concatenate([pairs, test_pairs])
    n_users, n_items = both.max(axis=0) + 1
    device = torch.device(args.device)
    model = BPRMF(int(n_users), int(n_items), args.dim).to(device)
    opt = torch.optim.SparseAdam(model.parameters(), lr=args.lr)
    evaluator = Evaluator(seen, truth)
    data = torch.from_numpy(pairs).to(device)
    best, wait = 0.0, 0
    for epoch in range(args.epochs):
        perm = torch.randperm(len(data), device=device)
        neg = torch.randint(int(n_items), (len(data),), device=device)
        total = torch.zeros((), device=device)
        for idx in perm.split(args.batch_size):
            loss = model(data[idx, 0], data[idx, 1], neg[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach() * idx.numel()
        if (epoch + 1) % args.eval_every:
            continue
        recall, ndcg = evaluator(model)
        print(f"{epoch + 1} loss {total.item() / len(data):.4f} recall@20 {recall:.4f} ndcg@20 {ndcg:.4f}")
        if ndcg > best:
            best, wait = ndcg, 0
            torch.save(model.state_dict(), f"{args.data}/bprmf.pt")
        else:
            wait += 1
            if wait == args.patience:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--batch-size", type=int, default=8192)
    ap.add_argument("--epochs", type=int, default=400)
    ap.add_argument("--eval-every", type=int, default=5)
    ap.add_argument("--patience", type=int, default=10)
    ap.add_argument("--device", default="cuda")
    train(ap.parse_args())
