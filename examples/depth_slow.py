"""Monocular depth: a GLPN learns the distance of every pixel.

Usage (needs torch and transformers)::

    python depth_slow.py
"""

import statistics
import time

import torch
from transformers import GLPNConfig, GLPNForDepthEstimation

STEPS = 70
BATCH_SIZE = 2
IMAGE_SIZE = 64


def make_scenes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of slanted planes, [count, 3, 64, 64], and their depth, [count, 64, 64]."""
    slope = torch.rand(count, 2, 1, 1) * 4
    down = torch.linspace(0, 1, IMAGE_SIZE).view(1, -1, 1)
    across = torch.linspace(0, 1, IMAGE_SIZE).view(1, 1, -1)
    depth = 1 + slope[:, 0] * down + slope[:, 1] * across
    images = (10 / depth).sin().unsqueeze(1) + 0.1 * torch.randn(count, 3, IMAGE_SIZE, IMAGE_SIZE)
    return images, depth


def silog(predicted: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """Return the scale-invariant logarithmic error."""
    error = torch.log(predicted.clamp_min(1e-3)) - torch.log(depth)
    return torch.sqrt((error**2).mean() - 0.5 * error.mean() ** 2)


def main() -> None:
    """Train on random batches of scenes and print the loss now and then."""
    images, depth = make_scenes(64)
    config = GLPNConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 80, 128], decoder_hidden_size=32)
    model = GLPNForDepthEstimation(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    step_ms = []
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = torch.randint(len(images), (BATCH_SIZE,))
        predicted = model(images[batch]).predicted_depth
        loss = silog(predicted, depth[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"mean step: {statistics.mean(step_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    main()
