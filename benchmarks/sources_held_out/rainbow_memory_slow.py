import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class PrioritizedMemory:
    def __init__(self, capacity, obs_shape, alpha=0.5, n_step=3, gamma=0.99):
        self.capacity, self.alpha, self.n_step = capacity, alpha, n_step
        self.obs = np.zeros((capacity, *obs_shape), dtype=np.uint8)
        self.actions = np.zeros(capacity, dtype=np.int64)
        self.rewards = np.zeros(capacity, dtype=np.float32)
        self.dones = np.zeros(capacity, dtype=np.float32)
        self.priorities = np.zeros(capacity, dtype=np.float64)
        self.discounts = gamma ** np.arange(n_step, dtype=np.float32)
        self.pos, self.full, self.max_priority = 0, False, 1.0

    def __len__(self):
        return self.capacity if self.full else self.pos

    def append(self, obs, action, reward, done):
        self.obs[self.pos] = obs
        self.actions[self.pos], self.rewards[self.pos], self.dones[self.pos] = action, reward, done
        self.priorities[self.pos] = self.max_priority
        self.pos = (self.pos + 1) % self.capacity
        self.full = self.full or self.pos == 0

    def sample(self, batch_size, beta, device):
        n = len(self) - self.n_step
        p = self.priorities[:n] ** self.alpha
        p = p / p.sum()
        idx = np.random.choice(n, batch_size, p=p)
        weights = (n * p[idx]) ** -beta
        weights /= weights.max()
        span = (idx[:, None] + np.arange(self.n_step)) % self.capacity
        alive = np.cumprod(1.0 - np.pad(self.dones[span][:, :-1], ((0, 0), (1, 0))), axis=1)
        ret = (self.rewards[span] * alive * self.discounts).sum(axis=1)
        not_done = alive[:, -1] * (1.0 - self.dones[span[:, -1]])
        to = lambda x: torch.from_numpy(x).to(device)
        return (idx, to(self.obs[idx]).float().div_(255), to(self.actions[idx]), to(ret.astype(np.float32)),
                to(self.obs[(idx + self.n_step) % self.capacity]).float().div_(255),
                to(not_done.astype(np.float32)), to(weights.astype(np.float32)))

    def update_priorities(self, idx, errors):
        for i, e in zip(idx, errors):
            prio = abs(e.item()) + 1e-5
            self.priorities[i] = prio
            self.max_priority = max(self.max_priority, prio)


class DuelingNet(nn.Module):
    def __init__(self, c, n_actions):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(c, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                                  nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten())
        self.v = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))
        self.a = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, n_actions))

    def forward(self, x):
        z = self.conv(x)
        a = self.a(z)
        return self.v(z) + a - a.mean(dim=1, keepdim=True)


class Learner:
    def __init__(self, n_actions, device="cuda", gamma=0.99):
        self.device, self.gamma = device, gamma
        self.online, self.target = DuelingNet(4, n_actions).to(device), DuelingNet(4, n_actions).to(device)
        self.target.load_state_dict(self.online.state_dict())
        self.opt = torch.optim.Adam(self.online.parameters(), lr=6.25e-5, eps=1.5e-4)

    @torch.no_grad()
    def act(self, obs):
        x = torch.from_numpy(obs).to(self.device).float().div_(255)
        return self.online(x[None]).argmax(dim=1).item()

    def learn(self, mem, step, batch_size=32, target_every=8000):
        beta = min(1.0, 0.4 + 0.6 * step / 10_000_000)
        idx, s, a, r, s2, not_done, w = mem.sample(batch_size, beta, self.device)
        q = self.online(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.online(s2).argmax(dim=1, keepdim=True)
            y = r + not_done * self.gamma ** mem.n_step * self.target(s2).gather(1, best).squeeze(1)
        td = q - y
        loss = (w * F.huber_loss(q, y, reduction="none")).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.opt.step()
        mem.update_priorities(idx, td.detach())
        if step % target_every == 0:
            self.target.load_state_dict(self.online.state_dict(), strict=True)
