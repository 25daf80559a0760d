import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, n_act, h=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi, self.v = nn.Linear(h, n_act), nn.Linear(h, 1)

    def forward(self, x):
        z = self.body(x)
        return Categorical(logits=self.pi(z)), self.v(z).squeeze(-1)


class PPO:
    def __init__(self, env_id, n_envs=64, horizon=256, gamma=0.99, lam=0.95, device="cuda"):
        self.envs = [gym.make(env_id) for _ in range(n_envs)]
        self.obs = [e.reset(seed=i)[0] for i, e in enumerate(self.envs)]
        self.n, self.T, self.gamma, self.lam, self.device = n_envs, horizon, gamma, lam, device
        dim = self.envs[0].observation_space.shape[0]
        self.net = ActorCritic(dim, self.envs[0].action_space.n).to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=3e-4, eps=1e-5)
        shape = (horizon, n_envs)
        self.b_obs = torch.zeros(*shape, dim, device=device)
        self.b_act = torch.zeros(shape, dtype=torch.long, device=device)
        self.b_logp, self.b_val = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self.b_rew, self.b_done = torch.zeros(shape, device=device), torch.zeros(shape, device=device)

    @torch.no_grad()
    def collect(self):
        for t in range(self.T):
            rewards, dones = np.zeros(self.n, np.float32), np.zeros(self.n, np.float32)
            for i, env in enumerate(self.envs):
                o = torch.as_tensor(self.obs[i], dtype=torch.float32, device=self.device)
                dist, value = self.net(o)
                a = dist.sample()
                self.b_obs[t, i], self.b_act[t, i] = o, a
                self.b_logp[t, i], self.b_val[t, i] = dist.log_prob(a), value
                nxt, rewards[i], term, trunc, _ = env.step(a.item())
                dones[i] = float(term or trunc)
                self.obs[i] = env.reset()[0] if (term or trunc) else nxt
            self.b_rew[t] = torch.from_numpy(rewards)
            self.b_done[t] = torch.from_numpy(dones)
        last = torch.as_tensor(np.stack(self.obs), dtype=torch.float32, device=self.device)
        return self.gae(self.net(last)[1])

    def gae(self, last_value):
        adv = torch.zeros_like(self.b_rew)
        for i in range(self.n):
            run, nxt = 0.0, last_value[i]
            for t in reversed(range(self.T)):
                alive = 1.0 - self.b_done[t, i]
                delta = self.b_rew[t, i] + self.gamma * nxt * alive - self.b_val[t, i]
                run = delta + self.gamma * self.lam * alive * run
                adv[t, i] = run
                nxt = self.b_val[t, i]
        return adv, adv + self.b_val

    def update(self, adv, ret, epochs=4, minibatch=2048, clip=0.2):
        flat = lambda x: x.flatten(0, 1)
        obs, act, logp_old = flat(self.b_obs), flat(self.b_act), flat(self.b_logp)
        adv, ret = flat(adv), flat(ret)
        for _ in range(epochs):
            for idx in torch.randperm(len(obs), device=self.device).split(minibatch):
                dist, v = self.net(obs[idx])
                ratio = (dist.log_prob(act[idx]) - logp_old[idx]).exp()
                a = adv[idx]
                a = (a - a.mean()) / (a.std() + 1e-8)
                pg = -torch.min(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a).mean()
                loss = pg + 0.5 * (v - ret[idx]).pow(2).mean() - 0.01 * dist.entropy().mean()
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.opt.step()


if __name__ == "__main__":
    agent = PPO("LunarLander-v3")
    for it in range(1000):
        agent.update(*agent.collect())
        if it % 10 == 0:
            print(it, "mean reward", agent.b_rew.mean().item())
