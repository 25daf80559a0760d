"""Topic classification of long token sequences with a kernelised-attention encoder."""
import argparse
import contextlib
import time

import torch
import torch.nn.functional as F
from torch import nn


class KernelAttention(nn.Module):
    """softmax(q k^T) v replaced by phi(q) phi(k)^T v with phi = elu + 1."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        k = k * mask[:, None, :, None]
        norm = torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2)).clamp_min(1e-4)
        ctx = torch.einsum("bhnd,bhde->bhne", q, torch.einsum("bhmd,bhme->bhde", k, v)) / norm[..., None]
        return self.out(ctx.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = KernelAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attn(self.ln1(x), mask)
        return x + self.mlp(self.ln2(x))


class TopicEncoder(nn.Module):
    def __init__(self, vocab, dim, heads, depth, topics, max_len):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(0.02 * torch.randn(max_len, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, topics)

    def forward(self, ids):
        mask = (ids != 0).to(self.pos.dtype)
        x = self.tok(ids) + self.pos[:ids.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(pooled)


def documents(topics, vocab, batch, length, seed):
    """Every topic prefers its own slice of the vocabulary."""
    gen = torch.Generator().manual_seed(seed)
    width = (vocab - 1) // topics
    while True:
        label = torch.randint(0, topics, (batch,), generator=gen)
        ids = torch.randint(1, vocab, (batch, length), generator=gen)
        own = 1 + label[:, None] * width + torch.randint(0, width, (batch, length), generator=gen)
        ids = torch.where(torch.rand(batch, length, generator=gen) < 0.06, own, ids)
        lens = torch.randint(int(0.9 * length), length + 1, (batch,), generator=gen)
        ids[torch.arange(length) >= lens[:, None]] = 0
        yield ids, label


@contextlib.contextmanager
def stopwatch(name, book):
    begin = time.perf_counter()
    yield
    book[name] = book.get(name, 0.0) + time.perf_counter() - begin


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--length", type=int, default=640)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--depth", type=int, default=2)
    ap.add_argument("--vocab", type=int, default=2001)
    ap.add_argument("--topics", type=int, default=10)
    return ap.parse_args()


def main():
    args = parse()
    torch.manual_seed(13)
    net = TopicEncoder(args.vocab, args.dim, args.heads, args.depth, args.topics, args.length)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    source = documents(args.topics, args.vocab, args.batch, args.length, seed=13)
    book, ema = {}, None
    begin = time.perf_counter()
    for step in range(args.steps):
        with stopwatch("data", book):
            ids, label = next(source)
        with stopwatch("train", book):
            loss = F.cross_entropy(net(ids), label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
        ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
        if (step + 1) % 10 == 0:
            print(f"step {step + 1} ema {ema:.4f} data {book['data']:.2f}s", flush=True)
    took = time.perf_counter() - begin
    print(f"s/step {took / args.steps:.5f} total {took:.2f}")


if __name__ == "__main__":
    main()
