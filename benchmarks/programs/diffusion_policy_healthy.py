"""Low-dimensional diffusion policy (1-D conv U-Net with FiLM) on scripted 2-D avoidance paths."""
import argparse
import copy
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def scripted_paths(n, length, seed):
    """A point robot goes left to right and passes an obstacle above or below."""
    rng = np.random.default_rng(seed)
    s = np.linspace(0, 1, length, dtype=np.float32)
    obstacle = rng.uniform(-0.3, 0.3, (n, 2)).astype(np.float32)
    side = rng.choice([-1.0, 1.0], n).astype(np.float32)
    bump = np.exp(-((2 * s - 1 - obstacle[:, :1]) / 0.3) ** 2)
    y = obstacle[:, 1:] * bump + side[:, None] * 0.4 * bump
    xy = np.stack([np.broadcast_to(2 * s - 1, y.shape), y], -1)
    vel = np.diff(xy, axis=1, append=xy[:, -1:])
    obs = np.concatenate([xy, vel * length / 2, np.broadcast_to(obstacle[:, None], xy.shape)], -1)
    return torch.from_numpy(obs.astype(np.float32)), torch.from_numpy(xy.astype(np.float32))


class WindowDataset(Dataset):
    """Fetches whole batches of windows: __getitems__ gets all indices at once."""

    def __init__(self, obs, act, obs_horizon, horizon):
        self.oh = obs_horizon
        o = F.pad(obs.transpose(1, 2), (obs_horizon - 1, 0), mode="replicate").transpose(1, 2)
        a = F.pad(act.transpose(1, 2), (0, horizon - 1), mode="replicate").transpose(1, 2)
        self.obs = o.unfold(1, obs_horizon, 1)                  # (E, T, D, oh) views, no copy
        self.act = a.unfold(1, horizon, 1)                      # (E, T, A, H)
        self.steps = obs.shape[1]

    def __len__(self):
        return self.obs.shape[0] * self.steps

    def __getitems__(self, indices):
        idx = torch.as_tensor(indices)
        e, t = idx // self.steps, idx % self.steps
        return self.obs[e, t].flatten(1), self.act[e, t]


class StepEmbedding(nn.Module):
    def __init__(self, dim, timesteps):
        super().__init__()
        half = dim // 2
        freq = torch.exp(-math.log(1e4) * torch.arange(half) / (half - 1))
        ang = torch.arange(timesteps)[:, None] * freq
        self.register_buffer("table", torch.cat([ang.sin(), ang.cos()], -1))
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.Mish(), nn.Linear(2 * dim, dim))

    def forward(self, k):
        return self.mlp(self.table[k])


class FiLMBlock(nn.Module):
    def __init__(self, cin, cout, cond, kernel=5, groups=8):
        super().__init__()
        self.conv1 = nn.Conv1d(cin, cout, kernel, padding=kernel // 2)
        self.norm1 = nn.GroupNorm(groups, cout)
        self.conv2 = nn.Conv1d(cout, cout, kernel, padding=kernel // 2)
        self.norm2 = nn.GroupNorm(groups, cout)
        self.film = nn.Linear(cond, 2 * cout)
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, cond):
        scale, shift = self.film(cond).unsqueeze(-1).chunk(2, dim=1)
        h = F.silu(self.norm1(self.conv1(x)))
        h = torch.addcmul(shift, h, 1 + scale)
        return F.silu(self.norm2(self.conv2(h))) + self.skip(x)


class ConditionalUnet1d(nn.Module):
    def __init__(self, action_dim, obs_dim, timesteps, widths=(64, 128, 192), emb=64):
        super().__init__()
        self.time = StepEmbedding(emb, timesteps)
        self.cond = nn.Sequential(nn.Linear(emb + obs_dim, 128), nn.SiLU())
        ins = (action_dim,) + widths[:-1]
        self.down = nn.ModuleList(FiLMBlock(a, b, 128) for a, b in zip(ins, widths))
        self.shrink = nn.ModuleList(nn.Conv1d(w, w, 3, 2, 1) for w in widths[:-1])
        self.mid = FiLMBlock(widths[-1], widths[-1], 128)
        self.grow = nn.ModuleList(nn.ConvTranspose1d(b, a, 4, 2, 1) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(FiLMBlock(2 * w, w, 128) for w in widths[:-1])
        self.out = nn.Conv1d(widths[0], action_dim, 1)

    def forward(self, x, k, obs):
        cond = self.cond(torch.cat([self.time(k), obs], -1))
        skips = []
        for i, block in enumerate(self.down):
            x = block(self.shrink[i - 1](x) if i else x, cond)
            skips.append(x)
        x = self.mid(x, cond)
        for grow, up, skip in zip(reversed(self.grow), reversed(self.up), skips[-2::-1]):
            x = up(torch.cat([grow(x), skip], dim=1), cond)
        return self.out(x)


class Noise:
    def __init__(self, timesteps):
        t = torch.arange(timesteps + 1) / timesteps
        f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        self.alpha_bar = (f[1:] / f[0]).clamp(1e-4, 0.9999)
        self.timesteps = timesteps

    def add(self, x, noise, k):
        ab = self.alpha_bar[k].view(-1, 1, 1)
        return ab.sqrt() * x + (1 - ab).sqrt() * noise

    @torch.inference_mode()
    def sample(self, net, obs, shape, stride=5):
        x = torch.randn(shape)
        for k in range(self.timesteps - 1, -1, -stride):                  # DDIM
            ab = self.alpha_bar[k]
            prev = self.alpha_bar[k - stride] if k >= stride else torch.tensor(1.0)
            eps = net(x, torch.full((shape[0],), k), obs)
            x0 = ((x - (1 - ab).sqrt() * eps) / ab.sqrt()).clamp(-1.5, 1.5)
            x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
        return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--horizon", type=int, default=16)
    p.add_argument("--obs-horizon", type=int, default=2)
    p.add_argument("--timesteps", type=int, default=50)
    p.add_argument("--ema", type=float, default=0.98)
    args = p.parse_args()

    torch.manual_seed(12)
    obs, act = scripted_paths(200, 64, seed=12)
    data = WindowDataset(obs, act, args.obs_horizon, args.horizon)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True, collate_fn=lambda batch: batch)
    net = ConditionalUnet1d(2, 6 * args.obs_horizon, args.timesteps)
    ema = copy.deepcopy(net).requires_grad_(False).eval()
    live, slow = list(net.parameters()), list(ema.parameters())
    noise = Noise(args.timesteps)
    opt = torch.optim.AdamW(live, lr=5e-4, weight_decay=1e-6, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    step, seen, begin = 0, torch.zeros(()), time.perf_counter()
    while step < args.steps:
        for cond, action in loader:
            k = torch.randint(0, args.timesteps, (len(action),))
            eps = torch.randn_like(action)
            loss = F.mse_loss(net(noise.add(action, eps, k), k, cond), eps)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            with torch.no_grad():
                torch._foreach_lerp_(slow, live, 1 - args.ema)
            seen += loss.detach()
            step += 1
            if step % 30 == 0:
                print(f"step {step:4d}  denoising mse {seen.item() / 30:.4f}")
                seen.zero_()
            if step == args.steps:
                break
    took = time.perf_counter() - begin
    cond, action = data.__getitems__(list(range(0, len(data), 97)))
    err = (noise.sample(ema, cond, action.shape) - action).abs().mean().item()
    print(f"mean path error of samples {err:.3f}; {args.steps} steps in {took:.1f} s ({1e3 * took / args.steps:.1f} ms/step)")


if __name__ == "__main__":
    main()
