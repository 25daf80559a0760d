# one-stage detector on toy shapes, retinanet style
import time
from dataclasses import dataclass, field
from typing import List, Tuple

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Cfg:
    img: int = 256
    bs: int = 8
    iters: int = 28
    classes: int = 20
    strides: List[int] = field(default_factory=lambda: [8, 16, 32])
    scales: Tuple[float, ...] = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))
    ratios: Tuple[float, ...] = (0.5, 1.0, 2.0)
    pos_iou: float = 0.5
    neg_iou: float = 0.4
    lr: float = 2e-3


def make_anchors(cfg):
    out = []
    for s in cfg.strides:
        n = cfg.img // s
        cx, cy = np.meshgrid((np.arange(n) + 0.5) * s, (np.arange(n) + 0.5) * s)
        wh = np.array([(4 * s * sc * np.sqrt(r), 4 * s * sc / np.sqrt(r))
                       for sc in cfg.scales for r in cfg.ratios])
        c = np.stack([cx, cy], -1).reshape(-1, 1, 2)
        boxes = np.concatenate([c - wh[None] / 2, c + wh[None] / 2], -1)
        out.append(boxes.reshape(-1, 4))
    return torch.from_numpy(np.concatenate(out, 0))


def box_iou(a, b):
    lt = torch.maximum(a[:, None, :2], b[None, :, :2])
    rb = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area_a = (a[:, 2:] - a[:, :2]).prod(-1)
    area_b = (b[:, 2:] - b[:, :2]).prod(-1)
    return inter / (area_a[:, None] + area_b[None] - inter)


class Net(nn.Module):
    def __init__(self, cfg, ch=32):
        super().__init__()
        def cbr(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))
        self.stem = nn.Sequential(cbr(3, 12, 2), cbr(12, 24, 2))
        self.c3 = cbr(24, ch, 2)
        self.c4 = cbr(ch, ch, 2)
        self.c5 = cbr(ch, ch, 2)
        self.lat = nn.ModuleList([nn.Conv2d(ch, ch, 1) for _ in range(3)])
        na = len(cfg.scales) * len(cfg.ratios)
        self.cls = nn.Sequential(cbr(ch, ch, 1), nn.Conv2d(ch, na * cfg.classes, 3, padding=1))
        self.reg = nn.Sequential(cbr(ch, ch, 1), nn.Conv2d(ch, na * 4, 3, padding=1))
        nn.init.constant_(self.cls[-1].bias, -4.6)
        self.k = cfg.classes

    def forward(self, x):
        c3 = self.c3(self.stem(x))
        c4 = self.c4(c3)
        c5 = self.c5(c4)
        p5 = self.lat[2](c5)
        p4 = self.lat[1](c4) + F.interpolate(p5, scale_factor=2.0, mode="nearest")
        p3 = self.lat[0](c3) + F.interpolate(p4, scale_factor=2.0, mode="nearest")
        flat = lambda t, d: t.permute(0, 2, 3, 1).reshape(t.size(0), -1, d)
        cls = torch.cat([flat(self.cls(p), self.k) for p in (p3, p4, p5)], 1)
        reg = torch.cat([flat(self.reg(p), 4) for p in (p3, p4, p5)], 1)
        return cls, reg


class Criterion:
    def __init__(self, cfg):
        self.cfg = cfg
        self.anchors = make_anchors(cfg)
        wh = self.anchors[:, 2:] - self.anchors[:, :2]
        self.wh = wh
        self.ctr = self.anchors[:, :2] + wh / 2

    @torch.no_grad()
    def assign(self, gts):
        A = len(self.anchors)
        tgt = self.anchors.new_zeros(len(gts), A, self.cfg.classes)
        box = self.anchors.new_zeros(len(gts), A, 4)
        weight = self.anchors.new_zeros(len(gts), A)
        pos = torch.zeros(len(gts), A, dtype=torch.bool)
        for b, (boxes, labels) in enumerate(gts):
            iou = box_iou(self.anchors, boxes)
            best, which = iou.max(1)
            p = best >= self.cfg.pos_iou
            p[iou.argmax(0)] = True
            tgt[b, p, labels[which[p]]] = 1.0
            box[b] = boxes[which].to(box.dtype)
            weight[b] = (p | (best < self.cfg.neg_iou)).to(weight.dtype)
            pos[b] = p
        return tgt, box, weight, pos

    def __call__(self, cls, reg, gts, alpha=0.25, gamma=2.0):
        tgt, box, weight, pos = self.assign(gts)
        n = pos.sum().clamp(min=1)
        p = torch.sigmoid(cls)
        ce = F.softplus(-cls) * tgt + F.softplus(cls) * (1 - tgt)
        pt = p * tgt + (1 - p) * (1 - tgt)
        at = alpha * tgt + (1 - alpha) * (1 - tgt)
        l_cls = (at * (1 - pt) ** gamma * ce * weight[..., None]).sum() / n
        c = self.ctr + reg[..., :2] * self.wh
        s = self.wh * torch.exp(reg[..., 2:].clamp(max=4))
        pred = torch.cat([c - s / 2, c + s / 2], -1)
        l_box = F.smooth_l1_loss(pred[pos] / self.cfg.img, box[pos] / self.cfg.img, beta=0.02)
        return l_cls, l_box


def toy_batch(cfg, g):
    imgs = torch.rand(cfg.bs, 3, cfg.img, cfg.img, generator=g) * 0.3
    gts = []
    for b in range(cfg.bs):
        k = int(torch.randint(2, 7, (1,), generator=g))
        xy = torch.randint(0, cfg.img - 96, (k, 2), generator=g)
        wh = torch.randint(24, 96, (k, 2), generator=g)
        lab = torch.randint(0, cfg.classes, (k,), generator=g)
        for (x, y), (w, h), l in zip(xy.tolist(), wh.tolist(), lab.tolist()):
            imgs[b, l % 3, y:y + h, x:x + w] += 0.3 + 0.02 * l
        gts.append((torch.cat([xy, xy + wh], 1).float(), lab))
    return imgs, gts


if __name__ == "__main__":
    cfg = Cfg()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    net, crit = Net(cfg), Criterion(cfg)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    ts = []
    for it in range(cfg.iters):
        t0 = time.perf_counter()
        imgs, gts = toy_batch(cfg, g)
        cls, reg = net(imgs)
        l_cls, l_box = crit(cls, reg, gts)
        loss = l_cls + 2 * l_box
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ts.append(time.perf_counter() - t0)
        if it % 5 == 0:
            print("it %3d cls %.4f box %.4f" % (it, float(l_cls), float(l_box)))
    print("loss %.5f  median step %.1f ms" % (float(loss), 1e3 * float(np.median(ts[2:]))))
