"""Search re-ranking service: asyncio front end, one micro-batching model task, closed-loop clients."""
import asyncio
import random
import re
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class ServiceConfig:
    vocab_size: int = 6000
    dim: int = 192
    max_len: int = 48
    max_batch_size: int = 32
    max_batch_delay: float = 0.050
    clients: int = 8
    requests_per_client: int = 70


class Tokenizer:
    PATTERN = re.compile(r"[a-z]+\d*")

    def __init__(self, words):
        self.vocab = ["<pad>", "<unk>", "<sep>"] + list(words)

    def encode(self, query, doc, max_len):
        ids = [self.lookup(t) for t in self.PATTERN.findall(query)] + [2]
        ids += [self.lookup(t) for t in self.PATTERN.findall(doc)]
        return ids[:max_len]

    def lookup(self, token):
        return self.vocab.index(token) if token in self.vocab else 1


class Reranker(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab_size + 3, cfg.dim, padding_idx=0)
        self.enc = nn.TransformerEncoderLayer(cfg.dim, 4, 2 * cfg.dim, batch_first=True, dropout=0.0)
        self.head = nn.Linear(cfg.dim, 1)

    def forward(self, ids):
        mask = ids.eq(0)
        h = self.enc(self.emb(ids), src_key_padding_mask=mask)
        h = h.masked_fill(mask.unsqueeze(-1), 0).sum(1) / (~mask).sum(1, keepdim=True)
        return self.head(h).squeeze(-1)


class RerankService:
    def __init__(self, cfg, tokenizer):
        self.cfg, self.tokenizer = cfg, tokenizer
        self.model = Reranker(cfg).eval()
        self.queue = asyncio.Queue()
        self.batches = 0
        self.served = 0

    async def score(self, query, doc):
        ids = self.tokenizer.encode(query, doc, self.cfg.max_len)
        future = asyncio.get_running_loop().create_future()
        await self.queue.put((ids, future))
        return await future

    async def collect(self):
        loop = asyncio.get_running_loop()
        batch = [await self.queue.get()]
        deadline = loop.time() + self.cfg.max_batch_delay
        while len(batch) < self.cfg.max_batch_size:
            remaining = deadline - loop.time()
            if remaining <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(self.queue.get(), remaining))
            except asyncio.TimeoutError:
                break
        return batch

    async def run(self):
        while True:
            batch = await self.collect()
            width = max(len(ids) for ids, _ in batch)
            x = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch])
            with torch.inference_mode():
                scores = self.model(x).tolist()
            for (_, future), s in zip(batch, scores):
                future.set_result(s)
            self.batches += 1
            self.served += len(batch)


async def client(service, cid, words, n):
    rng = random.Random(cid)
    total = 0.0
    for _ in range(n):
        query = " ".join(rng.choices(words, k=6))
        doc = " ".join(rng.choices(words, k=38))
        total += await service.score(query, doc)
    return total / n


async def main():
    torch.manual_seed(0)
    cfg = ServiceConfig()
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnop", k=5)) + str(i) for i in range(cfg.vocab_size)]
    service = RerankService(cfg, Tokenizer(words))
    worker = asyncio.create_task(service.run())
    means = await asyncio.gather(
        *(client(service, c, words, cfg.requests_per_client) for c in range(cfg.clients)))
    worker.cancel()
    print(f"served {service.served} requests")
    for c, m in enumerate(means):
        print(f"client {c}: mean score {m:+.4f}")


if __name__ == "__main__":
    asyncio.run(main())
