"""Feature + logit distillation, WRN teacher -> small student, CIFAR-like data."""
import argparse
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--iters", type=int, default=40)
parser.add_argument("--bs", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--T", type=float, default=4.0)
parser.add_argument("--alpha", type=float, default=0.9)
parser.add_argument("--beta", type=float, default=50.0)
parser.add_argument("--seed", type=int, default=3)
args = parser.parse_args()

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.short = None
        if stride != 1 or cin != cout:
            self.short = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        o = F.relu(self.bn1(x))
        s = x if self.short is None else self.short(o)
        o = self.conv1(o)
        o = self.conv2(F.relu(self.bn2(o)))
        return o + s


class WRN(nn.Module):
    def __init__(self, width, n, num_classes=100):
        super().__init__()
        w = [16, 16 * width, 32 * width, 64 * width]
        self.conv = nn.Conv2d(3, w[0], 3, 1, 1, bias=False)
        self.layers = nn.ModuleList()
        for i in range(3):
            blocks = [BasicBlock(w[i] if j == 0 else w[i + 1], w[i + 1],
                                 2 if (j == 0 and i > 0) else 1) for j in range(n)]
            self.layers.append(nn.Sequential(*blocks))
        self.bn = nn.BatchNorm2d(w[3])
        self.fc = nn.Linear(w[3], num_classes)
        self.out_channels = w[1:]

    def forward(self, x):
        feats = []
        x = self.conv(x)
        for layer in self.layers:
            x = layer(x)
            feats.append(x)
        x = F.adaptive_avg_pool2d(F.relu(self.bn(x)), 1).flatten(1)
        return self.fc(x), feats


class HintLoss(nn.Module):
    def __init__(self, s_ch, t_ch):
        super().__init__()
        self.proj = nn.ModuleList([nn.Conv2d(a, b, 1) for a, b in zip(s_ch, t_ch)])

    def forward(self, fs, ft):
        out = 0.0
        for p, s, t in zip(self.proj, fs, ft):
            out = out + F.mse_loss(F.normalize(p(s).flatten(1)), F.normalize(t.flatten(1)))
        return out


def kd_loss(s, t, T):
    return F.kl_div(F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean") * T * T


def augment(x):
    # pad-crop + flip, same offset for the whole batch, good enough
    i, j = random.randint(0, 8), random.randint(0, 8)
    x = F.pad(x, (4, 4, 4, 4), mode="reflect")[:, :, i:i + 32, j:j + 32]
    flip = torch.rand(x.size(0)) < 0.5
    return torch.where(flip[:, None, None, None], x.flip(-1), x)


X = torch.randint(0, 256, (2048, 3, 32, 32), dtype=torch.uint8)
Y = torch.randint(0, 100, (2048,))

teacher = WRN(width=2, n=2)
student = WRN(width=1, n=1)
hint = HintLoss(student.out_channels, teacher.out_channels)
teacher.eval()

params = list(student.parameters()) + list(hint.parameters())
optimizer = torch.optim.SGD(params, lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.iters)

avg = None
times = []
student.train()
for it in range(args.iters):
    tic = time.perf_counter()
    sel = torch.randint(0, len(X), (args.bs,))
    x = augment(X[sel].float().div_(255).sub_(0.5).div_(0.25))
    y = Y[sel]

    t_logits, t_feats = teacher(x)
    s_logits, s_feats = student(x)

    loss_ce = F.cross_entropy(s_logits, y)
    loss_kd = kd_loss(s_logits, t_logits, args.T)
    loss_hint = hint(s_feats, t_feats)
    loss = (1 - args.alpha) * loss_ce + args.alpha * loss_kd + args.beta * loss_hint

    optimizer.zero_grad()
    loss.backward()
    gnorm = nn.utils.clip_grad_norm_(params, 5.0)
    optimizer.step()
    scheduler.step()

    avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
    times.append(time.perf_counter() - tic)
    if it % 10 == 0:
        print(f"it {it} loss {avg:.4f} ce {loss_ce.item():.3f} |g| {gnorm.item():.2f}")

print(f"final {avg:.4f}, {1e3 * np.median(times[3:]):.1f} ms/iter")
