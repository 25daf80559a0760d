"""Evaluate a small 3-D organ segmenter on CT volumes with overlapping windows."""
import argparse
from itertools import product

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--cases", type=int, default=2)
    p.add_argument("--roi", type=int, nargs=3, default=(24, 32, 32))
    p.add_argument("--overlap", type=float, default=0.5)
    p.add_argument("--classes", type=int, default=3)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


class Nifti:
    """Same interface as the scanner export: int16 on disk, scaled on access."""

    def __init__(self, data, slope=1.0, inter=-1024.0):
        self._data, self.slope, self.inter = data, slope, inter

    def get_fdata(self):
        return self._data.astype(np.float64) * self.slope + self.inter


def synth_case(rng, shape=(48, 80, 80)):
    zz, yy, xx = np.meshgrid(*[np.linspace(-1, 1, s) for s in shape], indexing="ij")
    label = np.zeros(shape, dtype=np.int64)
    for c in (1, 2):
        cz, cy, cx = rng.uniform(-0.4, 0.4, 3)
        rad = rng.uniform(0.25, 0.45)
        label[(zz - cz) ** 2 + (yy - cy) ** 2 + (xx - cx) ** 2 < rad ** 2] = c
    hu = np.array([900, 1060, 1200])[label] + rng.normal(0, 30, shape)
    return Nifti(hu.astype(np.int16)), torch.from_numpy(label)


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv3d(cin, cout, 3, padding=1), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01))


class UNet3d(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.enc1 = conv_block(1, width)
        self.enc2 = conv_block(width, width * 2)
        self.mid = conv_block(width * 2, width * 2)
        self.dec = conv_block(width * 3, width)
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.mid(self.enc2(F.max_pool3d(a, 2)))
        b = F.interpolate(b, scale_factor=2, mode="trilinear", align_corners=False)
        return self.head(self.dec(torch.cat([a, b], 1)))


def preprocess(img):
    vol = img.get_fdata()
    vol = np.clip(vol, -200, 300)
    vol = (vol - vol.mean()) / vol.std()
    return torch.from_numpy(vol)[None, None]


def gaussian_weight(roi, dtype):
    grids = torch.meshgrid(*[torch.arange(s, dtype=torch.float64) - (s - 1) / 2 for s in roi], indexing="ij")
    w = torch.ones(roi, dtype=torch.float64)
    for g, s in zip(grids, roi):
        w = w * torch.exp(-(g ** 2) / (2 * (0.125 * s) ** 2))
    return w.clamp_min(1e-3).to(dtype)


def window_starts(size, roi, overlap):
    step = max(int(roi * (1 - overlap)), 1)
    starts = list(range(0, size - roi, step))
    return starts + [size - roi]


@torch.no_grad()
def segment(model, vol, roi, overlap, classes):
    spatial = vol.shape[2:]
    scores = torch.zeros(1, classes, *spatial, dtype=vol.dtype)
    norm = torch.zeros(1, 1, *spatial, dtype=vol.dtype)
    positions = list(product(*[window_starts(s, r, overlap) for s, r in zip(spatial, roi)]))
    for z, y, x in positions:
        sl = (slice(None), slice(None), slice(z, z + roi[0]), slice(y, y + roi[1]), slice(x, x + roi[2]))
        logits = model(vol[sl])
        weight = gaussian_weight(roi, vol.dtype)
        scores[sl] += torch.softmax(logits, 1) * weight
        norm[sl] += weight
    return (scores / norm).argmax(1)[0]


def dice(pred, label, c):
    p, t = pred == c, label == c
    return (2 * (p & t).sum() / (p.sum() + t.sum()).clamp_min(1)).item()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    cases = [synth_case(rng) for _ in range(args.cases)]
    model = UNet3d(args.classes).double().eval()
    for i, (img, label) in enumerate(cases):
        vol = preprocess(img)
        pred = segment(model, vol, tuple(args.roi), args.overlap, args.classes)
        scores = " ".join(f"{dice(pred, label, c):.2f}" for c in range(1, args.classes))
        print(f"case {i}: dice {scores}  voxels {[int((pred == c).sum()) // 100 for c in range(args.classes)]} x100")


if __name__ == "__main__":
    main()
