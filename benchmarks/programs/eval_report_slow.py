#!/usr/bin/env python
"""Evaluate a checkpoint: multi-label tagging, running AP in the bar, a report at the end."""
import argparse
import json
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from sklearn.metrics import average_precision_score
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def get_args():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--checkpoint", default="")
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--num-images", type=int, default=3200)
    ap.add_argument("--num-tags", type=int, default=12)
    ap.add_argument("--threshold", type=float, default=0.5)
    return ap.parse_args()


class ConvBlock(nn.Sequential):
    def __init__(self, c_in, c_out):
        super().__init__(nn.Conv2d(c_in, c_out, 3, 2, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


class Tagger(nn.Module):
    def __init__(self, n_tags):
        super().__init__()
        self.features = nn.Sequential(ConvBlock(3, 16), ConvBlock(16, 32), ConvBlock(32, 48))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(48, n_tags)

    def forward(self, x):
        return self.fc(self.pool(self.features(x)).flatten(1))


def make_data(n, n_tags):
    g = torch.Generator().manual_seed(0)
    y = (torch.rand(n, n_tags, generator=g) < 0.25).float()
    x = torch.randn(n, 3, 32, 32, generator=g)
    x[:, 0] += y[:, :1, None] - y[:, 1:2, None]
    return TensorDataset(x, y)


class RunningAP:
    def __init__(self):
        self.scores, self.targets = None, None

    def update(self, scores, targets):
        s, t = scores.numpy(), targets.numpy()
        self.scores = s if self.scores is None else np.concatenate([self.scores, s])
        self.targets = t if self.targets is None else np.concatenate([self.targets, t])
        return self.compute()

    def compute(self):
        return float(average_precision_score(self.targets, self.scores, average="micro"))


class PerTag:
    def __init__(self, n_tags, threshold):
        self.tp, self.fp, self.fn = (torch.zeros(n_tags) for _ in range(3))
        self.threshold = threshold

    def update(self, scores, targets):
        pred = scores > self.threshold
        true = targets > 0.5
        self.tp += (pred & true).sum(0)
        self.fp += (pred & ~true).sum(0)
        self.fn += (~pred & true).sum(0)

    def f1(self):
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn).clamp(min=1)


class PredictionFile:
    """image id, then one score per tag"""

    def __init__(self, folder):
        self.path = os.path.join(folder, "predictions.csv")
        self.next_id = 0

    def write(self, scores):
        for row in scores:
            with open(self.path, "a") as f:
                f.write(",".join([str(self.next_id)] + [f"{float(row[j].detach().cpu().numpy()):.4f}" for j in range(len(row))]) + "\n")
            self.next_id += 1


def main():
    args = get_args()
    torch.manual_seed(0)
    model = Tagger(args.num_tags)
    if args.checkpoint and os.path.exists(args.checkpoint):
        model.load_state_dict(torch.load(args.checkpoint, map_location="cpu"))
    model.eval()
    loader = DataLoader(make_data(args.num_images, args.num_tags), batch_size=args.batch_size)
    ap, tags, done = RunningAP(), PerTag(args.num_tags, args.threshold), 0
    folder = tempfile.mkdtemp()
    predictions = PredictionFile(folder)
    with torch.inference_mode():
        for images, targets in tqdm(loader, disable=None):
            scores = model(images).sigmoid()
            running = ap.update(scores, targets)
            tags.update(scores, targets)
            predictions.write(scores)
            done += len(images)
            if done % 1280 == 0:
                print(f"{done} images, AP so far {running:.4f}")

    report = {"AP": ap.compute(), "f1": [round(v, 4) for v in tags.f1().tolist()], "images": done}
    path = os.path.join(folder, "report.json")
    with open(path, "w") as f:
        json.dump(report, f, indent=2)
    print(f"AP {report['AP']:.4f}, mean F1 {np.mean(report['f1']):.4f}")


if __name__ == "__main__":
    main()
