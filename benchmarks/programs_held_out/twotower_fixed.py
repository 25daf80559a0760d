"""Two-tower retrieval model with in-batch softmax, trained on synthetic clicks."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class TwoTower(nn.Module):
    def __init__(self, n_users, n_items, dim):
        super().__init__()
        self.user_emb = nn.Embedding(n_users, dim, sparse=True)
        self.item_emb = nn.Embedding(n_items, dim, sparse=True)
        nn.init.normal_(self.user_emb.weight, std=0.1)
        nn.init.normal_(self.item_emb.weight, std=0.1)
        self.user_mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.item_mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def users(self, idx):
        return F.normalize(self.user_mlp(self.user_emb(idx)), dim=-1)

    def items(self, idx):
        return F.normalize(self.item_mlp(self.item_emb(idx)), dim=-1)


class Clicks:
    def __init__(self, n_users, n_items, n_clicks, seed):
        rng = np.random.default_rng(seed)
        self.n_users, self.n_items = n_users, n_items
        group = rng.integers(0, 200, n_users)
        users = (rng.zipf(1.3, n_clicks) - 1) % n_users
        offset = (rng.zipf(1.4, n_clicks) - 1) % (n_items // 200)
        items = group[users] * (n_items // 200) + offset
        cut = n_clicks - 512
        self.train_u = torch.from_numpy(users[:cut])
        self.train_i = torch.from_numpy(items[:cut])
        self.test_u = torch.from_numpy(users[cut:])
        self.test_i = torch.from_numpy(items[cut:])

    def batches(self, size, generator):
        perm = torch.randperm(len(self.train_u), generator=generator)
        for chunk in perm.split(size):
            yield self.train_u[chunk], self.train_i[chunk]


class Trainer:
    def __init__(self, model, data, lr=1e-2, batch_size=512, temperature=0.1, k=20, seed=0):
        self.model, self.data = model, data
        self.batch_size, self.temperature, self.k = batch_size, temperature, k
        self.gen = torch.Generator().manual_seed(seed)
        self.optimizers = self.configure_optimizers(lr)
        self.history = []

    def configure_optimizers(self, lr):
        tables = [self.model.user_emb.weight, self.model.item_emb.weight]
        towers = [*self.model.user_mlp.parameters(), *self.model.item_mlp.parameters()]
        return [torch.optim.SparseAdam(tables, lr=lr), torch.optim.Adam(towers, lr=lr)]

    def train_step(self, users, items):
        u, v = self.model.users(users), self.model.items(items)
        logits = u @ v.t() / self.temperature
        loss = F.cross_entropy(logits, torch.arange(len(users)))
        for opt in self.optimizers:
            opt.zero_grad()
        loss.backward()
        for opt in self.optimizers:
            opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, n=96):
        users, target = self.data.test_u[:n], self.data.test_i[:n]
        catalogue = self.model.items(torch.arange(self.data.n_items))
        recall = ndcg = 0.0
        for start in range(0, n, 32):
            scores = self.model.users(users[start:start + 32]) @ catalogue.t()
            top = torch.topk(scores, self.k, dim=1).indices
            hit = top == target[start:start + 32, None]
            recall += hit.any(1).sum().item()
            gain = 1.0 / torch.log2(torch.arange(self.k) + 2.0)
            ndcg += (hit * gain).sum().item()
        return recall / n, ndcg / n

    def fit(self, epochs):
        for epoch in range(epochs):
            total, steps = 0.0, 0
            for users, items in self.data.batches(self.batch_size, self.gen):
                total += self.train_step(users, items)
                steps += 1
            recall, ndcg = self.evaluate()
            self.history.append((total / steps, recall, ndcg))
            print(f"epoch {epoch}: loss {total / steps:.3f} recall@{self.k} {recall:.3f} ndcg {ndcg:.3f}")


def main():
    torch.manual_seed(0)
    data = Clicks(n_users=60_000, n_items=90_000, n_clicks=14_848, seed=3)
    model = TwoTower(data.n_users, data.n_items, dim=32)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params / 1e6:.1f}M parameters, {len(data.train_u)} clicks")
    trainer = Trainer(model, data)
    trainer.fit(epochs=3)
    print(f"best recall {max(h[1] for h in trainer.history):.3f}")


if __name__ == "__main__":
    main()
