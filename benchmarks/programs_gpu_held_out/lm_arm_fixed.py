"""Identify the residual torque model of a 6-joint arm with Levenberg-Marquardt.

Every iteration takes a fresh mini-batch of trajectory samples and solves the damped
normal equations in the space of the residuals.
"""
import argparse

import torch
from torch import nn


class TorqueNet(nn.Module):
    def __init__(self, joints, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3 * joints, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, joints),
        )

    def forward(self, q, qd, qdd):
        return self.net(torch.cat([torch.sin(q), qd, qdd], dim=-1))


class Arm:
    """Stand-in for the real robot."""

    def __init__(self, joints, device):
        gen = torch.Generator().manual_seed(99)
        self.inertia = (torch.eye(joints) * 2 + 0.2 * torch.randn(joints, joints, generator=gen)).to(device)
        self.friction = torch.rand(joints, generator=gen).to(device)
        self.joints, self.device = joints, device

    def record(self, n):
        q, qd, qdd = torch.randn(3, n, self.joints, device=self.device).unbind(0)
        tau = qdd @ self.inertia + self.friction * torch.tanh(4 * qd) + 1.5 * torch.sin(q)
        return q, qd, qdd, tau + 0.02 * torch.randn_like(tau)


class LevenbergMarquardt:
    def __init__(self, model, damping=1.0):
        self.model = model
        self.params = list(model.parameters())
        self.damping = torch.as_tensor(damping, device=self.params[0].device)

    def residuals(self, sample):
        q, qd, qdd, tau = sample
        return (self.model(q, qd, qdd) - tau).flatten()

    def jacobian(self, r):
        basis = torch.eye(r.numel(), device=r.device)
        grads = torch.autograd.grad(r, self.params, basis, is_grads_batched=True)
        return torch.cat([g.reshape(r.numel(), -1) for g in grads], dim=1)

    @torch.no_grad()
    def move(self, delta, sign):
        at = 0
        for p in self.params:
            n = p.numel()
            p.add_(delta[at:at + n].view_as(p), alpha=sign)
            at += n

    def step(self, sample):
        r = self.residuals(sample)
        J = self.jacobian(r)
        with torch.no_grad():
            gram = J @ J.T
            gram.diagonal().add_(self.damping)
            chol, _ = torch.linalg.cholesky_ex(gram)
            delta = J.T @ torch.cholesky_solve(r.unsqueeze(1), chol)
            before = r.square().sum()
            self.move(delta.flatten(), -1.0)
            after = self.residuals(sample).square().sum()
            better = after < before
            self.move(delta.flatten() * (~better), 1.0)
            self.damping = torch.where(better, self.damping * 0.7, self.damping * 2.0).clamp(1e-3, 1e4)
        return torch.minimum(before, after) / r.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    ap.add_argument("--hidden", type=int, default=512)
    ap.add_argument("--samples", type=int, default=16)
    ap.add_argument("--iterations", type=int, default=150)
    a = ap.parse_args()
    if a.small:
        a.hidden, a.samples, a.iterations = 16, 4, 5

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(4)
    arm = Arm(6, device)
    model = TorqueNet(6, a.hidden).to(device)
    solver = LevenbergMarquardt(model)

    trace = []
    for k in range(a.iterations):
        # STEP
        trace.append(solver.step(arm.record(a.samples)))
        if k % 50 == 49:
            print(k + 1, torch.stack(trace[-50:]).mean().item())

    print("mse", trace[-1].item())


if __name__ == "__main__":
    main()
