import argparse

import albumentations as A
import cv2
import numpy as np
import pandas as pd
import timm
import torch
from albumentations.pytorch import ToTensorV2
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

SIZE = 384


def worker_init(worker_id):
    np.random.seed((torch.initial_seed() + worker_id) % 2**32)
    cv2.setNumThreads(16)


class PlantPhotos(Dataset):
    def __init__(self, table, root, train):
        self.paths = [f"{root}/{p}" for p in table["file"]]
        self.labels = table["species_id"].to_numpy()
        norm = [A.Normalize(), ToTensorV2()]
        if train:
            self.tf = A.Compose([
                A.SmallestMaxSize(max_size=int(SIZE * 1.15), interpolation=cv2.INTER_AREA),
                A.RandomCrop(SIZE, SIZE), A.HorizontalFlip(p=0.5), A.ColorJitter(p=0.5),
            ] + norm)
        else:
            self.tf = A.Compose([A.SmallestMaxSize(max_size=SIZE, interpolation=cv2.INTER_AREA),
                                 A.CenterCrop(SIZE, SIZE)] + norm)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        img = cv2.imread(self.paths[i], cv2.IMREAD_COLOR)
        img = cv2.cvtColor(img, cv2.COLOR_BGR2RGB)
        return self.tf(image=img)["image"], int(self.labels[i])


def loaders(args):
    df = pd.read_csv(args.table)
    train_df, val_df = df[df.split == "train"], df[df.split == "val"]
    train, val = PlantPhotos(train_df, args.root, True), PlantPhotos(val_df, args.root, False)
    counts = np.bincount(train.labels, minlength=args.classes)
    weights = 1.0 / np.sqrt(np.maximum(counts[train.labels], 1))
    sampler = WeightedRandomSampler(torch.from_numpy(weights), len(train), replacement=True)
    kw = dict(batch_size=args.batch_size, num_workers=24, pin_memory=True, persistent_workers=True,
              worker_init_fn=worker_init)
    return DataLoader(train, sampler=sampler, drop_last=True, **kw), DataLoader(val, **kw)


@torch.inference_mode()
def evaluate(model, loader, classes, device):
    model.eval()
    m = torch.zeros(classes * classes, dtype=torch.long, device=device)
    for x, y in loader:
        x = x.to(device, non_blocking=True).to(memory_format=torch.channels_last)
        y = y.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            pred = model(x).argmax(dim=1)
        m += torch.bincount(y * classes + pred, minlength=classes * classes)
    return m.view(classes, classes)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("table")
    ap.add_argument("root")
    ap.add_argument("--classes", type=int, default=1081)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--epochs", type=int, default=20)
    args = ap.parse_args()
    device = torch.device("cuda")
    train, val = loaders(args)
    model = timm.create_model("convnext_small.fb_in22k", pretrained=True, num_classes=args.classes)
    model = model.to(device).to(memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.05, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-4, total_steps=args.epochs * len(train))
    crit = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for x, y in train:
            x = x.to(device, non_blocking=True).to(memory_format=torch.channels_last)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = crit(model(x), y.to(device, non_blocking=True))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            total += loss.detach()
        m = evaluate(model, val, args.classes, device)
        print(f"{epoch} loss {total.item() / len(train):.4f} top1 {(m.diag().sum() / m.sum()).item():.4f}")
    for flat in (m - m.diag().diag()).flatten().topk(20).indices.tolist():
        print("confused", divmod(flat, args.classes), m.flatten()[flat].item())
    torch.save(model.state_dict(), "plants.pt")


if __name__ == "__main__":
    main()
