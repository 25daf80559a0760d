"""VAE on synthetic digits-like patterns with KL annealing, compiled model, flat script."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

STEPS = 60
BATCH = 256
WARMUP = 40
SIDE = 16


class AnnealedVAE(nn.Module):
    def __init__(self, side, hidden=256, latent=16, warmup=WARMUP):
        super().__init__()
        d = side * side
        self.enc = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.GELU(), nn.Linear(hidden, d))
        self.warmup = warmup
        self.register_buffer("updates", torch.zeros(()))

    def kl_weight(self):
        return (self.updates / self.warmup).clamp(max=1.0)

    def forward(self, x, noise):
        mu, logvar = self.enc(x).chunk(2, dim=-1)
        z = mu + torch.exp(0.5 * logvar) * noise
        logits = self.dec(z)
        rec = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1).mean()
        kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()
        weight = self.kl_weight()
        if self.training:
            self.updates = self.updates + 1
        return rec + weight * kl, rec.detach(), kl.detach()


def make_patterns(n, side, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
    angle = torch.rand(n, 1, 1, generator=g) * math.pi
    shift = torch.rand(n, 1, 1, generator=g) - 0.5
    width = 0.1 + 0.2 * torch.rand(n, 1, 1, generator=g)
    line = (xx * torch.cos(angle) + yy * torch.sin(angle) - shift).abs()
    return torch.sigmoid((width - line) * 20).flatten(1)


data = make_patterns(8192, SIDE, seed=1)
model = AnnealedVAE(SIDE)
compiled = torch.compile(model, backend="aot_eager")
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(2)

log = []
for step in range(STEPS):
    idx = torch.randint(len(data), (BATCH,), generator=gen)
    noise = torch.randn(BATCH, 16, generator=gen)
    loss, rec, kl = compiled(data[idx], noise)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    log.append((rec, kl))
    if (step + 1) % 20 == 0:
        r = torch.stack([a for a, _ in log[-20:]]).mean().item()
        k = torch.stack([b for _, b in log[-20:]]).mean().item()
        print(f"step {step + 1:3d}  rec {r:8.3f}  kl {k:7.3f}")

model.eval()
with torch.no_grad():
    held = make_patterns(1024, SIDE, seed=9)
    mu, _ = model.enc(held).chunk(2, dim=-1)
    err = (torch.sigmoid(model.dec(mu)) - held).abs().mean().item()
print(f"held-out reconstruction error {err:.4f}")
