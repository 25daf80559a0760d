"""Street-scene segmentation with a U-Net; mean IoU on the training batches is tracked along the way."""
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {"base": 32, "classes": 21, "side": 256, "batch": 16, "lr": 1e-3, "steps": 120, "pool": 12}
SMALL = {"base": 4, "classes": 5, "side": 32, "batch": 2, "lr": 1e-3, "steps": 4, "pool": 2}


def setup(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True


def double_conv(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, base, classes):
        super().__init__()
        w = [base * 2 ** i for i in range(5)]
        self.down = nn.ModuleList([double_conv(a, b) for a, b in zip([3] + w[:-1], w)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(w[:-1], w[1:])])
        self.merge = nn.ModuleList([double_conv(2 * a, a) for a in w[:-1]])
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


class MeanIoU:
    def __init__(self, classes, device):
        self.classes = classes
        self.table = torch.zeros(classes * classes, dtype=torch.float64, device=device)

    def update(self, pred, truth):
        cells = (truth * self.classes + pred).flatten().float()
        self.table += torch.histc(cells, bins=self.classes ** 2, min=0, max=self.classes ** 2)

    def result(self):
        table = self.table.view(self.classes, self.classes)
        inter = table.diagonal()
        return (inter / (table.sum(0) + table.sum(1) - inter).clamp(min=1)).mean()


def scenes(cfg, device):
    g = torch.Generator().manual_seed(7)
    pool = []
    for _ in range(cfg["pool"]):
        coarse = torch.rand(cfg["batch"], cfg["classes"], cfg["side"] // 16, cfg["side"] // 16, generator=g).to(device)
        truth = F.interpolate(coarse, size=(cfg["side"],) * 2, mode="bilinear").argmax(1)
        colour = torch.rand(cfg["classes"], 3, generator=g).to(device)
        images = colour[truth].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        pool.append((images + 0.1 * torch.randn_like(images), truth))
    return pool


def train_step(net, opt, images, truth):
    with torch.autocast(images.device.type, dtype=torch.bfloat16):
        logits = net(images)
    loss = F.cross_entropy(logits.float(), truth)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach(), logits.detach().argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    cfg = SMALL if args.small else CONFIG
    setup(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = UNet(cfg["base"], cfg["classes"]).to(device, memory_format=torch.channels_last).train()
    opt = torch.optim.Adam(net.parameters(), lr=cfg["lr"], fused=device.type == "cuda")
    pool = scenes(cfg, device)
    metric = MeanIoU(cfg["classes"], device)
    for step in range(cfg["steps"]):
        # STEP
        images, truth = pool[step % len(pool)]
        loss, pred = train_step(net, opt, images, truth)
        metric.update(pred, truth)
        if (step + 1) % 40 == 0:
            print(f"{step + 1} loss {loss.item():.4f} mIoU {float(metric.result()):.4f}")
    print(f"final mIoU {float(metric.result()):.4f}")


if __name__ == "__main__":
    main()
