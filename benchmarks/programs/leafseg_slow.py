"""Leaf-disease patch segmentation on synthetic photographs.

A small U-Net is trained on random patches of larger "photographs" (green leaves with brown
spots on soil).  The augmentation pipeline imitates the one we use for the field images.
"""
import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


# --------------------------------------------------------------------------- transforms
class Transform:
    """Every transform owns its random generator, so a pipeline is reproducible."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, img, mask):
        raise NotImplementedError


class HFlip(Transform):
    def __call__(self, img, mask):
        if self.rng.random() < 0.5:
            return img.flip(-1), mask.flip(-1)
        return img, mask


class Gamma(Transform):
    def __call__(self, img, mask):
        g = math.exp(self.rng.uniform(-0.3, 0.3))
        return img.clamp(1e-3, 1.0).pow(g), mask


class Saturation(Transform):
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)

    def __call__(self, img, mask):
        s = self.rng.uniform(0.6, 1.4)
        gray = (img * self.weights).sum(0, keepdim=True)
        return torch.lerp(gray, img, s).clamp(0, 1), mask


class WhiteBalance(Transform):
    def __call__(self, img, mask):
        gain = torch.from_numpy(self.rng.uniform(0.9, 1.1, (3, 1, 1)).astype(np.float32))
        return (img * gain).clamp(0, 1), mask


class Normalize(Transform):
    mean = torch.tensor([0.42, 0.46, 0.31]).view(3, 1, 1)
    std = torch.tensor([0.22, 0.20, 0.19]).view(3, 1, 1)

    def __call__(self, img, mask):
        return (img - self.mean) / self.std, mask


class RandomCrop(Transform):
    def __init__(self, seed, size):
        super().__init__(seed)
        self.size = size

    def __call__(self, img, mask):
        h, w = mask.shape
        y = int(self.rng.integers(0, h - self.size + 1))
        x = int(self.rng.integers(0, w - self.size + 1))
        win = (slice(y, y + self.size), slice(x, x + self.size))
        return img[(slice(None),) + win], mask[win]


class Compose:
    def __init__(self, *ts):
        self.ts = ts

    def __call__(self, img, mask):
        for t in self.ts:
            img, mask = t(img, mask)
        return img, mask


def train_pipeline(seed, patch):
    return Compose(
        Gamma(seed + 1),
        WhiteBalance(seed + 2),
        Saturation(seed + 3),
        Normalize(seed + 4),
        RandomCrop(seed + 5, patch),
        HFlip(seed + 6),
    )


# --------------------------------------------------------------------------- data
class LeafPhotos(Dataset):
    def __init__(self, n, size, tf, seed):
        g = np.random.default_rng(seed)
        yy, xx = np.mgrid[0:size, 0:size].astype(np.float32) / size
        self.images, self.masks, self.tf = [], [], tf
        for _ in range(n):
            cx, cy, r = g.uniform(0.3, 0.7, 3)
            leaf = ((xx - cx) ** 2 + 1.7 * (yy - cy) ** 2) < (0.6 * r) ** 2
            spots = np.zeros_like(leaf)
            for _ in range(int(g.integers(8, 20))):
                sx, sy, sr = g.uniform(0, 1), g.uniform(0, 1), g.uniform(0.01, 0.06)
                spots |= (xx - sx) ** 2 + (yy - sy) ** 2 < sr ** 2
            spots &= leaf
            img = np.full((3, size, size), 110, np.float32)
            img[:, leaf] = np.array([[60], [150], [50]], np.float32)
            img[:, spots] = np.array([[130], [90], [50]], np.float32)
            img += g.normal(0, 12, img.shape)
            self.images.append(torch.from_numpy(img.clip(0, 255).astype(np.uint8)))
            self.masks.append(torch.from_numpy(spots))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = self.images[i].float().div_(255)
        img, mask = self.tf(img, self.masks[i])
        return img, mask.float()


# --------------------------------------------------------------------------- model
def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(True))


class MiniUNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.d1, self.d2, self.d3 = block(3, w), block(w, 2 * w), block(2 * w, 4 * w)
        self.u2, self.u1 = block(6 * w, 2 * w), block(3 * w, w)
        self.head = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        y = self.u2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        y = self.u1(torch.cat([F.interpolate(y, scale_factor=2.0), a], 1))
        return self.head(y).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=20)
    ap.add_argument("--photos", type=int, default=60)
    ap.add_argument("--size", type=int, default=384)
    ap.add_argument("--patch", type=int, default=64)
    ap.add_argument("--bs", type=int, default=6)
    ap.add_argument("--seed", type=int, default=7)
    a = ap.parse_args()
    torch.manual_seed(a.seed)

    ds = LeafPhotos(a.photos, a.size, train_pipeline(a.seed, a.patch), a.seed)
    dl = DataLoader(ds, batch_size=a.bs, shuffle=True, drop_last=True)
    net = MiniUNet().to(memory_format=torch.channels_last)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    pos_weight = torch.tensor(6.0)

    t0, steps = time.perf_counter(), 0
    for ep in range(a.epochs):
        total = torch.zeros(())
        for x, y in dl:
            loss = F.binary_cross_entropy_with_logits(net(x), y, pos_weight=pos_weight)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
            steps += 1
        print(f"epoch {ep:2d}  loss {total.item() / len(dl):.4f}", flush=True)
    print(f"{(time.perf_counter() - t0) / steps * 1e3:.2f} ms/step over {steps} steps")


if __name__ == "__main__":
    main()
