"""Image classification: a ConvNeXt learns to tell drawn shapes apart, from JPEG files.

Usage (needs torch, transformers, numpy and pillow)::

    python classification_fixed.py
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset
from transformers import ConvNextConfig, ConvNextForImageClassification

SHAPES = ("disc", "square", "stripes")
N_PHOTOS = 60
PHOTO_SIZE = (600, 450)
IMAGE_SIZE = 96
BATCH_SIZE = 6
EPOCHS = 7


def write_photos(folder: Path) -> None:
    """Write the training set: one noisy JPEG per line of a shape at a random place."""
    rng, noise = random.Random(0), np.random.default_rng(0)
    for index in range(N_PHOTOS):
        grain = noise.integers(0, 80, (PHOTO_SIZE[1], PHOTO_SIZE[0], 3), dtype=np.uint8)
        photo = Image.fromarray(grain)
        draw = ImageDraw.Draw(photo)
        x, y, size = rng.randrange(300), rng.randrange(150), rng.randrange(200, 380)
        if index % 3 == 0:
            draw.ellipse((x, y, x + size, y + size), fill="orange")
        elif index % 3 == 1:
            draw.rectangle((x, y, x + size, y + size), fill="orange")
        else:
            for offset in range(0, size, 50):
                draw.rectangle((x + offset, y, x + offset + 25, y + size), fill="orange")
        photo.save(folder / f"{index:03d}_{SHAPES[index % 3]}.jpg", quality=95)


class Photos(Dataset):
    """The JPEG files of a folder, decoded and cropped when asked for."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        """Return the number of photos."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return one image, float32[3, 96, 96], and its class."""
        path = self.paths[index]
        photo = Image.open(path).convert("RGB")
        left = index % (PHOTO_SIZE[0] - PHOTO_SIZE[1])
        box = (left, 0, left + PHOTO_SIZE[1], PHOTO_SIZE[1])
        photo = photo.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC, box)
        pixels = np.asarray(photo, dtype=np.float32) / 127.5 - 1.0
        return torch.from_numpy(pixels).permute(2, 0, 1), SHAPES.index(path.stem[4:])


def train_epoch(
    model: ConvNextForImageClassification,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    step_ms: list[float],
) -> float:
    """Go through the photos once, and return the last loss."""
    begin = time.perf_counter()
    for images, labels in loader:
        loss = model(pixel_values=images, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
        begin = time.perf_counter()
    return loss.item()


def train(folder: Path) -> None:
    """Train for a few epochs and print the loss of each."""
    loader = DataLoader(
        Photos(folder), BATCH_SIZE, shuffle=True, num_workers=1, persistent_workers=True
    )
    config = ConvNextConfig(
        depths=[1, 1, 3, 1], hidden_sizes=[32, 64, 128, 256], num_labels=len(SHAPES)
    )
    model = ConvNextForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step_ms: list[float] = []
    for epoch in range(EPOCHS):
        print(f"epoch {epoch}: loss {train_epoch(model, loader, optimizer, step_ms):.4f}")
    print(f"mean step: {statistics.mean(step_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder))
        train(Path(folder))
