import numpy as np
import scipy.io
import torch
from pyDOE import lhs
from torch import nn


class Net(nn.Module):
    def __init__(self, width=128, depth=8):
        super().__init__()
        layers, d = [], 2
        for _ in range(depth):
            layers += [nn.Linear(d, width), nn.Tanh()]
            d = width
        self.body = nn.Sequential(*layers, nn.Linear(d, 1))
        for m in self.body:
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x, t):
        return self.body(torch.cat([x, t], dim=1))


def grad(out, inp):
    return torch.autograd.grad(out, inp, torch.ones_like(out), create_graph=True)[0]


def load(path, n_u=400, n_f=20_000, seed=0):
    rng = np.random.default_rng(seed)
    mat = scipy.io.loadmat(path)
    t, x = mat["t"].flatten()[:, None], mat["x"].flatten()[:, None]
    exact = np.real(mat["usol"]).T
    X, T = np.meshgrid(x, t)
    star = np.hstack([X.flatten()[:, None], T.flatten()[:, None]])
    u_star = exact.flatten()[:, None]
    initial = np.hstack([X[0:1].T, T[0:1].T])
    left, right = np.hstack([X[:, 0:1], T[:, 0:1]]), np.hstack([X[:, -1:], T[:, -1:]])
    pts = np.vstack([initial, left, right])
    vals = np.vstack([exact[0:1].T, exact[:, 0:1], exact[:, -1:]])
    pick = rng.choice(len(pts), n_u, replace=False)
    lo, hi = star.min(0), star.max(0)
    return pts[pick], vals[pick], lo + (hi - lo) * lhs(2, n_f), star, u_star


class Solver:
    def __init__(self, path, nu=0.01 / np.pi, device="cuda"):
        self.nu, self.device = nu, device
        x_u, u, x_f, star, u_star = load(path)
        to = lambda a: torch.from_numpy(a).to(device)
        self.x_u, self.t_u, self.u = to(x_u[:, :1]), to(x_u[:, 1:]), to(u)
        self.x_f = to(x_f[:, :1]).requires_grad_()
        self.t_f = to(x_f[:, 1:]).requires_grad_()
        self.star, self.u_star = to(star), to(u_star)
        self.net = Net().double().to(device)
        self.history = []

    def residual(self):
        u = self.net(self.x_f, self.t_f)
        u_t, u_x = grad(u, self.t_f), grad(u, self.x_f)
        return u_t + u * u_x - self.nu * grad(u_x, self.x_f)

    def loss(self):
        data = (self.net(self.x_u, self.t_u) - self.u).pow(2).mean()
        return data + self.residual().pow(2).mean()

    @torch.no_grad()
    def error(self):
        pred = self.net(self.star[:, :1], self.star[:, 1:])
        return ((pred - self.u_star).norm() / self.u_star.norm()).item()

    def train(self, iters=30_000, lr=1e-3):
        opt = torch.optim.Adam(self.net.parameters(), lr=lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, iters)
        for it in range(iters):
            opt.zero_grad()
            loss = self.loss()
            loss.backward()
            opt.step()
            sched.step()
            self.history.append(loss)
            if it % 1000 == 0:
                print(f"{it:6d} loss {loss.item():.3e} rel. error {self.error():.3e}")
        return torch.stack(self.history).detach().cpu().numpy()


if __name__ == "__main__":
    curve = Solver("data/burgers_shock.mat").train()
    np.save("burgers_curve.npy", curve)
