# diffusion posterior sampling for deblurring, toy UNet prior
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cpu"
torch.manual_seed(11)
STEPS, N_BATCH, BS, RES = 10, 4, 4, 32
ZETA = 0.4


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    a = t[:, None].float() * freqs[None]
    return torch.cat([a.cos(), a.sin()], -1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n1 = nn.GroupNorm(8, cin)
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.e = nn.Linear(emb, cout)
        self.n2 = nn.GroupNorm(8, cout)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.s = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.e(e)[:, :, None, None]
        return self.s(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, ch=32, emb=64):
        super().__init__()
        self.ch = ch
        self.emb = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.d1 = ResBlock(ch, ch, emb)
        self.down = nn.Conv2d(ch, ch * 2, 3, 2, 1)
        self.d2 = ResBlock(ch * 2, ch * 2, emb)
        self.m = ResBlock(ch * 2, ch * 2, emb)
        self.u1 = ResBlock(ch * 3, ch, emb)
        self.out = nn.Sequential(nn.GroupNorm(8, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x, t):
        e = self.emb(timestep_embedding(t, self.ch))
        h1 = self.d1(self.inp(x), e)
        h = self.m(self.d2(self.down(h1), e), e)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        return self.out(self.u1(torch.cat([h, h1], 1), e))


class Blur:
    def __init__(self, k=9, sigma=2.0, noise=0.02):
        g = torch.exp(-0.5 * ((torch.arange(k) - k // 2) / sigma) ** 2)
        g = (g / g.sum()).float()
        self.kernel = (g[:, None] * g[None]).expand(3, 1, k, k).contiguous()
        self.noise, self.pad = noise, k // 2

    def __call__(self, x):
        return F.conv2d(F.pad(x, [self.pad] * 4, mode="reflect"), self.kernel, groups=3)

    def measure(self, x):
        y = self(x)
        return y + self.noise * torch.randn_like(y)


class Schedule:
    def __init__(self, T=1000, steps=STEPS):
        betas = torch.linspace(1e-4, 0.02, T, dtype=torch.float64)
        self.ac = torch.cumprod(1 - betas, 0).float()
        self.ts = list(np.linspace(T - 1, 0, steps).round().astype(int))

    def pairs(self):
        for i, t in enumerate(self.ts):
            a = self.ac[t]
            a_prev = self.ac[self.ts[i + 1]] if i + 1 < len(self.ts) else torch.tensor(1.0)
            yield int(t), a, a_prev


def sample(model, op, y, sched, clock):
    x = torch.randn(y.shape)
    x.requires_grad_(True)
    for t, a, a_prev in sched.pairs():
        tic = time.perf_counter()
        x.retain_grad()
        eps = model(x, torch.full((x.size(0),), t))
        x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
        x0 = x0.clamp(-1, 1)
        residual = (y - op(x0)).flatten(1).norm(dim=1).sum()
        residual.backward(retain_graph=True)
        sigma = 0.5 * ((1 - a_prev) / (1 - a)).sqrt() * (1 - a / a_prev).clamp(min=0).sqrt()
        mean = a_prev.sqrt() * x0 + (1 - a_prev - sigma ** 2).clamp(min=0).sqrt() * eps
        x = mean + sigma * torch.randn_like(mean) - ZETA * x.grad
        clock.append(time.perf_counter() - tic)
    return x0.detach(), residual.item()


def psnr(a, b):
    return (10 * torch.log10(4.0 / F.mse_loss(a, b))).item()


if __name__ == "__main__":
    model = UNet().to(device).eval()
    op, sched = Blur(), Schedule()
    clock = []
    for i in range(N_BATCH):
        truth = F.interpolate(torch.rand(BS, 3, 6, 6) * 2 - 1, size=RES, mode="bicubic").clamp(-1, 1)
        y = op.measure(truth)
        rec, res = sample(model, op, y, sched, clock)
        print(f"[{i}] residual {res:.4f} psnr {psnr(rec, truth):.3f}")
    print(f"median denoising step: {1e3 * np.median(clock):.1f} ms")
