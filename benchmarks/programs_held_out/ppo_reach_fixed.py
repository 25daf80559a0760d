"""PPO on a vectorised torch environment: a planar arm with many joints reaches for a target.

python ppo_reach.py --iters 60 --envs 256
"""
import argparse
import time

import torch
import torch.nn as nn
from torch.distributions import Independent, Normal


class ArmReach:
    """n-joint planar arm, torque control with damping; batch of environments at once."""

    def __init__(self, n_envs, n_joints, gen, dt=0.05, limit=100):
        self.n, self.j, self.dt, self.limit, self.gen = n_envs, n_joints, dt, limit, gen
        self.link = 1.0 / n_joints
        self.obs_dim = 3 * n_joints + 4
        self.q = torch.zeros(n_envs, n_joints)
        self.dq = torch.zeros(n_envs, n_joints)
        self.goal = torch.zeros(n_envs, 2)
        self.age = torch.zeros(n_envs, dtype=torch.long)
        self.reset_where(torch.ones(n_envs, dtype=torch.bool))

    def reset_where(self, mask):
        k = self.n
        ang = torch.rand(k, generator=self.gen) * 6.2832
        rad = 0.3 + 0.6 * torch.rand(k, generator=self.gen)
        goal = torch.stack([rad * ang.cos(), rad * ang.sin()], 1)
        q = 0.3 * torch.randn(k, self.j, generator=self.gen)
        m = mask[:, None]
        self.q = torch.where(m, q, self.q)
        self.dq = torch.where(m, torch.zeros_like(q), self.dq)
        self.goal = torch.where(m, goal, self.goal)
        self.age = torch.where(mask, torch.randint(0, 20, (k,), generator=self.gen), self.age)

    def tip(self):
        a = self.q.cumsum(1)
        return self.link * torch.stack([a.cos().sum(1), a.sin().sum(1)], 1)

    def observe(self):
        return torch.cat([self.q.sin(), self.q.cos(), self.dq, self.goal, self.goal - self.tip()], 1)

    def step(self, torque):
        torque = torque.clamp(-1, 1)
        for _ in range(2):
            acc = 4.0 * torque - 0.8 * self.dq - 0.5 * self.q
            self.dq = self.dq + 0.5 * self.dt * acc
            self.q = self.q + 0.5 * self.dt * self.dq
        dist = (self.goal - self.tip()).norm(dim=1)
        reward = -dist - 0.005 * torque.square().sum(1) + (dist < 0.1).float()
        self.age = self.age + 1
        done = self.age >= self.limit
        self.reset_where(done)
        return self.observe(), reward, done


def mlp(i, h, o, gain):
    net = nn.Sequential(nn.Linear(i, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, o))
    nn.init.orthogonal_(net[-1].weight, gain)
    return net


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=128, init_std=0.6):
        super().__init__()
        self.actor = mlp(obs_dim, hidden, act_dim, 0.01)
        self.critic = mlp(obs_dim, hidden, 1, 1.0)
        self.register_buffer("action_var", torch.full((act_dim,), init_std ** 2))

    def set_std(self, std):
        self.action_var.fill_(std ** 2)

    def policy(self, obs):
        mean = self.actor(obs)
        return Independent(Normal(mean, self.action_var.sqrt()), 1)

    @torch.no_grad()
    def act(self, obs):
        dist = self.policy(obs)
        action = dist.rsample()
        return action, dist.log_prob(action), self.critic(obs).squeeze(-1)

    def evaluate(self, obs, action):
        dist = self.policy(obs)
        return dist.log_prob(action), self.critic(obs).squeeze(-1), dist.entropy()


class Rollout:
    def __init__(self, horizon, n, obs_dim, act_dim):
        self.obs = torch.empty(horizon, n, obs_dim)
        self.act = torch.empty(horizon, n, act_dim)
        self.logp, self.val, self.rew, self.done = (torch.empty(horizon, n) for _ in range(4))

    def advantages(self, last_val, gamma=0.97, lam=0.95):
        adv, run = torch.empty_like(self.rew), torch.zeros_like(last_val)
        nxt = last_val
        for t in range(self.rew.shape[0] - 1, -1, -1):
            live = 1.0 - self.done[t]
            delta = self.rew[t] + gamma * nxt * live - self.val[t]
            run = delta + gamma * lam * live * run
            adv[t], nxt = run, self.val[t]
        return adv, adv + self.val


def collect(env, net, obs, buf):
    for t in range(buf.obs.shape[0]):
        action, logp, val = net.act(obs)
        buf.obs[t], buf.act[t], buf.logp[t], buf.val[t] = obs, action, logp, val
        obs, buf.rew[t], done = env.step(action)
        buf.done[t] = done.float()
    return obs


def update(net, opt, buf, adv, ret, minibatches, gen, clip=0.2):
    flat = [x.flatten(0, 1) for x in (buf.obs, buf.act, buf.logp, adv, ret)]
    perm = torch.randperm(flat[0].shape[0], generator=gen)
    for idx in perm.chunk(minibatches):
        o, a, lp, ad, r = (x[idx] for x in flat)
        ad = (ad - ad.mean()) / (ad.std() + 1e-8)
        new_lp, v, ent = net.evaluate(o, a)
        ratio = (new_lp - lp).exp()
        pg = -torch.min(ratio * ad, ratio.clamp(1 - clip, 1 + clip) * ad).mean()
        loss = pg + 0.5 * (v - r).square().mean() - 0.001 * ent.mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=64)
    ap.add_argument("--envs", type=int, default=128)
    ap.add_argument("--horizon", type=int, default=16)
    ap.add_argument("--joints", type=int, default=12)
    args = ap.parse_args()
    torch.manual_seed(5)
    gen = torch.Generator().manual_seed(6)
    env = ArmReach(args.envs, args.joints, gen)
    net = ActorCritic(env.obs_dim, args.joints)
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, eps=1e-5)
    buf = Rollout(args.horizon, args.envs, env.obs_dim, args.joints)
    obs, t0 = env.observe(), time.perf_counter()
    for it in range(args.iters):
        obs = collect(env, net, obs, buf)
        with torch.no_grad():
            adv, ret = buf.advantages(net.critic(obs).squeeze(-1))
        for _ in range(2):
            update(net, opt, buf, adv, ret, 2, gen)
        net.set_std(max(0.2, 0.6 - 0.4 * it / args.iters))
        if it % 20 == 0 or it == args.iters - 1:
            print(f"iter {it:3d}  reward {buf.rew.mean().item():.4f}  value {buf.val.mean().item():.3f}")
    dt = time.perf_counter() - t0
    print(f"{args.iters} iterations, {dt:.1f} s, {1000 * dt / args.iters:.1f} ms/iteration")


if __name__ == "__main__":
    main()
