"""Record the sample trace that ``torchtriage demo`` reads.

An honest first training script: a small vision transformer learns to tell four drawn shapes apart,
on the CPU, from JPEG files. It runs, and it is slower than it has to be in four common ways:

1. the ``DataLoader`` decodes and augments every image in the main process (``num_workers=0``);
2. each image of a batch is normalised by a call of its own, in a Python loop;
3. attention is written out by hand: matmul, softmax, matmul;
4. the optimizer updates one parameter tensor at a time (``foreach=False``).

``loss.item()`` in every step is here as well. On the CPU it costs next to nothing, and no
report should claim otherwise.

Usage (needs torch, numpy and pillow; takes about ten seconds)::

    python record_sample.py sample_cpu_training.json.gz
"""

import gzip
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

SEED = 7
SHAPES = ("disc", "square", "stripes", "cross")
N_IMAGES = 64
PHOTO_SIZE = (800, 600)
IMAGE_SIZE = 48
BATCH_SIZE = 8
WAIT, WARMUP, ACTIVE = 1, 1, 4


def draw_photo(shape: str, rng: random.Random) -> Image.Image:
    """Return one noisy grey picture with the shape at a random place."""
    noise = np.random.default_rng(rng.randrange(2**32)).integers(0, 60, PHOTO_SIZE[::-1])
    photo = Image.fromarray(noise.astype(np.uint8))
    draw = ImageDraw.Draw(photo)
    size = rng.randrange(200, 360)
    x, y = rng.randrange(PHOTO_SIZE[0] - size), rng.randrange(PHOTO_SIZE[1] - size)
    grey = rng.randrange(120, 256)
    if shape == "disc":
        draw.ellipse((x, y, x + size, y + size), fill=grey)
    elif shape == "square":
        draw.rectangle((x, y, x + size, y + size), fill=grey)
    elif shape == "stripes":
        for offset in range(0, size, 60):
            draw.rectangle((x + offset, y, x + offset + 30, y + size), fill=grey)
    else:
        third = size // 3
        draw.rectangle((x + third, y, x + 2 * third, y + size), fill=grey)
        draw.rectangle((x, y + third, x + size, y + 2 * third), fill=grey)
    return photo


def write_photos(folder: Path) -> list[tuple[str, int]]:
    """Write the training set as JPEG files; return each file with its class."""
    rng = random.Random(SEED)
    photos = []
    for index in range(N_IMAGES):
        label = index % len(SHAPES)
        path = folder / f"{index:03d}_{SHAPES[label]}.jpg"
        draw_photo(SHAPES[label], rng).save(path)
        photos.append((str(path), label))
    return photos


class Shapes(Dataset):
    """JPEG files, decoded and augmented one at a time when asked for."""

    def __init__(self, photos: list[tuple[str, int]]) -> None:
        self.photos = photos
        self.rng = np.random.default_rng(SEED)

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return one augmented picture, float32[1, 48, 48], and its class."""
        path, label = self.photos[index]
        zoom, x, y, light, flip = self.rng.random(5)
        photo = Image.open(path)
        width, height = photo.size
        side = (0.7 + 0.3 * zoom) * height
        left, top = x * (width - side), y * (height - side)
        crop = (left, top, left + side, top + side)
        photo = photo.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.LANCZOS, crop)
        pixels = np.asarray(photo, dtype=np.float32) / 255 * np.float32(0.8 + 0.4 * light)
        if flip < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.copy()).unsqueeze(0), label


class Attention(nn.Module):
    """Multi-head self-attention, spelled out."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the tokens of each picture, float32[batch, tokens, dim]."""
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (dim // self.heads) ** 0.5
        weights = torch.softmax(scores, dim=-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, tokens, dim)
        return self.out(mixed)


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens after attention and the MLP."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """A vision transformer with 144 tokens per picture."""

    def __init__(self, dim: int = 64, heads: int = 4, depth: int = 1, patch: int = 4) -> None:
        super().__init__()
        tokens = (IMAGE_SIZE // patch) ** 2
        self.patches = nn.Conv2d(1, dim, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(1, tokens, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.head = nn.Linear(dim, len(SHAPES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores, float32[batch, 4]."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(dim=1))


def normalise(image: torch.Tensor) -> torch.Tensor:
    """Give one picture zero mean and unit variance."""
    mean = image.mean(dim=(1, 2), keepdim=True)
    std = image.std(dim=(1, 2), keepdim=True)
    return (image - mean) / (std + 1e-5)


def train(photos: list[tuple[str, int]], trace: Path) -> None:
    """Train for one profiler cycle and write its trace, gzipped, to ``trace``."""
    loader = DataLoader(Shapes(photos), batch_size=BATCH_SIZE, shuffle=True, num_workers=0)
    model = TinyViT()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    profiler = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        record_shapes=True,
        with_stack=True,
    )
    with profiler:
        for step, (images, labels) in zip(range(WAIT + WARMUP + ACTIVE), loader, strict=False):
            images = torch.stack([normalise(images[i]) for i in range(len(images))])
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"step {step}: loss {loss.item():.3f}")
            profiler.step()

    # The exporter writes the path it is given into the file: a bare name keeps folders out of it.
    plain = Path(trace.name).with_suffix("")
    profiler.export_chrome_trace(str(plain))
    with gzip.GzipFile(trace, "wb", compresslevel=9, mtime=0) as packed:
        packed.write(plain.read_bytes())
    plain.unlink()


if __name__ == "__main__":
    torch.manual_seed(SEED)
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "sample_cpu_training.json.gz")
    with tempfile.TemporaryDirectory() as folder:
        train(write_photos(Path(folder)), target)
    print(f"wrote {target}, {target.stat().st_size // 1024} KiB")
