"""Train a raw-waveform classifier on a handful of short clips, many quick epochs."""
import math
import multiprocessing as mp

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SR = 8000


class Clips(Dataset):
    """All clips are held in one tensor; every access applies a circular shift and a gain."""

    def __init__(self, n, n_classes, seed):
        gen = torch.Generator().manual_seed(seed)
        t = torch.arange(SR // 2) / SR
        self.label = torch.randint(0, n_classes, (n,), generator=gen)
        f0 = 200.0 + 60.0 * self.label.float()[:, None]
        self.wav = torch.sin(2 * math.pi * f0 * t) + 0.3 * torch.randn(n, SR // 2, generator=gen)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        shift = (i * 7919) % 400
        return torch.roll(self.wav[i], shift) * (0.8 + 0.001 * (i % 400)), self.label[i]


class RawNet(nn.Module):
    def __init__(self, n_classes, width=24):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, width, 64, stride=8), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width * 2, 8, stride=4), nn.BatchNorm1d(width * 2), nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 4, stride=2), nn.BatchNorm1d(width * 2), nn.ReLU(),
        )
        self.fc = nn.Linear(width * 2, n_classes)

    def forward(self, wav):
        return self.fc(self.conv(wav.unsqueeze(1)).mean(-1))


def make_loader(dataset, epoch, batch_size=32):
    gen = torch.Generator().manual_seed(100 + epoch)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=gen, num_workers=0)


def train_epoch(model, opt, loader):
    model.train()
    total, n = 0.0, 0
    for wav, label in loader:
        loss = F.cross_entropy(model(wav), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(label)
        n += len(label)
    return total / n


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    correct = 0
    for i in range(0, len(data), 64):
        correct += int((model(data.wav[i:i + 64]).argmax(1) == data.label[i:i + 64]).sum())
    return correct / len(data)


def main():
    mp.set_start_method("fork", force=True)
    torch.manual_seed(6)
    train_set, val_set = Clips(192, 6, seed=1), Clips(96, 6, seed=2)
    model = RawNet(6)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=25)
    for epoch in range(25):
        loss = train_epoch(model, opt, make_loader(train_set, epoch))
        sched.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:2d}  loss {loss:.4f}  val acc {accuracy(model, val_set):.3f}")


if __name__ == "__main__":
    main()
