"""Action recognition from short clips cut out of longer, compressed recordings."""
import random
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HEIGHT = WIDTH = 64
GOP = 8
CLIP_LEN = 8


class Container:
    """Intra/inter coded stream: every GOP-th packet stands alone, the others are differences."""

    def __init__(self, frames):
        self.packets = []
        prev = None
        for i, frame in enumerate(frames):
            payload = frame if i % GOP == 0 else frame - prev
            self.packets.append(zlib.compress(payload.tobytes(), 6))
            prev = frame

    def __len__(self):
        return len(self.packets)


class VideoReader:
    def __init__(self, container):
        self.container = container
        self.pos = 0
        self.state = None

    def seek(self, index):
        self.pos = index - index % GOP

    def read(self):
        raw = zlib.decompress(self.container.packets[self.pos])
        frame = np.frombuffer(raw, dtype=np.uint8).reshape(HEIGHT, WIDTH, 3)
        self.state = frame if self.pos % GOP == 0 else self.state + frame
        self.pos += 1
        return self.state


def read_clip(container, start, length):
    reader = VideoReader(container)
    reader.seek(start)
    skip = start - reader.pos
    frames = [reader.read() for _ in range(skip + length)]
    return np.stack(frames[skip:])


def make_video(rng, label, n_frames):
    yy, xx = np.mgrid[0:HEIGHT, 0:WIDTH]
    background = rng.integers(0, 60, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    vx, vy = [(1, 0), (0, 1), (-1, 0), (1, 1)][label]
    x0, y0 = rng.integers(0, WIDTH, 2)
    frames = []
    for t in range(n_frames):
        cx, cy = (x0 + vx * t) % WIDTH, (y0 + vy * t) % HEIGHT
        frame = background.copy()
        frame[(xx - cx) ** 2 + (yy - cy) ** 2 < 60] = (220, 180, 90)
        frames.append(frame)
    return Container(frames)


class ClipDataset(Dataset):
    def __init__(self, n_videos=24, n_frames=96, clips_per_video=4, seed=5):
        rng = np.random.default_rng(seed)
        self.labels = [i % 4 for i in range(n_videos)]
        self.videos = [make_video(rng, y, n_frames) for y in self.labels]
        pick = random.Random(seed)
        self.index = [(v, pick.randrange(n_frames - CLIP_LEN))
                      for v in range(n_videos) for _ in range(clips_per_video)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        video, start = self.index[i]
        clip = read_clip(self.videos[video], start, CLIP_LEN)
        clip = torch.from_numpy(clip).permute(3, 0, 1, 2).float().div_(255)
        return clip, self.labels[video]


class TinyR3D(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv3d(3, 12, (3, 5, 5), (1, 4, 4), (1, 2, 2)), nn.BatchNorm3d(12), nn.ReLU(),
            nn.Conv3d(12, 24, 3, 2, 1), nn.BatchNorm3d(24), nn.ReLU(),
            nn.AdaptiveAvgPool3d((4, 4, 4)), nn.Flatten(),
        )
        self.fc = nn.Linear(24 * 64, classes)

    def forward(self, x):
        return self.fc(self.features(x))


def run_epoch(model, loader, optimizer, criterion):
    correct, seen, total = 0, 0, 0.0
    for clips, target in loader:
        out = model(clips)
        loss = criterion(out, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(target)
        correct += (out.argmax(1) == target).sum().item()
        seen += len(target)
    return total / seen, correct / seen


def main():
    torch.manual_seed(0)
    loader = DataLoader(ClipDataset(), batch_size=8, shuffle=True)
    model = TinyR3D()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(6):
        loss, acc = run_epoch(model, loader, optimizer, nn.CrossEntropyLoss())
        print(f"epoch {epoch}: loss {loss:.4f} top1 {acc:.3f}")


main()
