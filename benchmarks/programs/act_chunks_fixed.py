"""Behaviour cloning with action chunks (ACT style, no CVAE) on scripted demonstrations.

A two-camera "reach and push" task is rendered by the script itself; the policy sees the last
two frames of each camera and the joint state and predicts a chunk of 16 joint targets.
"""
from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    num_episodes: int = 24
    episode_len: int = 60
    image_size: int = 48
    obs_horizon: int = 2
    chunk: int = 16
    joints: int = 7
    batch_size: int = 24
    steps: int = 50
    lr: float = 3e-4
    width: int = 128
    seed: int = 7


CAMERAS = ("top", "wrist")


def render(xy: np.ndarray, goal: np.ndarray, size: int, zoom: float) -> np.ndarray:
    """Draw gripper and goal blobs for a whole episode: (T, 2) -> (T, size, size, 3) uint8."""
    g = (np.arange(size, dtype=np.float32) / size - 0.5) / zoom
    xx, yy = np.meshgrid(g, g)
    hand = np.exp(-((xx - xy[:, 0, None, None]) ** 2 + (yy - xy[:, 1, None, None]) ** 2) * 90)
    ball = np.exp(-((xx - goal[0]) ** 2 + (yy - goal[1]) ** 2) * 60)
    frames = np.stack([hand, np.broadcast_to(ball, hand.shape), 0.3 * hand + 0.2], axis=-1)
    return (np.clip(frames, 0, 1) * 255).astype(np.uint8)


def record_demos(cfg: Config) -> list[dict]:
    rng = np.random.default_rng(cfg.seed)
    demos = []
    for _ in range(cfg.num_episodes):
        start, goal = rng.uniform(-0.4, 0.4, (2, 2)).astype(np.float32)
        s = np.linspace(0, 1, cfg.episode_len, dtype=np.float32)[:, None]
        xy = start + (goal - start) * (3 * s**2 - 2 * s**3)
        mix = np.linspace(-1, 1, 2 * cfg.joints, dtype=np.float32).reshape(2, cfg.joints)
        qpos = np.tanh(xy @ mix) + 0.01 * rng.standard_normal((cfg.episode_len, cfg.joints))
        qpos = qpos.astype(np.float32)
        action = np.concatenate([qpos[1:], qpos[-1:]])
        demos.append({
            "images": {"top": render(xy, goal, cfg.image_size, 1.0),
                       "wrist": render(xy - goal, np.zeros(2, np.float32), cfg.image_size, 2.0)},
            "qpos": qpos,
            "action": action,
        })
    return demos


class DemoStore:
    """Holds raw demonstrations and knows how to turn them into network-ready tensors."""

    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)

    def __init__(self, demos: list[dict]):
        self.demos = demos
        q = np.concatenate([d["qpos"] for d in demos])
        self.q_mean, self.q_std = q.mean(0), q.std(0) + 1e-3

    def __len__(self):
        return len(self.demos)

    def length(self, index: int) -> int:
        return len(self.demos[index]["qpos"])

    def _frames(self, raw: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(raw).permute(0, 3, 1, 2).float() / 255.0
        return (x - self.mean) / self.std

    def read(self, index: int, frames: slice) -> dict:
        demo = self.demos[index]
        return {
            "images": {cam: self._frames(demo["images"][cam][frames]) for cam in CAMERAS},
            "qpos": torch.from_numpy((demo["qpos"] - self.q_mean) / self.q_std),
            "action": torch.from_numpy((demo["action"] - self.q_mean) / self.q_std),
        }


class ChunkDataset(Dataset):
    def __init__(self, store: DemoStore, cfg: Config):
        self.store, self.cfg = store, cfg
        self.index = [(e, t) for e in range(len(store)) for t in range(cfg.obs_horizon - 1, store.length(e))]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i: int) -> dict:
        ep, t = self.index[i]
        lo = t - self.cfg.obs_horizon + 1
        sample = self.store.read(ep, frames=slice(lo, t + 1))
        action = sample["action"][t:t + self.cfg.chunk]
        pad = self.cfg.chunk - len(action)
        is_pad = torch.zeros(self.cfg.chunk, dtype=torch.bool)
        if pad:
            is_pad[-pad:] = True
            action = F.pad(action, (0, 0, 0, pad))
        return {
            "images": torch.stack([sample["images"][cam] for cam in CAMERAS]),
            "qpos": sample["qpos"][t],
            "action": action,
            "is_pad": is_pad,
        }


class FrameEncoder(nn.Module):
    def __init__(self, out: int):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, out, 3, stride=2, padding=1))

    def forward(self, x):
        return self.net(x).flatten(2).transpose(1, 2)          # (N, tokens, out)


class ChunkPolicy(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        d = cfg.width
        tokens = (math.ceil(cfg.image_size / 8)) ** 2
        self.encoders = nn.ModuleDict({cam: FrameEncoder(d) for cam in CAMERAS})
        self.pos = nn.Parameter(0.02 * torch.randn(len(CAMERAS), cfg.obs_horizon, tokens, d))
        self.proprio = nn.Linear(cfg.joints, d)
        self.queries = nn.Parameter(0.02 * torch.randn(cfg.chunk, d))
        layer = nn.TransformerDecoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.head = nn.Linear(d, cfg.joints)

    def forward(self, images, qpos):
        b, _, h = images.shape[:3]
        memory = [self.proprio(qpos).unsqueeze(1)]
        for c, cam in enumerate(CAMERAS):
            tok = self.encoders[cam](images[:, c].flatten(0, 1)).unflatten(0, (b, h)) + self.pos[c]
            memory.append(tok.flatten(1, 2))
        out = self.decoder(self.queries.expand(b, -1, -1), torch.cat(memory, dim=1))
        return self.head(out)


def masked_l1(pred, target, is_pad):
    err = (pred - target).abs().mean(-1)
    keep = (~is_pad).float()
    return (err * keep).sum() / keep.sum()


def forever(loader):
    while True:
        yield from loader


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    data = ChunkDataset(DemoStore(record_demos(cfg)), cfg)
    loader = DataLoader(data, cfg.batch_size, shuffle=True, drop_last=True)
    policy = ChunkPolicy(cfg)
    opt = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, weight_decay=1e-4, fused=True)
    print(f"{len(data)} windows, {sum(p.numel() for p in policy.parameters()) / 1e6:.2f} M parameters")
    t0, running = time.time(), 0.0
    for step, batch in zip(range(cfg.steps), forever(loader)):
        loss = masked_l1(policy(batch["images"], batch["qpos"]), batch["action"], batch["is_pad"])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running += loss.detach()
        if (step + 1) % 25 == 0:
            print(f"step {step + 1:4d}  l1 {running.item() / 25:.5f}")
            running = 0.0
    took = time.time() - t0
    print(f"{cfg.steps} steps in {took:.1f} s ({1e3 * took / cfg.steps:.1f} ms/step)")


if __name__ == "__main__":
    main()
