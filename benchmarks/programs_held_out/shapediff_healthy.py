"""Denoising diffusion on 24x24 drawings of simple shapes (disc, ring, bar, cross).

Everything stays in memory; one pass draws all the shapes, training samples from them.
"""
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

SEED, STEPS, BATCH, SIDE, T = 4, 440, 32, 24, 200
EMA = 0.995


def draw_shapes(n, gen):
    ax = torch.linspace(-1, 1, SIDE)
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=gen) * 0.8 - 0.4
    r = torch.rand(n, 1, 1, generator=gen) * 0.25 + 0.25
    dx, dy = xx - c[:, 0], yy - c[:, 1]
    d = (dx ** 2 + dy ** 2).sqrt()
    soft = lambda z: torch.sigmoid(z * 18)
    kinds = torch.stack([
        soft(r - d),
        soft(0.12 - (d - r).abs()),
        soft(torch.minimum(r - dx.abs(), 0.12 - dy.abs())),
        soft(torch.maximum(torch.minimum(r - dx.abs(), 0.1 - dy.abs()), torch.minimum(r - dy.abs(), 0.1 - dx.abs()))),
    ])
    label = torch.randint(4, (n,), generator=gen)
    img = kinds[label, torch.arange(n)]
    return (img * 2 - 1).unsqueeze(1), label


class CosineSchedule:
    def __init__(self, steps):
        s = torch.linspace(0, 1, steps + 1)
        abar = torch.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
        self.abar = (abar / abar[0])[1:].clamp_min(1e-4)
        self.root, self.root1m = self.abar.sqrt(), (1 - self.abar).sqrt()

    def add_noise(self, x, noise, t):
        return self.root[t].view(-1, 1, 1, 1) * x + self.root1m[t].view(-1, 1, 1, 1) * noise


class Block(nn.Module):
    def __init__(self, ch, emb):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(ch, ch, 3, padding=1), nn.Conv2d(ch, ch, 3, padding=1)
        self.n1, self.n2 = nn.GroupNorm(4, ch), nn.GroupNorm(4, ch)
        self.e = nn.Linear(emb, ch)

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.e(e)[:, :, None, None]
        return x + self.c2(F.silu(self.n2(h)))


class Denoiser(nn.Module):
    def __init__(self, ch=32, emb=64):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, -6, emb // 2)))
        self.cls = nn.Embedding(4, emb)
        self.mlp = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb), nn.SiLU())
        self.inp = nn.Conv2d(1, ch, 4, stride=2, padding=1)
        self.mid = nn.ModuleList(Block(ch, emb) for _ in range(3))
        self.out = nn.ConvTranspose2d(ch, 1, 4, stride=2, padding=1)

    def forward(self, x, t, label):
        a = t[:, None] * self.freq
        e = self.mlp(torch.cat([a.sin(), a.cos()], 1) + self.cls(label))
        h = self.inp(x)
        for b in self.mid:
            h = b(h, e)
        return self.out(F.silu(h))


class Ema:
    def __init__(self, model):
        self.live = list(model.parameters())
        self.avg = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.avg, self.live, 1 - EMA)

    @torch.no_grad()
    def copy_to(self, model):
        for p, a in zip(model.parameters(), self.avg):
            p.copy_(a)


@torch.inference_mode()
def ddim(model, sched, label, steps, gen):
    x = torch.randn(len(label), 1, SIDE, SIDE, generator=gen)
    ts = torch.linspace(T - 1, 0, steps).long()
    for i, t in enumerate(ts):
        eps = model(x, t.expand(len(label)).float(), label)
        x0 = ((x - sched.root1m[t] * eps) / sched.root[t]).clamp(-1, 1)
        if i + 1 == steps:
            return x0
        x = sched.root[ts[i + 1]] * x0 + sched.root1m[ts[i + 1]] * eps


def main():
    torch.manual_seed(SEED)
    gen = torch.Generator().manual_seed(SEED)
    images, labels = draw_shapes(4096, gen)
    sched, model = CosineSchedule(T), Denoiser().to(memory_format=torch.channels_last)
    ema = Ema(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    running = torch.zeros(())
    began = time.perf_counter()
    for step in range(1, STEPS + 1):
        pick = torch.randint(len(images), (BATCH,), generator=gen)
        x, label = images[pick], labels[pick]
        t = torch.randint(T, (BATCH,), generator=gen)
        noise = torch.randn(x.shape, generator=gen)
        pred = model(sched.add_noise(x, noise, t), t.float(), label)
        loss = F.mse_loss(pred, noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update()
        running += loss.detach()
        if step % 110 == 0:
            print(f"step {step:4d}  loss {running.item() / 110:.4f}", flush=True)
            running.zero_()
    print(f"{(time.perf_counter() - began) / STEPS * 1e3:.2f} ms/step")
    ema.copy_to(model)
    pics = ddim(model, sched, torch.arange(4), 20, gen)
    print("mean brightness of samples", [round(v, 3) for v in pics.mean((1, 2, 3)).tolist()])


if __name__ == "__main__":
    main()
