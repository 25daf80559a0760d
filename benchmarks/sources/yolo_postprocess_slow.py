import json

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from yolo.coco import CocoVal, detection_collate
from yolo.model import YoloV3


ANCHORS = [
    [(10, 13), (16, 30), (33, 23)],
    [(30, 61), (62, 45), (59, 119)],
    [(116, 90), (156, 198), (373, 326)],
]
STRIDES = (8, 16, 32)


class Decoder(nn.Module):
    def __init__(self, n_classes=80):
        super().__init__()
        self.n_classes = n_classes
        for i, a in enumerate(ANCHORS):
            self.register_buffer(f"anchor_{i}", torch.tensor(a, dtype=torch.float32).view(1, 3, 1, 1, 2))

    def forward(self, outputs):
        decoded = []
        for lvl, (out, stride) in enumerate(zip(outputs, STRIDES)):
            b, _, h, w = out.shape
            out = out.view(b, 3, 5 + self.n_classes, h, w).permute(0, 1, 3, 4, 2)
            gy, gx = torch.meshgrid(
                torch.arange(h, device=out.device), torch.arange(w, device=out.device), indexing="ij"
            )
            grid = torch.stack([gx, gy], dim=-1).view(1, 1, h, w, 2)
            xy = (out[..., 0:2].sigmoid() + grid) * stride
            wh = out[..., 2:4].exp() * getattr(self, f"anchor_{lvl}")
            conf = out[..., 4:5].sigmoid() * out[..., 5:].sigmoid()
            decoded.append(torch.cat([xy - wh / 2, xy + wh / 2, conf], dim=-1).reshape(b, -1, 4 + self.n_classes))
        return torch.cat(decoded, dim=1)


def iou(a, b):
    lt = torch.maximum(a[:2], b[:2])
    rb = torch.minimum(a[2:4], b[2:4])
    inter = (rb - lt).clamp(min=0).prod()
    area_a = (a[2:4] - a[:2]).prod()
    area_b = (b[2:4] - b[:2]).prod()
    return inter / (area_a + area_b - inter + 1e-9)


def suppress(dets, thresh):
    """dets: [N, 6] x1 y1 x2 y2 score class, sorted by score."""
    alive = [True] * len(dets)
    kept = []
    for i in range(len(dets)):
        if not alive[i]:
            continue
        kept.append(dets[i])
        for j in range(i + 1, len(dets)):
            if alive[j] and dets[i, 5] == dets[j, 5] and iou(dets[i], dets[j]) > thresh:
                alive[j] = False
    return torch.stack(kept) if kept else dets[:0]


@torch.inference_mode()
def evaluate(weights, root, conf_thresh=0.01, iou_thresh=0.45, device="cuda"):
    model = YoloV3().to(device).eval()
    model.load_state_dict(torch.load(weights, map_location=device))
    decoder = Decoder().to(device)
    loader = DataLoader(CocoVal(root, size=608), batch_size=32, num_workers=8, pin_memory=True,
                        collate_fn=detection_collate)
    results = []
    for images, metas in tqdm(loader):
        with torch.autocast("cuda"):
            outputs = model(images.to(device, non_blocking=True))
        pred = decoder([o.float() for o in outputs])
        scores, classes = pred[..., 4:].max(dim=-1)
        for b, meta in enumerate(metas):
            keep = scores[b] > conf_thresh
            dets = torch.cat([pred[b, keep, :4], scores[b, keep, None], classes[b, keep, None].float()], dim=1)
            dets = dets[dets[:, 4].argsort(descending=True)][:1000]
            dets = suppress(dets, iou_thresh)
            dets[:, :4] /= meta["scale"]
            for x1, y1, x2, y2, s, c in dets.cpu().tolist():
                results.append({"image_id": meta["id"], "category_id": CocoVal.cat_ids[int(c)],
                                "bbox": [x1, y1, x2 - x1, y2 - y1], "score": s})
    with open("detections.json", "w") as f:
        json.dump(results, f)
