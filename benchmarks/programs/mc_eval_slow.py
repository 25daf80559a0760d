"""Mini evaluation harness: zero-shot multiple choice by log-likelihood, several tasks.

Every (context, ending) pair becomes one request; requests are sorted by length, run through
the model in batches, and the answers are put back in their original order for the metrics.
"""
from __future__ import annotations

import collections
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    vocab: int = 12000
    dim: int = 192
    layers: int = 4
    heads: int = 6
    max_len: int = 192


@dataclass(frozen=True)
class Request:
    index: int
    task: str
    doc: int
    choice: int
    context: tuple
    ending: tuple

    @property
    def tokens(self):
        return self.context + self.ending


class Block(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.heads = a.heads
        self.ln1, self.ln2 = nn.LayerNorm(a.dim), nn.LayerNorm(a.dim)
        self.qkv, self.proj = nn.Linear(a.dim, 3 * a.dim), nn.Linear(a.dim, a.dim)
        self.up, self.down = nn.Linear(a.dim, 4 * a.dim), nn.Linear(4 * a.dim, a.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class CausalLM(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Embedding(a.max_len, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.ln = nn.LayerNorm(a.dim)
        self.lm_head = nn.Linear(a.dim, a.vocab, bias=False)

    def hidden(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for blk in self.blocks:
            x = blk(x)
        return self.ln(x)

    def forward(self, ids):
        return self.lm_head(self.hidden(ids))


class Task:
    """synthetic stand-in for a multiple-choice set: contexts with 2 to 4 endings"""

    def __init__(self, name, n_docs, n_choices, ctx_range, end_range, vocab, seed):
        self.name = name
        g = torch.Generator().manual_seed(seed)

        def draw(lo, hi):
            n = int(torch.randint(lo, hi + 1, (1,), generator=g))
            return tuple(torch.randint(1, vocab, (n,), generator=g).tolist())

        self.docs = []
        for _ in range(n_docs):
            ctx = draw(*ctx_range)
            gold = int(torch.randint(0, n_choices, (1,), generator=g))
            self.docs.append((ctx, [draw(*end_range) for _ in range(n_choices)], gold))

    def requests(self, start):
        for d, (ctx, endings, _) in enumerate(self.docs):
            for c, end in enumerate(endings):
                yield Request(start, self.name, d, c, ctx, end)
                start += 1

    def score(self, lls):
        acc = acc_norm = 0
        for d, (_, endings, gold) in enumerate(self.docs):
            raw = [lls[d, c][0] for c in range(len(endings))]
            norm = [r / len(e) for r, e in zip(raw, endings)]
            acc += raw.index(max(raw)) == gold
            acc_norm += norm.index(max(norm)) == gold
        greedy = sum(g for _, g in lls.values()) / len(lls)
        return {"acc": acc / len(self.docs), "acc_norm": acc_norm / len(self.docs), "greedy": greedy}


class Harness:
    def __init__(self, model, batch_size):
        self.model, self.batch_size = model, batch_size

    def collate(self, chunk):
        width = max(len(r.tokens) for r in chunk) - 1
        ids = torch.zeros(len(chunk), width, dtype=torch.long)
        for row, r in enumerate(chunk):
            ids[row, : len(r.tokens) - 1] = torch.tensor(r.tokens[:-1])
        return ids

    def model_call(self, ids):
        return F.log_softmax(self.model(ids), dim=-1)

    def loglikelihood(self, chunk):
        logprobs = self.model_call(self.collate(chunk))
        for row, r in enumerate(chunk):
            n, end = len(r.ending), len(r.tokens) - 1
            lp = logprobs[row, end - n:end]
            target = torch.tensor(r.ending)
            greedy = bool((lp.argmax(-1) == target).all())
            ll = lp.gather(1, target[:, None]).sum()
            yield r, float(ll), greedy

    def run(self, tasks, log_every=20):
        reqs = []
        for t in tasks:
            reqs.extend(t.requests(len(reqs)))
        reqs.sort(key=lambda r: (-len(r.tokens), r.index))
        chunks = [reqs[i:i + self.batch_size] for i in range(0, len(reqs), self.batch_size)]
        results = collections.defaultdict(dict)
        t0 = time.perf_counter()
        for step, chunk in enumerate(chunks):
            for r, ll, greedy in self.loglikelihood(chunk):
                results[r.task][r.doc, r.choice] = (ll, greedy)
            if step % log_every == 0:
                print(f"[{step:3d}/{len(chunks)}] longest request {len(chunk[0].tokens)} tokens")
        dt = time.perf_counter() - t0
        return results, len(chunks), dt


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    args = ModelArgs()
    model = CausalLM(args).eval()
    tasks = [
        Task("endings", 40, 4, (60, 110), (10, 24), args.vocab, 1),
        Task("physical", 60, 2, (20, 60), (12, 40), args.vocab, 2),
        Task("science", 50, 4, (24, 90), (2, 12), args.vocab, 3),
    ]
    results, n, dt = Harness(model, batch_size=6).run(tasks)
    for t in tasks:
        m = t.score(results[t.name])
        total = sum(v[0] for v in results[t.name].values())
        print(f"{t.name:10s} acc {m['acc']:.4f}  acc_norm {m['acc_norm']:.4f}  sum ll {total:.2f}")
    print(f"{n} batches in {dt:.1f} s, {1000 * dt / n:.1f} ms/batch")


if __name__ == "__main__":
    main()
