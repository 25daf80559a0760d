"""Shelf monitoring: live camera at 5 fps -> detector heat map -> alarm log.

The frame grabber is a stand-in for the vendor SDK (blocking call, one frame per period).
"""
import collections
import threading
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Settings:
    fps: float = 5.0
    frames: int = 110
    height: int = 240
    width: int = 320
    heartbeat_s: float = 2.0
    threshold: float = 0.62
    vote: int = 5


class Grabber:
    """delivers frames at the sensor rate, like the SDK does"""

    def __init__(self, cfg):
        self.cfg = cfg
        self.rng = np.random.default_rng(4)
        self.base = self.rng.integers(30, 90, (cfg.height, cfg.width, 3), dtype=np.uint8)
        self.start = time.perf_counter()
        self.n = 0

    def grab(self):
        due = self.start + (self.n + 1) / self.cfg.fps
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        self.n += 1
        img = self.base.copy()
        if (self.n // 20) % 2:
            img[60:140, 100:220] = 210
        return self.n, img

    def frames(self):
        while self.n < self.cfg.frames:
            yield self.grab()


class HeatNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, w, 5, 4, 2), nn.BatchNorm2d(w), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(w, w * 2, 3, 2, 1), nn.BatchNorm2d(w * 2), nn.ReLU())
        self.c = nn.Conv2d(w * 2, 1, 1)

    def forward(self, x):
        return torch.sigmoid(self.c(self.b(self.a(x))))


class Heartbeat(threading.Thread):
    def __init__(self, period):
        super().__init__(daemon=True)
        self.period, self.stop = period, threading.Event()
        self.beats = 0

    def run(self):
        while not self.stop.wait(self.period):
            self.beats += 1


class Alarm:
    def __init__(self, cfg):
        self.votes = collections.deque(maxlen=cfg.vote)
        self.on = False
        self.log = []
        self.lock = threading.Lock()

    def feed(self, n, hit):
        self.votes.append(hit)
        state = sum(self.votes) * 2 > len(self.votes)
        if state != self.on:
            with self.lock:
                self.on = state
                self.log.append((n, "ON" if state else "off"))


def to_tensor(img):
    x = torch.from_numpy(img).permute(2, 0, 1)[None].float() / 255
    return (x - 0.3) / 0.25


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cfg = Settings()
    net = HeatNet().eval()
    ref = None
    alarm, beat = Alarm(cfg), Heartbeat(cfg.heartbeat_s)
    beat.start()
    compute, late = [], 0
    cam = Grabber(cfg)
    for n, img in cam.frames():
        t0 = time.perf_counter()
        with torch.inference_mode():
            heat = net(to_tensor(img))
            big = F.interpolate(heat, size=(cfg.height, cfg.width), mode="bilinear", align_corners=False)
            if ref is None:
                ref = big.clone()
            diff = (big - ref).abs().amax().item()
        alarm.feed(n, diff > 0.02)
        compute.append(time.perf_counter() - t0)
        late += compute[-1] > 1 / cfg.fps
        if n % 25 == 0:
            print(f"frame {n} diff {diff:.4f} alarm {alarm.on}")
    beat.stop.set()
    beat.join()
    total = time.perf_counter() - cam.start
    print("alarm log:", alarm.log)
    print(f"{cfg.frames} frames in {total:.1f} s = {cfg.frames / total:.2f} fps, "
          f"late {late}, compute p50 {1e3 * np.median(compute):.1f} ms, beats {beat.beats}")


if __name__ == "__main__":
    main()
