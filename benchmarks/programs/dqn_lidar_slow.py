"""DQN on a small lidar navigation task: drive a point robot to its goal between pillars."""
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")


class LidarArena:
    """Point robot in a square arena with round pillars and a 64-beam range finder."""
    ACTIONS = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32) * 0.15

    def __init__(self, n_beams=64, n_pillars=6, seed=0):
        self.rng = np.random.default_rng(seed)
        self.n_beams = n_beams
        angles = np.linspace(0, 2 * np.pi, n_beams, endpoint=False)
        self.dirs = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        self.pillars = self.rng.uniform(-3, 3, (n_pillars, 2)).astype(np.float32)
        self.goal = np.zeros(2, dtype=np.float32)

    @property
    def obs_dim(self):
        return self.n_beams + 4

    def _observe(self):
        rel = self.pillars - self.pos
        along = rel @ self.dirs.T
        perp2 = (rel ** 2).sum(1, keepdims=True) - along ** 2
        hit = (along > 0) & (perp2 < 0.16)
        dist = np.where(hit, along - np.sqrt(np.clip(0.16 - perp2, 0, None)), 5.0).min(0)
        return np.concatenate([dist / 5.0, self.pos / 4.0, (self.goal - self.pos) / 4.0]).astype(np.float32)

    def reset(self):
        self.pos = self.rng.uniform(-4, 4, 2).astype(np.float32)
        self.t = 0
        return self._observe()

    def step(self, action):
        before = np.linalg.norm(self.goal - self.pos)
        self.pos = np.clip(self.pos + self.ACTIONS[action], -4, 4)
        self.t += 1
        after = np.linalg.norm(self.goal - self.pos)
        crashed = bool((((self.pillars - self.pos) ** 2).sum(1) < 0.16).any())
        done = crashed or after < 0.3 or self.t >= 120
        reward = float(before - after) - (1.0 if crashed else 0.0) + (2.0 if after < 0.3 else 0.0)
        return self._observe(), reward, done


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class Trainer:
    def __init__(self, env, memory, batch_size=256, gamma=0.97, lr=5e-4):
        self.env, self.memory, self.batch_size, self.gamma = env, memory, batch_size, gamma
        self.q = self._net()
        self.target = self._net()
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.eps = 1.0
        self.state = env.reset()
        self.returns, self.ep_return = deque([0.0], maxlen=50), 0.0

    def _net(self):
        return nn.Sequential(nn.Linear(self.env.obs_dim, 192), nn.ReLU(),
                             nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 4))

    def act(self, state):
        if random.random() < self.eps:
            return random.randrange(4)
        with torch.no_grad():
            return int(self.q(torch.from_numpy(state)).argmax())

    def collect(self, n):
        for _ in range(n):
            action = self.act(self.state)
            nxt, reward, done = self.env.step(action)
            self.memory.push(self.state, action, reward, nxt, done)
            self.ep_return += reward
            if done:
                self.returns.append(self.ep_return)
                self.ep_return, nxt = 0.0, self.env.reset()
            self.state = nxt

    def learn(self):
        batch = Transition(*zip(*self.memory.sample(self.batch_size)))
        states = torch.FloatTensor(batch.state)
        next_states = torch.FloatTensor(batch.next_state)
        actions = torch.tensor(batch.action).unsqueeze(1)
        rewards = torch.tensor(batch.reward)
        alive = 1.0 - torch.tensor(batch.done, dtype=torch.float32)
        with torch.no_grad():
            best = self.q(next_states).argmax(1, keepdim=True)
            target = rewards + self.gamma * alive * self.target(next_states).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(self.q(states).gather(1, actions).squeeze(1), target)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.opt.step()
        return loss

    def train(self, updates):
        for update in range(1, updates + 1):
            self.eps = max(0.05, 1.0 - update / 120)
            self.collect(8)
            loss = self.learn()
            if update % 25 == 0:
                self.target.load_state_dict(self.q.state_dict())
                print(f"update {update:4d}  loss {loss.item():.4f}  return {np.mean(self.returns):.3f}  memory {len(self.memory)}")


if __name__ == "__main__":
    random.seed(1)
    torch.manual_seed(1)
    trainer = Trainer(LidarArena(seed=1), ReplayMemory(50_000))
    trainer.collect(30_000)
    trainer.train(200)
