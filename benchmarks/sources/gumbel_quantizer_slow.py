import math

import torch
from torch import nn
import torch.nn.functional as F


class GumbelQuantizer(nn.Module):
    def __init__(self, dim, n_codes, code_dim, tau_start=1.0, tau_end=1 / 16, anneal_steps=150_000):
        super().__init__()
        self.proj = nn.Conv2d(dim, n_codes, 1)
        self.codebook = nn.Embedding(n_codes, code_dim)
        self.tau_start = tau_start
        self.tau_end = tau_end
        self.anneal_steps = anneal_steps
        self.n_calls = 0
        self.tau = tau_start
        self.register_buffer("usage", torch.zeros(n_codes))

    def forward(self, z):
        if self.training:
            self.n_calls += 1
            frac = min(1.0, self.n_calls / self.anneal_steps)
            self.tau = self.tau_end + 0.5 * (self.tau_start - self.tau_end) * (1 + math.cos(math.pi * frac))
        logits = self.proj(z)
        one_hot = F.gumbel_softmax(logits, tau=self.tau, dim=1, hard=not self.training)
        if self.training:
            self.usage.mul_(0.99).add_(one_hot.detach().mean(dim=(0, 2, 3)), alpha=0.01)
        quant = torch.einsum("bnhw,nd->bdhw", one_hot, self.codebook.weight)
        logp = F.log_softmax(logits, dim=1)
        kl = (logp.exp() * (logp + math.log(logits.shape[1]))).sum(dim=1).mean()
        return quant, kl


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1),
            nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1),
        )

    def forward(self, x):
        return x + self.body(x)


class DVAE(nn.Module):
    def __init__(self, c=128, n_codes=8192):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, c, 4, 2, 1), ResBlock(c), nn.Conv2d(c, c, 4, 2, 1), ResBlock(c),
            nn.Conv2d(c, c, 4, 2, 1), ResBlock(c),
        )
        self.quant = GumbelQuantizer(c, n_codes, c)
        self.dec = nn.Sequential(
            ResBlock(c), nn.ConvTranspose2d(c, c, 4, 2, 1), ResBlock(c), nn.ConvTranspose2d(c, c, 4, 2, 1),
            ResBlock(c), nn.ConvTranspose2d(c, 3, 4, 2, 1),
        )

    def forward(self, x):
        q, kl = self.quant(self.enc(x))
        return self.dec(q), kl


def fit(loader, epochs=50, kl_weight=5e-4):
    model = DVAE().cuda().to(memory_format=torch.channels_last)
    step_fn = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for epoch in range(epochs):
        for x, _ in loader:
            x = x.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                rec, kl = step_fn(x)
                loss = F.mse_loss(rec, x) + kl_weight * kl
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
        dead = int((model.quant.usage < 1e-6).sum())
        print(f"epoch {epoch}: {dead} unused codes, tau {model.quant.tau:.3f}")
        if dead > 0.9 * model.quant.usage.numel():
            break
    return model
