"""Speech enhancement with on-the-fly reverberation (simulated RIRs)."""
import math
import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

hp = SimpleNamespace(sr=16000, seconds=3.0, rt60=(0.25, 0.6), rir_len=24000, early=800, bs=8,
                     n_fft=512, hop=128, iters=45, lr=1e-3, snr=(0, 15))


def synth_speech(n, hp, g):
    t = torch.arange(int(hp.sr * hp.seconds)) / hp.sr
    out = []
    for _ in range(n):
        f0 = 90 + 150 * torch.rand(1, generator=g)
        vib = 1 + 0.02 * torch.sin(2 * math.pi * 5 * t)
        harm = sum(torch.sin(2 * math.pi * f0 * k * t * vib) / k for k in range(1, 9))
        env = torch.sin(2 * math.pi * (1.5 + 2 * torch.rand(1, generator=g)) * t).clamp(min=0)
        out.append(0.1 * harm * env)
    return torch.stack(out)


class RirSimulator:
    """exponentially decaying noise with a direct path"""

    def __init__(self, hp, seed=0):
        self.hp = hp
        self.g = torch.Generator().manual_seed(seed)
        self.t = torch.arange(hp.rir_len) / hp.sr

    def draw(self, n):
        lo, hi = self.hp.rt60
        rt = lo + (hi - lo) * torch.rand(n, 1, generator=self.g)
        h = torch.randn(n, self.hp.rir_len, generator=self.g) * torch.exp(-6.9 * self.t / rt)
        d = torch.randint(20, 120, (n,), generator=self.g)
        h[torch.arange(n), d] = 6.0
        return h / h.norm(dim=1, keepdim=True)


def reverberate(x, h):
    n = 2 ** (x.shape[-1] + h.shape[-1] - 2).bit_length()
    y = torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(h, n=n), n=n)
    return y[..., : x.shape[-1]]


def add_noise(y, snr, g):
    noise = torch.randn(y.shape, generator=g)
    scale = (y.pow(2).mean(-1) / noise.pow(2).mean(-1)).sqrt() / (10 ** (snr / 20))
    return y + scale[:, None] * noise


class MaskNet(nn.Module):
    def __init__(self, hp, ch=48):
        super().__init__()
        self.hp = hp
        f = hp.n_fft // 2 + 1
        self.register_buffer("win", torch.hann_window(hp.n_fft))
        self.inp = nn.Conv1d(f, ch, 1)
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Conv1d(ch, ch, 3, padding=2 ** i, dilation=2 ** i), nn.PReLU(),
                          nn.GroupNorm(1, ch), nn.Conv1d(ch, ch, 1)) for i in range(4)])
        self.out = nn.Conv1d(ch, f, 1)

    def stft(self, x):
        return torch.stft(x, self.hp.n_fft, self.hp.hop, window=self.win, return_complex=True)

    def forward(self, x):
        spec = self.stft(x)
        h = self.inp(spec.abs().clamp(min=1e-5).log())
        for b in self.blocks:
            h = h + b(h)
        mask = torch.sigmoid(self.out(h))
        return torch.istft(spec * mask, self.hp.n_fft, self.hp.hop, window=self.win, length=x.shape[-1])


def si_sdr(est, ref):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    s = (est * ref).sum(-1, keepdim=True) * ref / (ref.pow(2).sum(-1, keepdim=True) + 1e-8)
    return 10 * torch.log10(s.pow(2).sum(-1) / ((est - s).pow(2).sum(-1) + 1e-8) + 1e-8)


def batches(bank, rirs, hp, g):
    for _ in range(hp.iters):
        clean = bank[torch.randint(0, len(bank), (hp.bs,), generator=g)]
        shift = int(torch.randint(0, 4000, (1,), generator=g))
        clean = clean.roll(shift, dims=-1)
        h = rirs.draw(hp.bs)
        wet = reverberate(clean, h)
        early = h.clone()
        early[:, hp.early:] = 0
        target = reverberate(clean, early)
        snr = hp.snr[0] + (hp.snr[1] - hp.snr[0]) * torch.rand(hp.bs, generator=g)
        yield add_noise(wet, snr, g), target


torch.manual_seed(0)
gen = torch.Generator().manual_seed(1)
bank = synth_speech(48, hp, gen)
rirs = RirSimulator(hp)
net = MaskNet(hp)
opt = torch.optim.Adam(net.parameters(), lr=hp.lr)
stamps = [time.perf_counter()]
for it, (noisy, clean) in enumerate(batches(bank, rirs, hp, gen)):
    est = net(noisy)
    loss = -si_sdr(est, clean).mean() + 5 * F.l1_loss(net.stft(est).abs(), net.stft(clean).abs())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 3.0)
    opt.step()
    stamps.append(time.perf_counter())
    if it % 10 == 0:
        print(f"{it:4d} {loss.item():.4f}")
print(f"last loss {loss.item():.4f}; {1e3 * np.median(np.diff(stamps)[2:]):.1f} ms per iteration")
