"""Files that samples share, opened once."""

from __future__ import annotations

from tests.measure.fix.proposing import proposed

HEAD = """
import json
import h5py
from torch.utils.data import Dataset

class Scans(Dataset):
    def __init__(self, path, names):
        self.path, self.names = path, names

    def __getitem__(self, i):
"""


def test_a_container_in_a_block() -> None:
    text = f"""{HEAD}        with h5py.File(self.path, "r") as f:
            x = f["x"][i]
            y = f["y"][i]
        return x, y
"""
    for line in ("with h5py", "y = f"):
        (new,) = proposed(text, line, "DAT103", "open-once")
        assert "        self.path, self.names = path, names\n        self.file = None\n" in new
        assert new.endswith("""        if self.file is None:
            self.file = h5py.File(self.path, "r")
        x = self.file["x"][i]
        y = self.file["y"][i]
        return x, y
""")
        assert proposed(new, "self.file = h5py", "DAT103", "open-once") == []


def test_a_container_under_a_name() -> None:
    text = f"""{HEAD}        scans = h5py.File(self.path, "r")
        return scans["x"][i]
"""
    (new,) = proposed(text, "scans = ", "DAT103", "open-once")
    assert new.endswith("""        if self.scans is None:
            self.scans = h5py.File(self.path, "r")
        scans = self.scans
        return scans["x"][i]
""")


def test_a_table_that_is_parsed() -> None:
    text = f"""{HEAD}        with open(self.path) as f:
            labels = json.load(f)
        return labels[self.names[i]]
"""
    (new,) = proposed(text, "json.load", "HST103", "open-once")
    assert new.endswith("""        if self.labels is None:
            with open(self.path) as f:
                self.labels = json.load(f)
        labels = self.labels
        return labels[self.names[i]]
""")


def test_nothing_for_files_of_one_sample() -> None:
    for opened in ("h5py.File(self.names[i])", "open(self.path)"):
        text = f"{HEAD}        with {opened} as f:\n            x = f.read(i)\n        return x\n"
        assert proposed(text, "with ", "DAT103", "open-once") == []
    text = f"{HEAD}        f = h5py.File(self.path)\n        x = f['x'][i]\n        f.close()\n        return x\n"
    assert proposed(text, "f = ", "DAT103", "open-once") == []
