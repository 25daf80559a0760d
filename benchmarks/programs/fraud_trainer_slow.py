"""Card-fraud classifier: small Trainer class with callbacks (metrics, early stopping, history)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Callback:
    def on_epoch_start(self, trainer): ...
    def on_batch_end(self, trainer, logits, target): ...
    def on_epoch_end(self, trainer): ...


def roc_auc(scores, labels):
    order = torch.argsort(scores, descending=True)
    hits = labels[order].double()
    tps, fps = hits.cumsum(0), (1 - hits).cumsum(0)
    return float(torch.trapezoid(tps / tps[-1].clamp(min=1), fps / fps[-1].clamp(min=1)))


class AUCMeter(Callback):
    def on_epoch_start(self, trainer):
        self.scores = torch.empty(0)
        self.labels = torch.empty(0)

    def on_batch_end(self, trainer, logits, target):
        self.scores = torch.cat([self.scores, logits.detach().sigmoid()])
        self.labels = torch.cat([self.labels, target])
        trainer.metrics["train_auc"] = roc_auc(self.scores, self.labels)

    def on_epoch_end(self, trainer):
        pass


class LossMeter(Callback):
    def on_epoch_start(self, trainer):
        self.total, self.seen = 0.0, 0

    def on_batch_end(self, trainer, logits, target):
        self.total += trainer.last_loss.item() * len(target)
        self.seen += len(target)
        trainer.metrics["train_loss"] = self.total / self.seen


class EarlyStopping(Callback):
    def __init__(self, key, patience=3):
        self.key, self.patience = key, patience
        self.best, self.bad = -math.inf, 0

    def on_epoch_end(self, trainer):
        value = trainer.metrics[self.key]
        if value > self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
            trainer.stop = self.bad >= self.patience


class History(Callback):
    def on_epoch_end(self, trainer):
        row = ", ".join(f"{k}={v:.4f}" for k, v in sorted(trainer.metrics.items()))
        print(f"epoch {trainer.epoch}: {row}")


class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
        self.metrics, self.stop, self.epoch = {}, False, 0

    def fire(self, hook, *args):
        for cb in self.callbacks:
            getattr(cb, hook)(self, *args)

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(x).squeeze(-1)
        loss = F.binary_cross_entropy_with_logits(logits, y, pos_weight=torch.tensor(4.0))
        loss.backward()
        self.optimizer.step()
        self.last_loss = loss.detach()
        return logits

    def fit(self, batches, epochs):
        for self.epoch in range(epochs):
            self.fire("on_epoch_start")
            self.model.train()
            for x, y in batches(self.epoch):
                logits = self.step(x, y)
                self.fire("on_batch_end", logits, y)
            self.fire("on_epoch_end")
            if self.stop:
                break


def make_data(n=160_000, d=40, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, generator=g) / math.sqrt(d)
    risk = x @ w + 0.6 * x[:, 0] * x[:, 1] + 0.8 * torch.randn(n, generator=g)
    return x, (risk > 1.7).float()


def main():
    torch.manual_seed(1)
    x, y = make_data()
    size = 2048

    def batches(epoch):
        perm = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for idx in perm.split(size):
            yield x[idx], y[idx]

    model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                          nn.Linear(256, 1))
    trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3),
                      [LossMeter(), AUCMeter(), EarlyStopping("train_auc"), History()])
    trainer.fit(batches, epochs=2)
    print(f"final auc {trainer.metrics['train_auc']:.4f}")


if __name__ == "__main__":
    main()
