"""Evaluate a PatchCore-like anomaly segmenter: image AUROC, pixel AUROC, AP."""
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

SIZE = 96


class SyntheticTextures(Dataset):
    """woven texture with optional scratch; returns image, mask, label"""

    def __init__(self, n, anomalous, seed):
        self.n, self.anomalous, self.seed = n, anomalous, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seed * 100003 + i)
        yy, xx = np.mgrid[:SIZE, :SIZE]
        img = 0.5 + 0.2 * np.sin(xx / 3 + rng.uniform(0, 6)) * np.sin(yy / 3 + rng.uniform(0, 6))
        img = img[None].repeat(3, 0) + rng.normal(0, 0.05, (3, SIZE, SIZE))
        mask = np.zeros((SIZE, SIZE), dtype=np.int64)
        if self.anomalous and i % 2:
            r, c = rng.integers(10, SIZE - 30, 2)
            mask[r:r + 6, c:c + 24] = 1
            img[:, mask == 1] += 0.25
        return torch.from_numpy(img.astype(np.float32)), torch.from_numpy(mask), int(mask.any())


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Sequential(nn.Conv2d(3, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 48, 3, 1, 1), nn.ReLU())
        self.l2 = nn.Sequential(nn.Conv2d(48, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU())

    def forward(self, x):
        a = self.l1(x)
        b = self.l2(a)
        a = F.avg_pool2d(a, 3, 2, 1)
        return torch.cat([a, b], 1)


class PatchBank:
    def __init__(self, backbone, n_keep=1024):
        self.net = backbone.eval()
        self.n_keep = n_keep
        self.bank = None

    @torch.no_grad()
    def fit(self, loader):
        feats = []
        for x, _, _ in loader:
            feats.append(self.net(x).permute(0, 2, 3, 1).flatten(0, 2))
        feats = torch.cat(feats)
        perm = torch.randperm(len(feats))[: self.n_keep]
        self.bank = F.normalize(feats[perm], dim=1)

    @torch.no_grad()
    def score(self, x):
        f = self.net(x)
        b, c, h, w = f.shape
        q = F.normalize(f.permute(0, 2, 3, 1).reshape(-1, c), dim=1)
        d = 1 - (q @ self.bank.t()).max(1).values
        amap = F.interpolate(d.view(b, 1, h, w), size=(SIZE, SIZE), mode="bilinear", align_corners=False)
        k = torch.ones(1, 1, 5, 5) / 25
        amap = F.conv2d(F.pad(amap, (2, 2, 2, 2), mode="replicate"), k)[:, 0]
        return amap.clamp(0, 1), amap.flatten(1).amax(1).clamp(0, 1)


def evaluate(bank, loader, log_every=8):
    pixel = BinaryAUROC(thresholds=None)
    image = BinaryAUROC(thresholds=None)
    image_ap = BinaryAveragePrecision(thresholds=None)
    curve = []
    times = []
    tic = time.perf_counter()
    for i, (x, mask, label) in enumerate(loader):
        amap, score = bank.score(x)
        pixel.update(amap.flatten(), mask.flatten())
        image.update(score, label)
        image_ap.update(score, label)
        curve.append((i, pixel.compute().item(), score.mean().item()))
        if i % log_every == 0:
            print(f"batch {i:3d}  mean score {curve[-1][2]:.4f}  pixels {sum(t.numel() for t in pixel.preds)}")
        times.append(time.perf_counter() - tic)
        tic = time.perf_counter()
    out = dict(pixel_auroc=float(pixel.compute()), image_auroc=float(image.compute()),
               image_ap=float(image_ap.compute()))
    return out, curve, times


if __name__ == "__main__":
    torch.manual_seed(0)
    train = DataLoader(SyntheticTextures(32, False, 1), batch_size=8)
    test = DataLoader(SyntheticTextures(240, True, 2), batch_size=8, num_workers=1, prefetch_factor=4)
    bank = PatchBank(Backbone())
    bank.fit(train)
    res, curve, times = evaluate(bank, test)
    print(json.dumps({k: round(v, 5) for k, v in res.items()}))
    print(f"{len(times)} batches, median {1e3 * np.median(times):.1f} ms")
