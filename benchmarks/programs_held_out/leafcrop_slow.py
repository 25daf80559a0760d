"""Leaf disease classifier trained on random crops of field photographs."""
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

IMG, CROP, CLASSES = 288, 96, 6
N_TRAIN, BATCH, EPOCHS = 192, 16, 5


class ToFloat:
    def __call__(self, img):
        return img.astype(np.float32) / 255.0


class RandomGamma:
    def __init__(self, lo, hi, seed):
        self.lo, self.hi = lo, hi
        self.rng = random.Random(seed)

    def __call__(self, img):
        return img ** np.float32(self.rng.uniform(self.lo, self.hi))


class ChannelGain:
    def __init__(self, strength, seed):
        self.strength = strength
        self.rng = random.Random(seed)

    def __call__(self, img):
        gain = [1.0 + self.rng.uniform(-self.strength, self.strength) for _ in range(3)]
        return np.clip(img * np.asarray(gain, np.float32), 0.0, 1.0)


class Normalize:
    def __init__(self, mean, std):
        self.mean = np.asarray(mean, np.float32)
        self.std = np.asarray(std, np.float32)

    def __call__(self, img):
        return (img - self.mean) / self.std


class RandomCrop:
    def __init__(self, size, seed):
        self.size = size
        self.rng = random.Random(seed)

    def __call__(self, img):
        top = self.rng.randint(0, img.shape[0] - self.size)
        left = self.rng.randint(0, img.shape[1] - self.size)
        return img[top:top + self.size, left:left + self.size]


class RandomFlip:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def __call__(self, img):
        return img[:, ::-1] if self.rng.random() < 0.5 else img


class ToTensor:
    def __call__(self, img):
        return torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1)))


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, img):
        for s in self.steps:
            img = s(img)
        return img


def train_transform():
    return Compose([
        ToFloat(),
        RandomGamma(0.7, 1.5, seed=11),
        ChannelGain(0.15, seed=12),
        Normalize([0.45, 0.47, 0.41], [0.23, 0.22, 0.24]),
        RandomCrop(CROP, seed=13),
        RandomFlip(seed=14),
        ToTensor(),
    ])


class LeafPhotos(Dataset):
    """Photographs kept as uint8 arrays, as they come from the decoder."""

    def __init__(self, n, seed, transform):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, CLASSES, n)
        base = rng.integers(0, 256, (CLASSES, IMG // 8, IMG // 8, 3))
        self.images = []
        for y in self.labels:
            tile = np.kron(base[y], np.ones((8, 8, 1)))
            noise = rng.integers(-60, 60, (IMG, IMG, 3))
            self.images.append(np.clip(tile + noise, 0, 255).astype(np.uint8))
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(self.images[i]), int(self.labels[i])


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 5, stride=2, padding=2)
        self.c2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        x = F.relu(self.c3(x))
        return self.head(x.mean(dim=(2, 3)))


def main():
    torch.manual_seed(0)
    train = LeafPhotos(N_TRAIN, 1, train_transform())
    loader = DataLoader(train, batch_size=BATCH, shuffle=True, drop_last=True)
    net = LeafNet()
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for epoch in range(EPOCHS):
        total, hits, seen = 0.0, 0, 0
        for x, y in loader:
            logits = net(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(y)
            hits += (logits.argmax(1) == y).sum().item()
            seen += len(y)
        print(f"epoch {epoch}  loss {total / seen:.3f}  acc {hits / seen:.3f}")


if __name__ == "__main__":
    main()
