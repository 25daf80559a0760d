"""Knowledge distillation of a wide texture classifier into a narrow one.

The teacher is a frozen wide network with a readout fitted in closed form; the student learns
from its soft labels and from the true labels on freshly augmented crops.
"""
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    classes: int = 8
    images: int = 1280
    source: int = 40
    crop: int = 32
    batch: int = 64
    epochs: int = 4
    lr: float = 0.05
    temperature: float = 4.0
    alpha: float = 0.7
    seed: int = 21


def textures(n, size, classes, seed):
    """Oriented gratings with class-dependent angle/frequency, random phase, colour and noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    yy, xx = np.mgrid[:size, :size].astype(np.float32)
    angle = np.pi * y / classes + 0.1 * rng.standard_normal(n)
    freq = 0.5 + 0.12 * (y % 3) + 0.03 * rng.standard_normal(n)
    phase = rng.uniform(0, 2 * np.pi, n)
    u = np.cos(angle)[:, None, None] * xx + np.sin(angle)[:, None, None] * yy
    wave = np.sin(freq[:, None, None] * u + phase[:, None, None])
    colour = rng.uniform(0.3, 1.0, (n, 3, 1, 1))
    img = colour * wave[:, None] + 0.8 * rng.standard_normal((n, 3, size, size))
    return torch.from_numpy(img.astype(np.float32)), torch.from_numpy(y)


class Augment:
    """Random crop, horizontal flip and gain for a whole batch with one gather."""

    def __init__(self, source, crop, seed):
        self.source, self.crop = source, crop
        self.gen = torch.Generator().manual_seed(seed)
        self.span = torch.arange(crop)

    def __call__(self, images, pick):
        n = len(pick)
        corner = torch.randint(0, self.source - self.crop + 1, (2, n, 1), generator=self.gen)
        flip = torch.rand(n, 1, generator=self.gen) < 0.5
        rows = corner[0] + self.span
        cols = corner[1] + torch.where(flip, self.span.flip(0), self.span)
        out = images[pick[:, None, None], rows[:, :, None], cols[:, None, :]]     # NHWC
        gain = 0.8 + 0.4 * torch.rand(n, 1, 1, 1, generator=self.gen)
        return (out * gain).permute(0, 3, 1, 2)                                  # channels_last view


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = conv_bn(c, c), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.bn(self.b(self.a(x))))


def backbone(w, classes):
    net = nn.Sequential(
        conv_bn(3, w), Residual(w), conv_bn(w, 2 * w, 2), Residual(2 * w),
        conv_bn(2 * w, 4 * w, 2), Residual(4 * w),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * w, classes))
    return net.to(memory_format=torch.channels_last)


@torch.no_grad()
def fit_teacher(args, images, labels, augment):
    teacher = backbone(24, args.classes)
    body, head = teacher[:-1], teacher[-1]
    feats = torch.cat([body(augment(images, pick)) for pick in torch.arange(1024).split(128)])   # sets BN statistics
    teacher.eval()
    feats = torch.cat([body(augment(images, pick)) for pick in torch.arange(1024).split(128)])
    mean = feats.mean(0)
    z = feats - mean
    target = 6.0 * F.one_hot(labels[:1024], args.classes).float()
    ridge = 1e-3 * z.square().mean() * len(z) * torch.eye(z.shape[1])
    head.weight.copy_(torch.linalg.solve(z.T @ z + ridge, z.T @ target).T)
    head.bias.copy_(target.mean(0) - head.weight @ mean)
    return teacher.requires_grad_(False)


class Distiller(nn.Module):
    def __init__(self, teacher, student, temperature, alpha):
        super().__init__()
        self.teacher, self.student = teacher, student
        self.t, self.alpha = temperature, alpha

    def forward(self, x, y):
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.t, dim=1)
        logits = self.student(x)
        kd = F.kl_div(F.log_softmax(logits / self.t, dim=1), soft, reduction="batchmean") * self.t ** 2
        return self.alpha * kd + (1 - self.alpha) * F.cross_entropy(logits, y), logits


def main():
    args = Args()
    torch.manual_seed(args.seed)
    images, labels = textures(args.images, args.source, args.classes, args.seed)
    images = images.permute(0, 2, 3, 1).contiguous()
    augment = Augment(args.source, args.crop, args.seed)
    teacher = fit_teacher(args, images, labels, augment)
    student = backbone(12, args.classes)
    distiller = Distiller(teacher, student, args.temperature, args.alpha)
    opt = torch.optim.SGD(student.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    order_gen = torch.Generator().manual_seed(args.seed + 1)
    start, steps = time.perf_counter(), 0
    for epoch in range(args.epochs):
        student.train()
        total, hits = torch.zeros(()), torch.zeros(())
        for pick in torch.randperm(args.images, generator=order_gen).split(args.batch):
            y = labels[pick]
            loss, logits = distiller(augment(images, pick), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            hits += (logits.detach().argmax(1) == y).sum()
            steps += 1
        print(f"epoch {epoch}  loss {total.item() * args.batch / args.images:.4f}  "
              f"train accuracy {hits.item() / args.images:.3f}")
    took = time.perf_counter() - start
    print(f"{steps} steps, {took:.1f} s, {1e3 * took / steps:.1f} ms/step")


if __name__ == "__main__":
    main()
