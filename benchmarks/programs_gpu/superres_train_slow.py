"""x2 super-resolution training: residual network on random patches."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of an image tensor."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        x = x.permute(0, 2, 3, 1).contiguous()
        x = F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2).contiguous()


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.gelu(self.conv1(self.norm(x))))


class Upscaler(nn.Module):
    def __init__(self, channels, depth):
        super().__init__()
        self.head = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.Sequential(*[Residual(channels) for _ in range(depth)])
        self.tail = nn.Conv2d(channels, 12, 3, padding=1)

    def forward(self, x):
        h = self.head(x)
        h = h + self.body(h)
        return F.pixel_shuffle(self.tail(h), 2) + F.interpolate(x, scale_factor=2.0, mode="bilinear")


class PatchSource:
    """Cuts random high-resolution patches out of pictures held on the device."""

    def __init__(self, pictures, side, patch, batch, device):
        g = torch.Generator().manual_seed(1)
        base = torch.rand(pictures, 3, side // 16, side // 16, generator=g)
        self.images = F.interpolate(base, size=(side, side), mode="bicubic").clamp(0, 1).mul(255).byte().to(device)
        self.patch, self.batch = patch, batch
        self.rng = torch.Generator().manual_seed(2)

    def __iter__(self):
        n, _, h, w = self.images.shape
        while True:
            i = torch.randint(n, (self.batch,), generator=self.rng).tolist()
            y = torch.randint(h - self.patch, (self.batch,), generator=self.rng).tolist()
            x = torch.randint(w - self.patch, (self.batch,), generator=self.rng).tolist()
            cut = [self.images[a, :, b:b + self.patch, c:c + self.patch] for a, b, c in zip(i, y, x)]
            high = torch.stack(cut).float().div_(255)
            yield F.interpolate(high, scale_factor=0.5, mode="area"), high


class Trainer:
    def __init__(self, model, source, device, folder, save_every):
        self.model = model.to(device)
        self.source = source
        self.device = device
        self.folder = folder
        self.save_every = save_every
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-4, fused=device.type == "cuda")
        self.loss_sum = torch.zeros((), device=device)

    def loss(self, low, high):
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            out = self.model(low)
        return (out.float() - high).abs().mean()

    def save(self, step):
        state = {"step": step, "model": self.model.state_dict(), "opt": self.opt.state_dict()}
        torch.save(state, os.path.join(self.folder, "last.pt"))

    def fit(self, steps):
        for step, (low, high) in enumerate(self.source):
            # STEP
            if step == steps:
                break
            loss = self.loss(low, high)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.loss_sum += loss.detach()
            if (step + 1) % self.save_every == 0:
                self.save(step)
            if (step + 1) % 50 == 0:
                print(f"step {step + 1}: l1 {self.loss_sum.item() / 50:.4f}")
                self.loss_sum.zero_()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--channels", type=int, default=128)
    ap.add_argument("--depth", type=int, default=16)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--patch", type=int, default=192)
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--save-every", type=int, default=10)
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    pictures, side = 32, 768
    if args.small:
        args.channels, args.depth, args.batch, args.patch, args.steps = 8, 2, 2, 32, 12
        pictures, side = 2, 64
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        source = PatchSource(pictures, side, args.patch, args.batch, device)
        Trainer(Upscaler(args.channels, args.depth), source, device, folder, args.save_every).fit(args.steps)


if __name__ == "__main__":
    main()
