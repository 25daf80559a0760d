"""Semantic segmentation: a SegFormer learns land cover from satellite-like tiles.

Usage (needs torch, transformers and numpy)::

    python segmentation_fixed.py
"""

import statistics
import time

import numpy as np
import torch
from torch.nn import functional as F
from transformers import SegformerConfig, SegformerForSemanticSegmentation

STEPS = 70
BATCH_SIZE = 2
TILE_SIZE = 128
CLASSES = 12


def make_tiles(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tiles, float32[count, 3, 128, 128], and their classes, int64[count, 128, 128]."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, CLASSES, (count, TILE_SIZE // 16, TILE_SIZE // 16))
    classes = coarse.repeat(16, axis=1).repeat(16, axis=2)
    colours = rng.uniform(0, 255, (CLASSES, 3))
    tiles = colours[classes] + rng.normal(0, 20, (*classes.shape, 3))
    tiles = tiles.transpose(0, 3, 1, 2).astype(np.float32)
    return torch.from_numpy(tiles), torch.from_numpy(classes)


def channel_statistics(tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the standard deviation of every channel, each [3, 1, 1]."""
    pixels = tiles.numpy().astype(np.float64)
    mean = pixels.mean(axis=(0, 2, 3)).reshape(3, 1, 1)
    std = pixels.std(axis=(0, 2, 3)).reshape(3, 1, 1)
    return torch.from_numpy(mean), torch.from_numpy(std)


def class_weights(classes: torch.Tensor) -> torch.Tensor:
    """Return a weight per class that makes up for how rare it is."""
    share = np.bincount(classes.flatten().numpy(), minlength=CLASSES) / classes.numel()
    return torch.from_numpy((1 / (CLASSES * share)).astype(np.float32))


def dice_loss(logits: torch.Tensor, classes: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return one minus the weighted overlap of prediction and truth."""
    likely = logits.softmax(dim=1) * weights.view(1, -1, 1, 1)
    truth = F.one_hot(classes, CLASSES).permute(0, 3, 1, 2)
    common = (likely * truth).sum(dim=(2, 3))
    total = (likely * likely).sum(dim=(2, 3)) + truth.sum(dim=(2, 3))
    return 1 - (2 * common / (total + 1)).mean()


def main() -> None:
    """Train on random batches of tiles and print the loss now and then."""
    tiles, classes = make_tiles(64)
    weights = class_weights(classes)
    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 64, 128],
        decoder_hidden_size=64,
        num_labels=CLASSES,
    )
    model = SegformerForSemanticSegmentation(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step_ms = []
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = torch.randint(len(tiles), (BATCH_SIZE,))
        small = model(pixel_values=tiles[batch] / 127.5 - 1).logits
        logits = F.interpolate(small, size=TILE_SIZE, mode="bilinear")
        loss = dice_loss(logits, classes[batch], weights)
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
