"""Online action recognition: sliding window over a (simulated) camera stream."""
import collections
import time

import numpy as np
import torch
import torch.nn as nn

T = 8
SIZE = 112
N_FRAMES = 420
CLASSES = ["idle", "walk", "run", "wave", "sit", "fall", "jump", "pick"]


class FrameEncoder(nn.Module):
    """small mobilenet-ish CNN"""

    def __init__(self, width=40, dim=128):
        super().__init__()
        chans = [3, width, width * 2, width * 4, width * 4]
        blocks = []
        for i, o in zip(chans[:-1], chans[1:]):
            blocks += [
                nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(o),
                nn.Hardswish(inplace=True),
                nn.Conv2d(o, o, 3, padding=1, groups=o, bias=False),
                nn.Conv2d(o, o, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.Hardswish(inplace=True),
            ]
        self.body = nn.Sequential(*blocks)
        self.proj = nn.Linear(chans[-1], dim)

    def forward(self, x):
        return self.proj(self.body(x).mean((2, 3)))


class TemporalHead(nn.Module):
    def __init__(self, dim=128, depth=2, n_cls=len(CLASSES)):
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, 4, dim * 2, dropout=0.1, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pos = nn.Parameter(torch.randn(1, T, dim) * 0.02)
        self.fc = nn.Linear(dim, n_cls)

    def forward(self, f):
        return self.fc(self.enc(f + self.pos[:, : f.size(1)])[:, -1])


class Camera:
    """720p-ish source; a bright blob moves over noise"""

    def __init__(self, n, h=360, w=480, seed=0):
        self.n, self.h, self.w = n, h, w
        self.rng = np.random.default_rng(seed)
        self.bg = self.rng.integers(0, 120, (h, w, 3), dtype=np.uint8)

    def __iter__(self):
        for i in range(self.n):
            frame = self.bg.copy()
            cx = int(self.w / 2 + 150 * np.sin(i / 9))
            cy = int(self.h / 2 + 90 * np.cos(i / 7))
            frame[cy - 30:cy + 30, cx - 30:cx + 30] = 220
            yield frame


class Smoother:
    def __init__(self, k=0.7):
        self.k, self.p = k, None

    def __call__(self, p):
        self.p = p if self.p is None else self.k * self.p + (1 - self.k) * p
        return self.p


class OnlineRecognizer:
    def __init__(self):
        torch.manual_seed(5)
        self.encoder = FrameEncoder().eval()
        self.head = TemporalHead().eval()
        self.mean = torch.tensor([0.45, 0.45, 0.45]).view(3, 1, 1)
        self.std = torch.tensor([0.225, 0.225, 0.225]).view(3, 1, 1)
        self.window = collections.deque(maxlen=T)
        self.smooth = Smoother()

    def preprocess(self, frame):
        x = torch.from_numpy(frame).permute(2, 0, 1).float().div_(255)
        x = nn.functional.interpolate(x[None], size=(SIZE, SIZE), mode="bilinear",
                                      antialias=True, align_corners=False)[0]
        return (x - self.mean) / self.std

    @torch.inference_mode()
    def push(self, frame):
        self.window.append(self.preprocess(frame))
        if len(self.window) < T:
            return None
        clip = torch.stack(list(self.window))
        feats = self.encoder(clip)
        logits = self.head(feats[None])[0]
        return self.smooth(logits.softmax(-1))


def main():
    rec = OnlineRecognizer()
    events = []
    lat = []
    last = None
    for i, frame in enumerate(Camera(N_FRAMES)):
        t0 = time.perf_counter()
        probs = rec.push(frame)
        if probs is not None:
            top = int(probs.argmax())
            if top != last:
                events.append((i, CLASSES[top], round(probs[top].item(), 4)))
                last = top
        lat.append(time.perf_counter() - t0)
        if i % 40 == 0 and probs is not None:
            print(i, " ".join(f"{p:.3f}" for p in probs.tolist()))
    print("events:", events)
    print("probs:", np.round(probs.numpy(), 4))
    print(f"latency p50 {1e3 * np.median(lat[T:]):.2f} ms")


if __name__ == "__main__":
    main()
