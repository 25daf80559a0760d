#!/usr/bin/env python
# Dense retrieval: write an index of passage vectors to disk in shards, then score
# a query log against it and report recall@k and MRR.
import json
import pathlib
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F

DIM = 128
SHARDS = 5
ROWS = 9000
TOPK = 20


def write_index(folder, rng):
    """Unit vectors clustered around topics, half precision on disk."""
    topics = rng.standard_normal((200, DIM)).astype(np.float32)
    entries = []
    for s in range(SHARDS):
        which = rng.integers(0, len(topics), ROWS)
        vec = topics[which] + 0.9 * rng.standard_normal((ROWS, DIM)).astype(np.float32)
        vec /= np.linalg.norm(vec, axis=1, keepdims=True)
        path = folder / f"part-{s:03d}.npy"
        np.save(path, vec.astype(np.float16))
        entries.append({"file": path.name, "rows": ROWS, "offset": s * ROWS})
    (folder / "manifest.json").write_text(json.dumps({"dim": DIM, "parts": entries}))


class Shard:
    def __init__(self, path, offset):
        self.offset = offset
        self.vectors = torch.from_numpy(np.load(path)).float()

    def __len__(self):
        return self.vectors.shape[0]

    def score(self, queries):
        return queries @ self.vectors.to(queries.dtype).t()

    def search(self, queries, k):
        best, pos = self.score(queries).topk(min(k, len(self)), dim=1)
        return best, pos + self.offset


class Index:
    def __init__(self, folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        self.dim = manifest["dim"]
        self.shards = [Shard(folder / p["file"], p["offset"]) for p in manifest["parts"]]

    def __len__(self):
        return sum(len(s) for s in self.shards)

    def search(self, queries, k):
        found = [s.search(queries, k) for s in self.shards]
        score = torch.cat([f[0] for f in found], 1)
        ident = torch.cat([f[1] for f in found], 1)
        best, order = score.topk(k, dim=1)
        return best, ident.gather(1, order)

    def reconstruct(self, ids):
        rows = []
        for i in ids.tolist():
            s = self.shards[i // ROWS]
            rows.append(s.vectors[i - s.offset])
        return torch.stack(rows).float()


class QueryEncoder(torch.nn.Module):
    """Stands for a text tower: a residual MLP over a noisy view of the passage."""

    def __init__(self, dim):
        super().__init__()
        self.up = torch.nn.Linear(dim, 4 * dim)
        self.down = torch.nn.Linear(4 * dim, dim)

    def forward(self, view):
        return F.normalize(view + 0.1 * self.down(F.gelu(self.up(view))), dim=-1)


class Meter:
    def __init__(self, ks=(1, 5, 20)):
        self.ks, self.n = ks, 0
        self.hit = {k: 0 for k in ks}
        self.rr = 0.0

    def add(self, ids, gold):
        match = ids == gold[:, None]
        for k in self.ks:
            self.hit[k] += int(match[:, :k].any(1).sum())
        rank = match.float().argmax(1)
        self.rr += float((match.any(1) / (rank + 1.0)).sum())
        self.n += len(gold)

    def line(self):
        parts = [f"R@{k} {self.hit[k] / self.n:.4f}" for k in self.ks]
        return " ".join(parts + [f"MRR {self.rr / self.n:.4f}"])


def query_log(index, requests, gen):
    """Small requests, as they come from a search box: one to six queries each."""
    for _ in range(requests):
        n = int(torch.randint(1, 7, (1,), generator=gen))
        gold = torch.randint(0, len(index), (n,), generator=gen)
        view = index.reconstruct(gold)
        yield view + 0.13 * torch.randn(view.shape, generator=gen), gold


def run(requests=500):
    torch.manual_seed(4)
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        write_index(folder, np.random.default_rng(17))
        index = Index(folder)
    encoder, meter = QueryEncoder(index.dim).eval(), Meter()
    gen = torch.Generator().manual_seed(23)
    t0 = time.perf_counter()
    with torch.inference_mode():
        for view, gold in query_log(index, requests, gen):
            _, ids = index.search(encoder(view), TOPK)
            meter.add(ids, gold)
    dt = time.perf_counter() - t0
    print(f"{meter.n} queries against {len(index)} passages: {meter.line()}")
    print(f"{dt / requests * 1e3:.3f} ms per step")


if __name__ == "__main__":
    run()
