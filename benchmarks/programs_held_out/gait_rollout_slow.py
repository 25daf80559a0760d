"""Evaluate a six-legged gait controller on a batch of simulated robots with varied loads."""
import math

import torch
import torch.nn as nn

LEGS, JOINTS = 6, 3
DT = 0.01


class LegPolicy(nn.Module):
    """One small residual network per leg: joint state + gait clock -> joint targets."""

    def __init__(self, width=48, depth=1):
        super().__init__()
        self.inp = nn.Linear(2 * JOINTS + 2, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.out = nn.Linear(width, JOINTS)

    def forward(self, q, dq, clock):
        h = self.inp(torch.cat([q, dq, clock], dim=-1))
        for lin, norm in zip(self.mid, self.norm):
            h = h + torch.tanh(lin(norm(h)))
        return 0.4 * torch.tanh(self.out(h))


class GaitController(nn.Module):
    def __init__(self, freq=1.6):
        super().__init__()
        self.legs = nn.ModuleList(LegPolicy() for _ in range(LEGS))
        self.freq = freq
        self.tick = 0
        self.register_buffer("offsets", torch.tensor([0.0, math.pi] * (LEGS // 2)))
        self.register_buffer("kp", torch.tensor([30.0, 24.0, 18.0]))
        self.register_buffer("kd", torch.tensor([3.0, 2.6, 2.2]))

    def forward(self, q, dq):
        self.tick += 1
        phase = 2 * math.pi * self.freq * DT * self.tick + self.offsets
        torques = []
        for i, leg in enumerate(self.legs):
            clock = torch.stack([phase[i].sin(), phase[i].cos()]).expand(q.shape[0], 2)
            swing = torch.stack([0.3 * clock[:, 0], 0.5 * clock[:, 1].clamp(min=0), 0.2 * clock[:, 1]], -1)
            target = swing + leg(q[:, i], dq[:, i], clock)
            torques.append(self.kp * (target - q[:, i]) - self.kd * dq[:, i])
        return torch.stack(torques, dim=1).clamp(-25.0, 25.0)


class RobotBatch:
    """Independent joints with inertia, friction and gravity load; cheap but stiff."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.inertia = 0.12 * (0.8 + 0.4 * torch.rand(n, LEGS, JOINTS, generator=g))
        self.load = 3.0 * torch.rand(n, 1, 1, generator=g)
        self.friction = 0.3 + 0.2 * torch.rand(n, LEGS, JOINTS, generator=g)
        self.q = 0.05 * torch.randn(n, LEGS, JOINTS, generator=g)
        self.dq = torch.zeros(n, LEGS, JOINTS)

    def step(self, tau, substeps=4):
        h = DT / substeps
        for _ in range(substeps):
            ddq = (tau - self.friction * self.dq - self.load * self.q.sin()) / self.inertia
            self.dq = self.dq + h * ddq
            self.q = (self.q + h * self.dq).clamp(-1.2, 1.2)
        return self.q, self.dq


def main():
    torch.manual_seed(7)
    controller = GaitController().eval()
    # the control PC has no C++ toolchain, so no inductor there
    policy = torch.compile(controller, backend="aot_eager")
    robots = RobotBatch(256, seed=5)
    q, dq = robots.q, robots.dq
    energy = torch.zeros(256)
    stride = torch.zeros(256)
    with torch.no_grad():
        for k in range(200):
            tau = policy(q, dq)
            q, dq = robots.step(tau)
            energy += (tau * dq).abs().sum((1, 2)) * DT
            stride += dq[:, :, 0].clamp(min=0).mean(1) * DT
            if (k + 1) % 50 == 0:
                print(f"t={DT * (k + 1):.2f}s  energy {energy.mean():8.3f} J  stride {stride.mean():.4f}  |q|max {q.abs().max():.3f}")
    cot = energy / stride.clamp(min=1e-3)
    print(f"cost of transport: median {cot.median():.2f}, worst {cot.max():.2f}")
    corr = torch.corrcoef(torch.stack([robots.load.flatten(), cot]))[0, 1]
    print(f"correlation with load: {corr:.3f}")


if __name__ == "__main__":
    main()
