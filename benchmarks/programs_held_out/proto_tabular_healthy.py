"""Prototypical network for few-shot classification of tabular records.

A family of synthetic tasks: each class is a Gaussian in a latent space that is
pushed through a fixed random nonlinearity; 80 classes to train on, 20 new ones to test on.
"""
import time
from dataclasses import dataclass, replace

import torch
from torch import nn


@dataclass(frozen=True)
class Setup:
    n_train_classes: int = 80
    n_test_classes: int = 20
    per_class: int = 200
    latent: int = 12
    features: int = 96
    way: int = 16
    shot: int = 5
    query: int = 27
    width: int = 768
    embed: int = 128
    episodes: int = 600
    lr: float = 5e-4
    seed: int = 9


class World:
    """Records as one (classes, per_class, features) tensor, so an episode is one gather."""

    def __init__(self, cfg: Setup):
        g = torch.Generator().manual_seed(cfg.seed)
        n = cfg.n_train_classes + cfg.n_test_classes
        centre = torch.randn(n, 1, cfg.latent, generator=g)
        z = centre + 0.7 * torch.randn(n, cfg.per_class, cfg.latent, generator=g)
        mix1 = torch.randn(cfg.latent, 64, generator=g) / cfg.latent ** 0.5
        mix2 = torch.randn(64, cfg.features, generator=g) / 8
        x = torch.sin(2 * z @ mix1) @ mix2
        x = x + 0.1 * torch.randn(x.shape, generator=g)
        flat = x[:cfg.n_train_classes].reshape(-1, cfg.features)
        x = (x - flat.mean(0)) / flat.std(0)
        self.train, self.test = x[:cfg.n_train_classes], x[cfg.n_train_classes:]


class Episodes:
    """Iterates (support, query): shapes (way, shot, F) and (way, query, F)."""

    def __init__(self, records, cfg, count, seed):
        self.records, self.cfg, self.count = records, cfg, count
        self.gen = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.count

    def __iter__(self):
        cfg = self.cfg
        classes, rows, _ = self.records.shape
        need = cfg.shot + cfg.query
        for _ in range(self.count):
            c = torch.randperm(classes, generator=self.gen)[:cfg.way]
            r = torch.rand(cfg.way, rows, generator=self.gen).topk(need, dim=1).indices
            x = self.records[c[:, None], r]
            yield x[:, :cfg.shot], x[:, cfg.shot:]


class Encoder(nn.Sequential):
    def __init__(self, cfg):
        super().__init__(
            nn.Linear(cfg.features, cfg.width), nn.LayerNorm(cfg.width), nn.GELU(),
            nn.Linear(cfg.width, cfg.width), nn.LayerNorm(cfg.width), nn.GELU(),
            nn.Linear(cfg.width, cfg.width), nn.LayerNorm(cfg.width), nn.GELU(),
            nn.Linear(cfg.width, cfg.embed),
        )


class ProtoNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.log_scale = nn.Parameter(torch.tensor(-2.0))

    def forward(self, support, query):
        way, shot, _ = support.shape
        both = torch.cat([support.flatten(0, 1), query.flatten(0, 1)])
        z = self.encoder(both)                        # one pass for support and queries
        proto = z[:way * shot].view(way, shot, -1).mean(1)
        q = z[way * shot:]
        dist = q.square().sum(1, keepdim=True) - 2 * q @ proto.t() + proto.square().sum(1)
        return -dist * self.log_scale.exp()


def targets(cfg):
    return torch.arange(cfg.way).repeat_interleave(cfg.query)


@torch.inference_mode()
def evaluate(net, world, cfg, episodes=40):
    net.eval()
    y = targets(cfg)
    acc = torch.zeros(())
    for support, query in Episodes(world.test, cfg, episodes, seed=123):
        acc += (net(support, query).argmax(1) == y).float().mean()
    net.train()
    return acc.item() / episodes


class Progress:
    def __init__(self, every):
        self.every = every
        self.loss, self.acc = torch.zeros(()), torch.zeros(())

    def __call__(self, i, loss, logits, y):
        self.loss += loss
        self.acc += (logits.argmax(1) == y).float().mean()
        if i % self.every == 0:
            print(f"episode {i:4d}  loss {self.loss.item() / self.every:.4f}  "
                  f"acc {self.acc.item() / self.every:.3f}")
            self.loss.zero_(), self.acc.zero_()


def main():
    cfg = Setup()
    torch.manual_seed(cfg.seed)
    world = World(cfg)
    net = ProtoNet(cfg)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr, fused=True)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
    y = targets(cfg)
    report = Progress(every=120)
    print(f"before: {evaluate(net, world, cfg):.3f} on new classes")
    t0 = time.perf_counter()
    for i, (support, query) in enumerate(Episodes(world.train, cfg, cfg.episodes, cfg.seed), 1):
        logits = net(support, query)
        loss = loss_fn(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        report(i, loss.detach(), logits.detach(), y)
    ms = (time.perf_counter() - t0) / cfg.episodes * 1e3
    easy = replace(cfg, way=5)
    print(f"after: {evaluate(net, world, cfg):.3f} (16-way), {evaluate(net, world, easy):.3f} (5-way)")
    print(f"{ms:.2f} ms/episode")


if __name__ == "__main__":
    main()
