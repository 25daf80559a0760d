"""In-process embedding service with dynamic batching, driven by a pool of callers."""
import queue
import random
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass(frozen=True)
class ServiceConfig:
    vocab: int = 2000
    dim: int = 128
    layers: int = 2
    max_len: int = 48
    max_batch: int = 32
    max_wait_ms: float = 25.0


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(cfg.dim, 4, 2 * cfg.dim, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)

    def forward(self, ids):
        pad = ids.eq(0)
        h = self.body(self.emb(ids), src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        pooled = (h * keep).sum(1) / keep.sum(1)
        return nn.functional.normalize(pooled, dim=-1)


class EmbeddingService:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Encoder(cfg).eval()
        self.inbox = queue.Queue()
        self.batch_sizes = []
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.run, name="batcher")

    def submit(self, ids):
        fut = Future()
        self.inbox.put((ids, fut))
        return fut

    def collect(self):
        first = self.inbox.get()
        if first is None:
            return []
        items = [first]
        deadline = time.monotonic() + self.cfg.max_wait_ms / 1000
        while len(items) < self.cfg.max_batch:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                item = self.inbox.get(timeout=left)
            except queue.Empty:
                break
            if item is None:
                self.inbox.put(None)
                break
            items.append(item)
        return items

    def pad(self, items):
        longest = max(len(ids) for ids, _ in items)
        out = torch.zeros(len(items), longest, dtype=torch.long)
        for row, (ids, _) in enumerate(items):
            out[row, : len(ids)] = torch.tensor(ids)
        return out

    def run(self):
        with torch.inference_mode():
            while not self.closed.is_set():
                items = self.collect()
                if not items:
                    break
                vectors = self.model(self.pad(items))
                for (_, fut), vec in zip(items, vectors):
                    fut.set_result(vec)
                self.batch_sizes.append(len(items))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.inbox.put(None)
        self.thread.join()
        self.closed.set()


def caller(service, seed, requests, cfg, sink):
    """One caller: asks, waits for the answer, asks again."""
    rng = random.Random(seed)
    total = 0.0
    for _ in range(requests):
        ids = [rng.randrange(1, cfg.vocab) for _ in range(rng.randint(8, cfg.max_len))]
        vec = service.submit(ids).result()
        total += float(vec[:4].sum())
    sink[seed] = total


def main(callers=6, requests=120):
    torch.manual_seed(5)
    cfg = ServiceConfig()
    sink = {}
    with EmbeddingService(cfg) as service:
        threads = [
            threading.Thread(target=caller, args=(service, s, requests, cfg, sink))
            for s in range(callers)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    print(f"answered {callers * requests} requests from {callers} callers")
    print("checksums " + " ".join(f"{sink[s]:.2f}" for s in sorted(sink)))


if __name__ == "__main__":
    main()
