"""Text-to-image sampling: latent diffusion transformer with classifier-free guidance (DDIM)."""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Sizes:
    dim: int = 1024
    depth: int = 16
    heads: int = 16
    text_dim: int = 1024
    text_depth: int = 24
    text_len: int = 256
    vocab: int = 16000
    latent: int = 32
    prompts: int = 4
    denoise: int = 40
    jobs: int = 4


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_dim=None):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(kv_dim or dim, 2 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x, ctx=None):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x if ctx is None else ctx).view(b, -1, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class TextBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))


class TextEncoder(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.tok = nn.Embedding(s.vocab, s.text_dim)
        self.pos = nn.Parameter(torch.randn(s.text_len, s.text_dim) * 0.02)
        self.blocks = nn.ModuleList([TextBlock(s.text_dim, s.heads) for _ in range(s.text_depth)])
        self.norm = nn.LayerNorm(s.text_dim)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)


class DenoiseBlock(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.mod = nn.Linear(s.dim, 4 * s.dim)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(s.dim, elementwise_affine=False) for _ in range(3))
        self.self_att = Attention(s.dim, s.heads)
        self.cross = Attention(s.dim, s.heads, s.text_dim)
        self.mlp = nn.Sequential(nn.Linear(s.dim, 4 * s.dim), nn.GELU(), nn.Linear(4 * s.dim, s.dim))

    def forward(self, x, temb, ctx):
        a, b, c, d = self.mod(temb).unsqueeze(1).chunk(4, -1)
        x = x + self.self_att(self.n1(x) * (1 + a) + b)
        x = x + self.cross(self.n2(x), ctx)
        return x + self.mlp(self.n3(x) * (1 + c) + d)


class Denoiser(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.side = s.latent // 2
        self.inp = nn.Conv2d(4, s.dim, 2, 2)
        self.pos = nn.Parameter(torch.randn(self.side ** 2, s.dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(s.dim, s.dim), nn.SiLU(), nn.Linear(s.dim, s.dim), nn.SiLU())
        self.register_buffer("freq", torch.exp(torch.linspace(0, -9, s.dim // 2)))
        self.blocks = nn.ModuleList([DenoiseBlock(s) for _ in range(s.depth)])
        self.out = nn.Linear(s.dim, 16)

    def forward(self, x, t, ctx):
        ang = t[:, None].float() * self.freq.float()
        temb = self.time(torch.cat([ang.sin(), ang.cos()], -1).to(x.dtype))
        h = self.inp(x).flatten(2).transpose(1, 2) + self.pos
        for blk in self.blocks:
            h = blk(h, temb, ctx)
        return F.pixel_shuffle(self.out(h).transpose(1, 2).unflatten(2, (self.side, self.side)), 2)


class Pipeline:
    def __init__(self, s: Sizes, device, dtype):
        with torch.device(device):
            self.text = TextEncoder(s).to(dtype).eval()
            self.net = Denoiser(s).to(dtype).eval()
        self.s, self.device, self.dtype = s, device, dtype
        self.alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).tolist()

    def guided_noise(self, x, t, context, scale):
        ts = torch.full((2 * x.shape[0],), t, device=self.device)
        eps_c, eps_u = self.net(torch.cat([x, x]), ts, context).chunk(2)
        return eps_u + scale * (eps_c - eps_u)

    def sample(self, tokens, generator, scale=5.0):
        tokens = tokens.to(self.device)
        context = self.text(torch.cat([tokens, torch.zeros_like(tokens)]))
        x = torch.randn(tokens.shape[0], 4, self.s.latent, self.s.latent, generator=generator).to(self.device, self.dtype)
        times = list(range(0, 1000, 1000 // self.s.denoise))[::-1]
        for t, t_next in zip(times, times[1:] + [-1]):
            # STEP
            a, a_next = self.alphas[t], (self.alphas[t_next] if t_next >= 0 else 1.0)
            eps = self.guided_noise(x, t, context, scale)
            x0 = (x - (1 - a) ** 0.5 * eps) / a ** 0.5
            x = a_next ** 0.5 * x0 + (1 - a_next) ** 0.5 * eps
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    sizes = Sizes(32, 2, 2, 32, 2, 8, 100, 8, 2, 4, 2) if args.small else Sizes()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    pipe = Pipeline(sizes, device, torch.bfloat16)
    g = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for job in range(sizes.jobs):
            tokens = torch.randint(1, sizes.vocab, (sizes.prompts, sizes.text_len), generator=g)
            latents = pipe.sample(tokens, g)
            print(f"job {job}: latents {tuple(latents.shape)} std {latents.float().std().item():.3f}")


if __name__ == "__main__":
    main()
