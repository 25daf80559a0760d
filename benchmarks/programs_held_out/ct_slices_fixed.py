"""2D lesion segmentation on slices of CT-like volumes."""
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm


def write_cases(root, n=6, depth=40, size=128, seed=0):
    rng = np.random.default_rng(seed)
    paths = []
    zz, yy, xx = np.mgrid[:depth, :size, :size]
    for k in range(n):
        vol = rng.normal(-500, 60, (depth, size, size))
        body = ((yy - size / 2) ** 2 / 50 ** 2 + (xx - size / 2) ** 2 / 40 ** 2) < 1
        vol[body] += 540
        seg = np.zeros_like(vol, dtype=np.uint8)
        for _ in range(5):
            c = rng.uniform((5, 40, 40), (depth - 5, 88, 88))
            r = rng.uniform(3, 9)
            blob = ((zz - c[0]) ** 2 + (yy - c[1]) ** 2 + (xx - c[2]) ** 2) < r * r
            seg[blob] = 1
        vol[seg == 1] += 80
        p = os.path.join(root, f"case_{k:03d}.npz")
        np.savez_compressed(p, vol=vol.astype(np.int16), seg=seg)
        paths.append(p)
    return paths


class SliceDataset(Dataset):
    """one item = 3 neighbouring slices (2.5D) and the centre mask"""

    def __init__(self, paths, window=(-160, 240), train=True):
        self.paths = paths
        self.lo, self.hi = window
        self.train = train
        self.index = []
        self.cases = {}
        for k, p in enumerate(paths):
            with np.load(p) as f:
                d = f["seg"].shape[0]
            self.index += [(k, z) for z in range(1, d - 1)]

    def __len__(self):
        return len(self.index)

    def case(self, k):
        if k not in self.cases:
            with np.load(self.paths[k]) as f:
                self.cases[k] = f["vol"], f["seg"]
        return self.cases[k]

    def __getitem__(self, i):
        k, z = self.index[i]
        vol, seg = self.case(k)
        x = vol[z - 1:z + 2].astype(np.float32)
        x = (np.clip(x, self.lo, self.hi) - self.lo) / (self.hi - self.lo)
        y = seg[z].astype(np.int64)
        if self.train and np.random.rand() < 0.5:
            x, y = x[:, :, ::-1], y[:, ::-1]
        if self.train:
            x = x * np.random.uniform(0.9, 1.1) + np.random.uniform(-0.05, 0.05)
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)), torch.from_numpy(y.copy())


def double_conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.InstanceNorm2d(o, affine=True), nn.LeakyReLU(0.01, True),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.InstanceNorm2d(o, affine=True), nn.LeakyReLU(0.01, True))


class UNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.e1, self.e2, self.e3 = double_conv(3, w), double_conv(w, 2 * w), double_conv(2 * w, 4 * w)
        self.u2, self.d2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), double_conv(4 * w, 2 * w)
        self.u1, self.d1 = nn.ConvTranspose2d(2 * w, w, 2, 2), double_conv(2 * w, w)
        self.out = nn.Conv2d(w, 2, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(F.max_pool2d(a, 2))
        c = self.e3(F.max_pool2d(b, 2))
        b = self.d2(torch.cat([self.u2(c), b], 1))
        return self.out(self.d1(torch.cat([self.u1(b), a], 1)))


def dice_ce(logits, y):
    p = logits.softmax(1)[:, 1]
    t = (y == 1).float()
    inter = (p * t).sum((1, 2))
    dice = 1 - (2 * inter + 1) / (p.sum((1, 2)) + t.sum((1, 2)) + 1)
    return dice.mean() + F.cross_entropy(logits, y, weight=torch.tensor([0.2, 1.0]))


class Trainer:
    def __init__(self, net, loader, lr=3e-3, epochs=1):
        self.net, self.loader, self.epochs = net, loader, epochs
        self.opt = torch.optim.AdamW(net.parameters(), lr=lr)
        self.history = []
        self.step_times = []

    def fit(self):
        for ep in range(self.epochs):
            bar = tqdm(self.loader, desc=f"ep{ep}", mininterval=5, ascii=True)
            last = time.perf_counter()
            for x, y in bar:
                loss = dice_ce(self.net(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.history.append(loss.item())
                bar.set_postfix(loss=f"{self.history[-1]:.3f}", refresh=False)
                now = time.perf_counter()
                self.step_times.append(now - last)
                last = now


if __name__ == "__main__":
    torch.manual_seed(0)
    np.random.seed(0)
    with tempfile.TemporaryDirectory() as root:
        paths = write_cases(root)
        dl = DataLoader(SliceDataset(paths), batch_size=4, shuffle=True, drop_last=True)
        tr = Trainer(UNet(), dl)
        tr.fit()
    print("loss", round(np.mean(tr.history[-10:]), 4))
    print(f"median step {1e3 * np.median(tr.step_times[2:]):.1f} ms")
