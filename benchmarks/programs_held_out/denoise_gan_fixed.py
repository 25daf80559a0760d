"""Waveform speech-enhancement GAN on synthetic "voices" (harmonic stacks with an envelope) in noise.

Generator: masking network on the STFT.  Discriminators: strided 1-D conv stacks at two rates.
Losses: least-squares GAN, feature matching, log-magnitude L1.
"""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 8000
SEG = 4096
BATCH = 4
STEPS = 36
N_FFT, HOP = 256, 128
LAMBDA_FM, LAMBDA_SPEC = 2.0, 20.0


class SyntheticSpeech:
    """Endless (noisy, clean) minibatches."""

    def __init__(self, batch, length, seed):
        self.batch, self.length = batch, length
        self.gen = torch.Generator().manual_seed(seed)
        self.t = torch.arange(length) / SR

    def _rand(self, *shape, lo=0.0, hi=1.0):
        return torch.rand(*shape, generator=self.gen) * (hi - lo) + lo

    def __next__(self):
        f0 = self._rand(self.batch, 1, lo=90, hi=260)
        vib = 1 + 0.02 * torch.sin(2 * torch.pi * self._rand(self.batch, 1, lo=3, hi=6) * self.t)
        phase = 2 * torch.pi * torch.cumsum(f0 * vib, dim=1) / SR
        clean = sum(self._rand(self.batch, 1) / h * torch.sin(h * phase) for h in range(1, 6))
        syllable = torch.sin(2 * torch.pi * self._rand(self.batch, 1, lo=1.5, hi=4) * self.t).clamp(min=0).sqrt()
        clean = 0.3 * clean * syllable
        noise = torch.randn(self.batch, self.length, generator=self.gen) * self._rand(self.batch, 1, lo=0.02, hi=0.15)
        return (clean + noise).unsqueeze(1), clean.unsqueeze(1)

    def __iter__(self):
        return self


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT))

    def stft(self, wav):
        return torch.stft(wav.squeeze(1), N_FFT, HOP, window=self.window, return_complex=True)

    def istft(self, spec, length):
        return torch.istft(spec, N_FFT, HOP, window=self.window, length=length).unsqueeze(1)


class MaskGenerator(nn.Module):
    def __init__(self, spectral, channels=160, blocks=4):
        super().__init__()
        self.spectral = spectral
        bins = N_FFT // 2 + 1
        self.inp = nn.Conv1d(bins, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, channels), nn.PReLU(),
                          nn.Conv1d(channels, channels, 3, padding=2**i, dilation=2**i))
            for i in range(blocks))
        self.out = nn.Conv1d(channels, bins, 1)

    def forward(self, noisy):
        spec = self.spectral.stft(noisy)
        x = self.inp(torch.log1p(30 * spec.abs()))
        for block in self.blocks:
            x = x + block(x)
        return self.spectral.istft(spec * torch.sigmoid(self.out(x)), noisy.shape[-1])


class RateDiscriminator(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        sizes = [(1, 24, 15, 2), (24, 48, 21, 4), (48, 96, 21, 4), (96, 128, 11, 2), (128, 128, 5, 1)]
        self.convs = nn.ModuleList(nn.Conv1d(i, o, k, s, padding=k // 2) for i, o, k, s in sizes)
        self.score = nn.Conv1d(128, 1, 3, padding=1)

    def forward(self, wav):
        if self.pool > 1:
            wav = F.avg_pool1d(wav, self.pool)
        feats = []
        for conv in self.convs:
            wav = F.leaky_relu(conv(wav), 0.1)
            feats.append(wav)
        return self.score(wav), feats


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.discs = nn.ModuleList([RateDiscriminator(1), RateDiscriminator(2)])

    def forward(self, wav):
        outs = [d(wav) for d in self.discs]
        return [o[0] for o in outs], [f for o in outs for f in o[1]]


def critic_loss(real_scores, fake_scores):
    return sum(((1 - r) ** 2).mean() + (f ** 2).mean() for r, f in zip(real_scores, fake_scores))


def adversarial_loss(fake_scores):
    return sum(((1 - f) ** 2).mean() for f in fake_scores)


def feature_matching(real_feats, fake_feats):
    return sum(F.l1_loss(f, r) for r, f in zip(real_feats, fake_feats)) / len(real_feats)


class EnhancementGAN:
    def __init__(self):
        self.spectral = Spectral()
        self.gen = MaskGenerator(self.spectral)
        self.critic = Critic()
        self.opt_g = torch.optim.AdamW(self.gen.parameters(), 4e-4, betas=(0.8, 0.99), fused=True)
        self.opt_d = torch.optim.AdamW(self.critic.parameters(), 2e-4, betas=(0.8, 0.99), fused=True)

    def spectral_loss(self, est, ref):
        def log_mag(w):
            return torch.log(self.spectral.stft(w).abs().clamp(min=1e-4))
        return F.l1_loss(log_mag(est), log_mag(ref))

    def critic_step(self, clean, enhanced):
        self.opt_d.zero_grad()
        real_scores, _ = self.critic(clean)
        fake_scores, _ = self.critic(enhanced.detach())
        loss = critic_loss(real_scores, fake_scores)
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def generator_step(self, clean, enhanced):
        self.opt_g.zero_grad()
        self.critic.requires_grad_(False)
        with torch.no_grad():
            _, real_feats = self.critic(clean)
        fake_scores, fake_feats = self.critic(enhanced)
        fm = feature_matching(real_feats, fake_feats)
        spec = self.spectral_loss(enhanced, clean)
        loss = adversarial_loss(fake_scores) + LAMBDA_FM * fm + LAMBDA_SPEC * spec
        loss.backward()
        self.critic.requires_grad_(True)
        self.opt_g.step()
        return loss.detach(), spec.detach()

    def train_step(self, noisy, clean):
        enhanced = self.gen(noisy)
        d = self.critic_step(clean, enhanced)
        g, spec = self.generator_step(clean, enhanced)
        return {"d": d, "g": g, "spec": spec}


if __name__ == "__main__":
    torch.manual_seed(0)
    gan = EnhancementGAN()
    data = SyntheticSpeech(BATCH, SEG, seed=1)
    tic = time.time()
    for step in range(STEPS):
        noisy, clean = next(data)
        logs = gan.train_step(noisy, clean)
        if step % 12 == 11:
            print(f"[{step + 1:3d}] " + "  ".join(f"{k} {v.item():.4f}" for k, v in logs.items()))
    toc = time.time() - tic
    print(f"{STEPS} steps, {toc:.1f} s, {1000 * toc / STEPS:.1f} ms/step")
