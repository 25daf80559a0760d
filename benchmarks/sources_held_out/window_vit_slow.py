import math

import torch
from torch import nn
import torch.nn.functional as F


class PatchEmbed(nn.Module):
    def __init__(self, patch=14, dim=768):
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x):
        y = self.proj(x)
        return y.flatten(2).transpose(1, 2), y.shape[-2:]


class Attention(nn.Module):
    def __init__(self, dim, heads, drop=0.0):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x, pad=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        if pad is not None:
            mask = pad[:, None, None, :].repeat(1, self.heads, n, 1)
            scores = scores.masked_fill(mask, float("-inf"))
        attn = self.drop(scores.softmax(dim=-1))
        y = (attn @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(y)


class Block(nn.Module):
    def __init__(self, dim, heads, mlp=4, drop=0.0):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, drop)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp * dim), nn.GELU(), nn.Linear(mlp * dim, dim))
        self.g1 = nn.Parameter(1e-5 * torch.ones(dim))
        self.g2 = nn.Parameter(1e-5 * torch.ones(dim))

    def forward(self, x, pad=None):
        x = x + self.g1 * self.attn(self.n1(x), pad)
        return x + self.g2 * self.mlp(self.n2(x))


class DocumentViT(nn.Module):
    """Page encoder; pages of differing height are padded at the bottom."""

    def __init__(self, dim=768, depth=12, heads=12, patch=14, grid=(64, 46), drop=0.0, keep_maps=False):
        super().__init__()
        self.embed = PatchEmbed(patch, dim)
        self.grid, self.keep_maps = grid, keep_maps
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, dim, *grid))
        self.blocks = nn.ModuleList(Block(dim, heads, drop=drop) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        nn.init.trunc_normal_(self.pos, std=0.02)
        nn.init.trunc_normal_(self.cls, std=0.02)

    def positions(self, size):
        if tuple(size) == self.grid:
            return self.pos.flatten(2).transpose(1, 2)
        p = F.interpolate(self.pos, size=size, mode="bicubic", align_corners=False)
        return p.flatten(2).transpose(1, 2)

    def forward(self, pages, heights):
        tokens, (gh, gw) = self.embed(pages)
        tokens = tokens + self.positions((gh, gw))
        rows = torch.arange(gh, device=pages.device).repeat_interleave(gw)
        used = torch.ceil(heights / self.embed.patch)
        pad = rows[None, :] >= used[:, None]
        pad = F.pad(pad, (1, 0), value=False)
        x = torch.cat([self.cls.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        maps = []
        for block in self.blocks:
            x = block(x, pad)
            if self.keep_maps:
                maps.append(x.detach().norm(dim=-1).cpu())
        x = self.norm(x)
        return (x[:, 0], x[:, 1:], maps) if self.keep_maps else (x[:, 0], x[:, 1:])


def build(name="base", **kw):
    dim, depth, heads = {"small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}[name]
    model = DocumentViT(dim, depth, heads, **kw)
    n = sum(p.numel() for p in model.parameters())
    print(f"{name}: {n / 1e6:.1f}M parameters, log10 {math.log10(n):.2f}")
    return model
