import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision.models import Wide_ResNet50_2_Weights, wide_resnet50_2

from mvtec import MVTecDataset


def distance_matrix(x, y, p=2):
    n, m, d = x.size(0), y.size(0), x.size(1)
    x = x.unsqueeze(1).expand(n, m, d)
    y = y.unsqueeze(0).expand(n, m, d)
    return torch.pow(x - y, p).sum(2)


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        net = wide_resnet50_2(weights=Wide_ResNet50_2_Weights.IMAGENET1K_V1)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1)
        self.layer2, self.layer3 = net.layer2, net.layer3
        self.pool = nn.AvgPool2d(3, 1, 1)
        self.requires_grad_(False)
        self.eval()

    def forward(self, x):
        f2 = self.layer2(self.stem(x))
        f3 = self.layer3(f2)
        maps = [self.pool(f) for f in (f2, f3)]
        up = F.interpolate(maps[1], size=maps[0].shape[-2:], mode="bilinear", align_corners=False)
        return torch.cat([maps[0], up], dim=1)


class PatchMemory:
    def __init__(self, ratio=0.01, k=9, device="cuda"):
        self.net = Features().to(device).to(memory_format=torch.channels_last)
        self.ratio, self.k, self.device = ratio, k, device
        self.bank = None

    def patches(self, images):
        images = images.to(self.device, non_blocking=True).to(memory_format=torch.channels_last)
        f = self.net(images)
        b, c, h, w = f.shape
        return f.permute(0, 2, 3, 1).reshape(b, h * w, c), (h, w)

    @torch.inference_mode()
    def fit(self, loader):
        bank = torch.empty(0, 1536, device=self.device)
        for images, _, _ in loader:
            p, _ = self.patches(images)
            bank = torch.cat([bank, p.flatten(0, 1)], dim=0)
        self.bank = bank[self.coreset(bank)]

    def coreset(self, z, dim=128):
        n = int(len(z) * self.ratio)
        z = z @ (torch.randn(z.shape[1], dim, device=z.device) / dim ** 0.5)
        idx = torch.empty(n, dtype=torch.long, device=z.device)
        idx[0] = 0
        best = (z - z[:1]).norm(dim=1)
        for i in range(1, n):
            j = best.argmax()
            idx[i] = j
            best = torch.minimum(best, (z - z[j]).norm(dim=1))
        return idx

    @torch.inference_mode()
    def score(self, images):
        p, (h, w) = self.patches(images)
        d = distance_matrix(p.flatten(0, 1), self.bank).sqrt()
        near = d.topk(self.k, dim=1, largest=False).values
        amap = near[:, 0].view(images.shape[0], 1, h, w)
        amap = F.interpolate(amap, size=images.shape[-2:], mode="bilinear", align_corners=False)
        return amap.flatten(1).amax(dim=1), amap


def main(category="bottle"):
    kw = dict(batch_size=16, num_workers=8, pin_memory=True)
    model = PatchMemory()
    model.fit(DataLoader(MVTecDataset(category, "train"), **kw))
    scores, labels = [], []
    for images, label, _ in DataLoader(MVTecDataset(category, "test"), **kw):
        s, _ = model.score(images)
        scores.append(s)
        labels.append(label)
    auc = roc_auc_score(torch.cat(labels).numpy(), np.asarray(torch.cat(scores).cpu()))
    print(f"{category}: image AUROC {auc:.4f}")


if __name__ == "__main__":
    main()
