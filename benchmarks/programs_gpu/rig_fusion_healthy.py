"""On-vehicle fusion node: six cameras, one lidar and the IMU at 30 Hz -> steering/brake command.

The command of a frame must leave before the next frame arrives. Its spread over
dropout samples goes to the safety monitor, which brakes when the model is unsure.
"""
import argparse
import time

import numpy as np
import torch
from torch import nn


class Rig:
    """Replays synthetic sensor frames at the pace of the real rig."""

    def __init__(self, cameras, height, width, points, rate, seed=2):
        self.rng = np.random.default_rng(seed)
        self.pool = self.rng.integers(0, 256, (8, cameras, 3, height, width), dtype=np.uint8)
        self.lidar = self.rng.normal(0, 15, (8, points, 4)).astype(np.float32)
        self.imu = self.rng.normal(0, 1, (8, 32, 6)).astype(np.float32)
        self.period = 1.0 / rate

    def frames(self, count):
        due = time.perf_counter()
        for n in range(count):
            due = max(due + self.period, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
            i = n % 8
            yield time.perf_counter(), self.pool[i], self.lidar[i], self.imu[i]


class CameraEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        chans = [3, width, width * 2, width * 4, width * 4]
        self.layers = nn.Sequential(*[
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU(),
                          nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in zip(chans[:-1], chans[1:])])

    def forward(self, images):
        x = (images.to(torch.float16 if images.is_cuda else torch.float32) / 127.5 - 1.0)
        return self.layers(x.contiguous(memory_format=torch.channels_last)).mean((2, 3)).flatten().float()


class LidarEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width * 2), nn.ReLU(),
                                    nn.Linear(width * 2, width * 4))

    def forward(self, cloud):
        return self.points(cloud / 15.0).amax(0)


class FusionNet(nn.Module):
    def __init__(self, cameras, width, samples):
        super().__init__()
        self.samples = samples
        self.camera = CameraEncoder(width)
        self.lidar = LidarEncoder(width)
        self.imu = nn.GRU(6, width, batch_first=True)
        fused = cameras * width * 4 + width * 4 + width
        self.head = nn.Sequential(
            nn.Linear(fused, 512), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(512, 2))

    def forward(self, images, cloud, imu):
        motion = self.imu(imu.unsqueeze(0))[1].flatten()
        fused = torch.cat([self.camera(images), self.lidar(cloud), motion])
        votes = self.head(fused.expand(self.samples, -1))
        return torch.stack([votes.mean(0), votes.std(0)])


class Node:
    def __init__(self, model, device):
        self.model, self.device = model, device
        self.latency, self.sent = [], []

    def upload(self, array):
        return torch.from_numpy(array).to(self.device)

    @torch.inference_mode()
    def process(self, stamp, images, cloud, imu):
        out = self.model(self.upload(images), self.upload(cloud), self.upload(imu)).cpu()
        self.send(stamp, out.numpy())

    def send(self, stamp, out):
        (steer, brake), (steer_std, brake_std) = out.tolist()
        if steer_std > 0.25 or brake_std > 0.25:
            brake = 1.0
        self.sent.append((steer, brake, steer_std))
        self.latency.append(time.perf_counter() - stamp)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    ap.add_argument("--rate", type=float, default=30.0)
    ap.add_argument("--frames", type=int, default=240)
    ap.add_argument("--samples", type=int, default=32)
    a = ap.parse_args()
    cameras, height, width, points, channels = 6, 384, 704, 60_000, 64
    if a.small:
        cameras, height, width, points, channels, a.frames = 2, 32, 32, 50, 8, 5

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(6)
    model = FusionNet(cameras, channels, a.samples).to(device)
    model.eval()
    for layer in model.head:
        if isinstance(layer, nn.Dropout):
            layer.train()
    model.camera.to(memory_format=torch.channels_last)
    if device.type == "cuda":
        model.camera.half()

    node = Node(model, device)
    rig = Rig(cameras, height, width, points, a.rate)
    for stamp, images, cloud, imu in rig.frames(a.frames):
        # STEP
        node.process(stamp, images, cloud, imu)

    lat = np.array(node.latency) * 1e3
    print(f"latency ms: median {np.median(lat):.2f}  p99 {np.percentile(lat, 99):.2f}")
    print("last command", node.sent[-1])


if __name__ == "__main__":
    main()
