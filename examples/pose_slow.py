"""Human pose: a ViTPose learns to place the joints of stick figures.

Usage (needs torch and transformers)::

    python pose_slow.py
"""

import statistics
import time

import torch
from torch.nn import functional as F
from transformers import VitPoseBackboneConfig, VitPoseConfig, VitPoseForPoseEstimation

STEPS = 80
BATCH_SIZE = 4
IMAGE_SIZE = (64, 48)
JOINTS = 17


def make_people(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, float32[count, 3, 64, 48], and joints in pixels, float32[count, 17, 2]."""
    height, width = IMAGE_SIZE
    joints = torch.rand(count, JOINTS, 2) * torch.tensor([width - 1.0, height - 1.0])
    spots = draw(joints, height, width, radius=2.0)
    colours = torch.rand(JOINTS, 3)
    images = torch.einsum("njhw,jc->nchw", spots, colours)
    return images + 0.1 * torch.randn_like(images), joints


def draw(joints: torch.Tensor, height: int, width: int, radius: float) -> torch.Tensor:
    """Return one soft spot per joint, float32[count, joints, height, width]."""
    x = torch.arange(width).view(1, 1, 1, -1) - joints[..., 0, None, None]
    y = torch.arange(height).view(1, 1, -1, 1) - joints[..., 1, None, None]
    return torch.exp(-(x**2 + y**2) / (2 * radius**2))


def make_model() -> VitPoseForPoseEstimation:
    """Return a deep and narrow ViTPose with random weights."""
    backbone = VitPoseBackboneConfig(
        image_size=list(IMAGE_SIZE),
        patch_size=[8, 8],
        hidden_size=64,
        num_hidden_layers=16,
        num_attention_heads=4,
        mlp_ratio=2,
        out_indices=[16],
    )
    config = VitPoseConfig(backbone_config=backbone, num_labels=JOINTS, scale_factor=2)
    return VitPoseForPoseEstimation(config)


def main() -> None:
    """Train on random batches of people and print the loss now and then."""
    images, joints = make_people(64)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step_ms = []
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = torch.randint(len(images), (BATCH_SIZE,))
        heatmaps = model(images[batch]).heatmaps
        height, width = heatmaps.shape[-2:]
        target = draw(joints[batch] * (width / IMAGE_SIZE[1]), height, width, radius=1.0)
        loss = F.mse_loss(heatmaps, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"mean step: {statistics.mean(step_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
