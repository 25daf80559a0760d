"""Language model: a small GPT learns arithmetic written out as text.

Usage (needs torch)::

    python gpt_slow.py
"""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 70
BATCH_SIZE = 2
CONTEXT = 384
ALPHABET = "0123456789+= "


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the tokens with those before them, float32[batch, tokens, dim]."""
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / (dim // self.heads) ** 0.5
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens after attention and the MLP."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer."""

    def __init__(self, dim: int = 128, heads: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.token = nn.Embedding(len(ALPHABET), dim)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, len(ALPHABET))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of the next token, float32[batch, tokens, 13]."""
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def make_text(length: int) -> torch.Tensor:
    """Return many sums, one after the other, as int64[length]."""
    a, b = torch.randint(1000, (2, length // 8)).tolist()
    text = " ".join(f"{x}+{y}={x + y}" for x, y in zip(a, b, strict=True))
    return torch.tensor([ALPHABET.index(char) for char in text[:length]])


def main() -> None:
    """Train on random pieces of the text and print the loss now and then."""
    text = make_text(200_000)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step_ms = []
    for step in range(STEPS):
        begin = time.perf_counter()
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH_SIZE, 1))
        pieces = text[starts + torch.arange(CONTEXT + 1)]
        scores = model(pieces[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"mean step: {statistics.mean(step_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
