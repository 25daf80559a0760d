import argparse
from itertools import product
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from scipy import ndimage
from scipy.ndimage import gaussian_filter

from models.unet3d import UNet3D


def gaussian_map(roi, sigma=0.125):
    m = np.zeros(roi, dtype=np.float32)
    m[tuple(r // 2 for r in roi)] = 1
    m = gaussian_filter(m, [r * sigma for r in roi], mode="constant")
    return np.clip(m / m.max(), 1e-3, None)


def starts(size, roi, overlap):
    step = max(1, int(roi * (1 - overlap)))
    pos = list(range(0, max(size - roi, 0) + 1, step))
    if pos[-1] + roi < size:
        pos.append(size - roi)
    return pos


class Predictor:
    def __init__(self, weights, classes=14, roi=(96, 96, 96), overlap=0.5, device="cuda"):
        self.roi, self.overlap, self.classes, self.device = roi, overlap, classes, device
        self.model = UNet3D(1, classes).to(device).eval()
        self.model.load_state_dict(torch.load(weights, map_location=device, weights_only=True))
        self.weight = gaussian_map(roi)

    @staticmethod
    def normalise(vol, lo=-175.0, hi=250.0):
        return (np.clip(vol, lo, hi) - lo) / (hi - lo)

    def pad(self, vol):
        need = [max(0, r - s) for r, s in zip(self.roi, vol.shape)]
        return np.pad(vol, [(0, n) for n in need], mode="constant")

    @torch.inference_mode()
    def __call__(self, vol):
        shape = vol.shape
        vol = self.pad(self.normalise(vol.astype(np.float32)))
        x = torch.from_numpy(vol)[None, None].to(self.device)
        acc = np.zeros((self.classes, *vol.shape), dtype=np.float32)
        norm = np.zeros(vol.shape, dtype=np.float32)
        grid = product(*(starts(s, r, self.overlap) for s, r in zip(vol.shape, self.roi)))
        for z, y, w in grid:
            sl = (slice(z, z + self.roi[0]), slice(y, y + self.roi[1]), slice(w, w + self.roi[2]))
            with torch.autocast("cuda"):
                logits = self.model(x[(slice(None), slice(None), *sl)])
            acc[(slice(None), *sl)] += logits[0].float().cpu().numpy() * self.weight
            norm[sl] += self.weight
        acc /= norm
        seg = acc.argmax(axis=0).astype(np.uint8)
        return seg[:shape[0], :shape[1], :shape[2]]


def largest_component(seg, organ):
    labels, n = ndimage.label(seg == organ)
    if n <= 1:
        return seg
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    seg[(labels > 0) & (labels != sizes.argmax())] = 0
    return seg


def dice(a, b):
    s = a.sum() + b.sum()
    return 2.0 * np.logical_and(a, b).sum() / s if s else np.nan


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("images", type=Path)
    ap.add_argument("weights")
    ap.add_argument("--labels", type=Path)
    ap.add_argument("--out", type=Path, default=Path("predictions"))
    args = ap.parse_args()
    args.out.mkdir(exist_ok=True, parents=True)
    predict = Predictor(args.weights)
    table = []
    for path in sorted(args.images.glob("*.nii.gz")):
        img = nib.load(path)
        seg = predict(np.asarray(img.dataobj))
        seg = largest_component(seg, organ=6)
        nib.save(nib.Nifti1Image(seg, img.affine), args.out / path.name)
        if args.labels:
            gt = np.asarray(nib.load(args.labels / path.name).dataobj)
            table.append([dice(seg == c, gt == c) for c in range(1, predict.classes)])
    if table:
        print("mean dice per organ", np.nanmean(table, axis=0).round(3))


if __name__ == "__main__":
    main()
