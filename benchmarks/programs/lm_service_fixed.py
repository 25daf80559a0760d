"""A small text generation service: a worker thread owns the model, callers go through queues."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS, CTX = 128, 128, 4, 3, 192


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM)), (k, v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, past=None):
        a, kv = self.attn(self.ln1(x), past)
        x = x + a
        return x + self.mlp(self.ln2(x)), kv


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, past=None):
        offset = past[0][0].size(2) if past is not None else 0
        x = self.tok(ids) + self.pos(torch.arange(offset, offset + ids.size(1)))
        cache = []
        for i, blk in enumerate(self.blocks):
            x, kv = blk(x, past[i] if past is not None else None)
            cache.append(kv)
        return self.head(self.ln(x)), cache


@torch.inference_mode()
def generate(model, ids, max_new_tokens):
    cache, step_ids = None, ids
    for _ in range(max_new_tokens):
        logits, cache = model(step_ids, cache)
        nxt = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], dim=1)
        step_ids = nxt
    return ids


class Service:
    def __init__(self, model):
        self.model = model.eval()
        self.requests = queue.Queue()
        self.results = {}
        self.ready = queue.Queue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        while True:
            item = self.requests.get()
            if item is None:
                return
            rid, ids, n = item
            self.results[rid] = generate(self.model, ids, n)
            self.ready.put(rid)

    def ask(self, rid, ids, n):
        self.requests.put((rid, ids, n))
        while rid not in self.results:
            self.ready.get()
        return self.results.pop(rid)

    def close(self):
        self.requests.put(None)
        self.thread.join()


def main():
    torch.manual_seed(8)
    service = Service(TinyGPT())
    gen = torch.Generator().manual_seed(1)
    lengths = [int(n) for n in torch.randint(30, 110, (30,), generator=gen)]
    checksum = 0
    for rid, length in enumerate(lengths):
        prompt = torch.randint(0, VOCAB, (1, length), generator=gen)
        out = service.ask(rid, prompt, 16 + 8 * (rid % 4))
        checksum = (checksum * 31 + int(out.sum())) % 1_000_003
    service.close()
    print(f"served {len(lengths)} requests, checksum {checksum}")


if __name__ == "__main__":
    main()
