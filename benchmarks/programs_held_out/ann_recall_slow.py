import logging
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("recall")


@dataclass
class SearchConfig:
    corpus: int = 120_000
    dim: int = 96
    queries: int = 64
    rounds: int = 32
    k: int = 50
    noise: float = 0.6
    log_every: int = 8
    seed: int = 3


class FlatIndex:
    def __init__(self, dim):
        self.dim = dim
        self.chunks = []
        self.base = None

    def add(self, x):
        assert x.shape[1] == self.dim
        self.chunks.append(F.normalize(x, dim=1))

    def build(self):
        self.base = torch.cat(self.chunks)
        self.chunks.clear()

    def search(self, q, k):
        scores = F.normalize(q, dim=1) @ self.base.T
        vals, ids = scores.sort(dim=1, descending=True)
        return vals[:, :k], ids[:, :k]


class RecallMeter:
    def __init__(self):
        self.hits = 0
        self.rr = 0.0
        self.total = 0

    def update(self, ids, truth):
        match = ids.eq(truth[:, None])
        self.hits += match.any(1).sum().item()
        for row in match.tolist():
            if True in row:
                self.rr += 1.0 / (1 + row.index(True))
        self.total += len(truth)

    def report(self):
        return self.hits / self.total, self.rr / self.total


class QuerySource:
    def __init__(self, cfg, base):
        self.cfg = cfg
        self.base = base
        self.gen = torch.Generator().manual_seed(cfg.seed)

    def __iter__(self):
        c = self.cfg
        for _ in range(c.rounds):
            truth = torch.randint(0, c.corpus, (c.queries,), generator=self.gen)
            jitter = torch.randn(c.queries, c.dim, generator=self.gen)
            scale = c.noise * c.dim ** -0.5 * 3
            yield self.base[truth].clone() + scale * jitter, truth


def build_index(cfg):
    torch.manual_seed(cfg.seed)
    index = FlatIndex(cfg.dim)
    for part in range(8):
        index.add(torch.randn(cfg.corpus // 8, cfg.dim))
    index.build()
    log.info("index of %d vectors", len(index.base))
    return index


@torch.inference_mode()
def evaluate(cfg):
    index = build_index(cfg)
    meter = RecallMeter()
    times = []
    for it, (q, truth) in enumerate(QuerySource(cfg, index.base)):
        t0 = time.perf_counter()
        vals, ids = index.search(q, cfg.k)
        meter.update(ids, truth)
        times.append(time.perf_counter() - t0)
        if it % cfg.log_every == 0:
            log.info("round %d best score %.3f", it, vals[:, 0].mean().item())
    recall, mrr = meter.report()
    print(f"recall {recall:.4f} mrr {mrr:.4f} step_ms {1000 * np.median(times[3:]):.2f}")


if __name__ == "__main__":
    evaluate(SearchConfig())
