"""Lesion segmentation with a small U-Net and a callback-driven trainer (synthetic CT-like slices)."""
import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = ("background", "organ", "lesion")


def make_slices(n, size, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:size, :size].astype(np.float32) / size - 0.5
    images, labels = np.zeros((n, 1, size, size), np.float32), np.zeros((n, size, size), np.int64)
    for k in range(n):
        cx, cy = rng.uniform(-0.12, 0.12, 2)
        a, b = rng.uniform(0.2, 0.35, 2)
        organ = ((xx - cx) / a) ** 2 + ((yy - cy) / b) ** 2 < 1
        labels[k][organ] = 1
        for _ in range(rng.integers(1, 4)):
            lx, ly, r = cx + rng.uniform(-0.15, 0.15), cy + rng.uniform(-0.15, 0.15), rng.uniform(0.03, 0.08)
            labels[k][organ & ((xx - lx) ** 2 + (yy - ly) ** 2 < r * r)] = 2
        tone = np.array([0.0, 0.5, 0.8], np.float32)[labels[k]]
        images[k, 0] = tone + 0.25 * rng.standard_normal((size, size)) + 0.2 * np.sin(9 * xx + k)
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width=16, depth=3, classes=len(CLASSES)):
        super().__init__()
        chans = [width * 2 ** i for i in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([1] + chans[:-1], chans))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(chans, chans[1:]))
        self.merge = nn.ModuleList(DoubleConv(2 * a, a) for a in chans[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for up, merge, skip in reversed(list(zip(self.up, self.merge, skips))):
            x = merge(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


class DiceCELoss(nn.Module):
    def forward(self, logits, target):
        ce = F.cross_entropy(logits, target)
        prob = logits.softmax(1)
        onehot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
        inter = (prob * onehot).sum((0, 2, 3))
        dice = (2 * inter + 1) / (prob.sum((0, 2, 3)) + onehot.sum((0, 2, 3)) + 1)
        return ce + 1 - dice[1:].mean()


class LesionScores:
    """Voxel-wise lesion AUROC and best-threshold-free Dice over the epoch so far."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.truth = [], []

    def update(self, logits, target):
        self.scores.append(logits.softmax(1)[:, 2].flatten())
        self.truth.append((target == 2).flatten())

    def compute(self):
        score, truth = torch.cat(self.scores), torch.cat(self.truth)
        order = score.argsort()
        pos = truth.sum()
        neg = len(truth) - pos
        ranks = order.new_empty(len(order)).scatter_(0, order, torch.arange(1, len(order) + 1))
        auroc = (ranks[truth].double().sum() - pos * (pos + 1) / 2) / (pos * neg).clamp(min=1)
        hard = score > 0.5
        dice = 2 * (hard & truth).sum() / (hard.sum() + pos).clamp(min=1)
        return {"auroc": auroc.item(), "dice": dice.item()}


class Callback:
    def on_epoch_start(self, trainer): ...
    def on_batch_end(self, trainer, logits, target): ...
    def on_epoch_end(self, trainer): ...


class MetricCallback(Callback):
    def __init__(self, metric):
        self.metric = metric

    def on_epoch_start(self, trainer):
        self.metric.reset()

    def on_batch_end(self, trainer, logits, target):
        self.metric.update(logits, target)
        if trainer.step % trainer.log_every == 0:
            trainer.logs.update(self.metric.compute())

    def on_epoch_end(self, trainer):
        for name, value in self.metric.compute().items():
            trainer.history[name].append(value)


class PrintCallback(Callback):
    def __init__(self, every):
        self.every = every

    def on_batch_end(self, trainer, logits, target):
        if trainer.step % self.every == 0:
            shown = "  ".join(f"{k} {v:.4f}" for k, v in trainer.logs.items())
            print(f"  step {trainer.step:3d}  loss {trainer.loss.item():.4f}  {shown}")

    def on_epoch_end(self, trainer):
        print(f"epoch {trainer.epoch}: " + "  ".join(f"{k} {v[-1]:.4f}" for k, v in trainer.history.items()))


class Trainer:
    def __init__(self, model, loss_fn, optimizer, callbacks, log_every):
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.callbacks, self.log_every = callbacks, log_every
        self.step = self.epoch = 0
        self.logs, self.history = {}, defaultdict(list)

    def emit(self, event, *args):
        for cb in self.callbacks:
            getattr(cb, event)(self, *args)

    def fit(self, loader, epochs):
        self.model.train()
        for self.epoch in range(1, epochs + 1):
            self.emit("on_epoch_start")
            for image, target in loader:
                self.step += 1
                logits = self.model(image)
                loss = self.loss_fn(logits, target)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                self.loss = loss.detach()
                self.emit("on_batch_end", logits.detach(), target)
            self.emit("on_epoch_end")
        return self.history


def main(epochs=2, log_every=10):
    torch.manual_seed(0)
    loader = DataLoader(make_slices(240, 64, seed=1), batch_size=8, shuffle=True, drop_last=True)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    callbacks = [MetricCallback(LesionScores()), PrintCallback(log_every)]
    trainer = Trainer(model, DiceCELoss(), optimizer, callbacks, log_every)
    start = time.perf_counter()
    trainer.fit(loader, epochs)
    took = time.perf_counter() - start
    print(f"{trainer.step} steps in {took:.1f} s ({1e3 * took / trainer.step:.1f} ms per step)")


if __name__ == "__main__":
    main()
