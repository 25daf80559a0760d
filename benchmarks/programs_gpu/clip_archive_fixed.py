# Embeds an archive of videos: sliding windows of 16 frames through a video transformer.
import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--window", type=int, default=16)
parser.add_argument("--stride", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--small", action="store_true")
opt = parser.parse_args()

VIDEOS, FRAMES, SIDE, DIM, DEPTH, HEADS = 8, 180, 224, 512, 8, 8
if opt.small:
    VIDEOS, FRAMES, SIDE, DIM, DEPTH, HEADS = 2, 24, 32, 32, 2, 2
    opt.batch = 2

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEAN = torch.tensor([0.45, 0.45, 0.45]).view(1, 1, 1, 1, 3).to(device)
STD = torch.tensor([0.225, 0.225, 0.225]).view(1, 1, 1, 1, 3).to(device)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, dim * 4)
        self.down = nn.Linear(dim * 4, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class VideoEncoder(nn.Module):
    def __init__(self, frames, side, dim, depth, heads):
        super().__init__()
        self.tubes = nn.Conv3d(3, dim, (2, 16, 16), (2, 16, 16))
        self.pos = nn.Parameter(torch.randn(1, frames // 2 * (side // 16) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, clips):
        x = self.tubes(clips).flatten(2).transpose(1, 2) + self.pos
        return nn.functional.normalize(self.norm(self.blocks(x)).mean(1), dim=-1)


def record(path):
    rng = np.random.default_rng(0)
    store = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(VIDEOS, FRAMES, SIDE, SIDE, 3))
    for v in range(VIDEOS):
        store[v] = rng.integers(0, 256, store.shape[1:], dtype=np.uint8)


def windows(store):
    """Batches of (video, first frame) with their frames."""
    index = [(v, f) for v in range(VIDEOS) for f in range(0, FRAMES - opt.window + 1, opt.stride)]
    for i in range(0, len(index) - opt.batch + 1, opt.batch):
        part = index[i:i + opt.batch]
        yield part, np.stack([store[v, f:f + opt.window] for v, f in part])


torch.manual_seed(0)
folder = tempfile.TemporaryDirectory()
record(os.path.join(folder.name, "archive.npy"))
archive = np.load(os.path.join(folder.name, "archive.npy"), mmap_mode="r")

encoder = VideoEncoder(opt.window, SIDE, DIM, DEPTH, HEADS).to(device, torch.bfloat16).eval()
keys, vectors = [], []

with torch.inference_mode():
    for where, frames in windows(archive):
        # STEP
        clips = torch.from_numpy(frames)
        if device.type == "cuda":
            clips = clips.pin_memory()
        clips = clips.to(device, non_blocking=True).float() / 255.0
        clips = (clips - MEAN) / STD
        clips = clips.permute(0, 4, 1, 2, 3).contiguous()
        z = encoder(clips.to(torch.bfloat16))
        vectors.append(z.float())
        keys.extend(where)

table = torch.cat(vectors).cpu()
print("embedded", len(keys), "windows", tuple(table.shape), "mean similarity", float((table @ table.T).mean()))
folder.cleanup()
