import random
from collections import deque

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from game import Direction, Point, SnakeGameAI

MAX_MEMORY = 1_000_000
BATCH_SIZE = 1000
LR = 1e-3


class QNet(nn.Module):
    def __init__(self, grid=24, n_actions=3):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(32 * (grid // 2) ** 2, 256), nn.ReLU(), nn.Linear(256, n_actions))

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


class Agent:
    def __init__(self, device="cuda", gamma=0.9):
        self.device = torch.device(device)
        self.gamma = gamma
        self.n_games = 0
        self.memory = deque(maxlen=MAX_MEMORY)
        self.model = QNet().to(self.device)
        self.target = QNet().to(self.device).eval()
        self.target.load_state_dict(self.model.state_dict())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=LR)

    def act(self, state):
        eps = max(5, 80 - self.n_games)
        if random.randint(0, 200) < eps:
            return random.randint(0, 2)
        x = torch.from_numpy(state).unsqueeze(0).to(self.device)
        with torch.no_grad():
            return self.model(x).argmax(dim=1).item()

    def remember(self, *transition):
        self.memory.append(transition)

    def learn(self):
        if len(self.memory) < BATCH_SIZE:
            return
        batch = random.sample(self.memory, BATCH_SIZE)
        states, actions, rewards, nexts, dones = zip(*batch)
        states = torch.tensor(states, dtype=torch.float32, device=self.device)
        nexts = torch.tensor(nexts, dtype=torch.float32, device=self.device)
        actions = torch.tensor(actions, device=self.device)
        rewards = torch.tensor(rewards, dtype=torch.float32, device=self.device)
        dones = torch.tensor(dones, dtype=torch.float32, device=self.device)
        q = self.model(states).gather(1, actions[:, None]).squeeze(1)
        with torch.no_grad():
            tgt = rewards + self.gamma * (1 - dones) * self.target(nexts).amax(dim=1)
        loss = F.smooth_l1_loss(q, tgt)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def train(total_games=2000):
    agent, game = Agent(), SnakeGameAI(grid=24)
    best = 0
    while agent.n_games < total_games:
        state = game.planes().astype(np.float32)
        action = agent.act(state)
        reward, done, score = game.play_step(action)
        agent.remember(state, action, reward, game.planes().astype(np.float32), done)
        agent.learn()
        if done:
            game.reset()
            agent.n_games += 1
            if agent.n_games % 20 == 0:
                agent.target.load_state_dict(agent.model.state_dict())
            if score > best:
                best = score
                torch.save(agent.model.state_dict(), "snake_best.pt")
            print("game", agent.n_games, "score", score, "best", best)


if __name__ == "__main__":
    train()
