from collections import OrderedDict

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from sklearn.metrics import confusion_matrix
from tqdm import tqdm

CITYSCAPES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "light", "sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)


class RunningScore:
    def __init__(self, n_classes, ignore=255):
        self.n_classes, self.ignore = n_classes, ignore
        self.reset()

    def reset(self):
        self.matrix = np.zeros((self.n_classes, self.n_classes), dtype=np.int64)

    def update(self, target, pred):
        for lt, lp in zip(target.cpu().numpy(), pred.cpu().numpy()):
            valid = lt != self.ignore
            self.matrix += confusion_matrix(lt[valid], lp[valid], labels=range(self.n_classes))

    def scores(self):
        m = self.matrix.astype(np.float64)
        tp = np.diag(m)
        iou = tp / np.maximum(m.sum(0) + m.sum(1) - tp, 1)
        freq = m.sum(1) / m.sum()
        out = OrderedDict()
        out["pixel_acc"] = tp.sum() / m.sum()
        out["mean_acc"] = np.nanmean(tp / np.maximum(m.sum(1), 1))
        out["mean_iou"] = iou.mean()
        out["fw_iou"] = (freq[freq > 0] * iou[freq > 0]).sum()
        return out, dict(zip(CITYSCAPES, iou))


class BoundaryF1:
    def __init__(self, n_classes, tolerance=3):
        self.n_classes, self.tol = n_classes, tolerance
        self.sums = np.zeros(n_classes)
        self.counts = np.zeros(n_classes)
        self.disk = ndimage.iterate_structure(ndimage.generate_binary_structure(2, 1), tolerance)

    @staticmethod
    def border(mask):
        return mask & ~ndimage.binary_erosion(mask)

    def update(self, target, pred):
        for t, p in zip(target.cpu().numpy(), pred.cpu().numpy()):
            for c in range(self.n_classes):
                bt, bp = self.border(t == c), self.border(p == c)
                near_t = ndimage.binary_dilation(bt, structure=self.disk)
                near_p = ndimage.binary_dilation(bp, structure=self.disk)
                n_t, n_p = bt.sum(), bp.sum()
                if n_t == 0 and n_p == 0:
                    continue
                precision = (bp & near_t).sum() / max(n_p, 1)
                recall = (bt & near_p).sum() / max(n_t, 1)
                self.sums[c] += 2 * precision * recall / max(precision + recall, 1e-9)
                self.counts[c] += 1

    def scores(self):
        return float((self.sums / np.maximum(self.counts, 1))[self.counts > 0].mean())


@torch.inference_mode()
def validate(model, loader, device, n_classes=19):
    model.eval()
    running, boundary = RunningScore(n_classes), BoundaryF1(n_classes)
    loss_sum = torch.zeros((), device=device)
    for image, target in tqdm(loader, leave=False):
        image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with torch.autocast("cuda"):
            logits = model(image)
        logits = F.interpolate(logits.float(), size=target.shape[-2:], mode="bilinear", align_corners=False)
        loss_sum += F.cross_entropy(logits, target, ignore_index=255)
        pred = logits.argmax(dim=1)
        running.update(target, pred)
        boundary.update(target, pred)
    summary, per_class = running.scores()
    summary["boundary_f1"] = boundary.scores()
    summary["loss"] = loss_sum.item() / len(loader)
    for name, v in per_class.items():
        print(f"{name:>12s} {v:.3f}")
    return summary
