import argparse
import random
from pathlib import Path

import h5py
import numpy as np
import torch
from PIL import Image
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.models import VGG16_Weights, vgg16


class CrowdImages(Dataset):
    def __init__(self, root, train=True):
        self.paths = sorted(Path(root).glob("images/*.jpg"))
        self.train = train
        self.tf = transforms.Compose([
            transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        path = self.paths[i]
        img = Image.open(path).convert("RGB")
        with h5py.File(path.parent.parent / "density" / f"{path.stem}.h5", "r") as f:
            den = f["density"][()].astype(np.float32)
        w, h = img.size[0] // 8 * 8, img.size[1] // 8 * 8
        x = self.tf(img.crop((0, 0, w, h)))
        y = torch.from_numpy(den[:h, :w].copy())[None]
        if self.train and random.random() < 0.5:
            x, y = x.flip(-1), y.flip(-1)
        return x, F.avg_pool2d(y[None], 8)[0] * 64


class CSRNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = vgg16(weights=VGG16_Weights.IMAGENET1K_V1).features[:23]
        layers, c = [], 512
        for o in (512, 512, 512, 256, 128, 64):
            layers += [nn.Conv2d(c, o, 3, padding=2, dilation=2), nn.ReLU(inplace=True)]
            c = o
        self.back = nn.Sequential(*layers, nn.Conv2d(64, 1, 1))

    def forward(self, x):
        return self.back(self.front(x))


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    mae = mse = 0.0
    for x, y in loader:
        diff = model(x.to(device, non_blocking=True)).sum().item() - y.sum().item()
        mae += abs(diff)
        mse += diff * diff
    n = len(loader)
    return mae / n, (mse / n) ** 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("root")
    ap.add_argument("--epochs", type=int, default=400)
    ap.add_argument("--lr", type=float, default=1e-5)
    args = ap.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")

    kw = dict(batch_size=1, num_workers=6, pin_memory=True, persistent_workers=True)
    train = DataLoader(CrowdImages(f"{args.root}/train"), shuffle=True, **kw)
    val = DataLoader(CrowdImages(f"{args.root}/val", train=False), **kw)
    model = CSRNet().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    best = float("inf")
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for x, y in train:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = F.mse_loss(model(x), y, reduction="sum")
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        mae, rmse = validate(model, val, device)
        print(f"{epoch} loss {total.item() / len(train):.3f} MAE {mae:.2f} RMSE {rmse:.2f}")
        if mae < best:
            best = mae
            torch.save(model.state_dict(), "csrnet_best.pt")


if __name__ == "__main__":
    main()
