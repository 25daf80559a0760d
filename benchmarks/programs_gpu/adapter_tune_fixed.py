import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


class LoRALinear(nn.Module):
    """A linear layer with a low-rank update beside it."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        dev = base.weight.device
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, device=dev))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, device=dev))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale


class Layer(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.ln_attn = nn.RMSNorm(dim)
        self.ln_mlp = nn.RMSNorm(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        h = self.ln_attn(x)
        q, k, v = (p(h).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(b, t, d))
        g, u = self.gate_up(self.ln_mlp(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(g) * u)


class Decoder(nn.Module):
    def __init__(self, vocab, ctx, dim, layers, heads, hidden):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(ctx, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def add_adapters(model, rank, alpha, names=("q_proj", "v_proj")):
    for layer in model.layers:
        for name in names:
            setattr(layer, name, LoRALinear(getattr(layer, name), rank, alpha))
    return [p for n, p in model.named_parameters() if "lora_" in n]


def lr_at(step, base, warmup, total):
    if step < warmup:
        return base * (step + 1) / warmup
    return base * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def main():
    parser = argparse.ArgumentParser(description="adapt a base decoder to a new style of text")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=32.0)
    parser.add_argument("--lr", type=float, default=3e-4)
    opt = parser.parse_args()
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(7)
    if opt.small:
        vocab, ctx, dim, layers, heads, hidden, batch, steps = 200, 32, 64, 2, 4, 96, 2, 5
    else:
        vocab, ctx, dim, layers, heads, hidden, batch, steps = 32000, 1024, 2048, 12, 16, 5632, 8, 100

    with torch.device(dev):
        model = Decoder(vocab, ctx, dim, layers, heads, hidden).bfloat16().requires_grad_(False)
    adapters = add_adapters(model, opt.rank, opt.alpha)
    optimizer = torch.optim.AdamW(adapters, lr=opt.lr, weight_decay=0.01, fused=dev.type == "cuda")
    n_train = sum(p.numel() for p in adapters)
    print(f"adapters: {n_train / 1e6:.2f} M of {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")

    corpus = torch.randint(vocab, (64 * batch, ctx + 1), device=dev)
    began, log = time.time(), []
    for step in range(steps):
        # STEP
        rows = corpus[(step % 64) * batch:(step % 64 + 1) * batch]
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, opt.lr, 10, steps)
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()
        log.append(loss.detach())
    log = torch.stack(log).tolist()
    print(f"loss {log[0]:.4f} -> {log[-1]:.4f} in {time.time() - began:.1f} s")


if __name__ == "__main__":
    main()
