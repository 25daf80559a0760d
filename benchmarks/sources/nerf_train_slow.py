import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from load_llff import load_llff_data


class Embedder(nn.Module):
    def __init__(self, n_freqs):
        super().__init__()
        self.register_buffer("freqs", 2.0 ** torch.arange(n_freqs))

    def forward(self, x):
        xb = (x[..., None, :] * self.freqs[:, None]).flatten(-2)
        return torch.cat([x, xb.sin(), xb.cos()], dim=-1)


class NeRF(nn.Module):
    def __init__(self, w=256, d=8):
        super().__init__()
        self.ex, self.ed = Embedder(10), Embedder(4)
        self.first = nn.Linear(63, w)
        self.mid = nn.ModuleList(nn.Linear(w + 63 if i == 4 else w, w) for i in range(1, d))
        self.sigma, self.feat = nn.Linear(w, 1), nn.Linear(w, w)
        self.rgb = nn.Sequential(nn.Linear(w + 27, w // 2), nn.ReLU(), nn.Linear(w // 2, 3))

    def forward(self, x, dirs):
        e = self.ex(x)
        h = F.relu(self.first(e))
        for i, layer in enumerate(self.mid, start=1):
            h = F.relu(layer(torch.cat([h, e], dim=-1) if i == 4 else h))
        c = self.rgb(torch.cat([self.feat(h), self.ed(dirs)], dim=-1))
        return c.sigmoid(), F.relu(self.sigma(h)).squeeze(-1)


def get_rays_np(h, w, focal, c2w):
    i, j = np.meshgrid(np.arange(w, dtype=np.float32), np.arange(h, dtype=np.float32), indexing="xy")
    dirs = np.stack([(i - w * 0.5) / focal, -(j - h * 0.5) / focal, -np.ones_like(i)], axis=-1)
    rays_d = np.sum(dirs[..., None, :] * c2w[:3, :3], axis=-1)
    return np.broadcast_to(c2w[:3, -1], rays_d.shape), rays_d


def render(model, o, d, near=0.0, far=1.0, n=128, perturb=True):
    t = torch.linspace(near, far, n, device=o.device).expand(o.shape[0], n)
    if perturb:
        t = t + (far - near) / n * torch.rand_like(t)
    pts = o[:, None] + d[:, None] * t[..., None]
    view = F.normalize(d, dim=-1)[:, None].expand_as(pts)
    rgb, sigma = model(pts, view)
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], dim=1) * d.norm(dim=-1, keepdim=True)
    alpha = 1 - torch.exp(-sigma * delta)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], dim=1), dim=1)[:, :-1]
    return ((alpha * trans)[..., None] * rgb).sum(dim=1)


@torch.no_grad()
def render_image(model, h, w, focal, pose, device, chunk=8192):
    o, d = (torch.from_numpy(np.ascontiguousarray(r)).view(-1, 3).to(device) for r in get_rays_np(h, w, focal, pose))
    parts = [render(model, o[s:s + chunk], d[s:s + chunk], perturb=False) for s in range(0, h * w, chunk)]
    return torch.cat(parts).view(h, w, 3)


def train(datadir, n_rand=1024, n_iters=200_000, i_print=100, i_test=10_000, device="cuda"):
    images, poses, bds, _, i_test_view = load_llff_data(datadir, factor=8)
    h, w, focal = (int(poses[0, 0, -1]), int(poses[0, 1, -1]), float(poses[0, 2, -1]))
    i_train = [i for i in range(len(images)) if i != i_test_view]
    model = NeRF().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.1 ** (1 / 250_000))
    for it in range(n_iters):
        img_i = np.random.choice(i_train)
        target = torch.from_numpy(images[img_i]).to(device)
        rays_o, rays_d = get_rays_np(h, w, focal, poses[img_i, :, :4])
        rays_o, rays_d = torch.tensor(rays_o, device=device), torch.tensor(rays_d, device=device)
        pick = torch.randint(h * w, (n_rand,), device=device)
        pred = render(model, rays_o.view(-1, 3)[pick], rays_d.view(-1, 3)[pick])
        loss = F.mse_loss(pred, target.view(-1, 3)[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if it % i_print == 0:
            print(f"{it} psnr {-10 * np.log10(loss.item()):.2f}")
        if it and it % i_test == 0:
            rgb = render_image(model, h, w, focal, poses[i_test_view, :, :4], device)
            np.save(f"{datadir}/render_{it:06d}.npy", rgb.cpu().numpy())


if __name__ == "__main__":
    train("data/nerf_llff_data/fern")
