import argparse
import copy
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class CatchEnvs:
    """A row of small arcade games drawn with numpy: move the paddle under the falling ball."""

    def __init__(self, count, size, seed=0):
        self.rng = np.random.default_rng(seed)
        self.count, self.size = count, size
        self.frames = np.zeros((count, 4, size, size), dtype=np.uint8)
        self.ball = self.rng.integers(4, size - 4, (count, 2))
        self.ball[:, 0] = 0
        self.paddle = np.full(count, size // 2)
        self.draw()

    def draw(self):
        self.frames[:, :-1] = self.frames[:, 1:]
        img = self.frames[:, -1]
        img[:] = 0
        for i in range(self.count):
            y, x = self.ball[i]
            img[i, max(y - 2, 0):y + 2, x - 2:x + 2] = 255
            img[i, -3:, max(self.paddle[i] - 5, 0):self.paddle[i] + 5] = 160

    def step(self, actions):
        self.paddle = np.clip(self.paddle + 3 * (actions - 1), 5, self.size - 5)
        self.ball[:, 0] += 2
        done = self.ball[:, 0] >= self.size - 3
        reward = np.where(done, np.where(np.abs(self.ball[:, 1] - self.paddle) < 6, 1.0, -1.0), 0.0)
        fallen = np.flatnonzero(done)
        self.ball[fallen, 0] = 0
        self.ball[fallen, 1] = self.rng.integers(4, self.size - 4, len(fallen))
        self.draw()
        return self.frames.copy(), reward.astype(np.float32), done.astype(np.float32)


class Replay:
    def __init__(self, capacity, size, device):
        self.obs = np.zeros((capacity, 4, size, size), dtype=np.uint8)
        self.nxt = np.zeros((capacity, 4, size, size), dtype=np.uint8)
        self.act = np.zeros(capacity, dtype=np.int64)
        self.rew = np.zeros(capacity, dtype=np.float32)
        self.done = np.zeros(capacity, dtype=np.float32)
        self.capacity, self.head, self.filled = capacity, 0, 0
        self.device = device

    def push(self, obs, act, rew, nxt, done):
        at = (self.head + np.arange(len(act))) % self.capacity
        self.obs[at], self.nxt[at] = obs, nxt
        self.act[at], self.rew[at], self.done[at] = act, rew, done
        self.head = (self.head + len(act)) % self.capacity
        self.filled = min(self.filled + len(act), self.capacity)

    def images(self, store, at):
        return torch.from_numpy(store[at]).to(self.device).float().div_(255.0)

    def sample(self, n):
        at = np.random.randint(0, self.filled, n)
        vec = lambda a: torch.from_numpy(a[at]).to(self.device)
        return self.images(self.obs, at), vec(self.act), vec(self.rew), self.images(self.nxt, at), vec(self.done)


class QNet(nn.Module):
    def __init__(self, actions, size):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                                  nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            flat = self.conv(torch.zeros(1, 4, size, size)).shape[1]
        self.value = nn.Sequential(nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, 1))
        self.advantage = nn.Sequential(nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, x):
        h = self.conv(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class Agent:
    def __init__(self, opts, device):
        self.q = QNet(3, 84).to(device)
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.opt = torch.optim.Adam(self.q.parameters(), lr=1e-4)
        self.device, self.opts = device, opts

    @torch.no_grad()
    def act(self, frames, epsilon):
        x = torch.from_numpy(frames).to(self.device).float().div_(255.0)
        greedy = self.q(x).argmax(1).cpu().numpy()
        return np.where(np.random.rand(len(frames)) < epsilon, np.random.randint(0, 3, len(frames)), greedy)

    def learn(self, batch):
        obs, act, rew, nxt, done = batch
        with torch.no_grad():
            best = self.q(nxt).argmax(1, keepdim=True)
            goal = rew + self.opts.gamma * (1 - done) * self.target(nxt).gather(1, best).squeeze(1)
        value = self.q(obs).gather(1, act.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        torch._foreach_lerp_(list(self.target.parameters()), list(self.q.parameters()), self.opts.tau)
        return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    ap.add_argument("--envs", type=int, default=16)
    ap.add_argument("--batch", type=int, default=384)
    ap.add_argument("--capacity", type=int, default=12_000)
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--warmup", type=int, default=80)
    ap.add_argument("--gamma", type=float, default=0.99)
    ap.add_argument("--tau", type=float, default=0.005)
    opts = ap.parse_args()
    if opts.small:
        opts.envs, opts.batch, opts.capacity, opts.steps, opts.warmup = 2, 4, 64, 4, 4

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(8)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs, replay, agent = CatchEnvs(opts.envs, 84), Replay(opts.capacity, 84, device), Agent(opts, device)

    frames = envs.frames.copy()
    for _ in range(opts.warmup):
        actions = np.random.randint(0, 3, opts.envs)
        nxt, rew, done = envs.step(actions)
        replay.push(frames, actions, rew, nxt, done)
        frames = nxt

    losses, returns = [], 0.0
    for step in range(opts.steps):
        # STEP
        actions = agent.act(frames, epsilon=max(0.05, 1.0 - step / 200))
        nxt, rew, done = envs.step(actions)
        replay.push(frames, actions, rew, nxt, done)
        frames, returns = nxt, returns + rew.sum()
        losses.append(agent.learn(replay.sample(opts.batch)))

    print("return", returns, "loss", torch.stack(losses).mean().item())


if __name__ == "__main__":
    main()
