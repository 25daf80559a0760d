"""Text-conditioned DDIM sampling of small glyph images, with a progress callback."""
from dataclasses import dataclass, field
from typing import Callable, List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS = "a an the of small large red blue round square glyph letter rune on grey paper thin bold".split()


@dataclass
class SampleConfig:
    prompts: List[str] = field(default_factory=lambda: [
        "a small red round glyph on grey paper",
        "the large bold letter on paper",
        "a thin blue rune",
        "an square glyph of the rune",
    ])
    steps: int = 30
    guidance: float = 4.0
    size: int = 24
    rounds: int = 2
    seed: int = 51


def tokenize(prompts, length=32):
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, text in enumerate(prompts):
        words = text.split()[:length]
        for col, w in enumerate(words):
            ids[row, col] = 1 + WORDS.index(w)
    return ids


class TextEncoder(nn.Module):
    def __init__(self, dim=192, layers=4):
        super().__init__()
        self.tok = nn.Embedding(len(WORDS) + 1, dim)
        self.pos = nn.Parameter(torch.randn(32, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 6, 3 * dim, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.body(self.tok(ids) + self.pos)


class CrossBlock(nn.Module):
    def __init__(self, ch, ctx=192):
        super().__init__()
        self.norm = nn.GroupNorm(8, ch)
        self.conv = nn.Conv2d(ch, ch, 3, padding=1)
        self.time = nn.Linear(64, ch)
        self.attn = nn.MultiheadAttention(ch, 4, kdim=ctx, vdim=ctx, batch_first=True)

    def forward(self, x, temb, context):
        h = self.conv(F.silu(self.norm(x))) + self.time(temb)[:, :, None, None]
        b, c, hh, ww = h.shape
        q = h.flatten(2).transpose(1, 2)
        q = q + self.attn(q, context, context, need_weights=False)[0]
        return x + q.transpose(1, 2).view(b, c, hh, ww)


class Denoiser(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        self.inp = nn.Conv2d(1, ch, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(CrossBlock(ch) for _ in range(3))
        self.out = nn.ConvTranspose2d(ch, 1, 4, stride=2, padding=1)

    def forward(self, x, t, context):
        freq = torch.exp(-torch.arange(32) / 32 * 8.0)
        arg = t[:, None].float() * freq
        temb = torch.cat([arg.sin(), arg.cos()], dim=1)
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, temb, context)
        return self.out(F.silu(h))


class Pipeline:
    def __init__(self, cfg):
        self.cfg = cfg
        self.encoder = TextEncoder().eval()
        self.unet = Denoiser().eval()
        self.abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def encode(self, prompts):
        return self.encoder(tokenize(prompts))

    def guided_noise(self, x, t, context):
        both = torch.cat([x, x])
        eps = self.unet(both, t.expand(len(both)), context)
        uncond, cond = eps.chunk(2)
        return uncond + self.cfg.guidance * (cond - uncond)

    @torch.no_grad()
    def __call__(self, prompts, gen, callback: Optional[Callable] = None):
        x = torch.randn(len(prompts), 1, self.cfg.size, self.cfg.size, generator=gen)
        context = torch.cat([self.encode([""] * len(prompts)), self.encode(prompts)])
        times = torch.linspace(999, 0, self.cfg.steps).long()
        for k, t in enumerate(times):
            eps = self.guided_noise(x, t, context)
            a = self.abar[t]
            prev = self.abar[times[k + 1]] if k + 1 < len(times) else torch.tensor(1.0)
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
            if callback is not None:
                callback(k, x0)
        return x


def report_every(n):
    def report(k, x0):
        if k % n == n - 1:
            print(f"  step {k + 1:3d}  mean {x0.mean():+.3f}  std {x0.std():.3f}")
    return report


def main():
    cfg = SampleConfig()
    torch.manual_seed(cfg.seed)
    pipe = Pipeline(cfg)
    gen = torch.Generator().manual_seed(cfg.seed + 1)
    images = []
    for r in range(cfg.rounds):
        print(f"round {r}")
        images.append(pipe(cfg.prompts, gen, callback=report_every(15)))
    grid = torch.cat(images)
    print(f"{len(grid)} images, ink {(grid > 0).float().mean():.3f}")


if __name__ == "__main__":
    main()
