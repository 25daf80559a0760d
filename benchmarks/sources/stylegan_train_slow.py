import argparse
import math
import random

import torch
from torch import autograd
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from torchvision import transforms, utils
from tqdm import tqdm

from dataset import MultiResolutionDataset
from model import Discriminator, StyledGenerator


def cycle(loader):
    while True:
        yield from loader


@torch.no_grad()
def accumulate(avg, model, decay=0.999):
    torch._foreach_lerp_(list(avg.parameters()), list(model.parameters()), 1 - decay)


def d_r1(real_pred, real_img):
    (g,) = autograd.grad(real_pred.sum(), real_img, create_graph=True)
    return g.pow(2).flatten(1).sum(dim=1).mean()


def mixing_noise(batch, dim, prob, device):
    if prob > 0 and random.random() < prob:
        return torch.randn(2, batch, dim, device=device).unbind(0)
    return [torch.randn(batch, dim, device=device)]


def train(args, loader, g, d, g_ema, g_opt, d_opt, device):
    writer = SummaryWriter(args.logdir)
    batches = cycle(loader)
    sample_z = torch.randn(64, args.latent, device=device)
    r1 = torch.zeros((), device=device)
    for it in (bar := tqdm(range(args.iter), dynamic_ncols=True)):
        real = next(batches).to(device, non_blocking=True)

        d.requires_grad_(True)
        with torch.no_grad():
            fake = g(mixing_noise(args.batch, args.latent, args.mixing, device))
        d_loss = F.softplus(d(fake)).mean() + F.softplus(-d(real)).mean()
        d_opt.zero_grad(set_to_none=True)
        d_loss.backward()
        d_opt.step()
        if it % args.d_reg_every == 0:
            real.requires_grad_(True)
            r1 = d_r1(d(real), real)
            d_opt.zero_grad(set_to_none=True)
            (args.r1 / 2 * r1 * args.d_reg_every).backward()
            d_opt.step()

        d.requires_grad_(False)
        fake = g(mixing_noise(args.batch, args.latent, args.mixing, device))
        g_loss = F.softplus(-d(fake)).mean()
        g_opt.zero_grad(set_to_none=True)
        g_loss.backward()
        g_opt.step()
        accumulate(g_ema, g)

        bar.set_description(f"d {d_loss.item():.4f} g {g_loss.item():.4f} r1 {r1.item():.4f}")
        for name, p in g.named_parameters():
            writer.add_histogram(f"weight/{name}", p, it)
            if p.grad is not None:
                writer.add_histogram(f"grad/{name}", p.grad, it)
        if it % 1000 == 0:
            with torch.no_grad():
                grid = utils.make_grid(g_ema([sample_z]), nrow=8, normalize=True, value_range=(-1, 1))
            writer.add_image("sample", grid.cpu(), it)
        if it % 10_000 == 0:
            torch.save({"g": g.state_dict(), "d": d.state_dict(), "ema": g_ema.state_dict()},
                       f"checkpoint/{it:06d}.pt")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("path")
    ap.add_argument("--size", type=int, default=256)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--iter", type=int, default=800_000)
    ap.add_argument("--latent", type=int, default=512)
    ap.add_argument("--mixing", type=float, default=0.9)
    ap.add_argument("--r1", type=float, default=10)
    ap.add_argument("--d_reg_every", type=int, default=16)
    ap.add_argument("--logdir", default="runs/stylegan")
    args = ap.parse_args()
    device = torch.device("cuda")
    tf = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                             transforms.Normalize([0.5] * 3, [0.5] * 3)])
    loader = DataLoader(MultiResolutionDataset(args.path, tf, args.size), batch_size=args.batch, shuffle=True,
                        num_workers=8, pin_memory=True, drop_last=True, persistent_workers=True)
    max_step = int(math.log2(args.size)) - 2
    g = StyledGenerator(args.latent, step=max_step).to(device)
    g_ema = StyledGenerator(args.latent, step=max_step).to(device).eval().requires_grad_(False)
    g_ema.load_state_dict(g.state_dict())
    d = Discriminator(step=max_step).to(device)
    g_opt = torch.optim.Adam(g.parameters(), lr=2e-3, betas=(0.0, 0.99))
    d_opt = torch.optim.Adam(d.parameters(), lr=2e-3, betas=(0.0, 0.99))
    train(args, loader, g, d, g_ema, g_opt, d_opt, device)


if __name__ == "__main__":
    main()
