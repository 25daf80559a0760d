"""Federated averaging, all parties simulated in one process."""
import copy
import json
import logging
from dataclasses import dataclass, field
from typing import Dict, List

import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("fed")


@dataclass
class FedConfig:
    clients: int = 20
    per_round: int = 5
    rounds: int = 15
    local_epochs: int = 1
    batch: int = 64
    samples: int = 8000
    lr: float = 0.05
    seed: int = 11
    hidden: List[int] = field(default_factory=lambda: [192, 96])


def build(cfg):
    dims = [64] + cfg.hidden + [10]
    layers = []
    for a, b in zip(dims[:-1], dims[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def pack(state: Dict[str, torch.Tensor]):
    return {k: v.clone() for k, v in state.items()}


def unpack(message):
    return message


class Client:
    def __init__(self, cid, cfg, x, y, owner):
        self.cid, self.cfg = cid, cfg
        self.x, self.y, self.owner = x, y, owner
        self.mine = (owner == cid).nonzero().squeeze(1)

    def train(self, model, message):
        model.load_state_dict(unpack(message))
        mine = self.mine
        opt = torch.optim.SGD(model.parameters(), lr=self.cfg.lr, momentum=0.9)
        model.train()
        for _ in range(self.cfg.local_epochs):
            for sel in mine[torch.randperm(len(mine))].split(self.cfg.batch):
                opt.zero_grad()
                loss = F.cross_entropy(model(self.x[sel]), self.y[sel])
                loss.backward()
                opt.step()
        return pack(model.state_dict()), len(mine), loss.item()


class Server:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = build(cfg)
        centers = torch.randn(10, 64)
        self.y = torch.randint(10, (cfg.samples + 1000,))
        self.x = centers[self.y] + 1.5 * torch.randn(len(self.y), 64)
        owner = (self.y[:cfg.samples] * 2 + torch.randint(0, 3, (cfg.samples,))) % cfg.clients
        self.clients = [Client(c, cfg, self.x, self.y, owner) for c in range(cfg.clients)]

    def aggregate(self, replies):
        total = sum(n for _, n, _ in replies)
        merged = {k: torch.zeros_like(v) for k, v in self.model.state_dict().items()}
        for message, n, _ in replies:
            for k, v in unpack(message).items():
                merged[k] += v * (n / total)
        self.model.load_state_dict(merged)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.x[self.cfg.samples:], self.y[self.cfg.samples:]
        return (self.model(x).argmax(1) == y).float().mean().item()

    def round(self, rnd):
        chosen = torch.randperm(self.cfg.clients)[: self.cfg.per_round].tolist()
        message = pack(self.model.state_dict())
        replies = [self.clients[c].train(copy.deepcopy(self.model), message) for c in chosen]
        self.aggregate(replies)
        return sum(r[2] for r in replies) / len(replies)


if __name__ == "__main__":
    cfg = FedConfig()
    torch.manual_seed(cfg.seed)
    server = Server(cfg)
    for rnd in range(1, cfg.rounds + 1):
        loss = server.round(rnd)
        if rnd % 5 == 0:
            log.info("round %d  client loss %.4f  test acc %.3f", rnd, loss, server.evaluate())
    print(f"final accuracy {server.evaluate():.3f}")
