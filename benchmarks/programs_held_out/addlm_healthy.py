"""A little decoder-only transformer that learns column addition, e.g. "173+058=231;".

Digits of the answer are produced most significant first, so carries have to be looked ahead.
All tokens count in the loss; now and then the answers to held-out sums are checked.
"""
import argparse
import math
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = "0123456789+=;"


@dataclass(frozen=True)
class Config:
    width: int = 160
    heads: int = 4
    layers: int = 4
    digits: int = 4
    batch: int = 96
    steps: int = 180
    lr: float = 1.5e-3
    warmup: int = 20
    log_every: int = 45
    seed: int = 99

    @property
    def prompt(self):
        return 2 * self.digits + 2          # a + b =

    @property
    def length(self):
        return self.prompt + self.digits + 2  # answer ;


class SumBatches:
    """endless batches of equations as token indices"""

    def __init__(self, cfg, seed):
        self.cfg, self.gen = cfg, torch.Generator().manual_seed(seed)
        self.place = 10 ** torch.arange(cfg.digits, -1, -1)

    def _digits(self, v, n):
        return v.unsqueeze(1) // self.place[-n:] % 10

    def __iter__(self):
        return self

    def __next__(self):
        d, n = self.cfg.digits, self.cfg.batch
        a = torch.randint(10 ** d, (n,), generator=self.gen)
        b = torch.randint(10 ** d, (n,), generator=self.gen)
        sign = torch.tensor([10, 11, 12]).expand(n, 3)
        return torch.cat([
            self._digits(a, d), sign[:, :1], self._digits(b, d), sign[:, 1:2],
            self._digits(a + b, d + 1), sign[:, 2:],
        ], dim=1)


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.width
        self.heads = cfg.heads
        self.n1, self.n2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.proj = nn.Linear(w, 3 * w, bias=False), nn.Linear(w, w, bias=False)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.relu(self.up(self.n2(x))))


class AdditionLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(len(VOCAB), cfg.width)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg.length, cfg.width))
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, len(VOCAB))

    def forward(self, idx):
        x = self.tok(idx) + self.pos[: idx.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def loss(self, seq):
        return F.cross_entropy(self.head(self(seq[:, :-1])).flatten(0, 1), seq[:, 1:].flatten())

    @torch.inference_mode()
    def exact(self, seq):
        """share of the sums whose every answer token is right (teacher forced)"""
        first = self.cfg.prompt - 1
        guess = self.head(self(seq[:, :-1])[:, first:]).argmax(-1)
        return (guess == seq[:, first + 1:]).all(1).float().mean().item()


def schedule(step, cfg):
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    done = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def parse():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--width", type=int, default=Config.width)
    ap.add_argument("--seed", type=int, default=Config.seed)
    return Config(**vars(ap.parse_args()))


def main():
    cfg = parse()
    torch.manual_seed(cfg.seed)
    model = AdditionLM(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    lrs = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: schedule(s, cfg))
    batches, held_out = SumBatches(cfg, cfg.seed), next(SumBatches(cfg, cfg.seed + 1))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {cfg.length} tokens per sum")
    start = time.perf_counter()
    for step, seq in zip(range(cfg.steps), batches):
        loss = model.loss(seq)
        opt.zero_grad()
        loss.backward()
        opt.step()
        lrs.step()
        if (step + 1) % cfg.log_every == 0:
            print(f"step {step + 1:4d}  loss {loss.item():.4f}  exact {model.exact(held_out):.3f}", flush=True)
    print(f"{(time.perf_counter() - start) / cfg.steps * 1e3:.2f} ms/step")


if __name__ == "__main__":
    main()
