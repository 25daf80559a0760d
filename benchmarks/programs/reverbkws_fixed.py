"""Far-field keyword spotting: clean synthetic words, on-the-fly room simulation, log-mel, small CNN-GRU.

Speech is replaced by formant-like chirps (10 "words"); rooms are exponentially decaying noise,
as in the usual simulated-RIR recipes.
"""
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

SR = 8000
CFG = {
    "seed": 11, "steps": 240, "batch": 24, "seconds": 1.0, "words": 10,
    "n_fft": 256, "hop": 80, "n_mels": 40,
    "rirs": 40, "rir_seconds": 0.35, "snr_db": (5.0, 25.0), "lr": 1.5e-3,
}


def make_mel(n_fft, n_mels, sr):
    hz = lambda m: 700.0 * (10 ** (m / 2595.0) - 1)
    top = 2595.0 * math.log10(1 + sr / 2 / 700.0)
    pts = torch.tensor([hz(m) for m in torch.linspace(0, top, n_mels + 2).tolist()])
    freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
    up = (freqs[:, None] - pts[None, :-2]) / (pts[1:-1] - pts[:-2])
    down = (pts[None, 2:] - freqs[:, None]) / (pts[2:] - pts[1:-1])
    return torch.minimum(up, down).clamp_min(0)


class Words:
    """Each word is a pair of gliding formants with harmonics of a random pitch."""

    def __init__(self, n_words, length, gen):
        self.gen, self.length = gen, length
        self.start = torch.rand(n_words, 2, generator=gen) * 1800 + 300
        self.stop = torch.rand(n_words, 2, generator=gen) * 1800 + 300
        self.t = torch.arange(length) / SR
        self.env = torch.sin(math.pi * torch.linspace(0, 1, length)) ** 0.5

    def sample(self, batch):
        label = torch.randint(len(self.start), (batch,), generator=self.gen)
        jitter = 1 + 0.06 * torch.randn(batch, 2, generator=self.gen)
        f0, f1 = self.start[label] * jitter, self.stop[label] * jitter
        dur = self.length / SR
        phase = 2 * math.pi * (f0[..., None] * self.t + (f1 - f0)[..., None] * self.t ** 2 / (2 * dur))
        wav = torch.sin(phase).sum(1) * self.env
        return wav * 0.3, label


class RoomSimulator(nn.Module):
    """Convolve every utterance with a random room response and add noise at a random SNR."""

    def __init__(self, n, seconds, snr_db, gen):
        super().__init__()
        taps = int(seconds * SR)
        rt = torch.rand(n, 1, generator=gen) * 0.25 + 0.1
        decay = torch.exp(-6.9 * torch.arange(taps) / SR / rt)
        rir = torch.randn(n, taps, generator=gen) * decay * 0.1
        rir[:, 0] = 1.0
        self.register_buffer("rirs", rir / rir.norm(dim=1, keepdim=True))
        self.snr_db, self.gen = snr_db, gen

    def reverberate(self, wav, rir):
        b, n = wav.shape
        taps = rir.shape[1]
        size = 1 << (n + taps - 2).bit_length()
        y = torch.fft.irfft(torch.fft.rfft(wav, size) * torch.fft.rfft(rir, size), size)
        return y[:, :n]

    @torch.no_grad()
    def forward(self, wav):
        pick = torch.randint(len(self.rirs), (len(wav),), generator=self.gen)
        wet = self.reverberate(wav, self.rirs[pick])
        lo, hi = self.snr_db
        snr = torch.rand(len(wav), 1, generator=self.gen) * (hi - lo) + lo
        noise = torch.randn(wet.shape, generator=self.gen)
        gain = wet.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True) * 10 ** (-snr / 20)
        return wet + gain * noise


class LogMel(nn.Module):
    def __init__(self, n_fft, hop, n_mels):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("mel", make_mel(n_fft, n_mels, SR))

    @torch.no_grad()
    def forward(self, wav):
        s = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = s.real ** 2 + s.imag ** 2
        m = torch.log(power.transpose(1, 2) @ self.mel + 1e-6)
        return (m - m.mean(1, keepdim=True)) / 4.0          # (batch, frames, mels)


class KwsNet(nn.Module):
    def __init__(self, n_mels, n_words):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(n_mels, 96, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv1d(96, 96, 3, padding=1), nn.ReLU(),
        )
        self.gru = nn.GRU(96, 96, batch_first=True)
        self.out = nn.Linear(96, n_words)

    def forward(self, feats):
        h = self.front(feats.transpose(1, 2)).transpose(1, 2)
        h, _ = self.gru(h)
        return self.out(h.mean(1))


def train(cfg):
    torch.manual_seed(cfg["seed"])
    gen = torch.Generator().manual_seed(cfg["seed"])
    words = Words(cfg["words"], int(SR * cfg["seconds"]), gen)
    rooms = RoomSimulator(cfg["rirs"], cfg["rir_seconds"], cfg["snr_db"], gen)
    logmel = LogMel(cfg["n_fft"], cfg["hop"], cfg["n_mels"])
    net = KwsNet(cfg["n_mels"], cfg["words"])
    opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], fused=True)
    begin = time.perf_counter()
    for step in range(cfg["steps"]):
        clean, label = words.sample(cfg["batch"])
        logits = net(logmel(rooms(clean)))
        loss = F.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 40 == 39:
            acc = (logits.argmax(1) == label).float().mean()
            print(f"step {step + 1:4d}  loss {loss.item():.4f}  acc {acc.item():.2f}", flush=True)
    took = time.perf_counter() - begin
    print(f"{took / cfg['steps'] * 1e3:.2f} ms/step")


if __name__ == "__main__":
    train(CFG)
