# PPO, continuous control: a batch of 2-link planar arms (torque driven) has to bring
# its finger tip to a goal. Plain script in the spirit of the one-file RL repos.
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Independent, Normal

SEED = 5
NUM_ENVS = 32
HORIZON = 40
UPDATES = 55
EPOCHS = 4
MINIBATCHES = 4
GAMMA, LAM = 0.97, 0.95
CLIP = 0.2
ENT_COEF, VF_COEF = 0.003, 0.5
LR = 4e-4


class ArmVecEnv:
    """num_envs arms with n joints, all stepped together in numpy."""

    def __init__(self, num_envs, joints=6, limit=60, seed=0):
        self.n, self.j, self.limit = num_envs, joints, limit
        self.rng = np.random.default_rng(seed)
        self.link = 1.0 / joints
        self.q = np.zeros((num_envs, joints))
        self.dq = np.zeros((num_envs, joints))
        self.goal = np.zeros((num_envs, 2))
        self.age = np.zeros(num_envs, dtype=int)
        self.obs_dim, self.act_dim = 3 * joints + 4, joints

    def _reset_where(self, mask):
        k = int(mask.sum())
        if k == 0:
            return
        self.q[mask] = self.rng.normal(0, 0.3, (k, self.j))
        self.dq[mask] = 0
        r, phi = self.rng.uniform(0.3, 0.9, k), self.rng.uniform(-2, 2, k)
        self.goal[mask] = np.stack([r * np.cos(phi), r * np.sin(phi)], 1)
        self.age[mask] = 0

    def reset(self):
        self._reset_where(np.ones(self.n, dtype=bool))
        return self._obs()

    def _tip(self):
        a = np.cumsum(self.q, 1)
        return self.link * np.stack([np.cos(a).sum(1), np.sin(a).sum(1)], 1)

    def _obs(self):
        o = np.concatenate([np.cos(self.q), np.sin(self.q), self.dq, self.goal,
                            self.goal - self._tip()], 1)
        return torch.from_numpy(o.astype(np.float32))

    def step(self, action):
        u = np.clip(action, -2, 2)
        self.dq += 0.1 * (4.0 * u - 1.5 * self.dq)
        self.q += 0.1 * self.dq
        self.age += 1
        dist = np.linalg.norm(self.goal - self._tip(), axis=1)
        rew = np.exp(-4 * dist) - 0.01 * (u ** 2).sum(1)
        done = self.age >= self.limit
        self._reset_where(done)
        as_t = lambda a: torch.from_numpy(a.astype(np.float32))
        return self._obs(), as_t(rew), as_t(done)


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=64):
        super().__init__()
        mlp = lambda out: nn.Sequential(
            nn.Linear(obs_dim, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out))
        self.actor = mlp(act_dim)
        self.critic = mlp(1)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))
        with torch.no_grad():
            self.actor[-1].weight.mul_(0.01)

    def policy(self, obs):
        mean = self.actor(obs)
        std = torch.exp(self.log_std).expand_as(mean)
        return Independent(Normal(mean, std), 1)

    @torch.no_grad()
    def act(self, obs):
        dist = self.policy(obs)
        action = dist.sample()
        return action, dist.log_prob(action), self.critic(obs).squeeze(-1)

    def evaluate(self, obs, action):
        dist = self.policy(obs)
        return dist.log_prob(action), dist.entropy(), self.critic(obs).squeeze(-1)


class Rollout:
    def __init__(self, horizon, n, obs_dim, act_dim):
        self.obs = torch.zeros(horizon, n, obs_dim)
        self.act = torch.zeros(horizon, n, act_dim)
        self.logp, self.val, self.rew, self.done = (torch.zeros(horizon, n) for _ in range(4))

    def advantages(self, last_val):
        adv = torch.zeros_like(self.rew)
        run = torch.zeros_like(last_val)
        for t in reversed(range(len(self.rew))):
            live = 1 - self.done[t]
            delta = self.rew[t] + GAMMA * last_val * live - self.val[t]
            run = delta + GAMMA * LAM * live * run
            adv[t] = run
            last_val = self.val[t]
        return adv, adv + self.val


torch.manual_seed(SEED)
env = ArmVecEnv(NUM_ENVS, seed=SEED)
agent = ActorCritic(env.obs_dim, env.act_dim)
optim = torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5, fused=True)
buf = Rollout(HORIZON, NUM_ENVS, env.obs_dim, env.act_dim)
obs = env.reset()

t_start = time.perf_counter()
for update in range(1, UPDATES + 1):
    for t in range(HORIZON):
        action, logp, value = agent.act(obs)
        buf.obs[t], buf.act[t], buf.logp[t], buf.val[t] = obs, action, logp, value
        obs, buf.rew[t], buf.done[t] = env.step(action.numpy().astype(np.float64))
    with torch.no_grad():
        adv, ret = buf.advantages(agent.critic(obs).squeeze(-1))

    b_obs, b_act = buf.obs.flatten(0, 1), buf.act.flatten(0, 1)
    b_logp, b_adv, b_ret = buf.logp.flatten(), adv.flatten(), ret.flatten()
    for epoch in range(EPOCHS):
        for mb in torch.randperm(NUM_ENVS * HORIZON).chunk(MINIBATCHES):
            logp, entropy, value = agent.evaluate(b_obs[mb], b_act[mb])
            ratio = (logp - b_logp[mb]).exp()
            a = b_adv[mb]
            a = (a - a.mean()) / (a.std() + 1e-8)
            pg = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
            vf = 0.5 * (value - b_ret[mb]).pow(2).mean()
            loss = pg + VF_COEF * vf - ENT_COEF * entropy.mean()
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optim.step()
    if update % 5 == 0:
        print(f"update {update:3d}  reward/step {buf.rew.mean().item():.4f}  "
              f"std {agent.log_std.exp().mean().item():.3f}  vf {vf.item():.4f}")
total = time.perf_counter() - t_start
print(f"{total / UPDATES * 1e3:.2f} ms/update over {UPDATES} updates")
