"""FedAvg simulation: 12 hospitals with small, skewed sets of ECG beats."""
import argparse
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class FedConfig:
    clients: int = 12
    rounds: int = 5
    fraction: float = 0.75
    local_epochs: int = 1
    batch_size: int = 32
    lr: float = 0.1
    workers: int = 0
    beats: int = 160
    length: int = 128
    classes: int = 5
    seed: int = 0


class Beats(Dataset):
    """Synthetic beats: a QRS-like bump whose width and delay depend on the class."""

    def __init__(self, n, cfg, class_probs, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.multinomial(class_probs, n, replacement=True, generator=g)
        t = torch.linspace(-1, 1, cfg.length)
        width = 0.05 + 0.04 * self.y[:, None]
        delay = 0.3 * torch.randn(n, 1, generator=g) * 0.3 + 0.1 * self.y[:, None] - 0.2
        clean = torch.exp(-((t - delay) / width) ** 2) - 0.4 * torch.exp(-((t - delay - 0.3) / 0.12) ** 2)
        self.x = (clean + 0.25 * torch.randn(n, cfg.length, generator=g)).unsqueeze(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        beat = self.x[i]
        return (beat - beat.mean()) / beat.std(), self.y[i]


class BeatNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 24, 7, padding=3), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(24, 48, 5, padding=2), nn.GroupNorm(4, 48), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(48, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        )
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.body(x))


class Client:
    def __init__(self, cid, cfg, probs):
        self.cid, self.cfg = cid, cfg
        self.data = Beats(cfg.beats, cfg, probs, seed=100 + cid)

    def fit(self, global_model, rnd):
        model = copy.deepcopy(global_model)
        model.train()
        opt = torch.optim.SGD(model.parameters(), lr=self.cfg.lr, momentum=0.9)
        order = torch.Generator().manual_seed(1000 * rnd + self.cid)
        loader = DataLoader(self.data, batch_size=self.cfg.batch_size, shuffle=True,
                            num_workers=self.cfg.workers, generator=order)
        total = 0.0
        for _ in range(self.cfg.local_epochs):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item() * len(y)
        return model.state_dict(), len(self.data), total / (self.cfg.local_epochs * len(self.data))


def aggregate(updates):
    weight = sum(n for _, n, _ in updates)
    return {k: sum(sd[k] * (n / weight) for sd, n, _ in updates) for k in updates[0][0]}


@torch.no_grad()
def evaluate(model, data, batch_size=256):
    model.eval()
    hits = 0
    for x, y in DataLoader(data, batch_size=batch_size):
        hits += (model(x).argmax(1) == y).sum().item()
    return hits / len(data)


def main():
    ap = argparse.ArgumentParser()
    for name, value in vars(FedConfig()).items():
        ap.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    cfg = FedConfig(**vars(ap.parse_args()))

    torch.manual_seed(cfg.seed)
    skew = torch.distributions.Dirichlet(torch.full((cfg.classes,), 0.6)).sample((cfg.clients,))
    clients = [Client(i, cfg, skew[i]) for i in range(cfg.clients)]
    test = Beats(500, cfg, torch.ones(cfg.classes), seed=9)
    model = BeatNet(cfg.classes)
    pick = torch.Generator().manual_seed(cfg.seed)

    for rnd in range(cfg.rounds):
        chosen = torch.randperm(cfg.clients, generator=pick)[: max(1, int(cfg.fraction * cfg.clients))]
        updates = []
        for cid in chosen.tolist():
            updates.append(clients[cid].fit(model, rnd))
        model.load_state_dict(aggregate(updates))
        train_loss = sum(l * n for _, n, l in updates) / sum(n for _, n, _ in updates)
        print(f"round {rnd}: {len(updates)} clients, train loss {train_loss:.4f}, test acc {evaluate(model, test):.3f}")


if __name__ == "__main__":
    main()
