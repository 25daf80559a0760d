"""Diffusion posterior sampling: fill in the missing pixels of an image with a denoiser."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE, STEPS, BATCH = 24, 40, 4


class Block(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a = nn.Conv2d(ch, ch, 3, padding=1)
        self.b = nn.Conv2d(ch, ch, 3, padding=1)
        self.t = nn.Linear(32, ch)

    def forward(self, x, temb):
        h = self.a(F.silu(x)) + self.t(temb)[:, :, None, None]
        return x + self.b(F.silu(h))


class Score(nn.Module):
    def __init__(self, ch=32, depth=2):
        super().__init__()
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.blocks = nn.ModuleList(Block(ch) for _ in range(depth))
        self.out = nn.Conv2d(ch, 1, 3, padding=1)
        self.register_buffer("freq", torch.exp(-torch.arange(16) / 16 * 7.0))

    def forward(self, x, t):
        arg = t[:, None] * 1000 * self.freq
        temb = torch.cat([arg.sin(), arg.cos()], 1)
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, temb)
        return self.out(h)


def abar(t):
    return torch.cos(t * 1.5).pow(2).clamp(1e-3, 0.9999)


def blobs(n, gen):
    ax = torch.linspace(-1, 1, SIZE)
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    c = torch.rand(n, 2, generator=gen) - 0.5
    d = (xx - c[:, 0, None, None]) ** 2 + (yy - c[:, 1, None, None]) ** 2
    return (2 * torch.exp(-d / 0.15) - 1).unsqueeze(1)


def train_prior(gen, iters=40):
    net = Score()
    ema = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(iters):
        x0 = blobs(16, gen)
        t = torch.rand(16, generator=gen)
        a = abar(t)[:, None, None, None]
        noise = torch.randn(x0.shape, generator=gen)
        loss = F.mse_loss(net(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 0.15)
    return ema.eval(), loss.item()


def posterior_sample(net, observed, mask, gen, strength=0.6):
    """Each step needs the gradient of the data misfit with respect to the noisy image."""
    x = torch.randn(observed.shape, generator=gen)
    times = torch.linspace(0.99, 0.0, STEPS + 1)
    history = []
    for i in range(STEPS):
        t, s = times[i], times[i + 1]
        a, b = abar(t), abar(s)
        x = x.detach().requires_grad_(True)
        eps = net(x, t.expand(len(x)))
        x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
        x0 = x0.clamp(-1.5, 1.5)
        misfit = ((x0 - observed) * mask).pow(2).flatten(1).sum(1).sqrt()
        (grad,) = torch.autograd.grad(misfit.sum(), x)
        with torch.no_grad():
            sigma = 0.3 * ((1 - b) / (1 - a)).sqrt() * (1 - a / b).clamp(min=0).sqrt()
            x = b.sqrt() * x0 + (1 - b - sigma ** 2).clamp(min=0).sqrt() * eps
            x = x + sigma * torch.randn(x.shape, generator=gen) - strength * grad
        history.append(misfit.detach())
        if i % 20 == 19:
            print(f"  step {i + 1:3d}  misfit {misfit.mean().item():.3f}")
    return x.detach(), torch.stack(history)


def main():
    torch.manual_seed(61)
    gen = torch.Generator().manual_seed(62)
    net, loss = train_prior(gen)
    print(f"prior trained, last loss {loss:.3f}")
    truth = blobs(BATCH, gen)
    mask = (torch.rand(truth.shape, generator=gen) < 0.4).float()
    observed = truth * mask
    results = []
    for attempt in range(2):
        print(f"posterior sample {attempt}")
        x, hist = posterior_sample(net, observed, mask, gen)
        results.append(x)
        print(f"  misfit fell from {hist[0].mean():.2f} to {hist[-1].mean():.2f}")
    spread = torch.stack(results).std(0)
    print(f"spread seen {(spread * mask).sum() / mask.sum():.3f}  missing {(spread * (1 - mask)).sum() / (1 - mask).sum():.3f}")


if __name__ == "__main__":
    main()
