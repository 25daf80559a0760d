from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.io import read_video
from torchvision.transforms import v2

CAMERAS = ("front_wide", "front_tele", "cross_left", "cross_right", "rear_left", "rear_right", "rear_tele")


@dataclass
class Sample:
    clip: str
    t_us: int


class DriveClips(Dataset):
    def __init__(self, root, split, history=64, future=64, n_frames=4, frame_gap=5, size=(256, 448)):
        self.root = Path(root)
        self.history, self.future = history, future
        self.n_frames, self.frame_gap = n_frames, frame_gap
        self.tf = v2.Compose([
            v2.Resize(size, antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ])
        self.samples = []
        for clip in (self.root / f"{split}.txt").read_text().split():
            stamps = np.load(self.root / "egomotion" / f"{clip}.stamps.npy")
            for t in stamps[history:-future]:
                self.samples.append(Sample(clip, int(t)))

    def __len__(self):
        return len(self.samples)

    def frames(self, clip, camera, t_us):
        base = self.root / "video" / camera
        stamps = np.load(base / f"{clip}.stamps.npy")
        last = int(np.searchsorted(stamps, t_us, side="right")) - 1
        wanted = [max(0, last - k * self.frame_gap) for k in reversed(range(self.n_frames))]
        video, _, _ = read_video(str(base / f"{clip}.mp4"), pts_unit="sec", output_format="TCHW")
        return self.tf(torch.stack([video[i] for i in wanted]))

    def egomotion(self, clip, t_us):
        df = pd.read_parquet(self.root / "egomotion" / f"{clip}.parquet")
        xyz = df[["x", "y", "heading", "speed"]].to_numpy(dtype=np.float32)
        i = int(np.searchsorted(df["timestamp"].to_numpy(), t_us))
        local = xyz[i - self.history:i + self.future].copy()
        c, s = np.cos(xyz[i, 2]), np.sin(xyz[i, 2])
        rot = np.array([[c, -s], [s, c]], dtype=np.float32)
        local[:, :2] = (local[:, :2] - xyz[i, :2]) @ rot
        local[:, 2] -= xyz[i, 2]
        return torch.from_numpy(local[:self.history]), torch.from_numpy(local[self.history:])

    def __getitem__(self, idx):
        s = self.samples[idx]
        cams = torch.stack([self.frames(s.clip, c, s.t_us) for c in CAMERAS])
        past, future = self.egomotion(s.clip, s.t_us)
        return {"images": cams, "past": past, "future": future}


def make_loader(root, split, batch_size=4):
    return DataLoader(
        DriveClips(root, split), batch_size=batch_size, shuffle=split == "train",
        num_workers=12, pin_memory=True, persistent_workers=True, prefetch_factor=2,
    )


if __name__ == "__main__":
    for batch in make_loader("/data/physical_ai", "train"):
        print({k: tuple(v.shape) for k, v in batch.items()})
        break
