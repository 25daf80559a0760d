"""Beam search with an encoder-decoder: translates synthetic 'sentences' in batches."""
import functools
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
VOCAB, DIM, HEADS, LAYERS = 1200, 192, 6, 3
BEAM, BATCH, SRC_LEN, MAX_NEW = 4, 6, 48, 16
BOS, EOS = 1, 2


def split(t):
    return t.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(DIM, DIM)
        self.kv = nn.Linear(DIM, 2 * DIM)
        self.out = nn.Linear(DIM, DIM)

    def project(self, src):
        k, v = self.kv(src).chunk(2, -1)
        return split(k), split(v)

    def forward(self, x, k, v, mask=None):
        y = F.scaled_dot_product_attention(split(self.q(x)), k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.n1, self.n3 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.self_attn = Attend()
        self.cross = Attend() if cross else None
        self.n2 = nn.LayerNorm(DIM) if cross else None
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def encode(self, x):
        h = self.n1(x)
        x = x + self.self_attn(h, *self.self_attn.project(h))
        return x + self.ff(self.n3(x))

    def decode(self, x, memory, state):
        h = self.n1(x)
        k, v = self.self_attn.project(h)
        if "k" in state:
            k = torch.cat([state["k"], k], 2)
            v = torch.cat([state["v"], v], 2)
        state["k"], state["v"] = k, v
        x = x + self.self_attn(h, k, v)
        mk, mv = self.cross.project(memory)
        x = x + self.cross(self.n2(x), mk, mv)
        return x + self.ff(self.n3(x))


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.enc = nn.ModuleList(Block(False) for _ in range(LAYERS))
        self.dec = nn.ModuleList(Block(True) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    @functools.lru_cache(maxsize=4)
    def positions(self, n):
        pos = torch.arange(n)[:, None]
        freq = torch.exp(torch.arange(0, DIM, 2) * (-math.log(1e4) / DIM))
        return torch.stack([torch.sin(pos * freq), torch.cos(pos * freq)], -1).flatten(1)

    def encode(self, src):
        x = self.emb(src) + self.positions(src.shape[1])
        for blk in self.enc:
            x = blk.encode(x)
        return x

    def step(self, tok, t, memory, states):
        x = self.emb(tok)[:, None] + self.positions(MAX_NEW)[t]
        for blk, st in zip(self.dec, states):
            x = blk.decode(x, memory, st)
        return F.log_softmax(self.head(self.norm(x[:, 0])), -1)


def beam_search(model, src):
    n = src.shape[0]
    memory = model.encode(src).repeat_interleave(BEAM, 0)
    states = [{} for _ in model.dec]
    score = torch.full((n, BEAM), -1e9)
    score[:, 0] = 0.0
    tok = torch.full((n * BEAM,), BOS)
    out = torch.empty(n * BEAM, 0, dtype=torch.long)
    done = torch.zeros(n * BEAM, dtype=torch.bool)
    base = torch.arange(n)[:, None] * BEAM
    for t in range(MAX_NEW):
        logp = model.step(tok, t, memory, states)
        logp[done] = -1e9
        logp[done, EOS] = 0.0
        total = (score.view(-1, 1) + logp).view(n, -1)
        score, flat = total.topk(BEAM, -1)
        origin = (base + flat // VOCAB).view(-1)
        tok = (flat % VOCAB).view(-1)
        for st in states:
            st["k"], st["v"] = st["k"][origin], st["v"][origin]
        out = torch.cat([out[origin], tok[:, None]], 1)
        done = done[origin] | (tok == EOS)
        if done.all():
            break
    return out.view(n, BEAM, -1)[:, 0], score[:, 0]


def corpus(batches, gen):
    for _ in range(batches):
        yield torch.randint(3, VOCAB, (BATCH, SRC_LEN), generator=gen)


@torch.inference_mode()
def main(batches=50):
    model = Seq2Seq().eval()
    gen = torch.Generator().manual_seed(5)
    tokens, logp, t0 = 0, 0.0, time.perf_counter()
    for i, src in enumerate(corpus(batches, gen)):
        hyp, score = beam_search(model, src)
        tokens += hyp.numel()
        logp += score.mean().item()
        if i % 20 == 0:
            print(f"batch {i} hyp {hyp[0, :6].tolist()} score {score[0].item():.4f}")
    dt = time.perf_counter() - t0
    print(f"{tokens} tokens, mean score {logp / batches:.5f}, {dt / batches * 1e3:.2f} ms per batch")


if __name__ == "__main__":
    main()
