"""Evaluation harness: scores documents of several registers with a causal language
model and reports bits per token for each register."""
import gc
import json
import math
import time
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cpu")
VOCAB, DIM, HEADS, LAYERS, CONTEXT = 2048, 256, 4, 4, 192
REGISTERS = {"news": (60, 90), "chat": (24, 60), "legal": (96, 160), "code": (50, 140)}
METRICS = {}


def metric(name):
    def add(fn):
        METRICS[name] = fn
        return fn
    return add


@metric("bits_per_token")
def bits(stat):
    return stat["nll"] / stat["tokens"] / math.log(2)


@metric("accuracy")
def accuracy(stat):
    return stat["right"] / stat["tokens"]


@metric("worst_document")
def worst(stat):
    return max(stat["per_doc"])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.relu(self.up(self.n2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(CONTEXT, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids, keep):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x[keep]), self.tok.weight)


def documents(per_register, gen):
    for name, (low, high) in REGISTERS.items():
        for _ in range(per_register):
            n = int(torch.randint(low, high, (1,), generator=gen))
            steps = torch.randint(0, 40, (n,), generator=gen)
            yield name, (steps.cumsum(0) % (VOCAB - 1) + 1).tolist()


def batches(docs, budget):
    """Documents of like length together, about `budget` tokens in each batch."""
    pool = sorted(docs, key=lambda d: len(d[1]))
    batch = []
    for doc in pool:
        if batch and (len(batch) + 1) * len(doc[1]) > budget:
            yield batch
            batch = []
        batch.append(doc)
    yield batch


def collate(batch):
    ids = torch.zeros(len(batch), max(len(d) for _, d in batch), dtype=torch.long)
    for row, (_, d) in enumerate(batch):
        ids[row, :len(d)] = torch.tensor(d)
    return ids


@torch.no_grad()
def evaluate(model, docs, budget=420):
    stats = defaultdict(lambda: {"nll": 0.0, "tokens": 0, "right": 0, "per_doc": []})
    journal, count = [], 0
    for batch in batches(docs, budget):
        ids = collate(batch).contiguous().to(DEVICE)
        source, target = ids[:, :-1], ids[:, 1:]
        keep = target != 0
        logits = model(source, keep).float()
        gold = target[keep]
        nll = F.cross_entropy(logits, gold, reduction="none")
        if not torch.isfinite(nll).all().item():
            raise FloatingPointError("model returned nan")
        hit = logits.argmax(-1) == gold
        at = 0
        for name, doc in batch:
            n = len(doc) - 1
            part = nll[at:at + n].double().sum().item()
            stat = stats[name]
            stat["nll"] += part
            stat["tokens"] += n
            stat["right"] += hit[at:at + n].sum().item()
            stat["per_doc"].append(part / n)
            at += n
        journal.append(json.dumps({"batch": count, "nll": nll.mean().item(), "rows": len(batch)}))
        count += 1
    return stats, journal


def main():
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(10)
    model = LanguageModel().to(DEVICE).eval()
    docs = list(documents(150, gen))
    gc.collect()
    t0 = time.perf_counter()
    stats, journal = evaluate(model, docs)
    dt = time.perf_counter() - t0
    for name, stat in sorted(stats.items()):
        print(name, {m: round(float(fn(stat)), 4) for m, fn in METRICS.items()})
    print(f"{len(docs)} documents, {len(journal)} batches, {dt / len(journal) * 1e3:.3f} ms per step")


if __name__ == "__main__":
    main()
