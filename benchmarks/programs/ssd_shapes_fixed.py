"""Single-shot detector on synthetic shape scenes (three anchor levels, 4 classes)."""
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    image: int = 128
    classes: int = 5                 # background + 4 shapes
    strides: tuple = (4, 8, 16)
    scales: tuple = (0.10, 0.22, 0.42)
    ratios: tuple = (1.0, 1.0, 2.0, 0.5, 3.0, 1 / 3)
    batch: int = 10
    steps: int = 120
    lr: float = 3e-3
    neg_pos: int = 3
    iou_thresh: float = 0.45
    pre_nms: int = 200
    nms_thresh: float = 0.5
    score_thresh: float = 0.3
    val_every: int = 5
    seed: int = 21


def make_anchors(cfg):
    levels = []
    for stride, scale in zip(cfg.strides, cfg.scales):
        n = cfg.image // stride
        c = (torch.arange(n) + 0.5) / n
        cy, cx = torch.meshgrid(c, c, indexing="ij")
        maps = []
        for i, r in enumerate(cfg.ratios):
            s = scale * (1.3 if i == 1 else 1.0)
            wh = torch.tensor([s * math.sqrt(r), s / math.sqrt(r)]).expand(n, n, 2)
            maps.append(torch.cat([cx[..., None], cy[..., None], wh], -1))
        levels.append(torch.stack(maps, dim=2).reshape(-1, 4))
    return torch.cat(levels)


def to_corners(b):
    return torch.cat([b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2], 1)


def iou(a, b):
    lt = torch.maximum(a[:, None, :2], b[None, :, :2])
    rb = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(2)
    area = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])
    return inter / (area(a)[:, None] + area(b)[None] - inter)


def make_scene(rng, size):
    img = rng.normal(0.0, 0.15, (size, size)).astype(np.float32)
    yy, xx = np.mgrid[0:size, 0:size] / size
    boxes, labels = [], []
    for _ in range(rng.integers(1, 5)):
        w, h = rng.uniform(0.1, 0.45, 2)
        cx, cy = rng.uniform(w / 2, 1 - w / 2), rng.uniform(h / 2, 1 - h / 2)
        kind = int(rng.integers(0, 4))
        u, v = (xx - cx) / (w / 2), (yy - cy) / (h / 2)
        r = (np.maximum(abs(u), abs(v)), u * u + v * v, abs(u) + abs(v),
             np.maximum(abs(u), abs(v)))[kind]
        mask = (r < 1) & (r > 0.6) if kind == 3 else r < 1
        img[mask] = rng.uniform(0.6, 1.2)
        boxes.append([cx, cy, w, h]), labels.append(kind + 1)
    return img, torch.tensor(boxes, dtype=torch.float32), torch.tensor(labels)


def encode(anchors, boxes, labels, thresh):
    ov = iou(to_corners(boxes), to_corners(anchors))
    best, owner = ov.max(0)
    forced = ov.argmax(1)
    best[forced] = 2.0
    owner[forced] = torch.arange(len(boxes))
    cls = labels[owner]
    cls[best < thresh] = 0
    b = boxes[owner]
    loc = torch.cat([(b[:, :2] - anchors[:, :2]) / (0.1 * anchors[:, 2:]),
                     torch.log(b[:, 2:] / anchors[:, 2:]) / 0.2], 1)
    return loc, cls


class Detector(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        k = len(cfg.ratios)
        block = lambda i, o, s: nn.Sequential(
            nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
        self.stem = nn.Sequential(block(1, 8, 2), block(8, 16, 2))
        self.downs = nn.ModuleList([block(16, 16, 1), block(16, 32, 2), block(32, 48, 2)])
        self.heads = nn.ModuleList([nn.Conv2d(c, k * (4 + cfg.classes), 1)
                                    for c in (16, 32, 48)])
        self.classes = cfg.classes

    def forward(self, x):
        x = self.stem(x)
        outs = []
        for down, head in zip(self.downs, self.heads):
            x = down(x)
            p = head(x).permute(0, 2, 3, 1)
            outs.append(p.reshape(x.size(0), -1, 4 + self.classes))
        p = torch.cat(outs, 1)
        return p[..., :4], p[..., 4:]


def hardest_negatives(ce, pos, neg_pos):
    n_neg = neg_pos * pos.sum(1, keepdim=True)
    k = int(n_neg.max())
    _, order = ce.detach().masked_fill(pos, 0.0).topk(k, dim=1)
    return torch.zeros_like(pos).scatter_(1, order, torch.arange(k).expand_as(order) < n_neg)


def multibox_loss(loc_p, cls_p, loc_t, cls_t, neg_pos):
    pos = cls_t > 0
    n = pos.sum().clamp(min=1)
    ce = F.cross_entropy(cls_p.flatten(0, 1), cls_t.flatten(), reduction="none").view_as(cls_t)
    loss_c = (ce * (pos | hardest_negatives(ce, pos, neg_pos))).sum() / n
    return F.smooth_l1_loss(loc_p[pos], loc_t[pos], reduction="sum") / n, loss_c


def nms(boxes, scores, thresh):
    order = scores.argsort(descending=True)
    keep = []
    while len(order):
        best = order[0]
        keep.append(best)
        overlap = iou(boxes[best:best + 1], boxes[order[1:]])[0]
        order = order[1:][overlap <= thresh]
    return torch.stack(keep) if keep else order


def detect(anchors, loc, cls, cfg):
    xy = anchors[:, :2] + 0.1 * loc[:, :2] * anchors[:, 2:]
    wh = anchors[:, 2:] * torch.exp(0.2 * loc[:, 2:])
    boxes, prob = to_corners(torch.cat([xy, wh], 1)), cls.softmax(1)
    found = []
    for c in range(1, cfg.classes):
        top, idx = prob[:, c].topk(cfg.pre_nms)
        idx, top = idx[top > cfg.score_thresh], top[top > cfg.score_thresh]
        kept = nms(boxes[idx], top, cfg.nms_thresh)
        found.append((c, boxes[idx[kept]], top[kept]))
    return found


@torch.no_grad()
def validate(net, anchors, images, scenes, cfg):
    net.eval()
    loc, cls = net(images)
    net.train()
    hit = total = shown = 0
    for i, (_, gt, labels) in enumerate(scenes):
        for c, boxes, _ in detect(anchors, loc[i], cls[i], cfg):
            gt_c = to_corners(gt[labels == c])
            total += len(gt_c)
            shown += len(boxes)
            if len(gt_c) and len(boxes):
                hit += int((iou(gt_c, boxes).max(1).values > 0.5).sum())
    return hit / total, shown / len(scenes)


def main(cfg):
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    anchors = make_anchors(cfg)
    scenes = [make_scene(rng, cfg.image) for _ in range(320)]
    held_out = [make_scene(rng, cfg.image) for _ in range(4)]
    val_images = torch.from_numpy(np.stack([s[0] for s in held_out])).unsqueeze(1)
    images = torch.from_numpy(np.stack([s[0] for s in scenes])).unsqueeze(1)
    targets = [encode(anchors, b, l, cfg.iou_thresh) for _, b, l in scenes]
    loc_all, cls_all = (torch.stack(t) for t in zip(*targets))
    print(f"{len(anchors)} anchors, {(cls_all > 0).sum(1).float().mean():.1f} positives/image")

    net = Detector(cfg)
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=5e-4)
    t0 = time.perf_counter()
    for step in range(cfg.steps):
        idx = torch.from_numpy(rng.choice(len(scenes), cfg.batch, replace=False))
        loc_p, cls_p = net(images[idx])
        loss_l, loss_c = multibox_loss(loc_p, cls_p, loc_all[idx], cls_all[idx], cfg.neg_pos)
        opt.zero_grad()
        (loss_l + loss_c).backward()
        opt.step()
        if (step + 1) % cfg.val_every == 0:
            recall, shown = validate(net, anchors, val_images, held_out, cfg)
        if (step + 1) % 10 == 0:
            print(f"[{step + 1:3d}] loc {loss_l.item():.3f}  cls {loss_c.item():.3f}  "
                  f"recall {recall:.2f}  boxes {shown:.1f}")
    el = time.perf_counter() - t0
    print(f"{el / cfg.steps * 1e3:.2f} ms/step over {cfg.steps} steps")


if __name__ == "__main__":
    main(Config())
