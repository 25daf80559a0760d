"""Lid-driven cavity flow, steady Navier-Stokes, solved with a physics-informed network."""
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true")
parser.add_argument("--reynolds", type=float, default=100.0)
parser.add_argument("--seed", type=int, default=7)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(args.seed)

N_INTERIOR = 256 if args.small else 24576
N_WALL = 64 if args.small else 2048
WIDTH = 16 if args.small else 256
DEPTH = 3 if args.small else 5
ITERATIONS = 3 if args.small else 300
NU = 1.0 / args.reynolds


class FlowNet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        sizes = [2] + [width] * depth + [3]
        layers = []
        for a, b in zip(sizes[:-2], sizes[1:-1]):
            layers += [nn.Linear(a, b), nn.Tanh()]
        layers.append(nn.Linear(sizes[-2], sizes[-1]))
        self.body = nn.Sequential(*layers)
        for m in self.body:
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, xy):
        return self.body(2.0 * xy - 1.0)


net = FlowNet(WIDTH, DEPTH).to(device)


def u(xy):
    return net(xy)[:, 0:1]


def v(xy):
    return net(xy)[:, 1:2]


def p(xy):
    return net(xy)[:, 2:3]


def ddx(f):
    def derivative(xy):
        out = f(xy)
        return torch.autograd.grad(out, xy, torch.ones_like(out), create_graph=True)[0][:, 0:1]
    return derivative


def ddy(f):
    def derivative(xy):
        out = f(xy)
        return torch.autograd.grad(out, xy, torch.ones_like(out), create_graph=True)[0][:, 1:2]
    return derivative


def residuals(xy):
    momentum_x = (u(xy) * ddx(u)(xy) + v(xy) * ddy(u)(xy) + ddx(p)(xy)
                  - NU * (ddx(ddx(u))(xy) + ddy(ddy(u))(xy)))
    momentum_y = (u(xy) * ddx(v)(xy) + v(xy) * ddy(v)(xy) + ddy(p)(xy)
                  - NU * (ddx(ddx(v))(xy) + ddy(ddy(v))(xy)))
    continuity = ddx(u)(xy) + ddy(v)(xy)
    return momentum_x, momentum_y, continuity


def wall_points(n):
    t = torch.rand(n, 1, device=device)
    zero, one = torch.zeros_like(t), torch.ones_like(t)
    xy = torch.cat([torch.cat([t, zero], 1), torch.cat([zero, t], 1),
                    torch.cat([one, t], 1), torch.cat([t, one], 1)])
    target = torch.zeros(4 * n, 2, device=device)
    target[3 * n:, 0] = 1.0
    return xy, target


optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
history = torch.zeros(ITERATIONS, device=device)

for it in range(ITERATIONS):
    # STEP
    xy = torch.rand(N_INTERIOR, 2, device=device, requires_grad=True)
    mx, my, mass = residuals(xy)
    loss_pde = mx.square().mean() + my.square().mean() + mass.square().mean()

    xy_wall, uv_wall = wall_points(N_WALL // 4)
    loss_wall = (net(xy_wall)[:, :2] - uv_wall).square().mean()

    loss = loss_pde + 10.0 * loss_wall
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    history[it] = loss.detach()
    if it % 100 == 99:
        print(f"{it + 1:5d}  loss {history[it - 99:it + 1].mean().item():.4e}")

print("last loss", history[-1].item())
