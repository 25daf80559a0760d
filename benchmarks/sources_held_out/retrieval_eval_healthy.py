import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.models import ResNet50_Weights, resnet50

from data.sop import StanfordProducts


class Embedder(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        net = resnet50(weights=ResNet50_Weights.IMAGENET1K_V2)
        self.body = nn.Sequential(*list(net.children())[:-2])
        self.p = nn.Parameter(torch.tensor(3.0))
        self.fc = nn.Linear(2048, dim)

    def forward(self, x):
        f = self.body(x).clamp(min=1e-6).pow(self.p)
        pooled = f.mean(dim=(2, 3)).pow(1.0 / self.p)
        return F.normalize(self.fc(pooled), dim=1)


@torch.inference_mode()
def extract(model, loader, device):
    model.eval()
    feats, labels = [], []
    for x, y in loader:
        x = x.to(device, non_blocking=True).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            feats.append(model(x).float())
        labels.append(y)
    return torch.cat(feats), torch.cat(labels).to(device)


@torch.inference_mode()
def recall_at(feats, labels, ks=(1, 10, 100, 1000), block=4096):
    hits = torch.zeros(len(ks), device=feats.device)
    for s in range(0, len(feats), block):
        q = feats[s:s + block]
        sim = q @ feats.T
        rows = torch.arange(len(q), device=feats.device)
        sim[rows, rows + s] = float("-inf")
        idx = sim.topk(max(ks), dim=1).indices
        match = labels[idx] == labels[s:s + block, None]
        hits += torch.stack([match[:, :k].any(dim=1).sum() for k in ks])
    return {k: (hits[i] / len(feats)).item() for i, k in enumerate(ks)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("root")
    ap.add_argument("weights")
    ap.add_argument("--batch-size", type=int, default=256)
    args = ap.parse_args()
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    tf = transforms.Compose([
        transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    loader = DataLoader(StanfordProducts(args.root, "test", tf), batch_size=args.batch_size, num_workers=12,
                        pin_memory=True)
    model = Embedder().to(device).to(memory_format=torch.channels_last)
    model.load_state_dict(torch.load(args.weights, map_location=device, weights_only=True))
    feats, labels = extract(model, loader, device)
    for k, v in recall_at(feats, labels).items():
        print(f"R@{k:<5d} {100 * v:.2f}")


if __name__ == "__main__":
    main()
