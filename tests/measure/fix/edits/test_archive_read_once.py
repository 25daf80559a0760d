"""The arrays of an archive are read when it is opened."""

import pytest
from tests.measure.fix.proposing import proposed

BEFORE = """\
import numpy as np
from torch.utils.data import Dataset


class Windows(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.size = len(self.archive["x"])

    def __len__(self):
        return self.size

    def window(self, name, i):
        return self.archive[name][i : i + 8]

    def __getitem__(self, i):
        y = self.archive["y"][i]
        x = self.window("x", i)
        return x, y
"""


def test_read_once():
    after = BEFORE.replace("np.load(path)", "dict(np.load(path))")
    assert proposed(BEFORE, "y =", "DAT103", "archive-read-once") == [after]
    assert not proposed(after, "y =", "DAT103", "archive-read-once")
    copied = BEFORE.replace("        return x, y", "        z = np.zeros(8)\n        z += 1\n        return x + z, y")
    assert proposed(copied, "y =", "DAT103", "archive-read-once")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("np.load(path)", "load(path)"),
        ("np.load(path)", "{}"),
        ("        return self.size", "        return len(self.archive.files)"),
        ("        return self.size", "        return len(self.archive)"),
        ("        return x, y", "        x *= 2\n        return x, y"),
        ("        return x, y", "        x[0] = 0\n        return x, y"),
        ("        return x, y", "        y -= 1\n        return x, y"),
        ("        return x, y", "        x = torch.from_numpy(x)\n        x.mul_(2)\n        return x, y"),
        ('["y"][i]', '["y"][i].sort()'),
        ('self.archive["y"][i]', 'torch.from_numpy(self.archive["y"]).add_(1)[i]'),
        ("    def __len__", "    def reset(self, path):\n        self.archive = np.load(path)\n\n    def __len__"),
    ],
)
def test_arrays_that_are_changed_or_asked_for_otherwise(old, new):
    assert not proposed(BEFORE.replace(old, new, 1), "y =", "DAT103", "archive-read-once")
