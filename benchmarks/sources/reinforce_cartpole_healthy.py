import argparse
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, obs, actions, hidden=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Dropout(0.2), nn.ReLU())
        self.pi = nn.Linear(hidden, actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, x):
        z = self.body(x)
        return Categorical(logits=self.pi(z)), self.v(z).squeeze(-1)


class Agent:
    def __init__(self, env, lr=3e-3, gamma=0.99):
        self.policy = Policy(env.observation_space.shape[0], env.action_space.n)
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.gamma = gamma

    def episode(self, env, seed=None):
        obs, _ = env.reset(seed=seed)
        logps, values, rewards, entropies = [], [], [], []
        done = False
        while not done:
            dist, value = self.policy(torch.from_numpy(obs))
            action = dist.sample()
            obs, r, term, trunc, _ = env.step(action.item())
            logps.append(dist.log_prob(action))
            values.append(value)
            entropies.append(dist.entropy())
            rewards.append(float(r))
            done = term or trunc
        return torch.stack(logps), torch.stack(values), torch.stack(entropies), rewards

    def returns(self, rewards):
        out, g = [], 0.0
        for r in reversed(rewards):
            g = r + self.gamma * g
            out.append(g)
        ret = torch.tensor(out[::-1])
        return (ret - ret.mean()) / (ret.std() + 1e-8)

    def update(self, logps, values, entropies, rewards):
        ret = self.returns(rewards)
        adv = ret - values.detach()
        loss = -(logps * adv).sum() + 0.5 * (values - ret).square().sum() - 0.01 * entropies.sum()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.opt.step()
        return loss.item()


@torch.no_grad()
def test(agent, env_id, n=10, seed=10_000):
    env = gym.make(env_id)
    agent.policy.eval()
    scores = []
    for k in range(n):
        obs, _ = env.reset(seed=seed + k)
        total, done = 0.0, False
        while not done:
            dist, _ = agent.policy(torch.from_numpy(obs))
            obs, r, term, trunc, _ = env.step(int(dist.probs.argmax()))
            total += float(r)
            done = term or trunc
        scores.append(total)
    agent.policy.train()
    env.close()
    return float(np.mean(scores)), float(np.std(scores))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--env", default="CartPole-v1")
    ap.add_argument("--episodes", type=int, default=1500)
    ap.add_argument("--seed", type=int, default=543)
    ap.add_argument("--log-interval", type=int, default=10)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    env = gym.make(args.env)
    agent = Agent(env)
    recent = deque(maxlen=100)
    for ep in range(args.episodes):
        batch = agent.episode(env, seed=args.seed if ep == 0 else None)
        loss = agent.update(*batch)
        recent.append(sum(batch[-1]))
        if ep % args.log_interval == 0:
            print(f"episode {ep} last {recent[-1]:.0f} mean {np.mean(recent):.1f} loss {loss:.2f}")
        if np.mean(recent) > env.spec.reward_threshold:
            break
    print("test %.1f +- %.1f" % test(agent, args.env))


if __name__ == "__main__":
    main()
