"""Denoising diffusion on 2-D feature maps of random rings and crosses.
v-prediction, cosine schedule, EMA weights, short DDIM sampling at the end."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_images(n, size, gen):
    g = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=gen) - 0.5
    r = 0.25 + 0.35 * torch.rand(n, 1, 1, generator=gen)
    kind = torch.rand(n, 1, 1, generator=gen) < 0.5
    dx, dy = xx - c[:, 0], yy - c[:, 1]
    ring = ((dx ** 2 + dy ** 2).sqrt() - r).abs() < 0.1
    cross = (torch.minimum(dx.abs(), dy.abs()) < 0.08) & (torch.maximum(dx.abs(), dy.abs()) < r)
    return torch.where(kind, ring, cross).float().unsqueeze(1) * 2 - 1


class CosineSchedule:
    def __init__(self, steps):
        t = torch.linspace(0, 1, steps + 1)[1:]
        ang = (t * 0.98 + 0.008) * math.pi / 2
        self.alpha, self.sigma, self.steps = ang.cos(), ang.sin(), steps

    def coeffs(self, t):
        return self.alpha[t].view(-1, 1, 1, 1), self.sigma[t].view(-1, 1, 1, 1)


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, -6, dim // 2)))
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())

    def forward(self, t):
        a = t.float().unsqueeze(1) * self.freq
        return self.net(torch.cat([a.sin(), a.cos()], 1))


class ResBlock(nn.Module):
    def __init__(self, cin, cout, tdim):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.film = nn.Linear(tdim, 2 * cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.film(emb)[:, :, None, None].chunk(2, 1)
        h = self.c2(F.silu(self.n2(h) * (1 + scale) + shift))
        return h + self.skip(x)


class UNet(nn.Module):
    def __init__(self, ch=32, tdim=64):
        super().__init__()
        self.time = TimeEmbedding(tdim)
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.d1, self.d2 = ResBlock(ch, ch, tdim), ResBlock(ch, 2 * ch, tdim)
        self.mid = ResBlock(2 * ch, 2 * ch, tdim)
        self.u2, self.u1 = ResBlock(4 * ch, ch, tdim), ResBlock(2 * ch, ch, tdim)
        self.out = nn.Sequential(nn.GroupNorm(8, ch), nn.SiLU(), nn.Conv2d(ch, 1, 3, padding=1))

    def forward(self, x, t):
        e = self.time(t)
        h1 = self.d1(self.inp(x), e)
        h2 = self.d2(F.avg_pool2d(h1, 2), e)
        m = self.mid(F.avg_pool2d(h2, 2), e)
        u = self.u2(torch.cat([F.interpolate(m, scale_factor=2.0), h2], 1), e)
        u = self.u1(torch.cat([F.interpolate(u, scale_factor=2.0), h1], 1), e)
        return self.out(u)


class Ema:
    def __init__(self, model, decay):
        self.src = [p.detach() for p in model.parameters()]
        self.avg = [p.clone() for p in self.src]
        self.decay = decay

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.avg, self.src, 1 - self.decay)

    @torch.no_grad()
    def copy_to_model(self):
        torch._foreach_copy_(self.src, self.avg)


@torch.no_grad()
def ddim_sample(model, sched, shape, n_steps, gen):
    x = torch.randn(shape, generator=gen)
    times = torch.linspace(sched.steps - 1, 0, n_steps).long()
    for i, t in enumerate(times):
        a, s = sched.alpha[t], sched.sigma[t]
        v = model(x, t.expand(shape[0]))
        x0, eps = a * x - s * v, s * x + a * v
        if i + 1 == n_steps:
            return x0
        nxt = times[i + 1]
        x = sched.alpha[nxt] * x0.clamp(-1, 1) + sched.sigma[nxt] * eps
    return x


def train(args):
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed + 1)
    data = make_images(3000, args.size, gen)
    sched = CosineSchedule(200)
    model = UNet(args.ch)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    ema = Ema(model, 0.98)
    running = torch.zeros(())
    t0 = time.perf_counter()
    for step in range(1, args.steps + 1):
        x0 = data[torch.randint(0, len(data), (args.batch,), generator=gen)]
        t = torch.randint(0, sched.steps, (args.batch,), generator=gen)
        eps = torch.randn(x0.shape, generator=gen)
        a, s = sched.coeffs(t)
        pred = model(a * x0 + s * eps, t)
        loss = F.mse_loss(pred, a * eps - s * x0)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update()
        running += loss.detach()
        if step % 20 == 0:
            print(f"step {step:4d}  v-loss {running.item() / 20:.4f}")
            running.zero_()
    dt = time.perf_counter() - t0
    ema.copy_to_model()
    img = ddim_sample(model, sched, (4, 1, args.size, args.size), 15, gen)
    print(f"samples: mean {img.mean():.3f} std {img.std():.3f}")
    print(f"{dt / args.steps * 1e3:.2f} ms/step over {args.steps} steps")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--batch", type=int, default=10)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--ch", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=2)
    train(p.parse_args())
