import ast
from pathlib import Path

import h5py
import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision.transforms import v2


class SlideTiles(Dataset):
    """Tiles of one preprocessed slide (`*.h5path`)."""

    def __init__(self, path, transform=None, with_mask=True):
        self.path = str(path)
        self.transform = transform
        self.with_mask = with_mask
        with h5py.File(self.path, "r") as meta:
            self.tile_shape = ast.literal_eval(meta["tiles"].attrs["tile_shape"])
            self.n_tiles = len(meta["tiles"])
            self.slide_label = int(meta["fields/labels"].attrs["grade"])

    def __len__(self):
        return self.n_tiles

    def __getitem__(self, ix):
        with h5py.File(self.path, "r") as f:
            key = list(f["tiles"].keys())[ix]
            coords = ast.literal_eval(key)
            window = tuple(slice(c, c + s) for c, s in zip(coords, self.tile_shape))
            image = f["array"][window]
            mask = None
            if self.with_mask and "masks" in f:
                mask = f["masks/tissue"][window[:2]]
        image = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
        if self.transform is not None:
            image = self.transform(image)
        sample = {"image": image, "label": self.slide_label, "coords": torch.tensor(coords[:2])}
        if mask is not None:
            sample["mask"] = torch.from_numpy(mask.astype(np.int64))
        return sample


def train_transform(size=224):
    return v2.Compose([
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
        v2.RandomCrop(size),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.70, 0.55, 0.69], std=[0.17, 0.20, 0.15]),
    ])


def build_loader(root, split_file, batch_size=64, workers=8):
    names = Path(split_file).read_text().split()
    parts = []
    for name in names:
        ds = SlideTiles(Path(root) / f"{name}.h5path", transform=train_transform(), with_mask=False)
        if len(ds):
            parts.append(ds)
    return DataLoader(
        ConcatDataset(parts), batch_size=batch_size, shuffle=True, num_workers=workers,
        pin_memory=True, persistent_workers=True, drop_last=True,
    )


if __name__ == "__main__":
    loader = build_loader("/data/panda_h5", "splits/train.txt")
    batch = next(iter(loader))
    print({k: tuple(v.shape) for k, v in batch.items()})
