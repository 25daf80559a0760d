import torch
from torch import nn
import torch.nn.functional as F


class KVCache:
    def __init__(self, layers, batch, heads, max_len, dim, device, dtype):
        shape = (layers, batch, heads, max_len, dim)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.len = 0

    def update(self, layer, k, v):
        n = k.shape[2]
        self.k[layer, :, :, self.len:self.len + n] = k
        self.v[layer, :, :, self.len:self.len + n] = v
        return self.k[layer, :, :, :self.len + n], self.v[layer, :, :, :self.len + n]


class Attention(nn.Module):
    def __init__(self, dim, heads, layer):
        super().__init__()
        self.heads, self.layer = heads, layer
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = cache.update(self.layer, k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, layer):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, layer)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cache=None):
        x = x + self.attn(self.n1(x), cache)
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab=50_257, dim=768, heads=12, depth=12, max_len=1024):
        super().__init__()
        self.dim, self.heads, self.depth, self.max_len = dim, heads, depth, max_len
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, i) for i in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight

    def hidden(self, ids, cache=None):
        start = 0 if cache is None else cache.len
        pos = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.tok(ids) + self.pos(pos)
        for block in self.blocks:
            x = block(x, cache)
        if cache is not None:
            cache.len += ids.shape[1]
        return self.norm(x)

    def forward(self, ids, targets):
        logits = self.head(self.hidden(ids))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    @torch.inference_mode()
    def generate(self, ids, n_new, eos, temperature=1.0, top_k=50):
        b, t = ids.shape
        w = self.head.weight
        cache = KVCache(self.depth, b, self.heads, t + n_new, self.dim // self.heads, ids.device, w.dtype)
        out = torch.full((b, t + n_new), eos, dtype=torch.long, device=ids.device)
        out[:, :t] = ids
        done = torch.zeros(b, dtype=torch.bool, device=ids.device)
        step = ids
        for i in range(t, t + n_new):
            logits = self.head(self.hidden(step, cache)[:, -1]) / temperature
            vals, idx = logits.topk(top_k, dim=-1)
            nxt = idx.gather(1, torch.multinomial(vals.softmax(dim=-1), 1))
            nxt = torch.where(done[:, None], eos, nxt)
            out[:, i:i + 1] = nxt
            done |= nxt.squeeze(1) == eos
            step = nxt
            if (i - t) % 16 == 15 and bool(done.all()):
                break
        return out


def load(path, device="cuda"):
    model = GPT()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.to(device, torch.bfloat16).eval()
