"""Distil a frozen teacher into a small student for keyword spotting.  Teacher
outputs are remembered across epochs; the student sees the same clean features."""
import dataclasses
import random
import time
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CALLBACKS = {}


def callback(event):
    def deco(fn):
        CALLBACKS.setdefault(event, []).append(fn)
        return fn
    return deco


def fire(event, **kw):
    for fn in CALLBACKS.get(event, ()):
        fn(**kw)


@dataclasses.dataclass
class Cfg:
    samples: int = 320
    classes: int = 12
    mels: int = 32
    frames: int = 48
    batch: int = 32
    epochs: int = 24
    temperature: float = 3.0
    alpha: float = 0.7
    lr: float = 2e-3


class Clips(Dataset):
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(21)
        protos = torch.randn(cfg.classes, cfg.mels, cfg.frames, generator=g)
        self.y = torch.randint(0, cfg.classes, (cfg.samples,), generator=g)
        noise = torch.randn(cfg.samples, cfg.mels, cfg.frames, generator=g)
        self.x = 0.35 * protos[self.y] + noise

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return i, self.x[i], self.y[i]


def convnet(cfg, width, depth):
    layers, c = [], cfg.mels
    for _ in range(depth):
        layers += [nn.Conv1d(c, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU()]
        c = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(c, cfg.classes))


class TeacherMemory:
    """Serves the frozen teacher's logits, from memory where they are known."""

    def __init__(self, net, capacity):
        self.net = net.eval().requires_grad_(False)
        self.capacity = capacity
        self.store = OrderedDict()

    @torch.no_grad()
    def logits(self, idx, x):
        key = tuple(idx.tolist())
        if key in self.store:
            self.store.move_to_end(key)
            return self.store[key]
        out = self.net(x)
        self.store[key] = out
        if len(self.store) > self.capacity:
            self.store.popitem(last=False)
        return out


def kd_loss(student, teacher, y, cfg):
    t = cfg.temperature
    soft = F.kl_div(F.log_softmax(student / t, -1), F.softmax(teacher / t, -1), reduction="batchmean")
    return cfg.alpha * t * t * soft + (1 - cfg.alpha) * F.cross_entropy(student, y)


@callback("epoch_end")
def report(epoch, loss, acc):
    if epoch % 6 == 0:
        print(f"epoch {epoch:2d} loss {loss:.4f} acc {acc:.3f}")


def main():
    cfg = Cfg()
    random.seed(0)
    torch.manual_seed(0)
    data = Clips(cfg)
    loader = DataLoader(data, cfg.batch, shuffle=True, drop_last=False)
    teacher = TeacherMemory(convnet(cfg, 112, 4), capacity=cfg.samples)
    student = convnet(cfg, 48, 3)
    opt = torch.optim.AdamW(student.parameters(), lr=cfg.lr)
    steps, t0 = 0, time.perf_counter()
    for epoch in range(cfg.epochs):
        total, hits = 0.0, 0
        for idx, x, y in loader:
            target = teacher.logits(idx, x)
            pred = student(x)
            loss = kd_loss(pred, target, y, cfg)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.item() * len(y)
            hits += (pred.argmax(-1) == y).sum().item()
            steps += 1
        fire("epoch_end", epoch=epoch, loss=total / len(data), acc=hits / len(data))
    dt = time.perf_counter() - t0
    print(f"last loss {total / len(data):.5f}; {steps} steps, {dt / steps * 1e3:.3f} ms per step")


if __name__ == "__main__":
    main()
