# Momentum contrast on synthetic two-lead ECG strips, then a linear probe.
import copy
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH, CROP, BATCH, STEPS = 1280, 1024, 48, 100
QUEUE, DIM, TEMP, MOMENTUM = 2048, 64, 0.1, 0.99


def ecg_strips(n, length, gen):
    """Sum of five Gaussian bumps per beat; class = rhythm (rate, regularity, wide QRS)."""
    label = torch.randint(0, 4, (n,), generator=gen)
    rate = torch.tensor([1.0, 1.7, 1.1, 1.3])[label] * (0.9 + 0.2 * torch.rand(n, generator=gen))
    jitter = torch.tensor([0.02, 0.02, 0.25, 0.05])[label]
    wide = torch.tensor([1.0, 1.0, 1.0, 2.2])[label]
    beats = 24
    gaps = (1 / rate)[:, None] * (1 + jitter[:, None] * torch.randn(n, beats, generator=gen)).clamp(0.3)
    at = torch.cumsum(gaps, 1) - torch.rand(n, 1, generator=gen)
    t = torch.arange(length) / 128.0
    offset = torch.tensor([-0.18, -0.03, 0.0, 0.03, 0.25])
    height = torch.tensor([[0.15, -0.1, 1.0, -0.25, 0.3], [0.1, -0.2, 0.6, -0.4, 0.2]])
    spread = torch.tensor([0.03, 0.012, 0.014, 0.012, 0.05])
    out = torch.zeros(n, 2, length)
    for k in range(5):
        width = spread[k] * (wide if 0 < k < 4 else torch.ones(n))
        bump = torch.zeros(n, length)
        for b in range(beats):
            bump += torch.exp(-0.5 * ((t - at[:, b:b + 1] - offset[k]) / width[:, None]) ** 2)
        out += height[:, k].view(1, 2, 1) * bump[:, None]
    return out, label


class TwoViews:
    """Random crop, lead gain, baseline wander and noise, drawn for the whole batch at once."""

    def __init__(self, gen):
        self.gen = gen
        self.span = torch.arange(CROP)
        self.time = torch.arange(CROP) / 128.0

    def view(self, x):
        n = len(x)
        start = torch.randint(0, LENGTH - CROP + 1, (n, 1), generator=self.gen)
        x = x.gather(2, (start + self.span).unsqueeze(1).expand(-1, 2, -1))
        gain = 0.7 + 0.6 * torch.rand(n, 2, 1, generator=self.gen)
        freq = 0.1 + 0.3 * torch.rand(n, 1, 1, generator=self.gen)
        wander = 0.3 * torch.sin(2 * math.pi * freq * self.time)
        return torch.addcmul(wander, x, gain).add_(torch.randn(x.shape, generator=self.gen), alpha=0.05)

    def __call__(self, x):
        return self.view(x), self.view(x)


class Block1d(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(cin, cout, 7, stride, 3, bias=False)
        self.bn1 = nn.BatchNorm1d(cout)
        self.conv2 = nn.Conv1d(cout, cout, 7, 1, 3, bias=False)
        self.bn2 = nn.BatchNorm1d(cout)
        self.short = nn.Conv1d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.short(x), inplace=True)


class Encoder(nn.Module):
    def __init__(self, widths=(32, 64, 96, 128)):
        super().__init__()
        self.stem = nn.Conv1d(2, widths[0], 15, stride=4, padding=7)
        self.blocks = nn.Sequential(*(Block1d(a, b, 2) for a, b in zip(widths, widths[1:])))
        self.project = nn.Sequential(nn.Linear(widths[-1], widths[-1]), nn.ReLU(), nn.Linear(widths[-1], DIM))

    def features(self, x):
        return self.blocks(F.relu(self.stem(x), inplace=True)).mean(-1)

    def forward(self, x):
        return F.normalize(self.project(self.features(x)), dim=1)


class MoCo(nn.Module):
    def __init__(self, encoder, gen):
        super().__init__()
        self.query = encoder
        self.key = copy.deepcopy(encoder).requires_grad_(False)
        self.pairs = list(self.key.parameters()), list(self.query.parameters())
        self.register_buffer("queue", F.normalize(torch.randn(QUEUE, DIM, generator=gen), dim=1))
        self.head = 0

    @torch.no_grad()
    def follow(self):
        torch._foreach_lerp_(self.pairs[0], self.pairs[1], 1 - MOMENTUM)

    @torch.no_grad()
    def enqueue(self, keys):
        idx = (self.head + torch.arange(len(keys))) % QUEUE
        self.queue.index_copy_(0, idx, keys)
        self.head = (self.head + len(keys)) % QUEUE

    def forward(self, a, b):
        q = self.query(a)
        with torch.no_grad():
            k = self.key(b)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.T.clone()], dim=1) / TEMP
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


@torch.no_grad()
def linear_probe(encoder, x, y):
    encoder.eval()
    feats = torch.cat([encoder.features(part) for part in x[:, :, :CROP].split(128)])
    encoder.train()
    feats = F.normalize(feats - feats.mean(0), dim=1)
    half = len(x) // 2
    a, onehot = feats[:half], F.one_hot(y[:half]).float()
    w = torch.linalg.solve(a.T @ a + 1e-2 * torch.eye(a.shape[1]), a.T @ onehot)
    return ((feats[half:] @ w).argmax(1) == y[half:]).float().mean().item()


gen = torch.Generator().manual_seed(4)
torch.manual_seed(4)
strips, rhythm = ecg_strips(1024, LENGTH, gen)
views = TwoViews(gen)
moco = MoCo(Encoder(), gen)
opt = torch.optim.SGD(moco.query.parameters(), lr=0.06, momentum=0.9, weight_decay=1e-4)
print(f"probe before: {linear_probe(moco.query, strips, rhythm):.3f}")

tic, running = time.perf_counter(), torch.zeros(())
for step in range(1, STEPS + 1):
    pick = torch.randint(0, len(strips), (BATCH,), generator=gen)
    loss = moco(*views(strips[pick]))
    opt.zero_grad()
    loss.backward()
    opt.step()
    moco.follow()
    running += loss.detach()
    if step % 25 == 0:
        print(f"step {step:4d}  contrastive loss {running.item() / 25:.4f}")
        running.zero_()
toc = time.perf_counter() - tic
print(f"probe after: {linear_probe(moco.query, strips, rhythm):.3f}")
print(f"{STEPS} steps, {toc:.1f} s, {1e3 * toc / STEPS:.1f} ms/step")
