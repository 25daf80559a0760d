"""Batched chat decoding: one prefill, then tokens are streamed for all requests together."""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Shape:
    vocab: int = 32000
    dim: int = 2048
    layers: int = 16
    heads: int = 16
    kv_heads: int = 4
    hidden: int = 5632
    batch: int = 64
    prompt: int = 2048
    new_tokens: int = 160


SMALL = Shape(vocab=100, dim=64, layers=2, heads=4, kv_heads=2, hidden=96, batch=2, prompt=12, new_tokens=6)


def rope_table(n, d, device, base=500000.0):
    inv = base ** (-torch.arange(0, d, 2, device=device).float() / d)
    angle = torch.outer(torch.arange(n, device=device).float(), inv)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.head_dim = s, s.dim // s.heads
        self.q = nn.Linear(s.dim, s.dim, bias=False)
        self.kv = nn.Linear(s.dim, 2 * s.kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(s.dim, s.dim, bias=False)
        self.past = None

    def forward(self, x, cos, sin, start):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.s.heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.s.kv_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.past is not None:
            k = torch.cat([self.past[0], k], dim=2)
            v = torch.cat([self.past[1], v], dim=2)
        self.past = (k, v)
        rep = self.s.heads // self.s.kv_heads
        k = k.repeat_interleave(rep, dim=1)
        v = v.repeat_interleave(rep, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(s.dim), nn.RMSNorm(s.dim)
        self.attn = Attention(s)
        self.up = nn.Linear(s.dim, 2 * s.hidden, bias=False)
        self.down = nn.Linear(s.hidden, s.dim, bias=False)

    def forward(self, x, cos, sin, start):
        x = x + self.attn(self.n1(x), cos, sin, start)
        gate, up = self.up(self.n2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class ChatModel(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.dim)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.dim)
        self.head = nn.Linear(s.dim, s.vocab, bias=False)

    def forward(self, ids, rope, start):
        cos, sin = (r[start:start + ids.shape[1]] for r in rope)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin, start)
        return self.head(self.norm(x[:, -1]))


@torch.inference_mode()
def stream(model, prompt, rope, n):
    logits = model(prompt, rope, 0)
    for i in range(n):
        # STEP
        token = logits.argmax(dim=-1)
        logits = model(token[:, None], rope, prompt.shape[1] + i)
        yield token.tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    s = SMALL if ap.parse_args().small else Shape()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = ChatModel(s).eval()
    prompt = torch.randint(s.vocab, (s.batch, s.prompt), device=device)
    rope = [r.bfloat16() for r in rope_table(s.prompt + s.new_tokens, s.dim // s.heads, device)]
    answers = [[] for _ in range(s.batch)]
    for tokens in stream(model, prompt, rope, s.new_tokens):
        for answer, token in zip(answers, tokens):
            answer.append(token)
    print(len(answers), "answers;", answers[0][:12])


if __name__ == "__main__":
    main()
