"""Robot control: a policy turns camera and lidar into wheel speeds, twenty times a second.

The step time that is printed is what a tick works; the rest of its 50 ms it sleeps.

Usage (needs torch and numpy)::

    python robot_slow.py
"""

import gc
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

TICKS = 150
PERIOD_S = 0.05
BEAMS = 360
WAYPOINTS = 30_000


@dataclass
class Waypoint:
    """A place on the map, with what the robot knows about it."""

    x: float
    y: float
    tags: list[str]


class Policy(nn.Module):
    """Convolutions over the camera image, a small network over the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.camera = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.lidar = nn.Sequential(nn.Linear(2 * BEAMS, 128), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(512 + 128 + 2, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(
        self, image: torch.Tensor, points: torch.Tensor, goal: torch.Tensor
    ) -> torch.Tensor:
        """Return the speed of the left and the right wheel, float32[1, 2]."""
        seen = self.camera(image), self.lidar(points.flatten(1)), goal
        return torch.tanh(self.head(torch.cat(seen, dim=1)))


def read_camera(rng: np.random.Generator) -> torch.Tensor:
    """Return the camera image, float32[1, 3, 240, 320]."""
    frame = rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)
    return torch.from_numpy(frame).permute(2, 0, 1).unsqueeze(0).float() / 255


def read_lidar(rng: np.random.Generator) -> torch.Tensor:
    """Return where the beams hit, float32[1, 360, 2]."""
    distance = rng.uniform(0.2, 8, BEAMS).astype(np.float32)
    angle = np.linspace(0, 2 * np.pi, BEAMS, endpoint=False, dtype=np.float32)
    points = np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=-1)
    return torch.from_numpy(points).unsqueeze(0)


@torch.inference_mode()
def control(policy: Policy, route: list[Waypoint]) -> None:
    """Drive along the route at a fixed rate."""
    rng = np.random.default_rng(0)
    work_ms = []
    for tick in range(TICKS):
        begin = time.perf_counter()
        gc.collect()
        image, points = read_camera(rng), read_lidar(rng)
        goal = torch.tensor([[route[tick].x, route[tick].y]])
        left, right = policy(image, points, goal)[0].tolist()
        if tick % 20 == 0:
            print(f"tick {tick}: wheels {left:+.4f} {right:+.4f}")
        work_s = time.perf_counter() - begin
        work_ms.append(work_s * 1e3)
        time.sleep(max(0.0, PERIOD_S - work_s))
    late = sum(ms > PERIOD_S * 1e3 for ms in work_ms[5:])
    print(f"{late} of {TICKS - 5} ticks were late")
    print(f"mean step: {statistics.mean(work_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    route = [Waypoint(0.1 * i, 0.05 * i, [f"cell {i}"]) for i in range(WAYPOINTS)]
    control(Policy().eval().to(memory_format=torch.channels_last), route)
