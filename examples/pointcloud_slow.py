"""Point clouds: a PointNet++ learns to tell solids apart by points on their surface.

Usage (needs torch)::

    python pointcloud_slow.py
"""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 100
BATCH_SIZE = 16
POINTS = 512
CENTRES = 48
NEIGHBOURS = 16


def make_clouds(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points on spheres, cubes and cylinders, float32[count, 512, 3], and the solid."""
    solid = torch.arange(count) % 3
    points = torch.randn(count, POINTS, 3)
    sphere = points / points.norm(dim=-1, keepdim=True)
    cube = points / points.abs().amax(dim=-1, keepdim=True)
    round_part = points[..., :2] / points[..., :2].norm(dim=-1, keepdim=True)
    cylinder = torch.cat([round_part, points[..., 2:].clamp(-1, 1)], dim=-1)
    solids = torch.stack([sphere, cube, cylinder])
    return solids[solid, torch.arange(count)], solid


def farthest_points(clouds: torch.Tensor, count: int) -> torch.Tensor:
    """Return points that are far from each other, float32[batch, count, 3]."""
    which = torch.arange(len(clouds))
    picked = clouds[:, :1]
    distance = torch.full(clouds.shape[:2], torch.inf)
    centres = []
    for _ in range(count):
        centres.append(picked)
        distance = torch.minimum(distance, (clouds - picked).square().sum(dim=-1))
        picked = clouds[which, distance.argmax(dim=-1)].unsqueeze(1)
    return torch.cat(centres, dim=1)


class PointNet(nn.Module):
    """One set-abstraction layer, and one PointNet over its centres."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.whole = nn.Sequential(nn.Linear(width + 3, 2 * width), nn.ReLU())
        self.head = nn.Linear(2 * width, 3)

    def forward(self, clouds: torch.Tensor) -> torch.Tensor:
        """Return class scores, float32[batch, 3]."""
        centres = torch.cat([farthest_points(cloud.unsqueeze(0), CENTRES) for cloud in clouds])
        near = torch.cdist(centres, clouds).topk(NEIGHBOURS, largest=False).indices
        which = torch.arange(len(clouds)).view(-1, 1, 1)
        groups = clouds[which, near] - centres.unsqueeze(2)
        features = self.local(groups).amax(dim=2)
        return self.head(self.whole(torch.cat([features, centres], dim=-1)).amax(dim=1))


def main() -> None:
    """Train on random batches of clouds and print the loss now and then."""
    clouds, solid = make_clouds(300)
    model = PointNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step_ms = []
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = torch.randint(len(clouds), (BATCH_SIZE,))
        loss = F.cross_entropy(model(clouds[batch]), solid[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"mean step: {statistics.mean(step_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
