"""Counting people on a recorded camera stream; frames are read ahead by a thread."""
import queue
import threading

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Recording:
    """Stands in for cv2.VideoCapture."""

    def __init__(self, n_frames, size=(240, 320), seed=7):
        self.n_frames, self.size = n_frames, size
        self.rng = np.random.default_rng(seed)
        self.base = self.rng.integers(0, 90, (*size, 3), dtype=np.uint8)
        self.index = 0

    def read(self):
        if self.index >= self.n_frames:
            return False, None
        frame = self.base.copy()
        for k in range(4):
            y = (17 * k + 2 * self.index) % (self.size[0] - 24)
            x = (43 * k + 3 * self.index) % (self.size[1] - 12)
            frame[y:y + 24, x:x + 12] = 200 + 10 * k
        self.index += 1
        return True, frame


class FrameStream:
    def __init__(self, capture, queue_size=16):
        self.capture = capture
        self.stopped = False
        self.frames = queue.Queue(maxsize=queue_size)
        self.thread = threading.Thread(target=self.update, daemon=True)

    def start(self):
        self.thread.start()
        return self

    def update(self):
        while not self.stopped:
            if not self.frames.full():
                grabbed, frame = self.capture.read()
                if not grabbed:
                    self.stopped = True
                    self.frames.put(None)
                    break
                self.frames.put(frame)

    def read(self):
        return self.frames.get()

    def stop(self):
        self.stopped = True
        self.thread.join()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(inplace=True),
        )
        self.heat = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        return torch.sigmoid(self.heat(self.backbone(x)))


def preprocess(frame):
    x = torch.from_numpy(frame).permute(2, 0, 1)[None].float()
    return x.div_(255).sub_(0.45).div_(0.225)


def peaks(heat, k=8):
    top = F.max_pool2d(heat, 5, 1, 2)
    scores, where = (heat * (heat == top)).flatten().topk(k)
    return scores, where


class Tracker:
    def __init__(self, decay=0.9):
        self.decay = decay
        self.level = None

    def step(self, scores):
        m = scores.mean()
        self.level = m if self.level is None else self.decay * self.level + (1 - self.decay) * m
        return (scores > self.level).sum()


@torch.inference_mode()
def serve(n_frames=90):
    torch.manual_seed(2)
    model = Detector().eval()
    tracker = Tracker()
    stream = FrameStream(Recording(n_frames)).start()
    counts = []
    while True:
        frame = stream.read()
        if frame is None:
            break
        heat = model(preprocess(frame))
        scores, _ = peaks(heat)
        counts.append(tracker.step(scores).item())
        if len(counts) % 30 == 0:
            print(f"frame {len(counts)}: people {counts[-1]}, mean {sum(counts) / len(counts):.2f}")
    stream.stop()
    return counts


if __name__ == "__main__":
    result = serve()
    print("frames", len(result), "total", sum(result))
