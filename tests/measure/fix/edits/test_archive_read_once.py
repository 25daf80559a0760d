"""The arrays of an archive are read when it is opened."""

import pytest
from tests.measure.fix.proposing import proposed

BEFORE = """\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.size = len(self.archive["x"])

    def __len__(self):
        return self.size

    def window(self, i):
        return self.archive["x"][i : i + 8]

    def __getitem__(self, i):
        y = self.archive["y"][i]
        x = self.window(i)
        return torch.from_numpy(x), y


data = Windows("a.npz")
loader = DataLoader(data, batch_size=8)
"""
OPENED = "        self.archive = np.load(path)\n"
RETURN = "        return torch.from_numpy(x), y"


def test_read_once():
    kept = '        self.archive = {name: self.archive[name] for name in ["x", "y"]}\n'
    after = BEFORE.replace(OPENED, OPENED + kept)
    assert proposed(BEFORE, "y =", "DAT103", "archive-read-once") == [after]
    assert not proposed(after, "y =", "DAT103", "archive-read-once")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (RETURN, "        z = np.zeros(8)\n        z += 1\n        return x + z, y"),
        ("data, batch_size=8", "data"),
        ("DataLoader(data, batch_size=8)", "data[0]"),
    ],
)
def test_copies(old, new):
    copied = BEFORE.replace(RETURN, "        return x.copy(), y + 1").replace(old, new)
    assert proposed(copied, "y =", "DAT103", "archive-read-once")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("np.load(path)", "load(path)"),
        ("np.load(path)", "{}"),
        ("        return self.size", "        return len(self.archive.files)"),
        ("        return self.size", "        return len(self.archive)"),
        (RETURN, f"        x *= 2\n{RETURN}"),
        (RETURN, f"        x[0] = 0\n{RETURN}"),
        (RETURN, f"        y -= 1\n{RETURN}"),
        (RETURN, "        x = torch.from_numpy(x)\n        x.mul_(2)\n        return x, y"),
        (RETURN, f"        x = self.centre(x)\n{RETURN}\n\n    def centre(self, a):\n        a -= 1\n        return a"),
        (RETURN, f"        mask(x)\n{RETURN}\n\n\ndef mask(a):\n    a[:2] = 0"),
        (RETURN, f"        x = self.transform(x)\n{RETURN}"),
        (RETURN, f"        np.random.shuffle(x)\n{RETURN}"),
        (RETURN, f"        np.clip(x, 0, 1, x)\n{RETURN}"),
        (RETURN, f"        self.x = x\n{RETURN}"),
        ("    def window", "    @property\n    def window"),
        ("loader =", "window, label = data[0]\nloader ="),
        ("batch_size=8", "batch_size=None"),
        ("batch_size=8", "batch_size=8, collate_fn=list"),
        ('["y"][i]', '["y"][i].sort()'),
        ('self.archive["y"][i]', 'torch.from_numpy(self.archive["y"]).add_(1)[i]'),
        ('["x"][i : i', "[self.name][i : i"),  # which arrays are asked for is not known
        ('self.archive["y"][i]', 'self.archive["y"][i] if self.labelled else 0'),
        ("    def __len__", "    def reset(self, path):\n        self.archive = np.load(path)\n\n    def __len__"),
    ],
)
def test_arrays_that_are_changed_or_asked_for_otherwise(old, new):
    changed = BEFORE.replace(old, new, 1)
    assert changed != BEFORE
    assert not proposed(changed, "y =", "DAT103", "archive-read-once")
