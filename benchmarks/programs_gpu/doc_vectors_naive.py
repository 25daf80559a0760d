"""Embed a collection of documents and write the vectors to a memory-mapped file."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, vocab, ctx, dim, layers, heads):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.heads = heads
        self.layers = nn.ModuleList(nn.ModuleDict(dict(
            n1=nn.LayerNorm(dim), qkv=nn.Linear(dim, 3 * dim), out=nn.Linear(dim, dim),
            n2=nn.LayerNorm(dim), up=nn.Linear(dim, 4 * dim), down=nn.Linear(4 * dim, dim))) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        b, t = ids.shape
        x = self.tok(ids.long()) + self.pos.weight[:t]
        for m in self.layers:
            q, k, v = m["qkv"](m["n1"](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v)
            x = x + m["out"](a.transpose(1, 2).reshape(b, t, -1))
            x = x + m["down"](F.gelu(m["up"](m["n2"](x))))
        return F.normalize(self.norm(x).mean(1).float(), dim=-1)


class Slot:
    """Pinned buffers for one batch that is under way."""

    def __init__(self, batch, ctx, dim, cuda):
        self.ids = torch.empty(batch, ctx, dtype=torch.int32, pin_memory=cuda)
        self.vectors = torch.empty(batch, dim, pin_memory=cuda)
        self.rows = None

    def flush(self, table):
        if self.rows is None:
            return
        table[self.rows] = self.vectors.numpy()
        self.rows = None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    small = ap.parse_args().small
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    if small:
        vocab, ctx, dim, layers, heads, batch, n_batches = 100, 16, 32, 2, 2, 4, 5
    else:
        vocab, ctx, dim, layers, heads, batch, n_batches = 30000, 128, 768, 12, 12, 384, 120

    with torch.device(device):
        model = Encoder(vocab, ctx, dim, layers, heads).eval()
    model = model.to(torch.bfloat16 if cuda else torch.float32)
    docs = rng.integers(vocab, size=(batch * n_batches, ctx), dtype=np.int32)
    path = os.path.join(tempfile.mkdtemp(), "vectors.npy")
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(docs), dim))
    slots = [Slot(batch, ctx, dim, cuda) for _ in range(2)]

    with torch.inference_mode():
        for i in range(n_batches):
            # STEP
            slot = slots[i % len(slots)]
            slot.flush(table)
            rows = slice(i * batch, (i + 1) * batch)
            slot.ids.numpy()[:] = docs[rows]
            ids = slot.ids.to(device, non_blocking=True)
            slot.vectors.copy_(model(ids), non_blocking=True)
            slot.rows = rows
        for slot in slots:
            slot.flush(table)
    table.flush()
    print(f"{len(table)} vectors, checksum {float(np.abs(table).sum()):.3f}, first {table[0, :3]}")


if __name__ == "__main__":
    main()
