# Next-note model over symbolic melodies, with averaged weights for sampling.
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--small", action="store_true")
ap.add_argument("--lr", type=float, default=6e-4)
ap.add_argument("--clip", type=float, default=1.0)
ap.add_argument("--ema", type=float, default=0.999)
args = ap.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(42)
torch.set_float32_matmul_precision("high")

dim, depth, heads, ctx, batch, steps = (32, 2, 2, 16, 2, 5) if args.small else (384, 10, 6, 256, 32, 150)
N_PITCH, N_LENGTH = 128, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_norm, self.f_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.mix = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.a_norm(x)).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(b, t, dim))
        return x + self.down(F.gelu(self.up(self.f_norm(x)), approximate="tanh"))


class MelodyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.pitch, self.length = nn.Embedding(N_PITCH, dim), nn.Embedding(N_LENGTH, dim)
        self.where = nn.Parameter(torch.zeros(ctx, dim))
        self.layers = nn.Sequential(*[Layer() for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.to_pitch, self.to_length = nn.Linear(dim, N_PITCH), nn.Linear(dim, N_LENGTH)

    def forward(self, pitch, length):
        h = self.norm(self.layers(self.pitch(pitch) + self.length(length) + self.where))
        return self.to_pitch(h), self.to_length(h)


def melodies(n):
    """Random walks in pitch, with lengths that depend on the bar position."""
    walk = torch.randint(-4, 5, (n, ctx + 1)).cumsum(1).add(60).clamp(0, N_PITCH - 1)
    beat = torch.arange(ctx + 1) % 8
    return walk.to(device), ((beat * 3 + torch.randint(3, (n, ctx + 1))) % N_LENGTH).to(device)


model = MelodyLM().to(device)
params = list(model.parameters())
optimizer = torch.optim.AdamW(
                  [{"params": [p for p in params if p.dim() >= 2]},
                   {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}], lr=args.lr,
                  betas=(0.9, 0.95), weight_decay=0.1, fused=device.type == "cuda")
average = {n: p.detach().clone() for n, p in model.named_parameters()}
pitches, lengths = melodies(2000 if not args.small else 20)
norms = []

for step in range(steps):
    # STEP
    rows = torch.randint(len(pitches), (batch,), device=device)
    p, d = pitches[rows], lengths[rows]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out_p, out_d = model(p[:, :-1], d[:, :-1])
    loss = F.cross_entropy(out_p.float().flatten(0, 1), p[:, 1:].flatten())
    loss = loss + F.cross_entropy(out_d.float().flatten(0, 1), d[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    norms.append(torch.nn.utils.clip_grad_norm_(params, args.clip))
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(average.values()), params, 1 - args.ema)

drift = sum((average[n] - p.detach()).abs().sum() for n, p in model.named_parameters()).item()
print(f"loss {loss.item():.4f}  gradient norm {float(norms[-1]):.4f}  distance to average {drift:.3f}")
