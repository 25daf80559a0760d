"""Pre-train a decoder; updates whose gradient norm spikes are skipped."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PRESETS = {
    "full": dict(vocab=32000, ctx=1024, dim=1024, layers=10, heads=16, micro=8, accumulate=4, updates=70),
    "small": dict(vocab=90, ctx=16, dim=32, layers=2, heads=2, micro=2, accumulate=2, updates=6),
}


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.f1, self.f2 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).split(d, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self, vocab, ctx, dim, layers, heads):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids, target):
        x = self.tok(ids) + self.pos.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tok.weight)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


class SpikeGuard:
    """Compares the gradient norm with its running mean."""

    def __init__(self, factor=3.0, decay=0.95):
        self.factor, self.decay, self.mean, self.skipped = factor, decay, None, 0

    def accepts(self, norm):
        ok = math.isfinite(norm) and (self.mean is None or norm < self.factor * self.mean)
        if ok:
            self.mean = norm if self.mean is None else self.decay * self.mean + (1 - self.decay) * norm
        else:
            self.skipped += 1
        return ok


def micro_batches(data, micro, ctx, gen):
    window = torch.arange(ctx + 1, device=data.device)
    while True:
        start = torch.randint(len(data) - ctx - 1, (micro, 1), device=data.device, generator=gen)
        rows = data[start + window]
        yield rows[:, :-1], rows[:, 1:]


def train(c, device):
    with torch.device(device):
        model = Decoder(c["vocab"], c["ctx"], c["dim"], c["layers"], c["heads"])
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=device.type == "cuda")
    data = torch.randint(c["vocab"], (200 * c["ctx"],), device=device)
    batches = micro_batches(data, c["micro"], c["ctx"], torch.Generator(device).manual_seed(9))
    guard, history = SpikeGuard(), []
    for update in range(c["updates"]):
        # STEP
        total = torch.zeros((), device=device)
        for _ in range(c["accumulate"]):
            ids, target = next(batches)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = model(ids, target) / c["accumulate"]
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        mean_loss, norm = torch.stack([total, norm]).tolist()
        if guard.accepts(norm):
            opt.step()
        opt.zero_grad(set_to_none=True)
        history.append(mean_loss)
    print(f"loss {history[0]:.4f} -> {history[-1]:.4f}; {guard.skipped} updates skipped")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    preset = PRESETS["small" if parser.parse_args().small else "full"]
    torch.manual_seed(1)
    train(preset, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
