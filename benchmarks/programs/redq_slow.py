# REDQ-style SAC on a batched pendulum (everything in one file, after the CleanRL fashion).
# An ensemble of N critics, a random pair of them in the target, several updates per env step.
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    seed: int = 1
    total_steps: int = 300         # environment steps (each with 8 pendulums)
    learning_starts: int = 40
    utd: int = 2                   # gradient updates per environment step
    n_envs: int = 8
    batch_size: int = 512
    ensemble: int = 6
    subset: int = 2
    hidden: int = 192
    gamma: float = 0.98
    tau: float = 0.005
    alpha: float = 0.1
    lr: float = 3e-4
    buffer_size: int = 20_000


class Pendulums:
    """n pendulums side by side, numpy"""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.th, self.om, self.t = np.zeros(n), np.zeros(n), 0

    def _obs(self):
        return np.stack([np.cos(self.th), np.sin(self.th), self.om / 8], 1).astype(np.float32)

    def reset(self):
        self.th = self.rng.uniform(-np.pi, np.pi, self.n)
        self.om = self.rng.uniform(-1, 1, self.n)
        self.t = 0
        return self._obs()

    def step(self, act):
        u = 2.0 * act[:, 0]
        th = (self.th + np.pi) % (2 * np.pi) - np.pi
        rew = -(th ** 2 + 0.1 * self.om ** 2 + 0.001 * u ** 2)
        self.om = np.clip(self.om + 0.05 * (15.0 * np.sin(th) + 3.0 * u), -8, 8)
        self.th = self.th + 0.05 * self.om
        self.t += 1
        return self._obs(), rew.astype(np.float32), self.t >= 200


class EnsembleLinear(nn.Module):
    def __init__(self, n, i, o):
        super().__init__()
        self.w = nn.Parameter(torch.empty(n, i, o).uniform_(-1, 1) / i ** 0.5)
        self.b = nn.Parameter(torch.zeros(n, 1, o))

    def forward(self, x, pick=slice(None)):
        return torch.baddbmm(self.b[pick], x, self.w[pick])


class Critics(nn.Module):
    def __init__(self, n, d_in, h):
        super().__init__()
        self.n = n
        self.l1, self.l2 = EnsembleLinear(n, d_in, h), EnsembleLinear(n, h, h)
        self.l3, self.l4 = EnsembleLinear(n, h, h), EnsembleLinear(n, h, 1)

    def forward(self, obs, act, pick=slice(None)):
        n = self.n if isinstance(pick, slice) else len(pick)
        x = torch.cat([obs, act], 1).unsqueeze(0).expand(n, -1, -1)
        x = F.relu(self.l1(x, pick))
        x = F.relu(self.l2(x, pick))
        x = F.relu(self.l3(x, pick))
        return self.l4(x, pick).squeeze(-1)    # (n, batch)


class Actor(nn.Module):
    def __init__(self, d_obs, d_act, h):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d_obs, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.out = nn.Linear(h, 2 * d_act)

    def forward(self, obs):
        mu, log_std = self.out(self.body(obs)).chunk(2, -1)
        std = log_std.clamp(-5, 1).exp()
        pre = mu + std * torch.randn_like(mu)
        act = torch.tanh(pre)
        logp = -0.5 * ((pre - mu) / std) ** 2 - std.log() - 0.919 - torch.log(1 - act ** 2 + 1e-6)
        return act, logp.sum(-1)


class Replay:
    def __init__(self, size, d_obs, d_act, rng):
        self.o, self.o2 = np.zeros((size, d_obs), np.float32), np.zeros((size, d_obs), np.float32)
        self.a, self.r = np.zeros((size, d_act), np.float32), np.zeros(size, np.float32)
        self.size, self.n, self.rng = size, 0, rng

    def add(self, o, a, r, o2):
        idx = np.arange(self.n, self.n + len(r)) % self.size
        self.o[idx], self.a[idx], self.r[idx], self.o2[idx] = o, a, r, o2
        self.n += len(r)

    def sample(self, k):
        i = self.rng.integers(0, min(self.n, self.size), k)
        return tuple(torch.from_numpy(z[i]) for z in (self.o, self.a, self.r, self.o2))


args = Args()
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)
envs = Pendulums(args.n_envs, rng)
rb = Replay(args.buffer_size, 3, 1, rng)
actor = Actor(3, 1, 64)
qf = Critics(args.ensemble, 4, args.hidden)
qf_target = Critics(args.ensemble, 4, args.hidden).requires_grad_(False)
qf_target.load_state_dict(qf.state_dict())
q_opt = torch.optim.Adam(qf.parameters(), lr=args.lr, fused=True)
a_opt = torch.optim.Adam(actor.parameters(), lr=args.lr, fused=True)
q_list, qt_list = list(qf.parameters()), list(qf_target.parameters())


def update_critics(o, a, r, o2):
    with torch.no_grad():
        a2, logp2 = actor(o2)
        pick = torch.randperm(args.ensemble)[: args.subset]
        q2 = qf_target(o2, a2, pick).amin(0)
        target = r + args.gamma * (q2 - args.alpha * logp2)
    q = qf(o, a)
    loss = F.mse_loss(q, target.expand_as(q)) * args.ensemble
    q_opt.zero_grad()
    loss.backward()
    q_opt.step()
    with torch.no_grad():
        torch._foreach_lerp_(qt_list, q_list, args.tau)
    return loss.detach()


def update_actor(o):
    a, logp = actor(o)
    loss = (args.alpha * logp - qf(o, a).mean(0)).mean()
    a_opt.zero_grad()
    loss.backward()
    a_opt.step()
    return loss.detach()


obs = envs.reset()
ret, updates, spent = 0.0, 0, 0.0
for step in range(1, args.total_steps + 1):
    t_step = time.perf_counter()
    with torch.no_grad():
        act = actor(torch.from_numpy(obs))[0].numpy()
    nxt, rew, done = envs.step(act)
    rb.add(obs, act, rew * 0.1, nxt)
    ret += float(rew.mean())
    obs = envs.reset() if done else nxt
    if step <= args.learning_starts:
        continue
    for _ in range(args.utd):
        batch = rb.sample(args.batch_size)
        q_loss = update_critics(*batch)
        a_loss = update_actor(batch[0])
        updates += 1
    spent += time.perf_counter() - t_step
    if step % 50 == 0:
        print(f"step {step:5d}  return/step {ret / step:8.3f}  q {q_loss.item():9.4f}  pi {a_loss.item():8.4f}", flush=True)
n = args.total_steps - args.learning_starts
print(f"{spent / n * 1e3:.2f} ms/step over {n} steps, {updates} updates")
