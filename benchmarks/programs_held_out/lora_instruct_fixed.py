"""LoRA fine-tuning of a small decoder-only transformer on an instruction-like toy task
(reverse / sort / copy a list of digits). A random "pretrained" base is frozen."""
import math
import time
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelCfg:
    vocab: int = 32
    ctx: int = 26
    dim: int = 384
    heads: int = 6
    layers: int = 3


@dataclass
class LoraCfg:
    rank: int = 8
    alpha: float = 16.0
    targets: tuple = ("q", "v", "up", "down")


@dataclass
class TrainCfg:
    steps: int = 110
    batch: int = 10
    lr: float = 2e-3
    warmup: int = 15
    seed: int = 17
    model: ModelCfg = field(default_factory=ModelCfg)
    lora: LoraCfg = field(default_factory=LoraCfg)


class LoRALinear(nn.Module):
    """Frozen linear layer with a trainable low-rank update."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.weight = nn.Parameter(base.weight.detach(), requires_grad=False)
        self.bias = None if base.bias is None else nn.Parameter(base.bias.detach(), False)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scale = alpha / rank
        self.merged = False

    def delta(self):
        return (self.lora_B @ self.lora_A) * self.scale

    @torch.no_grad()
    def merge(self):
        if not self.merged:
            self.weight += self.delta()
            self.merged = True

    def forward(self, x):
        if self.merged:
            return F.linear(x, self.weight, self.bias)
        low = F.linear(x, self.lora_A)
        return F.linear(x, self.weight, self.bias) + F.linear(low, self.lora_B) * self.scale


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.dim
        self.heads = cfg.heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Parameter(torch.randn(cfg.ctx, cfg.dim) * 0.3)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[:ids.size(1)]
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x))


def inject_lora(model, cfg):
    model.requires_grad_(False)
    for blk in model.blocks:
        for name in cfg.targets:
            setattr(blk, name, LoRALinear(getattr(blk, name), cfg.rank, cfg.alpha))
    model.head.requires_grad_(True)
    return [p for p in model.parameters() if p.requires_grad]


def instruction_stream(batch, gen, n=12):
    """<op> d1..dn <sep> answer -- loss only on the answer."""
    while True:
        x = torch.randint(0, 10, (batch, n), generator=gen)
        op = torch.randint(0, 3, (batch, 1), generator=gen)
        y = torch.where(op == 0, x, torch.where(op == 1, x.flip(1), x.sort(1).values))
        sep = torch.full((batch, 1), 15)
        seq = torch.cat([op + 11, x, sep, y], 1)
        labels = seq[:, 1:].clone()
        labels[:, :n + 1] = -100
        yield seq[:, :-1], labels


def lr_at(step, cfg):
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    frac = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return cfg.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * frac)))


@torch.no_grad()
def evaluate(model, stream, batches):
    model.eval()
    hit = tot = 0
    for _ in range(batches):
        ids, labels = next(stream)
        keep = labels >= 0
        hit += int((model(ids).argmax(-1) == labels)[keep].sum())
        tot += int(keep.sum())
    return hit / tot


def main():
    cfg = TrainCfg()
    torch.manual_seed(cfg.seed)
    model = Decoder(cfg.model)
    params = inject_lora(model, cfg.lora)
    print(f"trainable {sum(p.numel() for p in params):,} of "
          f"{sum(p.numel() for p in model.parameters()):,}")
    opt = torch.optim.AdamW(params, lr=cfg.lr, weight_decay=0.0, fused=True)
    stream = instruction_stream(cfg.batch, torch.Generator().manual_seed(cfg.seed))

    t0 = time.perf_counter()
    for step in range(cfg.steps):
        ids, labels = next(stream)
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        for g in opt.param_groups:
            g["lr"] = lr_at(step, cfg)
        opt.step()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1:4d}  loss {loss.item():.4f}  lr {g['lr']:.2e}")
    dt = time.perf_counter() - t0

    for m in model.modules():
        if isinstance(m, LoRALinear):
            m.merge()
    print(f"token accuracy after merging {evaluate(model, stream, 4):.3f}")
    print(f"{dt / cfg.steps * 1e3:.2f} ms/step over {cfg.steps} steps")


if __name__ == "__main__":
    main()
