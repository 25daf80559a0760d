# 2x super-resolution of microscope tiles with a feature-space loss
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = int(os.environ.get("SEED", 17))
STEPS = 70
BATCH = 4
PATCH = 64
torch.manual_seed(SEED)


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a = nn.Conv2d(ch, ch, 3, padding=1)
        self.b = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        return x + 0.2 * self.b(F.relu(self.a(x)))


class Generator(nn.Module):
    def __init__(self, ch=24, blocks=2):
        super().__init__()
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.blocks = nn.Sequential(*[ResBlock(ch) for _ in range(blocks)])
        self.up = nn.Sequential(nn.Conv2d(ch, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        base = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return base + self.up(self.blocks(self.inp(x)))


def vgg_like():
    layers, cin = [], 3
    for cout in (24, 24, "M", 48, 48, "M", 96, 96):
        if cout == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU()]
            cin = cout
    net = nn.Sequential(*layers)
    for m in net:
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight)
            nn.init.zeros_(m.bias)
    return net


class PerceptualLoss(nn.Module):
    TAPS = (3, 8, 13)

    def __init__(self, weight=0.05):
        super().__init__()
        self.weight = weight
        self.vgg = vgg_like().eval()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def features(self, x):
        x = (x - self.mean) / self.std
        out = []
        for i, layer in enumerate(self.vgg):
            x = layer(x)
            if i in self.TAPS:
                out.append(x)
        return out

    def forward(self, sr, hr):
        loss = 0.0
        for a, b in zip(self.features(sr), self.features(hr)):
            loss = loss + F.l1_loss(a, b)
        return self.weight * loss


gen = torch.Generator().manual_seed(SEED)


def sample_batch():
    coarse = torch.rand(BATCH, 3, 12, 12, generator=gen)
    hr = F.interpolate(coarse, size=(PATCH, PATCH), mode="bicubic", align_corners=False)
    cells = (torch.rand(BATCH, 1, PATCH, PATCH, generator=gen) > 0.97).float()
    hr = (hr - 0.4 * F.max_pool2d(cells, 3, 1, 1)).clamp(0, 1)
    return F.avg_pool2d(hr, 2), hr


netG = Generator()
criterion = PerceptualLoss()
optimizer = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.9, 0.99))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

running = 0.0
for step in range(1, STEPS + 1):
    lr_img, hr_img = sample_batch()
    sr_img = netG(lr_img)
    pixel = F.l1_loss(sr_img, hr_img)
    loss = pixel + criterion(sr_img, hr_img)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    running += loss.item()
    if step % 10 == 0:
        psnr = -10 * math.log10(F.mse_loss(sr_img.detach(), hr_img).item())
        print(f"step {step:3d} loss {running / 10:.4f} psnr {psnr:.2f}")
        running = 0.0

netG.eval()
with torch.no_grad():
    lr_img, hr_img = sample_batch()
    final = F.mse_loss(netG(lr_img), hr_img).item()
print(f"held-out psnr {-10 * math.log10(final):.2f}")
