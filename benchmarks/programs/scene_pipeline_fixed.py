"""Multi-object scene classifier fed by DataLoader workers; ragged objects per scene."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Config:
    scenes: int = 1200
    batch_size: int = 24
    max_objects: int = 8
    points: int = 16
    classes: int = 6
    workers: int = 1
    epochs: int = 1
    lr: float = 2e-3
    seed: int = 3


class SceneDataset(Dataset):
    """Each scene: a variable number of objects, every object a small point set plus a box."""

    def __init__(self, cfg):
        self.cfg = cfg

    def __len__(self):
        return self.cfg.scenes

    def __getitem__(self, i):
        rng = np.random.default_rng(self.cfg.seed * 1_000_003 + i)
        label = i % self.cfg.classes
        n = int(rng.integers(self.cfg.max_objects // 2, self.cfg.max_objects + 1))
        centers = rng.normal(size=(n, 1, 3)).astype(np.float32)
        points = centers + rng.normal(scale=0.1 + 0.05 * label, size=(n, self.cfg.points, 3)).astype(np.float32)
        objects = []
        for k in range(n):
            cloud = torch.from_numpy(points[k])
            box = torch.cat([cloud.amin(0), cloud.amax(0)])
            objects.append({"cloud": cloud, "box": box})
        return objects, label


def pad_scenes(scenes, labels, cfg):
    clouds = torch.zeros(len(scenes), cfg.max_objects, cfg.points, 3)
    boxes = torch.zeros(len(scenes), cfg.max_objects, 6)
    mask = torch.zeros(len(scenes), cfg.max_objects)
    for i, objects in enumerate(scenes):
        n = len(objects)
        clouds[i, :n] = torch.stack([o["cloud"] for o in objects])
        boxes[i, :n] = torch.stack([o["box"] for o in objects])
        mask[i, :n] = 1
    return clouds, boxes, mask, torch.tensor(labels)


class Collate:
    def __init__(self, cfg):
        self.cfg = cfg

    def __call__(self, items):
        scenes, labels = zip(*items)
        return pad_scenes(scenes, labels, self.cfg)


class SceneNet(nn.Module):
    def __init__(self, cfg, dim=64):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.box = nn.Linear(6, dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, cfg.classes))

    def forward(self, clouds, boxes, mask):
        centered = clouds - clouds.mean(2, keepdim=True)
        h = self.point(centered).amax(2) + self.box(boxes)
        h = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.head(h)


def train(cfg):
    torch.manual_seed(cfg.seed)
    model = SceneNet(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    loader = DataLoader(SceneDataset(cfg), batch_size=cfg.batch_size, shuffle=True,
                        num_workers=cfg.workers, collate_fn=Collate(cfg))
    for epoch in range(cfg.epochs):
        total, correct, seen = 0.0, 0, 0
        for clouds, boxes, mask, target in loader:
            logits = model(clouds, boxes, mask)
            loss = F.cross_entropy(logits, target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(target)
            correct += (logits.argmax(1) == target).sum().item()
            seen += len(target)
        print(f"epoch {epoch}: loss {total / seen:.4f} acc {correct / seen:.3f}")


if __name__ == "__main__":
    train(Config())
