"""PPO on a batch of multi-joint arms that must reach a target pose."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import MultivariateNormal


class ArmEnv:
    """N independent planar arms with J joints; reward is the negative pose error."""

    def __init__(self, n_envs, joints, horizon, seed):
        self.n, self.j, self.horizon = n_envs, joints, horizon
        self.gen = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self):
        self.angle = 0.3 * torch.randn(self.n, self.j, generator=self.gen)
        self.vel = torch.zeros(self.n, self.j)
        self.goal = torch.randn(self.n, self.j, generator=self.gen).clamp(-1.5, 1.5)
        self.t = 0
        return self.observe()

    def observe(self):
        return torch.cat([self.angle.sin(), self.angle.cos(), self.vel, self.goal], dim=1)

    def step(self, action):
        torque = action.clamp(-2.0, 2.0)
        self.vel = 0.9 * self.vel + 0.1 * torque
        self.angle = self.angle + 0.1 * self.vel
        self.t += 1
        err = (self.angle - self.goal).square().mean(dim=1)
        reward = -err - 0.001 * torque.square().mean(dim=1)
        return self.observe(), reward, self.t >= self.horizon


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(),
                                  nn.Linear(hidden, hidden), nn.Tanh())
        self.mu = nn.Linear(hidden, act_dim)
        self.value = nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def policy(self, h):
        mean = self.mu(h)
        std = self.log_std.exp().expand_as(mean)
        return MultivariateNormal(mean, torch.diag_embed(std.square()))

    def forward(self, obs):
        h = self.body(obs)
        return self.policy(h), self.value(h).squeeze(-1)


def collect(env, net, steps):
    keys = ("obs", "act", "logp", "rew", "val")
    traj = {k: [] for k in keys}
    obs = env.observe()
    with torch.no_grad():
        for _ in range(steps):
            dist, val = net(obs)
            act = dist.sample()
            nxt, rew, done = env.step(act)
            for k, v in zip(keys, (obs, act, dist.log_prob(act), rew, val)):
                traj[k].append(v)
            obs = env.reset() if done else nxt
        _, last = net(obs)
    return {k: torch.stack(v) for k, v in traj.items()}, last


def advantages(traj, last, gamma=0.97, lam=0.95):
    rew, val = traj["rew"], traj["val"]
    adv = torch.zeros_like(rew)
    run, nxt = torch.zeros_like(last), last
    for t in reversed(range(rew.shape[0])):
        delta = rew[t] + gamma * nxt - val[t]
        run = delta + gamma * lam * run
        adv[t], nxt = run, val[t]
    return adv, adv + val


def ppo_loss(net, obs, act, logp_old, adv, ret, clip=0.2):
    dist, val = net(obs)
    ratio = (dist.log_prob(act) - logp_old).exp()
    surrogate = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
    return -surrogate + 0.5 * (val - ret).square().mean() - 0.002 * dist.entropy().mean()


def update(net, opt, traj, adv, ret, minibatch, epochs, rng):
    flat = [t.flatten(0, 1) for t in (traj["obs"], traj["act"], traj["logp"], adv, ret)]
    flat[3] = (flat[3] - flat[3].mean()) / (flat[3].std() + 1e-6)
    total, count = torch.zeros(()), 0
    for _ in range(epochs):
        perm = torch.from_numpy(rng.permutation(flat[0].shape[0]))
        for idx in perm.split(minibatch):
            loss = ppo_loss(net, *(t[idx] for t in flat))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
            total += loss.detach()
            count += 1
    return total / count


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=32)
    ap.add_argument("--envs", type=int, default=128)
    ap.add_argument("--joints", type=int, default=16)
    ap.add_argument("--rollout", type=int, default=16)
    ap.add_argument("--hidden", type=int, default=256)
    args = ap.parse_args()

    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    env = ArmEnv(args.envs, args.joints, horizon=64, seed=7)
    net = ActorCritic(4 * args.joints, args.joints, args.hidden)
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)

    t0 = time.perf_counter()
    for it in range(args.iterations):
        traj, last = collect(env, net, args.rollout)
        adv, ret = advantages(traj, last)
        loss = update(net, opt, traj, adv, ret, 512, 3, rng)
        if it % 10 == 0:
            print(f"iter {it:3d} reward {traj['rew'].mean():.4f} loss {loss:.4f}", flush=True)
    dt = time.perf_counter() - t0
    print(f"s/step {dt / args.iterations:.5f} total {dt:.2f}")


if __name__ == "__main__":
    main()
