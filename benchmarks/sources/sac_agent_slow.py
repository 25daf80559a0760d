import copy

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.distributions import Normal

torch.autograd.set_detect_anomaly(True)

LOG_STD_MIN, LOG_STD_MAX = -20, 2


def mlp(i, o, h=256):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class TwinQ(nn.Module):
    def __init__(self, s, a):
        super().__init__()
        self.q1, self.q2 = mlp(s + a, 1), mlp(s + a, 1)

    def forward(self, s, a):
        x = torch.cat([s, a], dim=1)
        return self.q1(x), self.q2(x)


class GaussianActor(nn.Module):
    def __init__(self, s, a):
        super().__init__()
        self.net = mlp(s, 2 * a)

    def sample(self, s):
        mean, log_std = self.net(s).chunk(2, dim=-1)
        dist = Normal(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp())
        u = dist.rsample()
        act = torch.tanh(u)
        logp = dist.log_prob(u) - torch.log(1 - act.pow(2) + 1e-6)
        return act, logp.sum(dim=1, keepdim=True), torch.tanh(mean)


class SAC:
    def __init__(self, s_dim, a_dim, gamma=0.99, tau=0.005, lr=3e-4, device="cuda", debug=False):
        self.gamma, self.tau, self.device, self.debug = gamma, tau, device, debug
        self.critic = TwinQ(s_dim, a_dim).to(device)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor = GaussianActor(s_dim, a_dim).to(device)
        self.log_alpha = torch.zeros(1, requires_grad=True, device=device)
        self.target_entropy = -float(a_dim)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=lr)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=lr)

    @torch.no_grad()
    def select_action(self, state, evaluate=False):
        s = torch.as_tensor(np.atleast_2d(state), dtype=torch.float32, device=self.device)
        action, _, mean = self.actor.sample(s)
        return (mean if evaluate else action).cpu().numpy()

    def update(self, batch):
        s, a, r, s2, not_done = (torch.as_tensor(x, dtype=torch.float32, device=self.device) for x in batch)
        alpha = self.log_alpha.exp().detach()
        a2, logp2, _ = self.actor.sample(s2)
        q1_t, q2_t = self.critic_target(s2, a2)
        target = r + not_done * self.gamma * (torch.min(q1_t, q2_t) - alpha * logp2)
        q1, q2 = self.critic(s, a)
        critic_loss = F.mse_loss(q1, target.detach()) + F.mse_loss(q2, target.detach())
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        self.critic.requires_grad_(False)
        pi, logp, _ = self.actor.sample(s)
        actor_loss = (alpha * logp - torch.min(*self.critic(s, pi))).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        self.critic.requires_grad_(True)

        alpha_loss = -(self.log_alpha * (logp.detach() + self.target_entropy)).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()

        if self.debug:
            for n, p in self.actor.named_parameters():
                print(n, p.grad.norm().item())
        with torch.no_grad():
            tgt, cur = list(self.critic_target.parameters()), list(self.critic.parameters())
            torch._foreach_lerp_(tgt, cur, self.tau)
