import torch
from torch import nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w13 = nn.Linear(dim, 2 * hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class SparseMoE(nn.Module):
    def __init__(self, dim, hidden, n_experts=64, k=8, debug=False):
        super().__init__()
        self.n_experts, self.k, self.debug = n_experts, k, debug
        self.router = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(n_experts))

    def forward(self, x):
        b, t, d = x.shape
        flat = x.reshape(-1, d)
        probs = self.router(flat).float().softmax(dim=-1)
        weight, chosen = probs.topk(self.k, dim=-1)
        weight = (weight / weight.sum(dim=-1, keepdim=True)).to(x.dtype)

        counts = F.one_hot(chosen, self.n_experts).float().sum(dim=(0, 1))
        load = counts / counts.sum()
        aux = self.n_experts * (load * probs.mean(dim=0)).sum()
        if self.debug:
            print("max load", load.max().item())

        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == e)
            if rows.numel() == 0:
                continue
            y = expert(flat[rows]) * weight[rows, slot, None]
            out.index_add_(0, rows, y)
        return out.view(b, t, d), aux


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, hidden, **moe):
        super().__init__()
        self.n1, self.n2 = RMSNorm(dim), RMSNorm(dim)
        self.attn, self.moe = Attention(dim, heads), SparseMoE(dim, hidden, **moe)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        y, aux = self.moe(self.n2(x))
        return x + y, aux


class MoELM(nn.Module):
    def __init__(self, vocab=50_304, dim=1024, heads=16, hidden=704, depth=12, aux_weight=0.01, **moe):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, **moe) for _ in range(depth))
        self.norm, self.head = RMSNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.aux_weight = aux_weight

    def forward(self, ids, targets):
        x = self.embed(ids)
        aux_total = x.new_zeros(())
        for block in self.blocks:
            x, aux = block(x)
            aux_total = aux_total + aux
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss + self.aux_weight * aux_total / len(self.blocks)
