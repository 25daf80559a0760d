"""Neural style transfer: optimise the pixels so that features of a fixed conv net match.

The network is a random, fixed VGG-like stack (no weights can be downloaded here); it ends at the
last layer that a loss needs, its weights do not require gradients, targets are computed once.
"""
import time
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F

CONTENT = ("conv3_1",)
STYLE = ("conv1_1", "conv2_1", "conv3_1")
STEPS = 120
SIZE = 128
STYLE_WEIGHT, CONTENT_WEIGHT, TV_WEIGHT = 2e3, 1.0, 1e-3


def make_vgg(widths=(32, 64, 128)):
    layers, c = OrderedDict(), 3
    for block, w in enumerate(widths, 1):
        last = block == len(widths)
        for i in range(1, 2 if last else 3):
            layers[f"conv{block}_{i}"] = nn.Conv2d(c, w, 3, padding=1)
            if not (last and i == 1):
                layers[f"relu{block}_{i}"] = nn.ReLU(inplace=False)
            c = w
        if not last:
            layers[f"pool{block}"] = nn.AvgPool2d(2)
    net = nn.Sequential(layers)
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight)
            nn.init.zeros_(m.bias)
    return net.eval().requires_grad_(False)


def features(net, x, wanted):
    out = {}
    for name, layer in net.named_children():
        x = layer(x)
        if name in wanted:
            out[name] = x
    return out


def gram(f):
    b, c, h, w = f.shape
    f = f.reshape(b, c, h * w)
    return torch.bmm(f, f.transpose(1, 2)) / (c * h * w)


def total_variation(x):
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def content_picture(n):
    y, x = torch.meshgrid(torch.linspace(-1, 1, n), torch.linspace(-1, 1, n), indexing="ij")
    disk = ((x - 0.2) ** 2 + (y + 0.1) ** 2 < 0.3).float()
    house = ((x + 0.4).abs() < 0.25).float() * ((y - 0.3).abs() < 0.4).float()
    return torch.stack([0.2 + 0.6 * disk, 0.3 + 0.5 * house, 0.5 + 0.4 * y]).clamp(0, 1)[None]


def style_picture(n, gen):
    y, x = torch.meshgrid(torch.arange(n) / n, torch.arange(n) / n, indexing="ij")
    img = torch.zeros(3, n, n)
    for _ in range(24):
        f = 4 + 28 * torch.rand(2, generator=gen)
        phase = 6.28 * torch.rand(3, generator=gen)
        wave = 6.28 * (f[0] * x + f[1] * y)
        img += torch.sin(wave + phase[:, None, None])
    return torch.sigmoid(img / 3)[None]


class StyleLoss:
    def __init__(self, net, content, style):
        self.net = net
        self.wanted = set(CONTENT) | set(STYLE)
        with torch.no_grad():
            c = features(net, content, set(CONTENT))
            s = features(net, style, set(STYLE))
            self.content = {k: v.clone() for k, v in c.items()}
            self.style = {k: gram(v) for k, v in s.items()}

    def __call__(self, img):
        f = features(self.net, img, self.wanted)
        content = sum(F.mse_loss(f[k], t) for k, t in self.content.items())
        style = sum(F.mse_loss(gram(f[k]), t, reduction="sum") for k, t in self.style.items())
        tv = total_variation(img)
        return CONTENT_WEIGHT * content + STYLE_WEIGHT * style + TV_WEIGHT * tv, content, style


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(4)
    net = make_vgg()
    content, style = content_picture(SIZE), style_picture(SIZE, gen)
    # convolutions run faster on this layout
    net = net.to(memory_format=torch.channels_last)
    content, style = (t.contiguous(memory_format=torch.channels_last) for t in (content, style))
    criterion = StyleLoss(net, content, style)
    img = content.clone().requires_grad_(True)
    opt = torch.optim.Adam([img], lr=0.02)
    sched = torch.optim.lr_scheduler.StepLR(opt, 50, 0.5)

    t0 = time.perf_counter()
    for step in range(1, STEPS + 1):
        opt.zero_grad(set_to_none=True)
        loss, c, s = criterion(img)
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            img.clamp_(0, 1)
        if step % 30 == 0 or step == 1:
            print(f"step {step:4d}  loss {loss.item():.4f}  content {c.item():.4f}  style {s.item():.3e}")
    dt = time.perf_counter() - t0
    print(f"image mean {img.mean().item():.5f}; {STEPS} steps in {dt:.1f} s, {1000 * dt / STEPS:.1f} ms/step")


if __name__ == "__main__":
    main()
