# Camera pipeline: a capture thread, a detector loop, a thread that turns detections into tracks.
import queue
import threading

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FRAMES = 70
H, W = 120, 160
torch.manual_seed(21)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.b1 = nn.Conv2d(24, 48, 3, stride=2, padding=1)
        self.b2 = nn.Conv2d(48, 48, 3, padding=1)
        self.b3 = nn.Conv2d(48, 48, 3, padding=1)
        self.heat = nn.Conv2d(48, 1, 1)
        self.size = nn.Conv2d(48, 2, 1)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.b1(x))
        x = x + F.relu(self.b2(x))
        x = x + F.relu(self.b3(x))
        return self.heat(x).sigmoid(), F.softplus(self.size(x))


def peaks(heat, size, k=8):
    local = F.max_pool2d(heat, 3, stride=1, padding=1)
    score, where = (heat * (heat == local)).flatten(1).topk(k)
    w = heat.shape[-1]
    ys, xs = where // w, where % w
    wh = size.flatten(2).gather(2, where.unsqueeze(1).expand(-1, 2, -1))[0]
    return torch.stack([xs[0].float(), ys[0].float(), wh[0], wh[1], score[0]], dim=1)


def capture(out, frames):
    rng = np.random.default_rng(9)
    background = rng.integers(0, 120, (H, W, 3), dtype=np.uint8)
    for i in range(frames):
        frame = background.copy()
        y, x = (7 * i) % (H - 20), (11 * i) % (W - 20)
        frame[y:y + 20, x:x + 20] = 250
        out.put(frame)
    out.put(None)


class Tracker(threading.Thread):
    """Assigns detections to the nearest open track."""

    def __init__(self):
        super().__init__(daemon=True)
        self.inbox = queue.Queue()
        self.tracks = []

    def assign(self, dets):
        for x, y, w, h, s in dets:
            best, gap = None, 6.0
            for tr in self.tracks:
                d = abs(tr["x"] - x) + abs(tr["y"] - y)
                if d < gap:
                    best, gap = tr, d
            if best is None:
                self.tracks.append({"x": x, "y": y, "hits": 1})
            else:
                best["x"], best["y"] = x, y
                best["hits"] += 1

    def run(self):
        while True:
            dets = self.inbox.get()
            if dets is None:
                break
            self.assign(dets)

    def close(self):
        self.inbox.put(None)
        self.join()


def to_input(frame):
    x = torch.from_numpy(frame).permute(2, 0, 1).float().div_(255.0)
    return x.unsqueeze(0)


def main():
    frames = queue.Queue(maxsize=8)
    grabber = threading.Thread(target=capture, args=(frames, FRAMES), daemon=True)
    tracker = Tracker()
    net = Detector().eval()
    grabber.start()
    tracker.start()
    seen, strongest = 0, 0.0
    with torch.no_grad():
        while True:
            frame = frames.get()
            if frame is None:
                break
            heat, size = net(to_input(frame))
            dets = peaks(heat, size)
            strongest = max(strongest, dets[:, 4].max().item())
            tracker.inbox.put(dets.tolist())
            seen += 1
    tracker.close()
    hits = sorted((t["hits"] for t in tracker.tracks), reverse=True)
    print(f"{seen} frames, {len(tracker.tracks)} tracks, best score {strongest:.3f}")
    print("longest tracks:", hits[:5])


if __name__ == "__main__":
    main()
