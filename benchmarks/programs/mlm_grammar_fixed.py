# Masked-language-model pretraining of a tiny BERT on a synthetic "language":
# a random Markov grammar over a 5k vocabulary.  From scratch, no pretrained weights.
import math
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 5000
    seq_len: int = 64
    d_model: int = 160
    n_heads: int = 4
    n_layers: int = 4
    batch: int = 24
    steps: int = 90
    warmup: int = 20
    lr: float = 1e-3
    mask_prob: float = 0.15
    seed: int = 11
    log_every: int = 15


PAD, CLS, MASK, N_SPECIAL = 0, 1, 2, 3


class MarkovCorpus:
    """Every word has 6 possible successors with Zipf-like odds."""

    def __init__(self, cfg, gen):
        self.cfg, self.gen = cfg, gen
        self.succ = torch.randint(N_SPECIAL, cfg.vocab, (cfg.vocab, 6), generator=gen)
        self.odds = 1.0 / torch.arange(1, 7).float()

    def sentences(self, n):
        cfg = self.cfg
        choice = torch.multinomial(self.odds, n * cfg.seq_len, replacement=True,
                                   generator=self.gen).view(n, cfg.seq_len)
        out = torch.empty(n, cfg.seq_len, dtype=torch.long)
        out[:, 0] = CLS
        word = torch.randint(N_SPECIAL, cfg.vocab, (n,), generator=self.gen)
        for t in range(1, cfg.seq_len):
            out[:, t] = word
            word = self.succ[word, choice[:, t]]
        return out


def mask_tokens(tokens, cfg, gen):
    """The 80/10/10 recipe.  Labels are -100 where nothing is to be predicted."""
    labels = tokens.clone()
    chosen = torch.rand(tokens.shape, generator=gen) < cfg.mask_prob
    chosen &= tokens >= N_SPECIAL
    labels[~chosen] = -100
    dice = torch.rand(tokens.shape, generator=gen)
    inputs = torch.where(chosen & (dice < 0.8), torch.full_like(tokens, MASK), tokens)
    rand_words = torch.randint(N_SPECIAL, cfg.vocab, tokens.shape, generator=gen)
    inputs = torch.where(chosen & (dice >= 0.9), rand_words, inputs)
    return inputs, labels


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.ln2(x))


class MLMHead(nn.Module):
    """dense + GELU + LayerNorm, then the decoder tied to the word embeddings."""

    def __init__(self, cfg, tok_emb):
        super().__init__()
        self.dense = nn.Linear(cfg.d_model, cfg.d_model)
        self.norm = nn.LayerNorm(cfg.d_model)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab))
        self.tok_emb = tok_emb

    def forward(self, h):
        h = self.norm(F.gelu(self.dense(h)))
        return F.linear(h, self.tok_emb.weight, self.bias)


class TinyBert(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.d_model)
        self.pos = nn.Parameter(torch.randn(cfg.seq_len, cfg.d_model) * 0.02)
        nn.init.normal_(self.tok.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(cfg.d_model, cfg.n_heads) for _ in range(cfg.n_layers))
        self.norm = nn.LayerNorm(cfg.d_model)
        self.head = MLMHead(cfg, self.tok)

    def encode(self, tokens):
        x = self.tok(tokens) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens, labels):
        h = self.encode(tokens)
        picked = labels != -100
        logits = self.head(h[picked])
        return F.cross_entropy(logits, labels[picked])


def lr_at(step, cfg):
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    p = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return 0.5 * (1 + math.cos(math.pi * p))


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    corpus = MarkovCorpus(cfg, gen).sentences(4096)
    model = TinyBert(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: lr_at(s, cfg))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")

    order = torch.randperm(len(corpus), generator=gen)
    running = torch.zeros(())
    start = time.time()
    for step in range(cfg.steps):
        rows = order[(step * cfg.batch) % (len(corpus) - cfg.batch):][:cfg.batch]
        inputs, labels = mask_tokens(corpus[rows], cfg, gen)
        loss = model(inputs, labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        running += loss.detach()
        if (step + 1) % cfg.log_every == 0:
            print(f"step {step + 1:4d}  loss {running.item() / cfg.log_every:.4f}")
            running.zero_()
    print(f"{(time.time() - start) / cfg.steps * 1000:.2f} ms/step")


if __name__ == "__main__":
    main()
