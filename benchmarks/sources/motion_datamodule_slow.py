import glob
import os

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

from src.models.delta import DeltaInterpolator
from src.utils.bvh import load_bvh


class ClipWindows(Dataset):
    def __init__(self, clips, window=65, stride=20, augment=False):
        self.clips = clips
        self.window = window
        self.augment = augment
        self.index = [
            (c, s) for c, clip in enumerate(clips) for s in range(0, len(clip["rot"]) - window + 1, stride)
        ]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        c, s = self.index[i]
        clip = self.clips[c]
        rot = clip["rot"][s:s + self.window]
        pos = clip["pos"][s:s + self.window].copy()
        pos[:, [0, 2]] -= pos[:1, [0, 2]]
        if self.augment:
            angle = np.random.uniform(0, 2 * np.pi)
            c_, s_ = np.cos(angle), np.sin(angle)
            pos[:, [0, 2]] = pos[:, [0, 2]] @ np.array([[c_, -s_], [s_, c_]], dtype=np.float32)
        return {"rot": torch.from_numpy(rot), "pos": torch.from_numpy(pos)}


class LafanDataModule(pl.LightningDataModule):
    def __init__(self, root, batch_size=2048, num_workers=16, debug=False):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        clips = [load_bvh(p) for p in sorted(glob.glob(os.path.join(self.hparams.root, "*.bvh")))]
        held = {"subject5"}
        self.train_ds = ClipWindows([c for c in clips if c["subject"] not in held], augment=True)
        self.val_ds = ClipWindows([c for c in clips if c["subject"] in held], stride=40)

    def train_dataloader(self):
        if self.hparams.debug:
            return DataLoader(self.train_ds, batch_size=8, num_workers=0)
        return DataLoader(
            self.train_ds, batch_size=self.hparams.batch_size, shuffle=True,
            num_workers=self.hparams.num_workers, pin_memory=True, drop_last=True,
        )

    def val_dataloader(self):
        return DataLoader(self.val_ds, batch_size=512, num_workers=self.hparams.num_workers, pin_memory=True)


def main():
    pl.seed_everything(0)
    data = LafanDataModule("data/lafan1", batch_size=2048, num_workers=16)
    model = DeltaInterpolator(hidden=1024, heads=8, layers=6)
    trainer = pl.Trainer(
        max_epochs=300, accelerator="gpu", devices=1, precision="16-mixed",
        check_val_every_n_epoch=1, log_every_n_steps=50,
        callbacks=[ModelCheckpoint(monitor="val/l2q", save_top_k=1), LearningRateMonitor()],
    )
    trainer.fit(model, datamodule=data)


if __name__ == "__main__":
    main()
