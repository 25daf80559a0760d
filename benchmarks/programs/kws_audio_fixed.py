# Keyword spotting: synthetic clips recorded at assorted sample rates are brought
# to 16 kHz, perturbed, turned into log-mel features and classified.
import functools
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

TARGET_RATE = 16_000
RATES = (8_000, 16_000, 16_000, 16_000, 16_000, 16_000, 22_050)
WORDS = 8
SECONDS = 0.5


def make_clip(word, rate, rng):
    n = int(rate * SECONDS)
    t = torch.arange(n) / rate
    f0 = 200.0 + 90.0 * word + rng.uniform(-15, 15)
    tone = torch.sin(2 * math.pi * (f0 * t + (20 + 15 * word) * t * t))
    tone = tone + 0.5 * torch.sin(4 * math.pi * f0 * t)
    start = rng.randrange(n // 4)
    envelope = torch.zeros(n)
    envelope[start:start + n // 2] = torch.hann_window(n // 2)
    return tone * envelope


@functools.lru_cache(maxsize=None)
def sinc_kernel(orig, new, width=24, rolloff=0.945):
    base = min(orig, new) * rolloff
    half = math.ceil(width * orig / base)
    idx = torch.arange(-half, half + orig, dtype=torch.float64)[None] / orig
    t = torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new + idx
    t = (t * base).clamp(-width, width)
    window = torch.cos(t * math.pi / width / 2) ** 2
    t = t * math.pi
    kernel = torch.where(t == 0, torch.ones_like(t), t.sin() / t)
    return (kernel * window * base / orig).float()[:, None], half


def resample(wave, rate, target=TARGET_RATE):
    if rate == target:
        return wave
    g = math.gcd(rate, target)
    orig, new = rate // g, target // g
    kernel, half = sinc_kernel(orig, new)
    padded = F.pad(wave[None, None], (half, half + orig))
    out = F.conv1d(padded, kernel, stride=orig)
    out = out.transpose(1, 2).reshape(-1)
    return out[:math.ceil(new * wave.numel() / orig)]


@functools.lru_cache(maxsize=None)
def mel_matrix(n_fft, n_mels, rate):
    to_mel = lambda f: 2595.0 * math.log10(1 + f / 700.0)
    edges = torch.linspace(to_mel(60.0), to_mel(rate / 2), n_mels + 2)
    hz = 700.0 * (10 ** (edges / 2595.0) - 1)
    freqs = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    rise = (freqs[:, None] - hz[:-2]) / (hz[1:-1] - hz[:-2])
    fall = (hz[2:] - freqs[:, None]) / (hz[2:] - hz[1:-1])
    return torch.minimum(rise, fall).clamp_min(0)


def log_mel(waves, n_fft=512, hop=160, n_mels=40):
    spec = torch.stft(waves, n_fft, hop, window=torch.hann_window(n_fft),
                      center=True, return_complex=True)
    power = spec.real.square() + spec.imag.square()
    mel = power.transpose(1, 2) @ mel_matrix(n_fft, n_mels, TARGET_RATE)
    return torch.log(mel + 1e-5).transpose(1, 2)


def shift_and_noise(wave, rng):
    wave = torch.roll(wave, rng.randrange(-800, 800))
    return wave + rng.uniform(0.0, 0.05) * torch.randn_like(wave)


def mask_bands(mels, rng):
    lo = rng.randrange(mels.shape[1] - 6)
    mels[:, lo:lo + 6] = mels.mean()
    return mels


def batches(clips, size, rng):
    while True:
        picks = rng.sample(clips, size)
        waves = [resample(shift_and_noise(w, rng), rate) for w, rate, _ in picks]
        feats = mask_bands(log_mel(torch.stack(waves)), rng)
        yield feats, torch.tensor([label for _, _, label in picks])


def build_model(ch=48):
    def block(i, o, k, s):
        return [nn.Conv1d(i, o, k, s, k // 2), nn.BatchNorm1d(o), nn.ReLU()]
    return nn.Sequential(*block(40, ch, 5, 1), *block(ch, ch, 5, 2), *block(ch, 2 * ch, 5, 2),
                         nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * ch, WORDS))


rng = random.Random(21)
torch.manual_seed(21)
clips = []
for i in range(600):
    word, rate = i % WORDS, rng.choice(RATES)
    clips.append((make_clip(word, rate, rng), rate, word))

model = build_model()
opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
stream = batches(clips, 32, rng)
STEPS = 100
seen_loss, right = [], 0
t0 = time.perf_counter()
for step in range(1, STEPS + 1):
    feats, labels = next(stream)
    logits = model(feats)
    loss = F.cross_entropy(logits, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen_loss.append(loss.item())
    right += (logits.argmax(1) == labels).sum().item()
    if step % 25 == 0:
        print(f"step {step} loss {sum(seen_loss[-25:]) / 25:.4f} acc {right / (25 * 32):.3f}", flush=True)
        right = 0
elapsed = time.perf_counter() - t0
print(f"s/step {elapsed / STEPS:.5f} loop {elapsed:.2f}")
