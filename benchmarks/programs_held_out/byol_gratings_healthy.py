"""Self-supervised pre-training (BYOL) on small texture images."""
import copy
import math
import time
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

STEPS, BATCH, SIZE = 60, 32, 32


def make_images(n, gen):
    """Python loop on purpose: runs once and n is small."""
    axis = torch.linspace(-1, 1, SIZE + 8)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    images = []
    for i in range(n):
        theta = math.pi * (i % 8) / 8
        freq = 6 + 10 * torch.rand((), generator=gen).item()
        wave = torch.sin(freq * (math.cos(theta) * xx + math.sin(theta) * yy))
        tint = torch.rand(3, 1, 1, generator=gen)
        images.append((tint * wave).clone())
    return torch.stack(images)


def augment(images, gen):
    """One crop position and one flip per image, then channel jitter and noise."""
    b = images.shape[0]
    top = torch.randint(0, 9, (b,), generator=gen).tolist()
    left = torch.randint(0, 9, (b,), generator=gen).tolist()
    out = torch.empty(b, 3, SIZE, SIZE)
    for i, (y, x) in enumerate(zip(top, left)):
        out[i] = images[i, :, y:y + SIZE, x:x + SIZE]
    flip = torch.rand(b, 1, 1, 1, generator=gen) < 0.5
    out = torch.where(flip, out.flip(3), out)
    gain = 0.6 + 0.8 * torch.rand(b, 3, 1, 1, generator=gen)
    return out.mul_(gain).clamp_(-1.5, 1.5).contiguous(memory_format=torch.channels_last)


def encoder(ch=16):
    def stage(i, o, stride):
        return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
    return nn.Sequential(stage(3, ch, 1), stage(ch, ch, 1), stage(ch, 2 * ch, 2), stage(2 * ch, 2 * ch, 1),
                         stage(2 * ch, 3 * ch, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3 * ch, 64))


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = encoder()
        self.predictor = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, a, b):
        with torch.no_grad():
            ta, tb = self.target(a).detach(), self.target(b).detach()
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        return 2 - F.cosine_similarity(pa, tb).mean() - F.cosine_similarity(pb, ta).mean()

    @torch.no_grad()
    def follow(self, rate):
        for mine, theirs in zip(self.target.parameters(), self.online.parameters()):
            mine.lerp_(theirs, rate)


class Spread:
    """Collapse detector: keeps the last few embeddings and measures their spread."""

    def __init__(self, keep):
        self.recent = deque(maxlen=keep)

    def add(self, z):
        self.recent.append(F.normalize(z, dim=1).clone())

    def value(self):
        return torch.cat(list(self.recent)).std(dim=0).mean().item()


def best_snapshot(model, best, loss):
    if loss < best[0]:
        return loss, copy.deepcopy(model.state_dict())
    return best


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    images = make_images(512, gen)
    model = BYOL().to(memory_format=torch.channels_last)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4)
    spread, best, losses = Spread(keep=8), (math.inf, None), []
    begin = time.perf_counter()
    for step in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        pick = torch.randperm(len(images), generator=gen)[:BATCH]
        batch = images[pick]
        loss = model(augment(batch, gen), augment(batch, gen))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 5.0)
        opt.step()
        model.follow(0.02)
        losses.append(loss.item())
        best = best_snapshot(model, best, losses[-1])
        if step % 10 == 9:
            with torch.no_grad():
                spread.add(model.predictor[0](model.online(batch[:8, :, 4:-4, 4:-4])))
            print(f"step {step + 1} loss {sum(losses[-10:]) / 10:.4f} spread {spread.value():.4f}", flush=True)
    took = time.perf_counter() - begin
    print(f"s/step {took / STEPS:.5f} best {best[0]:.4f} total {took:.2f}")


if __name__ == "__main__":
    main()
