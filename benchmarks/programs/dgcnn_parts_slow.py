# DGCNN part segmentation, adapted from the usual repo. synthetic shapes.
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

K = 12
NPOINT = 768
PARTS = 6


class Shapes(Dataset):
    def __init__(self, n=80, seed=0):
        rng = np.random.default_rng(seed)
        self.pts = np.empty((n, NPOINT, 3), np.float32)
        self.seg = np.empty((n, NPOINT), np.int64)
        for i in range(n):
            seg = rng.integers(0, PARTS, NPOINT)
            centre = rng.normal(0, 0.6, (PARTS, 3))
            scale = rng.uniform(0.05, 0.3, (PARTS, 3))
            self.pts[i] = centre[seg] + rng.normal(0, 1, (NPOINT, 3)) * scale[seg]
            self.seg[i] = np.argsort(np.argsort(centre[:, 2]))[seg]

    def __len__(self):
        return len(self.pts)

    def __getitem__(self, i):
        p = self.pts[i]
        p = p - p.mean(0)
        p = p / np.linalg.norm(p, axis=1).max()
        theta = np.random.uniform(0, 2 * np.pi)
        rot = np.array([[np.cos(theta), -np.sin(theta), 0], [np.sin(theta), np.cos(theta), 0], [0, 0, 1]])
        p = p @ rot.astype(np.float32)
        return torch.from_numpy(p).t().contiguous(), torch.from_numpy(self.seg[i])


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x ** 2, dim=1, keepdim=True)
    pairwise_distance = -xx - inner - xx.transpose(2, 1)
    return pairwise_distance.argsort(dim=-1, descending=True)[:, :, :k]


def get_graph_feature(x, k=K):
    batch_size, num_dims, num_points = x.shape
    with torch.no_grad():
        idx = knn(x, k)
        idx = (idx + torch.arange(batch_size).view(-1, 1, 1) * num_points).view(-1)
    x = x.transpose(2, 1).contiguous()
    flat = x.view(batch_size * num_points, -1)
    feature = flat[idx, :]
    feature = feature.view(batch_size, num_points, k, num_dims)
    x = x.view(batch_size, num_points, 1, num_dims).expand(-1, -1, k, -1)
    return torch.cat((feature - x, x), dim=3)


class EdgeConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(2 * cin, cout, bias=False)
        self.bn = nn.BatchNorm1d(cout)

    def forward(self, x):
        e = self.lin(get_graph_feature(x))
        e = e.amax(dim=2).transpose(2, 1)
        return F.leaky_relu(self.bn(e), 0.2)


class DGCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.e1 = EdgeConv(3, 64)
        self.e2 = EdgeConv(64, 64)
        self.e3 = EdgeConv(64, 64)
        self.glob = nn.Sequential(nn.Conv1d(192, 256, 1, bias=False), nn.BatchNorm1d(256), nn.LeakyReLU(0.2))
        self.head = nn.Sequential(nn.Conv1d(192 + 256, 128, 1, bias=False), nn.BatchNorm1d(128),
                                  nn.LeakyReLU(0.2), nn.Dropout(0.4), nn.Conv1d(128, PARTS, 1))

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(a)
        c = self.e3(b)
        f = torch.cat([a, b, c], 1)
        g = self.glob(f).amax(-1, keepdim=True).expand(-1, -1, x.size(-1))
        return self.head(torch.cat([f, g], 1))


def smooth_ce(pred, gold, eps=0.2):
    n = pred.size(1)
    one_hot = F.one_hot(gold.reshape(-1), n).float()
    one_hot = one_hot * (1 - eps) + (1 - one_hot) * eps / (n - 1)
    logp = F.log_softmax(pred.transpose(1, 2).reshape(-1, n), dim=1)
    return -(one_hot * logp).sum(1).mean()


def mean_iou(pred, gold):
    ious = []
    for p in range(PARTS):
        i = ((pred == p) & (gold == p)).sum()
        u = ((pred == p) | (gold == p)).sum()
        ious.append((i.float() / u.clamp(min=1)).item())
    return float(np.mean(ious))


torch.manual_seed(1)
np.random.seed(1)
loader = DataLoader(Shapes(), batch_size=4, shuffle=True, drop_last=True)
net = DGCNN()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
step_ms = []
for epoch in range(2):
    net.train()
    tick = time.perf_counter()
    for i, (pts, seg) in enumerate(loader):
        logits = net(pts)
        loss = smooth_ce(logits, seg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step_ms.append(1e3 * (time.perf_counter() - tick))
        tick = time.perf_counter()
        if i % 10 == 0:
            print(epoch, i, round(loss.item(), 4), "miou", round(mean_iou(logits.argmax(1), seg), 4))
print("median step", round(float(np.median(step_ms[2:])), 1), "ms")
