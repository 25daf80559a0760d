"""Neuroevolution of a small controller for a swarm of carts with poles (batched physics)."""
import copy
import math
import random

import torch
import torch.nn as nn

GENERATIONS = 40
POP = 12
ELITE = 3
EPISODES = 64
HORIZON = 30
SIGMA = 0.08


class Policy(nn.Module):
    def __init__(self, n_obs=4, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, obs):
        return torch.tanh(self.head(self.body(obs))).squeeze(-1)


class Individual:
    counter = 0

    def __init__(self, policy, parent=None):
        Individual.counter += 1
        self.uid = Individual.counter
        self.policy = policy
        self.parent = parent
        self.fitness = -math.inf

    def depth(self):
        d, node = 0, self.parent
        while node is not None:
            d, node = d + 1, node.parent
        return d

    def spawn(self):
        child = copy.deepcopy(self)
        Individual.counter += 1
        child.uid = Individual.counter
        child.parent = self
        child.fitness = -math.inf
        return child

    @torch.no_grad()
    def mutate(self, sigma):
        for p in self.policy.parameters():
            p.add_(torch.randn_like(p), alpha=sigma)
        return self


class CartPoles:
    """EPISODES carts stepped together; returns how upright the poles were."""

    def __init__(self, n, horizon):
        self.n, self.horizon = n, horizon

    def reset(self, seed):
        g = torch.Generator().manual_seed(seed)
        return (torch.rand(self.n, 4, generator=g) - 0.5) * 0.2

    @staticmethod
    def dynamics(s, force):
        x, v, th, om = s.unbind(1)
        sin, cos = torch.sin(th), torch.cos(th)
        tmp = (10.0 * force + 0.05 * om * om * sin) / 1.1
        acc_th = (9.8 * sin - cos * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        acc_x = tmp - 0.05 * acc_th * cos / 1.1
        dt = 0.02
        return torch.stack([x + dt * v, v + dt * acc_x, th + dt * om, om + dt * acc_th], 1)

    @torch.no_grad()
    def rollout(self, policy, seed):
        s = self.reset(seed)
        total = torch.zeros(self.n)
        for _ in range(self.horizon):
            s = self.dynamics(s, policy(s))
            total += torch.cos(s[:, 2]) - 0.01 * s[:, 0].abs()
        return total.mean().item()


random.seed(5)
torch.manual_seed(5)
env = CartPoles(EPISODES, HORIZON)
population = [Individual(Policy()) for _ in range(POP)]
gen, sigma, hall_of_fame = 0, SIGMA, []
while gen < GENERATIONS:
    for ind in population:
        ind.fitness = env.rollout(ind.policy, seed=gen)
    population.sort(key=lambda i: i.fitness, reverse=True)
    best = population[0]
    hall_of_fame.append((gen, best.uid, best.fitness))
    elites = population[:ELITE]
    population = [random.choice(elites).spawn().mutate(sigma) for _ in range(POP)]
    sigma = max(0.02, sigma * 0.98)
    gen += 1
    if gen % 10 == 0:
        print(f"gen {gen:3d}  best {best.fitness:.4f}  uid {best.uid}  depth {best.depth()}  sigma {sigma:.3f}")

top = max(hall_of_fame, key=lambda t: t[2])
print(f"best ever: generation {top[0]}, fitness {top[2]:.4f}, individuals made {Individual.counter}")
