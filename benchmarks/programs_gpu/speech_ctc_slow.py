"""Train a small speech recogniser (convolutional front end, transformer, CTC) on letters."""
import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F

LETTERS = " abcdefghijklmnopqrstuvwxyz'"


class LogMel:
    """Log-mel energies, normalised per utterance."""

    def __init__(self, rate=16000, n_fft=512, win=400, hop=160, n_mels=80):
        self.n_fft, self.win, self.hop = n_fft, win, hop
        self.window = torch.hann_window(win)
        self.fbank = self.triangles(rate, n_fft, n_mels)

    @staticmethod
    def triangles(rate, n_fft, n_mels):
        def to_mel(f):
            return 2595.0 * math.log10(1.0 + f / 700.0)
        mel = torch.linspace(to_mel(20.0), to_mel(rate / 2), n_mels + 2)
        hz = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
        freq = torch.linspace(0, rate / 2, n_fft // 2 + 1)
        up = (freq[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - freq[None]) / (hz[2:] - hz[1:-1])[:, None]
        return torch.minimum(up, down).clamp(min=0)

    def __call__(self, wave):
        wave = torch.cat([wave[..., :1], wave[..., 1:] - 0.97 * wave[..., :-1]], dim=-1)
        spec = torch.stft(wave, self.n_fft, self.hop, self.win, self.window, return_complex=True).abs().square()
        mel = (self.fbank @ spec).clamp(min=1e-8).log()
        mean, std = mel.mean(-1, keepdim=True), mel.std(-1, keepdim=True)
        return (mel - mean) / (std + 1e-5)


class Recogniser(nn.Module):
    def __init__(self, n_mels, dim, layers, heads, channels, classes):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1), nn.GELU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1), nn.GELU())
        self.lift = nn.Linear(channels * (n_mels // 4), dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, classes)

    def forward(self, mel):
        x = self.front(mel.unsqueeze(1))
        b, c, f, t = x.shape
        x = self.lift(x.permute(0, 3, 1, 2).reshape(b, t, c * f))
        return self.out(self.body(x))


class Callback:
    def on_start(self, trainer): ...
    def on_step(self, trainer, loss): ...
    def on_end(self, trainer): ...


class MeanLoss(Callback):
    def on_start(self, trainer):
        self.total, self.count = torch.zeros((), device=trainer.device), 0

    def on_step(self, trainer, loss):
        self.total += loss
        self.count += 1

    def on_end(self, trainer):
        print(f"mean CTC loss over {self.count} steps: {(self.total / self.count).item():.3f}")


class WarmUp(Callback):
    def on_step(self, trainer, loss):
        for group in trainer.optimizer.param_groups:
            group["lr"] = trainer.lr * min(1.0, (trainer.step + 1) / 20)


class Trainer:
    def __init__(self, model, waves, texts, batch, lr, device, callbacks):
        self.model, self.waves, self.texts, self.batch = model.to(device), waves, texts, batch
        self.features = LogMel()
        self.device, self.lr, self.step, self.callbacks = device, lr, 0, callbacks
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=device.type == "cuda")

    def call(self, name, *extra):
        for c in self.callbacks:
            getattr(c, name)(self, *extra)

    def load(self, index):
        mels = torch.stack([self.features(self.waves[i]) for i in index])
        targets = torch.cat([self.texts[i] for i in index])
        lengths = torch.tensor([len(self.texts[i]) for i in index])
        return mels.to(self.device), targets.to(self.device), lengths

    def loss(self, mels, targets, lengths):
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = self.model(mels)
        logp = logits.float().log_softmax(-1).transpose(0, 1)
        frames = torch.full((logp.shape[1],), logp.shape[0])
        return F.ctc_loss(logp, targets, frames, lengths, blank=len(LETTERS), zero_infinity=True)

    def run(self, steps):
        order = torch.Generator().manual_seed(1)
        self.call("on_start")
        for self.step in range(steps):
            # STEP
            index = torch.randint(len(self.waves), (self.batch,), generator=order).tolist()
            loss = self.loss(*self.load(index))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.call("on_step", loss.detach())
        self.call("on_end")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    ap.add_argument("--lr", type=float, default=3e-4)
    a = ap.parse_args()
    torch.manual_seed(0)
    n, seconds, batch, steps = (6, 1, 2, 3) if a.small else (128, 12, 32, 100)
    net = dict(dim=32, layers=1, heads=2, channels=4) if a.small else dict(dim=512, layers=12, heads=8, channels=128)
    waves = torch.randn(n, seconds * 16000) * 0.1
    texts = [torch.randint(len(LETTERS), (int(k),)) for k in torch.randint(5 * seconds, 12 * seconds, (n,))]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Recogniser(80, classes=len(LETTERS) + 1, **net)
    Trainer(model, waves, texts, batch, a.lr, device, [WarmUp(), MeanLoss()]).run(steps)
