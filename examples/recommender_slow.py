"""Recommendation: a two-tower model learns which items a user will click on.

Usage (needs torch)::

    python recommender_slow.py
"""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 120
BATCH_SIZE = 1024
USERS = 60_000
ITEMS = 120_000
WIDTH = 32


class Tower(nn.Module):
    """A table of embeddings and a small network on top."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return a vector of length one per id, float32[batch, 64]."""
        return F.normalize(self.network(self.table(ids)), dim=-1)


class Recommender(nn.Module):
    """Users and items in one space."""

    def __init__(self) -> None:
        super().__init__()
        self.users = Tower(USERS)
        self.items = Tower(ITEMS)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return how well every item fits every user, float32[batch, batch]."""
        return self.users(users) @ self.items(items).T / 0.1


def main() -> None:
    """Train on synthetic clicks and print the loss now and then."""
    users = torch.randint(USERS, (50_000,))
    items = (users * 7 + torch.randint(50, users.shape)) % ITEMS
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step_ms = []
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = torch.randint(len(users), (BATCH_SIZE,))
        scores = model(users[batch], items[batch])
        loss = F.cross_entropy(scores, torch.arange(BATCH_SIZE))
        model.zero_grad()
        loss.backward()
        optimizer.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"mean step: {statistics.mean(step_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
