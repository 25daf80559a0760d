"""Semantic segmentation of street scenes: trainer class, dataclass config."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    classes: int = 19
    size: int = 96
    images: int = 96
    batch_size: int = 8
    epochs: int = 5
    lr: float = 2e-3
    seed: int = 3
    ignore: int = 255


class Scenes(Dataset):
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        blocks = torch.randint(0, cfg.classes, (cfg.images, 1, 6, 6), generator=g).float()
        self.labels = F.interpolate(blocks, size=(cfg.size, cfg.size), mode="nearest")[:, 0].long()
        palette = torch.rand(cfg.classes, 3, generator=g)
        self.images = palette[self.labels].permute(0, 3, 1, 2).contiguous()
        self.images += 0.05 * torch.randn(self.images.shape, generator=g)
        self.labels[:, :2] = cfg.ignore

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class SegNet(nn.Module):
    def __init__(self, classes, width=24):
        super().__init__()

        def block(i, o, stride):
            return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        self.stem = block(3, width, 2)
        self.body = nn.Sequential(block(width, width, 1), block(width, width * 2, 2), block(width * 2, width * 2, 1))
        self.head = nn.Conv2d(width * 2, classes, 1)

    def forward(self, x):
        y = self.head(self.body(self.stem(x)))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class RunningScore:
    def __init__(self, classes, ignore):
        self.classes, self.ignore = classes, ignore
        self.reset()

    def reset(self):
        self.matrix = np.zeros((self.classes, self.classes), dtype=np.int64)

    def _hist(self, true, pred):
        hist = np.zeros((self.classes, self.classes), dtype=np.int64)
        valid = true != self.ignore
        true, pred = true[valid], pred[valid]
        for t in range(self.classes):
            for p in range(self.classes):
                hist[t, p] = np.sum((true == t) & (pred == p))
        return hist

    def update(self, trues, preds):
        for t, p in zip(trues, preds):
            self.matrix += self._hist(t.flatten(), p.flatten())

    def miou(self):
        inter = np.diag(self.matrix)
        union = self.matrix.sum(0) + self.matrix.sum(1) - inter
        return float(np.mean(inter / np.maximum(union, 1)))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.model = SegNet(cfg.classes)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.loader = DataLoader(Scenes(cfg), cfg.batch_size, shuffle=True, drop_last=True)
        self.score = RunningScore(cfg.classes, cfg.ignore)

    def train_step(self, images, labels):
        self.optim.zero_grad(set_to_none=True)
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels, ignore_index=self.cfg.ignore)
        loss.backward()
        self.optim.step()
        return loss.item(), logits.detach()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.model.train()
            self.score.reset()
            total = 0.0
            for images, labels in self.loader:
                loss, logits = self.train_step(images, labels)
                total += loss
                self.score.update(labels.numpy(), logits.argmax(1).numpy())
            print(f"epoch {epoch} loss {total / len(self.loader):.4f} mIoU {self.score.miou():.4f}")


if __name__ == "__main__":
    Trainer(Config()).fit()
