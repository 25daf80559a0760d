"""Online keyword spotting on a bank of microphones.

Audio arrives in chunks of 160 ms for all microphones at once.  Every causal layer keeps the few
past frames that it needs, so that no frame is ever computed twice; detections are smoothed and
de-bounced per microphone.
"""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

RATE, HOP, WIN, MELS = 16000, 160, 400, 40
CHUNK_FRAMES = 16
MICS, CHUNKS, KEYWORDS = 48, 260, 8


def mel_bank(n_fft, n_mels):
    def hz(m):
        return 700 * (10 ** (m / 2595) - 1)
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = hz(torch.linspace(0, top, n_mels + 2))
    freq = torch.linspace(0, RATE / 2, n_fft // 2 + 1)
    up = (freq[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - freq[:, None]) / (edges[2:] - edges[1:-1])
    return torch.minimum(up, down).clamp(min=0)


class StreamingMel(nn.Module):
    def __init__(self, n_fft=512):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(WIN))
        self.register_buffer("bank", mel_bank(n_fft, MELS))

    def initial_state(self, n):
        return torch.zeros(n, WIN - HOP)

    def forward(self, audio, tail):
        audio = torch.cat([tail, audio], 1)
        frames = audio.unfold(1, WIN, HOP) * self.window
        spec = torch.fft.rfft(frames, n=self.n_fft)
        power = torch.view_as_real(spec).square().sum(-1)
        return (power @ self.bank + 1e-6).log().transpose(1, 2), audio[:, -(WIN - HOP):]


class CausalBlock(nn.Module):
    def __init__(self, c, kernel, dilation):
        super().__init__()
        self.ctx = (kernel - 1) * dilation
        self.conv = nn.Conv1d(c, c, kernel, dilation=dilation)
        self.mix = nn.Conv1d(c, c, 1)

    def initial_state(self, n):
        return torch.zeros(n, self.conv.in_channels, self.ctx)

    def forward(self, x, past):
        ext = torch.cat([past, x], 2)
        y = self.mix(F.relu(self.conv(ext)))
        return x + y, ext[:, :, -self.ctx:]


class Spotter(nn.Module):
    def __init__(self, c=192, dilations=(1, 2, 4, 8, 1, 2, 4, 8)):
        super().__init__()
        self.mel = StreamingMel()
        self.inp = nn.Conv1d(MELS, c, 1)
        self.blocks = nn.ModuleList(CausalBlock(c, 3, d) for d in dilations)
        self.head = nn.Conv1d(c, KEYWORDS + 1, 1)

    def initial_state(self, n):
        return [self.mel.initial_state(n)] + [b.initial_state(n) for b in self.blocks]

    def forward(self, audio, state):
        x, tail = self.mel(audio, state[0])
        x = self.inp(x)
        new = [tail]
        for block, past in zip(self.blocks, state[1:]):
            x, past = block(x, past)
            new.append(past)
        return self.head(F.relu(x)).softmax(1), new


class Detector:
    """exponential smoothing, threshold and a hold-off, for all microphones together"""

    def __init__(self, n, threshold=0.155, hold=3, alpha=0.3):
        self.threshold, self.hold, self.alpha = threshold, hold, alpha
        self.level = torch.zeros(n, KEYWORDS)
        self.quiet = torch.zeros(n, dtype=torch.long)
        self.counts = torch.zeros(KEYWORDS, dtype=torch.long)

    def push(self, probs):
        self.level.lerp_(probs[:, :KEYWORDS].mean(2), self.alpha)
        best, word = self.level.max(1)
        fire = (best > self.threshold) & (self.quiet == 0)
        self.quiet = torch.where(fire, self.hold, (self.quiet - 1).clamp(min=0))
        self.counts += torch.bincount(word[fire], minlength=KEYWORDS)


def microphones(n, chunks, gen):
    """chirps in noise, one chunk for every microphone at a time"""
    size = CHUNK_FRAMES * HOP
    t = torch.arange(size) / RATE
    phase = torch.zeros(n)
    for _ in range(chunks):
        f = 200 + 2500 * torch.rand(n, generator=gen)
        loud = (torch.rand(n, generator=gen) < 0.4).float()
        wave = torch.sin(2 * math.pi * f[:, None] * t + phase[:, None])
        phase = (phase + 2 * math.pi * f * size / RATE) % (2 * math.pi)
        yield loud[:, None] * wave + 0.05 * torch.randn(n, size, generator=gen)


def main():
    torch.manual_seed(2)
    model = Spotter().eval()
    state = model.initial_state(MICS)
    detector = Detector(MICS)
    source = microphones(MICS, CHUNKS, torch.Generator().manual_seed(9))
    worst, mean = 0.0, torch.zeros(KEYWORDS + 1)
    t0 = time.perf_counter()
    with torch.inference_mode():
        for n, audio in enumerate(source, 1):
            start = time.perf_counter()
            probs, state = model(audio, state)
            detector.push(probs)
            mean += probs.mean((0, 2))
            worst = max(worst, time.perf_counter() - start)
            if n % 50 == 0:
                print(f"chunk {n:4d}  detections {int(detector.counts.sum())}  worst {1000 * worst:.0f} ms")
    dt = time.perf_counter() - t0
    print("mean posterior", " ".join(f"{v:.4f}" for v in (mean / CHUNKS).tolist()))
    print(f"{CHUNKS} chunks in {dt:.1f} s, {1000 * dt / CHUNKS:.1f} ms/chunk")


if __name__ == "__main__":
    main()
