"""DQN with prioritised replay on a toy inventory control task."""
import random
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")


@dataclass
class Config:
    items: int = 32
    actions: int = 9
    hidden: int = 192
    capacity: int = 40_000
    warmup: int = 30_000
    iterations: int = 160
    updates: int = 4
    batch: int = 64
    gamma: float = 0.97
    alpha: float = 0.6
    beta: float = 0.4
    lr: float = 5e-4
    sync_every: int = 40


class Inventory:
    """Stock of several items; the action chooses an order policy for the day."""

    def __init__(self, cfg, seed):
        self.cfg = cfg
        self.rng = np.random.default_rng(seed)
        self.demand = self.rng.uniform(0.5, 3.0, cfg.items).astype(np.float32)
        self.reset()

    def reset(self):
        self.stock = np.full(self.cfg.items, 5.0, np.float32)
        self.day = 0
        return self._obs()

    def _obs(self):
        return np.concatenate([self.stock / 10.0, self.demand]).astype(np.float32)

    def step(self, action):
        order = self.demand * (0.25 * action)
        sold = np.minimum(self.stock, self.rng.poisson(self.demand))
        self.stock = np.clip(self.stock - sold + order, 0, 20).astype(np.float32)
        reward = float(sold.sum() - 0.1 * self.stock.sum() - 0.3 * order.sum()) / self.cfg.items
        self.day += 1
        return self._obs(), reward, self.day >= 60


class PrioritizedReplay:
    def __init__(self, cfg):
        self.cfg = cfg
        self.data = []
        self.priorities = np.zeros(cfg.capacity)
        self.pos = 0

    def push(self, tr):
        top = self.top if self.data else 1.0
        if len(self.data) < self.cfg.capacity:
            self.data.append(tr)
            self.priorities[len(self.data) - 1] = top
        else:
            self.data[self.pos] = tr
            self.priorities[self.pos] = top
        self.top = top
        self.pos = (self.pos + 1) % self.cfg.capacity

    def sample(self, n):
        prios = self.priorities[: len(self.data)]
        probs = prios ** self.cfg.alpha
        probs /= probs.sum()
        idx = np.random.choice(len(self.data), n, p=probs)
        weights = (len(self.data) * probs[idx]) ** -self.cfg.beta
        batch = Transition(*zip(*[self.data[i] for i in idx]))
        return idx, batch, torch.as_tensor(weights / weights.max(), dtype=torch.float32)

    def update(self, idx, errors):
        for i, e in zip(idx, errors):
            self.priorities[i] = float(e) + 1e-3
            self.top = max(self.top, float(e) + 1e-3)


def make_net(cfg):
    return nn.Sequential(
        nn.Linear(2 * cfg.items, cfg.hidden), nn.ReLU(),
        nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(),
        nn.Linear(cfg.hidden, cfg.actions),
    )


class Agent:
    def __init__(self, cfg):
        self.cfg = cfg
        self.q, self.target = make_net(cfg), make_net(cfg)
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=cfg.lr)

    def act(self, obs, eps):
        if random.random() < eps:
            return random.randrange(self.cfg.actions)
        with torch.no_grad():
            return int(self.q(torch.from_numpy(obs)).argmax())

    def learn(self, memory):
        idx, batch, weights = memory.sample(self.cfg.batch)
        states = torch.from_numpy(np.stack(batch.state))
        next_states = torch.from_numpy(np.stack(batch.next_state))
        actions = torch.tensor(batch.action)
        rewards = torch.tensor(batch.reward)
        alive = 1.0 - torch.tensor(batch.done, dtype=torch.float32)
        with torch.no_grad():
            best = self.q(next_states).argmax(1, keepdim=True)
            future = self.target(next_states).gather(1, best).squeeze(1)
            goal = rewards + self.cfg.gamma * alive * future
        value = self.q(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = (weights * F.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        memory.update(idx, (goal - value).detach().abs().numpy())
        return loss.item()


def main():
    cfg = Config()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    env, memory, agent = Inventory(cfg, 3), PrioritizedReplay(cfg), Agent(cfg)
    obs = env.reset()
    for _ in range(cfg.warmup):
        a = random.randrange(cfg.actions)
        nxt, r, done = env.step(a)
        memory.push(Transition(obs, a, r, nxt, done))
        obs = env.reset() if done else nxt
    losses, rewards = [], []
    for it in range(cfg.iterations):
        a = agent.act(obs, max(0.05, 1.0 - it / 100))
        nxt, r, done = env.step(a)
        memory.push(Transition(obs, a, r, nxt, done))
        obs = env.reset() if done else nxt
        rewards.append(r)
        for _ in range(cfg.updates):
            losses.append(agent.learn(memory))
        if it % cfg.sync_every == 0:
            agent.target.load_state_dict(agent.q.state_dict())
            print(f"it {it:4d}  loss {np.mean(losses[-40:]):.4f}  reward {np.mean(rewards[-40:]):.3f}")
    print(f"final loss {np.mean(losses[-40:]):.4f}")


if __name__ == "__main__":
    main()
