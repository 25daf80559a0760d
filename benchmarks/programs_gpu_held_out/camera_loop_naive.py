"""Gripper control from a live camera: frames are turned into commands."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Camera:
    """A camera delivering `fps` frames a second into page-locked buffers."""

    def __init__(self, fps, height, width, pin):
        self.period = 1.0 / fps
        self.buffers = torch.randint(0, 256, (16, height, width, 3), dtype=torch.uint8)
        if pin:
            self.buffers = self.buffers.pin_memory()
        self.count = 0
        self.start = None

    def read(self):
        if self.start is None:
            self.start = time.perf_counter()
        due = self.start + self.count * self.period
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        frame = self.buffers[self.count % 16]
        self.count += 1
        return due, frame


class KeypointNet(nn.Module):
    def __init__(self, width, depth, points):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width // 2, 7, 2, 3), nn.ReLU(inplace=True), nn.Conv2d(width // 2, width, 3, 2, 1), nn.ReLU(inplace=True))
        self.body = nn.ModuleList([
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(depth)])
        self.heat = nn.Conv2d(width, points, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.body:
            x = F.relu(x + block(x))
        heat = self.heat(x).float()
        n, k, h, w = heat.shape
        prob = heat.flatten(2).softmax(-1).view(n, k, h, w)
        ys = torch.linspace(-1, 1, h, device=x.device)
        xs = torch.linspace(-1, 1, w, device=x.device)
        return torch.stack([(prob.sum(2) * xs).sum(-1), (prob.sum(3) * ys).sum(-1)], -1)


class Controller:
    def __init__(self, net, device, size, batch=5):
        self.net, self.device, self.size = net, device, size
        self.batch = batch
        self.smooth = None
        self.latency = []

    def perceive(self, frames):
        x = frames.to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        x = F.interpolate(x.to(torch.bfloat16), size=self.size, mode="bilinear").div_(127.5).sub_(1)
        return self.net(x.contiguous(memory_format=torch.channels_last))

    def act(self, due, points):
        self.smooth = points if self.smooth is None else 0.7 * self.smooth + 0.3 * points
        command = (self.smooth.mean(0) * 0.5).tolist()
        self.latency.append(time.perf_counter() - due)
        return command

    def run(self, camera, frames):
        waiting = []
        for _ in range(frames):
            # STEP
            waiting.append(camera.read())
            if len(waiting) == self.batch:
                points = self.perceive(torch.stack([frame for _, frame in waiting])).cpu()
                for (due, _), p in zip(waiting, points):
                    self.act(due, p)
                waiting.clear()
        late = sorted(self.latency)
        print(f"frames {len(late)}  latency median {late[len(late) // 2] * 1e3:.1f} ms  worst {late[-1] * 1e3:.1f} ms")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fps", type=float, default=30.0)
    ap.add_argument("--frames", type=int, default=150)
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    height, width, size, channels, depth = 720, 1280, (384, 672), 128, 12
    if args.small:
        height, width, size, channels, depth, args.frames = 48, 64, (32, 32), 8, 2, 12
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = KeypointNet(channels, depth, 8).to(device, torch.bfloat16).to(memory_format=torch.channels_last).eval()
    camera = Camera(args.fps, height, width, device.type == "cuda")
    controller = Controller(net, device, size)
    with torch.inference_mode():
        for _ in range(3):
            controller.perceive(camera.buffers[:controller.batch]).cpu()
        controller.run(camera, args.frames)


if __name__ == "__main__":
    main()
