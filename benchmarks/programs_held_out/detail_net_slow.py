"""Super-resolution with a feature-matching (perceptual) loss."""
import time

import torch
import torch.nn.functional as F
from torch import nn


def conv(i, o, k=3, stride=1):
    return nn.Conv2d(i, o, k, stride, k // 2)


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a, self.b = conv(ch, ch), conv(ch, ch)

    def forward(self, x):
        return x + 0.1 * self.b(F.relu(self.a(x)))


class Upscaler(nn.Module):
    def __init__(self, ch=16, blocks=2, scale=2):
        super().__init__()
        self.head = conv(3, ch)
        self.body = nn.Sequential(*[ResBlock(ch) for _ in range(blocks)])
        self.tail = nn.Sequential(conv(ch, 3 * scale * scale), nn.PixelShuffle(scale))
        self.scale = scale

    def forward(self, lr):
        base = F.interpolate(lr, scale_factor=self.scale, mode="bilinear", align_corners=False)
        h = self.head(lr)
        return base + self.tail(h + self.body(h))


class FeatureLoss(nn.Module):
    """L1 distance between activations of a fixed critic at two depths."""

    def __init__(self, seed=5):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stages = nn.ModuleList([
                nn.Sequential(conv(3, 24), nn.ReLU(), conv(24, 24), nn.ReLU()),
                nn.Sequential(nn.MaxPool2d(2), conv(24, 48), nn.ReLU(), conv(48, 48), nn.ReLU()),
            ])
        self.weights = (1.0, 0.5)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.eval()

    def features(self, img):
        h = (img - self.mean) / self.std
        out = []
        for stage in self.stages:
            h = stage(h)
            out.append(h)
        return out

    def forward(self, fake, real):
        with torch.no_grad():
            target = self.features(real)
        pred = self.features(fake)
        return sum(w * F.l1_loss(p, t) for w, p, t in zip(self.weights, pred, target))


class Textures(torch.utils.data.Dataset):
    """Sums of oriented gratings, generated once at start."""

    def __init__(self, n, size, seed):
        g = torch.Generator().manual_seed(seed)
        axis = torch.linspace(0, 1, size)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        freq = 40 * torch.rand(n, 3, 2, 1, 1, generator=g)
        phase = 6.28 * torch.rand(n, 3, 1, 1, generator=g)
        self.images = 0.5 + 0.5 * torch.sin(freq[:, :, 0] * xx + freq[:, :, 1] * yy + phase)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        dy, dx = torch.randint(0, 64, (2,)).tolist()
        hr = torch.roll(self.images[i], (dy, dx), dims=(1, 2))
        lr = F.avg_pool2d(hr, 2)
        return lr, hr


class Callback:
    def on_step(self, trainer):
        pass


class ExponentialAverage(Callback):
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def on_step(self, trainer):
        live = list(trainer.model.parameters())
        torch._foreach_lerp_(self.shadow, live, 1 - self.decay)


class Printer(Callback):
    def __init__(self, every):
        self.every = every

    def on_step(self, trainer):
        if trainer.step % self.every == 0:
            print(f"step {trainer.step} pixel {trainer.pixel.item():.4f} "
                  f"feature {trainer.feature.item():.4f}", flush=True)


class Trainer:
    def __init__(self, model, criterion, loader, callbacks, lr=1e-3):
        self.model, self.criterion, self.loader = model, criterion, loader
        self.callbacks = callbacks
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.step = 0

    def train_step(self, lr_img, hr_img):
        sr = self.model(lr_img)
        self.pixel = F.l1_loss(sr, hr_img)
        self.feature = self.criterion(sr, hr_img)
        loss = self.pixel + 0.1 * self.feature
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()

    def fit(self, epochs):
        for _ in range(epochs):
            for lr_img, hr_img in self.loader:
                self.train_step(lr_img, hr_img)
                self.step += 1
                for cb in self.callbacks:
                    cb.on_step(self)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = Textures(160, 64, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    model = Upscaler()
    trainer = Trainer(model, FeatureLoss(), loader, [ExponentialAverage(model), Printer(20)])
    begin = time.perf_counter()
    trainer.fit(epochs=5)
    spent = time.perf_counter() - begin
    print(f"s/step {spent / trainer.step:.5f} fit {spent:.2f}")
