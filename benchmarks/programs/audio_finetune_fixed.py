"""Transfer learning for keyword spotting: new head on top of a pretrained conv encoder."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 16000
N_FFT = 512
HOP = 160
N_MELS = 64


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_filterbank(n_freqs, n_mels, sr):
    fmax = sr / 2
    m_pts = [hz_to_mel(20.0) + i * (hz_to_mel(fmax) - hz_to_mel(20.0)) / (n_mels + 1) for i in range(n_mels + 2)]
    f_pts = [mel_to_hz(m) for m in m_pts]
    freqs = [k * fmax / (n_freqs - 1) for k in range(n_freqs)]
    fb = torch.zeros(n_freqs, n_mels)
    for j in range(n_mels):
        lo, mid, hi = f_pts[j], f_pts[j + 1], f_pts[j + 2]
        for k, f in enumerate(freqs):
            up = (f - lo) / (mid - lo)
            down = (hi - f) / (hi - mid)
            w = min(up, down)
            if w > 0:
                fb[k, j] = w
    return fb


class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT))
        self.register_buffer("fb", mel_filterbank(N_FFT // 2 + 1, N_MELS, SR))

    def forward(self, wav):
        spec = torch.stft(wav, N_FFT, HOP, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        mel = torch.einsum("bft,fm->bmt", power, self.fb)
        return torch.log(mel + 1e-6).unsqueeze(1)


class Encoder(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        layers, c = [], 1
        for i, w in enumerate((width, width * 2, width * 3)):
            layers += [nn.Conv2d(c, w, 3, stride=2, padding=1), nn.BatchNorm2d(w), nn.GELU()]
            layers += [nn.Conv2d(w, w, 3, padding=1), nn.BatchNorm2d(w), nn.GELU()]
            c = w
        self.net = nn.Sequential(*layers)
        self.out_dim = c

    def forward(self, x):
        return self.net(x).mean(dim=(2, 3))


class Finetuner:
    def __init__(self, encoder, n_classes, lr=3e-3):
        self.frontend = LogMel()
        self.encoder = encoder.eval()
        self.head = nn.Sequential(
            nn.LayerNorm(encoder.out_dim), nn.Linear(encoder.out_dim, 64), nn.ReLU(), nn.Linear(64, n_classes)
        )
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=lr)
        self.history = []

    def features(self, wav):
        with torch.no_grad():
            x = self.frontend(wav)
            return self.encoder(x)

    def training_step(self, wav, label):
        logits = self.head(self.features(wav))
        loss = F.cross_entropy(logits, label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        acc = (logits.argmax(1) == label).float().mean()
        return loss.item(), acc.item()

    def fit(self, batches):
        for step, (wav, label) in enumerate(batches):
            loss, acc = self.training_step(wav, label)
            self.history.append(loss)
            if step % 20 == 0:
                print(f"step {step:3d}  loss {loss:.3f}  acc {acc:.2f}")


def make_batches(n, batch_size, n_classes, gen):
    t = torch.arange(SR) / SR
    for _ in range(n):
        label = torch.randint(0, n_classes, (batch_size,), generator=gen)
        f0 = 150.0 * (1.0 + label.float())[:, None]
        phase = torch.rand(batch_size, 1, generator=gen) * 6.28
        wav = torch.sin(2 * math.pi * f0 * t + phase) + 0.3 * torch.sin(4 * math.pi * f0 * t)
        yield wav + 0.2 * torch.randn(batch_size, SR, generator=gen), label


def main():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(17)
    tuner = Finetuner(Encoder(), n_classes=8)
    tuner.fit(make_batches(70, 8, 8, gen))
    print(f"final loss {sum(tuner.history[-10:]) / 10:.3f}")


if __name__ == "__main__":
    main()
