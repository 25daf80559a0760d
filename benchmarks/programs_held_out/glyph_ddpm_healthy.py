"""DDPM on 16x16 synthetic glyphs with a small DiT-style transformer.

Random strokes are rasterised once; the network predicts the noise.  Weights are
averaged (EMA), and at the end a few DDIM steps give samples whose stroke density
is compared with that of the data.
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE, PATCH = 16, 2
TOKENS, PDIM = (SIDE // PATCH) ** 2, PATCH * PATCH


def draw_glyphs(n, gen):
    """Two random line segments with soft edges, values in [-1, 1]."""
    ax = torch.arange(SIDE).float()
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    p = torch.stack([xx, yy], -1)                                   # (S, S, 2)
    img = torch.full((n, SIDE, SIDE), -1.0)
    for _ in range(2):
        a = torch.rand(n, 1, 1, 2, generator=gen) * (SIDE - 5) + 2
        b = torch.rand(n, 1, 1, 2, generator=gen) * (SIDE - 5) + 2
        d = b - a
        t = (((p - a) * d).sum(-1) / (d * d).sum(-1).clamp_min(1e-3)).clamp(0, 1)
        dist = (p - a - t[..., None] * d).norm(dim=-1)
        img = torch.maximum(img, 1 - 2 * (dist - 0.6).clamp(0, 1))
    return img


def patchify(x):
    b, g = x.size(0), SIDE // PATCH
    return x.view(b, g, PATCH, g, PATCH).transpose(2, 3).reshape(b, TOKENS, PDIM)


def unpatchify(z):
    b, g = z.size(0), SIDE // PATCH
    return z.view(b, g, g, PATCH, PATCH).transpose(2, 3).reshape(b, SIDE, SIDE)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(a)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Denoiser(nn.Module):
    def __init__(self, d=256, depth=4, heads=4):
        super().__init__()
        self.inp, self.out = nn.Linear(PDIM, d), nn.Linear(d, PDIM)
        self.pos = nn.Parameter(torch.randn(TOKENS, d) * 0.02)
        self.time = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        freq = torch.exp(-math.log(1e4) * torch.arange(d // 2) / (d // 2))
        self.register_buffer("freq", freq)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        nn.init.zeros_(self.out.weight)

    def forward(self, x, t):
        arg = t.float()[:, None] * self.freq
        emb = self.time(torch.cat([arg.sin(), arg.cos()], -1))
        h = self.inp(patchify(x)) + self.pos + emb[:, None]
        for blk in self.blocks:
            h = blk(h)
        return unpatchify(self.out(self.norm(h)))


class Schedule:
    def __init__(self, steps=400):
        s = torch.linspace(0, 1, steps + 1)
        f = torch.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
        bar = (f[1:] / f[0]).clamp(1e-4, 0.9999)
        self.steps, self.a, self.s = steps, bar.sqrt(), (1 - bar).sqrt()

    def noisy(self, x, t, eps):
        return self.a[t, None, None] * x + self.s[t, None, None] * eps


@torch.inference_mode()
def ddim(model, sched, n, hops=16):
    x = torch.randn(n, SIDE, SIDE)
    ts = torch.linspace(sched.steps - 1, 0, hops).long().tolist()
    for now, nxt in zip(ts, ts[1:] + [None]):
        eps = model(x, torch.full((n,), now))
        x0 = ((x - sched.s[now] * eps) / sched.a[now]).clamp(-1, 1)
        x = x0 if nxt is None else sched.a[nxt] * x0 + sched.s[nxt] * eps
    return x


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=70)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--ema", type=float, default=0.97)
    return p.parse_args()


def main():
    args = parse()
    gen = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    data = draw_glyphs(4096, gen)
    sched, model, avg = Schedule(), Denoiser(), Denoiser()
    avg.load_state_dict(model.state_dict())
    avg.requires_grad_(False)
    src, dst = list(model.parameters()), list(avg.parameters())
    opt = torch.optim.AdamW(src, lr=args.lr, fused=True)

    history = torch.zeros(args.steps)
    t0 = time.perf_counter()
    for step in range(args.steps):
        x = data[torch.randint(len(data), (args.batch,), generator=gen)]
        t = torch.randint(sched.steps, (args.batch,), generator=gen)
        eps = torch.randn(x.shape, generator=gen)
        loss = F.mse_loss(model(sched.noisy(x, t, eps), t), eps)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(dst, src, 1 - args.ema)
        history[step] = loss.detach()
        if (step + 1) % 14 == 0:
            print(f"step {step + 1:3d}  mse {history[step - 13:step + 1].mean().item():.4f}")
    ms = (time.perf_counter() - t0) / args.steps * 1e3
    print(f"training took {ms:.2f} ms/step")
    made = ddim(avg.eval(), sched, 32)
    print(f"ink: data {(data > 0).float().mean():.3f}, samples {(made > 0).float().mean():.3f}")


if __name__ == "__main__":
    main()
