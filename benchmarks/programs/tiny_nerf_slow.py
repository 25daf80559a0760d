import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def orbit_pose(theta, phi=-0.5, radius=4.0):
    ct, st, cp, sp = np.cos(theta), np.sin(theta), np.cos(phi), np.sin(phi)
    rot_y = np.array([[ct, 0, st], [0, 1, 0], [-st, 0, ct]])
    rot_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    pose = np.eye(4)
    pose[:3, :3] = rot_y @ rot_x
    pose[:3, 3] = pose[:3, :3] @ np.array([0, 0, radius])
    return torch.tensor(pose, dtype=torch.float32)


def get_rays(h, w, focal, c2w):
    i, j = torch.meshgrid(torch.arange(w, dtype=torch.float32), torch.arange(h, dtype=torch.float32), indexing="xy")
    dirs = torch.stack([(i - w * 0.5) / focal, -(j - h * 0.5) / focal, -torch.ones_like(i)], -1)
    rays_d = torch.sum(dirs[..., None, :] * c2w[:3, :3], -1)
    rays_o = c2w[:3, -1].expand(rays_d.shape)
    return rays_o, rays_d


def posenc(x, n_freq):
    out = [x]
    for k in range(n_freq):
        out += [torch.sin(2.0 ** k * x), torch.cos(2.0 ** k * x)]
    return torch.cat(out, -1)


class TinyNeRF(nn.Module):
    def __init__(self, n_freq=4, width=48):
        super().__init__()
        self.n_freq = n_freq
        d_in = 3 + 3 * 2 * n_freq
        self.l1 = nn.Linear(d_in, width)
        self.l2 = nn.Linear(width, width)
        self.l3 = nn.Linear(width + d_in, width)
        self.out = nn.Linear(width, 4)

    def forward(self, pts):
        e = posenc(pts, self.n_freq)
        h = F.relu(self.l2(F.relu(self.l1(e))))
        h = F.relu(self.l3(torch.cat([h, e], -1)))
        return self.out(h)


def volume_render(model, rays_o, rays_d, near, far, n_samples):
    z = torch.linspace(near, far, n_samples)
    z = z + torch.rand(rays_o.shape[0], n_samples) * (far - near) / n_samples
    pts = rays_o[:, None, :] + rays_d[:, None, :] * z[..., None]
    raw = model(pts)
    sigma, rgb = F.relu(raw[..., 3]), torch.sigmoid(raw[..., :3])
    dists = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
    alpha = 1.0 - torch.exp(-sigma * dists)
    trans = torch.cumprod(1.0 - alpha + 1e-10, -1).roll(1, -1)
    trans = torch.cat([torch.ones_like(trans[:, :1]), trans[:, 1:]], -1)
    weights = alpha * trans
    return (weights[..., None] * rgb).sum(-2)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.global_step = 0
        rng = np.random.RandomState(args.seed)
        self.h = self.w = args.res
        self.focal = 1.2 * args.res
        self.poses = [orbit_pose(t) for t in np.linspace(0, 2 * np.pi, args.views, endpoint=False)]
        self.images = torch.from_numpy(rng.rand(args.views, args.res, args.res, 3).astype(np.float32))
        self.model = TinyNeRF()
        self.optim = torch.optim.Adam(self.model.parameters(), lr=5e-4)

    def sample_batch(self):
        rays = [get_rays(self.h, self.w, self.focal, p) for p in self.poses]
        rays_o = torch.stack([r[0] for r in rays]).reshape(-1, 3)
        rays_d = torch.stack([r[1] for r in rays]).reshape(-1, 3)
        target = self.images.reshape(-1, 3)
        idx = torch.randperm(rays_o.shape[0])[: self.args.n_rays]
        return rays_o[idx], rays_d[idx], target[idx]

    def fit(self):
        running = None
        while self.global_step < self.args.steps:
            rays_o, rays_d, target = self.sample_batch()
            rgb = volume_render(self.model, rays_o, rays_d, 2.0, 6.0, self.args.n_samples)
            loss = F.mse_loss(rgb, target)
            self.optim.zero_grad(set_to_none=True)
            loss.backward()
            self.optim.step()
            value = loss.item()
            running = value if running is None else 0.9 * running + 0.1 * value
            self.global_step += 1
            if self.global_step % 10 == 0:
                print(f"[{self.global_step:05d}] mse {running:.4f} psnr {-10 * np.log10(running):.2f}")
        with tempfile.TemporaryDirectory() as d:
            torch.save({"model": self.model.state_dict(), "step": self.global_step}, os.path.join(d, "last.pt"))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--res", type=int, default=200)
    p.add_argument("--views", type=int, default=30)
    p.add_argument("--n_rays", type=int, default=512)
    p.add_argument("--n_samples", type=int, default=24)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    Trainer(args).fit()
