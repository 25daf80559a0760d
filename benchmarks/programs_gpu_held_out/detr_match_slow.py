"""DETR-style detector trained with set matching and auxiliary decoder losses."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment


def to_corners(b):
    c, s = b[..., :2], b[..., 2:] / 2
    return torch.cat([c - s, c + s], -1)


def giou(a, b):
    """a: (..., n, 4), b: (..., m, 4), corners; returns (..., n, m)."""
    a, b = a.unsqueeze(-2), b.unsqueeze(-3)
    inter = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    area = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inter
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return inter / (area + 1e-6) - (hull - area) / (hull + 1e-6)


class HungarianMatcher(nn.Module):
    def __init__(self, w_class=1.0, w_box=5.0, w_giou=2.0):
        super().__init__()
        self.w_class, self.w_box, self.w_giou = w_class, w_box, w_giou

    @torch.no_grad()
    def forward(self, logits, boxes, targets):
        """One (query, target) pair of index tensors per image."""
        pairs = []
        for i, t in enumerate(targets):
            prob = logits[i].softmax(-1)
            cost = -self.w_class * prob[:, t["labels"]]
            cost = cost + self.w_box * torch.cdist(boxes[i], t["boxes"], p=1)
            cost = cost - self.w_giou * giou(to_corners(boxes[i]), to_corners(t["boxes"]))
            rows, cols = linear_sum_assignment(cost.cpu().numpy())
            pairs.append((torch.as_tensor(rows, device=cost.device), torch.as_tensor(cols, device=cost.device)))
        return pairs


class SetCriterion(nn.Module):
    def __init__(self, classes, matcher):
        super().__init__()
        self.matcher = matcher
        weight = torch.ones(classes + 1)
        weight[-1] = 0.1
        self.register_buffer("weight", weight)
        self.classes = classes

    def layer_loss(self, logits, boxes, targets, pairs, num_boxes):
        image = torch.cat([torch.full_like(q, i) for i, (q, _) in enumerate(pairs)])
        query = torch.cat([q for q, _ in pairs])
        want = torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, pairs)])
        names = torch.cat([t["labels"][j] for t, (_, j) in zip(targets, pairs)])
        full = torch.full(logits.shape[:2], self.classes, device=logits.device)
        full[image, query] = names
        got = boxes[image, query]
        overlap = giou(to_corners(got).unsqueeze(1), to_corners(want).unsqueeze(1)).flatten()
        return (F.cross_entropy(logits.transpose(1, 2), full, self.weight)
                + 5.0 * F.l1_loss(got, want, reduction="sum") / num_boxes
                + 2.0 * (1 - overlap).sum() / num_boxes)

    def forward(self, outputs, targets):
        num_boxes = max(1, sum(len(t["labels"]) for t in targets))
        total = 0.0
        for logits, boxes in outputs:
            pairs = self.matcher(logits, boxes, targets)
            total = total + self.layer_loss(logits, boxes, targets, pairs, num_boxes)
        return total


class Detector(nn.Module):
    def __init__(self, dim, queries, classes, enc, dec, tokens):
        super().__init__()
        widths = [3, dim // 8, dim // 4, dim // 2, dim, dim]
        self.backbone = nn.Sequential(*[
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
            for a, b in zip(widths, widths[1:])])
        self.pos = nn.Parameter(torch.randn(1, tokens, dim) * 0.02)
        self.query = nn.Parameter(torch.randn(1, queries, dim) * 0.02)
        self.encoder = nn.ModuleList([
            nn.TransformerEncoderLayer(dim, 8, dim * 4, 0.0, batch_first=True) for _ in range(enc)])
        self.decoder = nn.ModuleList([
            nn.TransformerDecoderLayer(dim, 8, dim * 4, 0.0, batch_first=True) for _ in range(dec)])
        self.cls = nn.Linear(dim, classes + 1)
        self.box = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, images):
        mem = self.backbone(images).flatten(2).transpose(1, 2) + self.pos
        for layer in self.encoder:
            mem = layer(mem)
        q = self.query.expand(images.shape[0], -1, -1)
        outs = []
        for layer in self.decoder:
            q = layer(q, mem)
            outs.append((self.cls(q).float(), self.box(q).float().sigmoid()))
        return outs


def make_pool(count, batch, side, classes, device):
    g = torch.Generator().manual_seed(3)
    pool = []
    for _ in range(count):
        images = torch.randn(batch, 3, side, side, generator=g).to(device)
        targets = []
        for _ in range(batch):
            n = int(torch.randint(4, 24, (1,), generator=g))
            boxes = torch.cat([torch.rand(n, 2, generator=g) * 0.6 + 0.2, torch.rand(n, 2, generator=g) * 0.3 + 0.05], 1)
            targets.append({"labels": torch.randint(classes, (n,), generator=g).to(device), "boxes": boxes.to(device)})
        pool.append((images, targets))
    return pool


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--small", action="store_true")
    a = p.parse_args()
    dim, queries, classes, enc, dec, side, batch, steps = 256, 100, 80, 4, 6, 512, 8, 150
    if a.small:
        dim, queries, classes, enc, dec, side, batch, steps = 32, 30, 5, 1, 2, 64, 2, 3
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = Detector(dim, queries, classes, enc, dec, (side // 32) ** 2).to(device)
    criterion = SetCriterion(classes, HungarianMatcher()).to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    pool = make_pool(8, batch, side, classes, device)
    for it in range(steps):
        # STEP
        images, targets = pool[it % len(pool)]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            outputs = net(images)
        loss = criterion(outputs, targets)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if it % 50 == 0:
            print(it, f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
