"""Object detection: a one-stage detector with dense predictions marks boxes in a video.

Usage (needs torch)::

    python detection_fixed.py
"""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

FRAMES = 120
IMAGE_SIZE = 256
CANDIDATES = 500
MAX_OVERLAP = 0.5


class Detector(nn.Module):
    """A small convolutional backbone that predicts a score and a box per cell of 8 pixels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in range(3):
            out = width * 2**stage
            layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.SiLU()]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.SiLU()]
            channels = out
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Conv2d(channels, 5, 3, padding=1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores, float32[batch, cells], and boxes in pixels, float32[batch, cells, 4]."""
        maps = self.head(self.backbone(images))
        side = maps.shape[-1]
        rows = torch.arange(side, device=maps.device).float() * 8 + 4
        centre = torch.stack([rows.repeat(side), rows.repeat_interleave(side)], dim=-1)
        scores, offsets = maps.flatten(2).transpose(1, 2).split([1, 4], dim=-1)
        half = 12 + 24 * torch.sigmoid(offsets[..., 2:])
        centre = centre + 8 * torch.tanh(offsets[..., :2])
        return scores.squeeze(-1), torch.cat([centre - half, centre + half], dim=-1)


def overlaps(boxes: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of every two boxes, float32[n, n]."""
    width, height = (
        torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        - torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    ).unbind(dim=-1)
    common = width.clamp_min(0) * height.clamp_min(0)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    return common / (area[:, None] + area[None, :] - common)


def suppress(boxes: torch.Tensor) -> list[int]:
    """Return the boxes, best first, that no better one overlaps (non-maximum suppression)."""
    keep: list[int] = []
    clear = (overlaps(boxes) <= MAX_OVERLAP).numpy()  # no box is clear of itself
    left = torch.ones(len(boxes), dtype=torch.bool).numpy()
    for index in range(len(boxes)):
        if left[index]:
            keep.append(index)
            left &= clear[index]
    return keep


def detect(model: Detector, image: torch.Tensor) -> torch.Tensor:
    """Return the boxes found in one frame, float32[n, 4]."""
    scores, boxes = model(image)
    best = scores[0].topk(CANDIDATES).indices
    candidates = boxes[0][best]
    return candidates[suppress(candidates)]


@torch.inference_mode()
def main() -> None:
    """Run the detector over a synthetic video."""
    model = Detector().eval()
    video = torch.rand(8, 3, IMAGE_SIZE, IMAGE_SIZE)
    step_ms = []
    for frame in range(FRAMES):
        begin = time.perf_counter()
        image = F.avg_pool2d(video[frame % 8][None], 3, stride=1, padding=1)
        found = detect(model, image)
        step_ms.append((time.perf_counter() - begin) * 1e3)
        if frame % 20 == 0:
            print(f"frame {frame}: {len(found)} boxes, the first at {found[0].tolist()}")
    print(f"mean step: {statistics.mean(step_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
