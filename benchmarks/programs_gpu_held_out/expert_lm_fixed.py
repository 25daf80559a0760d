"""Pre-training of a sparse mixture-of-experts language model."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w_gate = nn.Linear(dim, hidden, bias=False)
        self.w_up = nn.Linear(dim, hidden, bias=False)
        self.w_down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.w_down(F.silu(self.w_gate(x)) * self.w_up(x))


grouped_mm = F.grouped_mm if hasattr(F, "grouped_mm") else torch._grouped_mm


class SparseMoE(nn.Module):
    def __init__(self, dim, hidden, n_experts, top_k):
        super().__init__()
        self.n_experts, self.top_k = n_experts, top_k
        self.router = nn.Linear(dim, n_experts, bias=False)
        experts = [SwiGLU(dim, hidden) for _ in range(n_experts)]
        self.w_gate, self.w_up, self.w_down = (
            nn.Parameter(torch.stack([getattr(e, name).weight.detach() for e in experts]))
            for name in ("w_gate", "w_up", "w_down"))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = F.softmax(self.router(x).float(), dim=-1)
        weight, chosen = probs.topk(self.top_k, dim=-1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        load = F.one_hot(chosen, self.n_experts).sum(1).float().mean(0)
        aux = self.n_experts * (load * probs.mean(0)).sum() / self.top_k

        flat = chosen.flatten()
        order = flat.argsort()
        token = order // self.top_k
        per_expert = torch.zeros(self.n_experts, dtype=torch.int32, device=x.device)
        per_expert.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        offs = per_expert.cumsum(0, dtype=torch.int32)
        rows = x.index_select(0, token)
        gate = grouped_mm(rows, self.w_gate.transpose(1, 2), offs=offs)
        up = grouped_mm(rows, self.w_up.transpose(1, 2), offs=offs)
        y = grouped_mm(F.silu(gate) * up, self.w_down.transpose(1, 2), offs=offs)
        y = y * weight.flatten().index_select(0, order)[:, None]
        out = torch.zeros_like(x).index_add_(0, token, y)
        return out.view(shape), aux


class Block(nn.Module):
    def __init__(self, dim, heads, hidden, n_experts, top_k):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.moe = SparseMoE(dim, hidden, n_experts, top_k)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        y, aux = self.moe(self.norm2(x))
        return x + y, aux


class MoELM(nn.Module):
    def __init__(self, vocab, ctx, dim, layers, heads, hidden, n_experts, top_k):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, n_experts, top_k) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos.weight[:ids.shape[1]]
        aux_total = 0.0
        for block in self.blocks:
            x, aux = block(x)
            aux_total = aux_total + aux
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), aux_total / len(self.blocks)


class Pretrainer:
    def __init__(self, cfg, device):
        self.cfg, self.device = cfg, device
        with torch.device(device):
            self.model = MoELM(cfg["vocab"], cfg["ctx"], cfg["dim"], cfg["layers"], cfg["heads"], cfg["hidden"],
                               cfg["experts"], cfg["top_k"]).bfloat16()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device.type == "cuda")
        self.data = torch.randint(cfg["vocab"], (2_000_000 if device.type == "cuda" else 5000,), device=device)
        self.window = torch.arange(cfg["ctx"] + 1, device=device)

    def sample(self):
        start = torch.randint(len(self.data) - self.cfg["ctx"] - 1, (self.cfg["batch"], 1), device=self.device)
        rows = self.data[start + self.window]
        return rows[:, :-1], rows[:, 1:]

    def fit(self, steps):
        history = []
        for step in range(steps):
            # STEP
            ids, targets = self.sample()
            loss, aux = self.model(ids, targets)
            (loss + 0.01 * aux).backward()
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            history.append(torch.stack([loss.detach().float(), aux.detach().float()]))
        return torch.stack(history).cpu()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    small = ap.parse_args().small
    if small:
        cfg = dict(vocab=120, ctx=24, dim=32, layers=2, heads=2, hidden=48, experts=4, top_k=2, batch=2, steps=4)
    else:
        cfg = dict(vocab=32000, ctx=1024, dim=1024, layers=3, heads=16, hidden=768, experts=32, top_k=2, batch=4,
                   steps=120)
    torch.manual_seed(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    history = Pretrainer(cfg, device).fit(cfg["steps"])
    for i in range(0, len(history), max(1, len(history) // 6)):
        print(f"{i:5d}  loss {history[i, 0]:.3f}  balance {history[i, 1]:.3f}")
