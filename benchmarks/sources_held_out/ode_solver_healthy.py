import torch
from torch import nn
import torch.nn.functional as F

C = [0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0]
A = [
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
E = [71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40]


class Dopri5:
    def __init__(self, f, rtol=1e-5, atol=1e-7, max_steps=10_000):
        self.f, self.rtol, self.atol, self.max_steps = f, rtol, atol, max_steps
        self.n_evals = 0

    def stages(self, t, y, dt, k1):
        ks = [k1]
        yi = y
        for i in range(1, 7):
            yi = y + dt * sum(a * k for a, k in zip(A[i], ks) if a)
            ks.append(self.f(t + C[i] * dt, yi))
        self.n_evals += 6
        return yi, ks

    def error(self, y, y_new, ks, dt):
        err = dt * sum(e * k for e, k in zip(E, ks) if e)
        scale = self.atol + self.rtol * torch.maximum(y.abs(), y_new.abs())
        return (err / scale).square().mean().sqrt()

    def integrate(self, y, times):
        times = torch.as_tensor(times, dtype=torch.float64).tolist()
        t, out = times[0], [y]
        k1 = self.f(t, y)
        dt = (times[-1] - t) / 50
        steps = 0
        for target in times[1:]:
            while t < target - 1e-12:
                h = min(dt, target - t)
                y_new, ks = self.stages(t, y, h, k1)
                with torch.no_grad():
                    ratio = self.error(y, y_new, ks, h).item()
                if ratio <= 1.0:
                    t, y, k1 = t + h, y_new, ks[-1]
                dt = h * min(5.0, max(0.2, 0.9 * max(ratio, 1e-10) ** -0.2))
                steps += 1
                if steps > self.max_steps:
                    raise RuntimeError(f"no convergence at t={t:.4f}, dt={dt:.2e}")
            out.append(y)
        return torch.stack(out)


class Field(nn.Module):
    def __init__(self, dim, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                 nn.Linear(hidden, dim))

    def forward(self, t, y):
        return self.net(F.pad(y, (0, 1), value=float(t)))


class LatentODE(nn.Module):
    def __init__(self, obs, latent=20, hidden=64):
        super().__init__()
        self.rnn = nn.GRU(obs + 1, hidden, batch_first=True)
        self.stats = nn.Linear(hidden, 2 * latent)
        self.field = Field(latent)
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, obs))

    def forward(self, x, times, sigma=0.1):
        tt = torch.as_tensor(times, dtype=x.dtype, device=x.device).expand(x.shape[0], -1)[..., None]
        _, h = self.rnn(torch.cat([x, tt], dim=-1).flip(1))
        mean, logvar = self.stats(h[0]).chunk(2, dim=-1)
        z0 = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        zs = Dopri5(self.field).integrate(z0, times).transpose(0, 1)
        rec = (self.dec(zs) - x).square().sum(dim=(1, 2)) / (2 * sigma ** 2)
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(dim=1)
        return (rec + kl).mean()


def fit(model, loader, times, epochs=200, lr=1e-3, device="cuda"):
    model.to(device).train()
    opt = torch.optim.Adamax(model.parameters(), lr=lr)
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for (x,) in loader:
            loss = model(x.to(device, non_blocking=True), times)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
        print(epoch, total.item() / len(loader))
    return model
