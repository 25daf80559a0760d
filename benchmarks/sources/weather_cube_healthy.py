import random

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

VARS = ("t2m", "u10", "v10", "msl", "tp")


class WeatherCube(Dataset):
    """Random patches from an hourly reanalysis cube, chunked (1, V, 64, 64)."""

    def __init__(self, path, years, patch=128, lead=6, training=True):
        self.path, self.patch, self.lead, self.training = path, patch, lead, training
        self._file = None
        with h5py.File(path, "r") as f:
            stamps = f["time/year"][:]
            self.shape = f["fields"].shape
            self.mean = f["stats/mean"][:].astype(np.float32)[:, None, None]
            self.std = f["stats/std"][:].astype(np.float32)[:, None, None]
        valid = np.flatnonzero(np.isin(stamps, list(years)))
        self.times = valid[valid + lead < self.shape[0]]

    @property
    def fields(self):
        if self._file is None:
            self._file = h5py.File(self.path, "r", rdcc_nbytes=64 * 2**20)
        return self._file["fields"]

    def __getstate__(self):
        state = self.__dict__.copy()
        state["_file"] = None
        return state

    def __len__(self):
        return len(self.times)

    def window(self):
        h, w = self.shape[-2:]
        if not self.training:
            return (h - self.patch) // 2, (w - self.patch) // 2
        return random.randint(0, h - self.patch), random.randint(0, w - self.patch)

    def read(self, t, y, x):
        block = self.fields[t, :, y:y + self.patch, x:x + self.patch]
        return (block - self.mean) / self.std

    def __getitem__(self, i):
        t = int(self.times[i])
        y, x = self.window()
        now, later = self.read(t, y, x), self.read(t + self.lead, y, x)
        if self.training and random.random() < 0.5:
            now, later = now[..., ::-1], later[..., ::-1]
            now, later = now.copy(), later.copy()
            now[VARS.index("u10")] *= -1
            later[VARS.index("u10")] *= -1
        return torch.from_numpy(now), torch.from_numpy(later)


def loaders(path, batch_size=32, workers=8, debug=False):
    train = WeatherCube(path, range(1979, 2016))
    valid = WeatherCube(path, range(2016, 2018), training=False)
    if debug:
        train = Subset(train, range(256))
    kw = dict(batch_size=batch_size, num_workers=workers, pin_memory=True, persistent_workers=True)
    return DataLoader(train, shuffle=True, drop_last=True, **kw), DataLoader(valid, **kw)


def summarise(loader, n=20):
    """Prints moments of some batches, for a look at the normalisation."""
    first, second, count = torch.zeros(len(VARS)), torch.zeros(len(VARS)), 0
    for k, (x, _) in enumerate(loader):
        if k == n:
            break
        first += x.mean(dim=(0, 2, 3))
        second += x.square().mean(dim=(0, 2, 3))
        count += 1
    std = (second / count - (first / count) ** 2).sqrt()
    for v, m, s in zip(VARS, first / count, std):
        print(f"{v:4s} mean {m.item():+.3f} std {s.item():.3f}")


if __name__ == "__main__":
    tr, va = loaders("/data/era5_na.h5")
    summarise(tr)
