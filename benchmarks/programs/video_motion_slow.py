"""Classify motion patterns in short clips. Dataset / transforms / trainer with callbacks."""
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

MOTIONS = ("left", "right", "up", "down", "orbit", "bounce", "grow", "shrink")


def synth_clip(label, rng, frames=48, h=80, w=104):
    """uint8 video (T, H, W, 3): a coloured blob over a static textured background."""
    yy, xx = np.mgrid[0:h, 0:w]
    back = rng.integers(20, 90, (h // 8, w // 8, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    video = np.repeat(back[None], frames, 0)
    colour = rng.integers(140, 255, 3).astype(np.uint8)
    cx, cy, r = rng.uniform(0.35, 0.65) * w, rng.uniform(0.35, 0.65) * h, rng.uniform(8, 13)
    speed, phase = rng.uniform(0.6, 1.2), rng.uniform(0, 6.28)
    for t in range(frames):
        s = speed * (t - frames / 2) * 0.8
        dx, dy, rr = 0.0, 0.0, r
        if label < 2:
            dx = s if label else -s
        elif label < 4:
            dy = s if label == 3 else -s
        elif label == 4:
            dx, dy = 18 * np.cos(0.3 * t + phase), 18 * np.sin(0.3 * t + phase)
        elif label == 5:
            dy = 20 * abs(np.sin(0.25 * t + phase)) - 10
        else:
            rr = r + (s if label == 6 else -s) * 0.35
        video[t][(xx - cx - dx) ** 2 + (yy - cy - dy) ** 2 < max(rr, 2) ** 2] = colour
    return video


# ---- transforms: each maps a clip to a clip -------------------------------------------

class Compose:
    def __init__(self, ops):
        self.ops = ops

    def __call__(self, clip):
        for op in self.ops:
            clip = op(clip)
        return clip


class ToFloat:
    def __call__(self, clip):
        return clip.to(torch.float32).div_(255.0)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = torch.tensor(mean), torch.tensor(std)

    def __call__(self, clip):
        return (clip - self.mean) / self.std


class UniformFrames:
    """n frames at equal distances from a random window."""

    def __init__(self, n, span):
        self.n, self.span = n, span

    def __call__(self, clip):
        first = int(torch.randint(0, clip.size(0) - self.span + 1, ()))
        idx = first + torch.linspace(0, self.span - 1, self.n).round().long()
        return clip[idx]


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, clip):
        y = int(torch.randint(0, clip.size(1) - self.size + 1, ()))
        x = int(torch.randint(0, clip.size(2) - self.size + 1, ()))
        return clip[:, y:y + self.size, x:x + self.size]


class ToChannelsFirst:
    def __call__(self, clip):
        return clip.permute(3, 0, 1, 2).contiguous()


class ClipDataset(Dataset):
    def __init__(self, n, transform, seed):
        rng = np.random.default_rng(seed)
        self.labels = [i % len(MOTIONS) for i in range(n)]
        self.videos = [torch.from_numpy(synth_clip(y, rng)) for y in self.labels]
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(self.videos[i]), self.labels[i]


def build_transform():
    return Compose([
        ToFloat(),
        Normalize(mean=(0.31, 0.31, 0.31), std=(0.25, 0.25, 0.25)),
        UniformFrames(8, span=36),
        RandomCrop(64),
        ToChannelsFirst(),
    ])


class R2Plus1D(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv3d(3, 16, (1, 5, 5), (1, 2, 2), (0, 2, 2), bias=False)
        self.b1 = self.block(16, 24)
        self.b2 = self.block(24, 48)
        self.b3 = self.block(48, 64)
        self.head = nn.Linear(64, classes)

    @staticmethod
    def block(i, o):
        return nn.Sequential(
            nn.Conv3d(i, o, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
            nn.BatchNorm3d(o), nn.ReLU(inplace=True),
            nn.Conv3d(o, o, (3, 1, 1), 1, (1, 0, 0), bias=False),
            nn.BatchNorm3d(o), nn.ReLU(inplace=True))

    def forward(self, x):
        x = self.b3(self.b2(self.b1(F.relu(self.stem(x)))))
        return self.head(x.mean((2, 3, 4)))


class PrintEpoch:
    def on_epoch(self, epoch, stats):
        loss, acc = (torch.stack(s).mean().item() for s in zip(*stats))
        print(f"epoch {epoch}  loss {loss:.4f}  acc {acc:.3f}")


class Trainer:
    def __init__(self, model, lr, callbacks):
        self.model, self.callbacks = model, callbacks
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-3, fused=True)

    def fit(self, loader, epochs):
        self.model.train()
        for epoch in range(1, epochs + 1):
            stats = []
            for clips, labels in loader:
                logits = self.model(clips)
                loss = F.cross_entropy(logits, labels)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                stats.append((loss.detach(), (logits.detach().argmax(1) == labels).float().mean()))
            for cb in self.callbacks:
                cb.on_epoch(epoch, stats)


if __name__ == "__main__":
    torch.manual_seed(8)
    data = ClipDataset(192, build_transform(), seed=8)
    loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    trainer = Trainer(R2Plus1D(len(MOTIONS)), lr=2e-3, callbacks=[PrintEpoch()])
    epochs = 5
    t0 = time.perf_counter()
    trainer.fit(loader, epochs)
    n = epochs * len(loader)
    print(f"{(time.perf_counter() - t0) / n * 1e3:.2f} ms/step over {n} steps")
