import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="keyword spotting on synthetic one-second clips")
parser.add_argument("--clips", type=int, default=640)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--sample-rate", type=int, default=16000)
parser.add_argument("--n-fft", type=int, default=1024)
parser.add_argument("--n-mels", type=int, default=64)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=5)
args = parser.parse_args()

WORDS = ["yes", "no", "up", "down", "left", "right", "stop", "go"]


def hz2mel(hz):
    return 2595 * np.log10(1 + hz / 700.0)


def mel2hz(mel):
    return 700 * (10 ** (mel / 2595.0) - 1)


def get_filterbanks(nfilt, nfft, samplerate, lowfreq=20, highfreq=None):
    highfreq = highfreq or samplerate / 2
    melpoints = np.linspace(hz2mel(lowfreq), hz2mel(highfreq), nfilt + 2)
    bins = np.floor((nfft + 1) * mel2hz(melpoints) / samplerate)
    fbank = np.zeros([nfilt, nfft // 2 + 1])
    for j in range(nfilt):
        for i in range(int(bins[j]), int(bins[j + 1])):
            fbank[j, i] = (i - bins[j]) / (bins[j + 1] - bins[j])
        for i in range(int(bins[j + 1]), int(bins[j + 2])):
            fbank[j, i] = (bins[j + 2] - i) / (bins[j + 2] - bins[j + 1])
    return torch.from_numpy(fbank).float()


def logfbank(wave, fb, n_fft):
    spec = torch.stft(wave, n_fft, hop_length=320, window=torch.hann_window(n_fft), return_complex=True)
    return torch.log(fb @ spec.abs().pow(2) + 1e-6)


class Keywords(Dataset):
    def __init__(self, n, sr, n_fft, n_mels, seed):
        g = np.random.default_rng(seed)
        t = np.arange(sr) / sr
        self.waves, self.labels = [], []
        for _ in range(n):
            label = int(g.integers(len(WORDS)))
            base = 180 + 90 * label
            sweep = base * t + 60 * (label % 3) * t ** 2
            wave = np.sin(2 * math.pi * sweep) + 0.4 * np.sin(4 * math.pi * sweep)
            wave += g.normal(0, 0.6, sr)
            self.waves.append(torch.from_numpy(wave.astype(np.float32)))
            self.labels.append(label)
        self.n_fft = n_fft
        self.fb = get_filterbanks(n_mels, n_fft, sr)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        wave = self.waves[i]
        shift = int(torch.randint(-800, 801, (1,)))
        wave = torch.roll(wave, shift)
        feats = logfbank(wave, self.fb, self.n_fft)
        return feats.unsqueeze(0), self.labels[i]


class KwsNet(nn.Module):
    def __init__(self, n_classes, c=24):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 5, stride=2, padding=2)
        self.dw = nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.pw = nn.Conv2d(c, 2 * c, 1)
        self.head = nn.Linear(64 * c, n_classes)

    def forward(self, x):
        x = F.relu(self.stem((x + 4.0) / 6.0))
        x = F.relu(self.pw(self.dw(x)))
        return self.head(x.mean(3).flatten(1))


torch.manual_seed(args.seed)
data = Keywords(args.clips, args.sample_rate, args.n_fft, args.n_mels, args.seed)
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
model = KwsNet(len(WORDS))
opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

for epoch in range(args.epochs):
    seen = correct = 0
    running = 0.0
    for feats, labels in loader:
        logits = model(feats)
        loss = F.cross_entropy(logits, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item() * len(labels)
        correct += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
    print(f"epoch {epoch}: loss {running / seen:.4f} acc {correct / seen:.3f}")
