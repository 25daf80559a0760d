"""Moderation of uploaded pictures: a small screener sees all of them, a large model the doubtful ones."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification


def screener(width):
    layers, chans = [], [3, width, width * 2, width * 4, width * 8]
    for a, b in zip(chans, chans[1:]):
        layers += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
                   nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width * 8, 2))
    for m in net:
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight)
    return net


class Uploads:
    """Endless batches of pictures out of a page-locked ring."""

    def __init__(self, ring, batch, side, pin):
        g = torch.Generator().manual_seed(5)
        base = torch.rand(ring * batch, 3, 8, 8, generator=g) * torch.rand(ring * batch, 3, 1, 1, generator=g)
        self.ring = []
        for part in base.split(batch):
            images = F.interpolate(part, size=(side, side), mode="nearest").mul(255).to(torch.uint8)
            self.ring.append(images.pin_memory() if pin else images)

    def take(self, n):
        for i in range(n):
            yield self.ring[i % len(self.ring)]


class Moderator:
    def __init__(self, light, heavy, device, share):
        self.device = device
        self.light = light.to(device, torch.bfloat16).to(memory_format=torch.channels_last).eval()
        self.heavy = heavy.to(device, torch.bfloat16).eval()
        self.share = share
        self.doubt = 0.0
        self.flagged = torch.zeros((), device=device, dtype=torch.long)
        self.escalated = 0
        self.seen = 0

    def load(self, images):
        x = images.to(self.device, non_blocking=True)
        return x.to(torch.bfloat16).div_(127.5).sub_(1)

    def screen(self, x):
        small = F.avg_pool2d(x, 2).contiguous(memory_format=torch.channels_last)
        logits = self.light(small).float()
        return logits.argmax(1), (logits[:, 0] - logits[:, 1]).abs()

    def calibrate(self, batches):
        self.light.train()
        for b in batches:
            self.screen(self.load(b))
        self.light.eval()
        margins = torch.cat([self.screen(self.load(b))[1] for b in batches])
        self.doubt = torch.quantile(margins, self.share)

    def judge(self, images):
        x = self.load(images)
        verdict, margin = self.screen(x)
        hard = (margin < self.doubt).nonzero().flatten()
        if hard.numel():
            verdict[hard] = self.heavy(pixel_values=x[hard]).logits.argmax(1)
        self.escalated += hard.numel()
        self.seen += x.shape[0]
        self.flagged += verdict.sum()
        return verdict


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--batches", type=int, default=150)
    ap.add_argument("--share", type=float, default=0.1)
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    side, width, ring = 224, 32, 6
    dims = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
    if args.small:
        side, width, ring, args.batch, args.batches, args.share = 32, 4, 2, 8, 4, 0.3
        dims = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device(device):
        heavy = ViTForImageClassification(ViTConfig(image_size=side, patch_size=16, num_labels=2, **dims))
    uploads = Uploads(ring, args.batch, side, device.type == "cuda")
    desk = Moderator(screener(width), heavy, device, args.share)
    with torch.inference_mode():
        desk.calibrate(uploads.ring)
        for images in uploads.take(args.batches):
            # STEP
            desk.judge(images)
    print(f"seen {desk.seen}  escalated {desk.escalated}  flagged {desk.flagged.item()}")


if __name__ == "__main__":
    main()
