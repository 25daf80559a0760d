"""Two-tower click model with categorical features, trained on a synthetic log."""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--small", action="store_true")
    p.add_argument("--batch", type=int, default=8192)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--steps", type=int, default=240)
    return p.parse_args()


USER_FIELDS = {"user_id": 2_500_000, "device_id": 1_200_000, "last_items": 1_500_000}
ITEM_FIELDS = {"item_id": 1_500_000, "seller_id": 600_000, "query_hash": 1_000_000}
BAG = {"last_items": 12, "query_hash": 4}


class Tower(nn.Module):
    def __init__(self, fields, dim, hidden, device):
        super().__init__()
        self.tables = nn.ModuleDict()
        for name, rows in fields.items():
            table = nn.EmbeddingBag(rows, dim, mode="mean", device=device)
            nn.init.uniform_(table.weight, -0.05, 0.05)
            self.tables[name] = table
        self.mlp = nn.Sequential(
            nn.Linear(dim * len(fields), hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, dim),
        ).to(device)

    def forward(self, batch):
        pooled = [table(batch[name]) for name, table in self.tables.items()]
        return F.normalize(self.mlp(torch.cat(pooled, dim=1)), dim=1)


class TwoTower(nn.Module):
    def __init__(self, user_fields, item_fields, dim, hidden, device):
        super().__init__()
        self.user = Tower(user_fields, dim, hidden, device)
        self.item = Tower(item_fields, dim, hidden, device)
        self.scale = nn.Parameter(torch.tensor(5.0, device=device))
        self.bias = nn.Parameter(torch.tensor(-1.0, device=device))

    def forward(self, batch):
        return self.scale * (self.user(batch) * self.item(batch)).sum(1) + self.bias


def click_log(fields, batch, device, seed=3):
    """Batches of ids with a long tail and clicks that follow a hidden rule."""
    gen = torch.Generator(device=device).manual_seed(seed)
    while True:
        out = {}
        for name, rows in fields.items():
            ids = torch.rand(batch, BAG.get(name, 1), generator=gen, device=device)
            out[name] = (ids.pow(3) * rows).long().clamp_(max=rows - 1)
        affinity = (out["user_id"][:, 0] % 7 == out["item_id"][:, 0] % 7).float()
        out["click"] = torch.bernoulli(0.1 + 0.6 * affinity, generator=gen)
        yield out


def build_optimizers(model, lr):
    return [torch.optim.Adagrad(model.parameters(), lr=lr)]


def main():
    args = parse()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    users, items, hidden = dict(USER_FIELDS), dict(ITEM_FIELDS), 512
    if args.small:
        args.batch, args.dim, args.steps, hidden = 64, 8, 4, 32
        users = {k: 1000 for k in users}
        items = {k: 1000 for k in items}

    model = TwoTower(users, items, args.dim, hidden, device)
    optimizers = build_optimizers(model, args.lr)
    log = click_log({**users, **items}, args.batch, device)

    running = torch.zeros((), device=device)
    began = time.time()
    for step in range(1, args.steps + 1):
        # STEP
        batch = next(log)
        loss = F.binary_cross_entropy_with_logits(model(batch), batch["click"])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        running += loss.detach()
        if step % 60 == 0:
            print(f"step {step} loss {running.item() / 60:.4f} ({time.time() - began:.1f} s)")
            running.zero_()
    print("final loss", round(loss.item(), 6))


if __name__ == "__main__":
    main()
