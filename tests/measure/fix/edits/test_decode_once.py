"""Samples that are made once."""

from __future__ import annotations

from tests.measure.fix.proposing import proposals, proposed

HEAD = """
import random
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self, paths, labels):
        self.paths = paths
        self.labels = labels

    def __len__(self):
        return len(self.paths)

"""
LOADER = "\nloader = DataLoader(Pictures(paths, labels), batch_size=4)\n"


def test_all_of_a_sample() -> None:
    text = f"""{HEAD}    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        return torch.from_numpy(np.array(image)), self.labels[i]
{LOADER}"""
    for line in ("image = ", "loader = "):
        (new,) = proposed(text, line, "DAT018" if line == "loader = " else "HST110", "decode-once")
        assert "        self.labels = labels\n        self.cache = {}\n" in new
        assert new.endswith(f"""    def __getitem__(self, i):
        if i not in self.cache:
            image = Image.open(self.paths[i]).convert("RGB")
            self.cache[i] = torch.from_numpy(np.array(image)), self.labels[i]
        return self.cache[i]
{LOADER}""")
        assert proposed(new, "image = ", "HST110", "decode-once") == []


def test_what_comes_before_the_random_part() -> None:
    text = f"""{HEAD}    def load(self, i):
        return Image.open(self.paths[i]).convert("RGB")

    def __getitem__(self, index):
        image = self.load(index)
        label = self.labels[index]
        if random.random() < 0.5:
            image = image.rotate(90)
        return np.array(image), label
"""
    (new,) = proposed(text, "return Image.open", "HST110", "decode-once")
    assert new.endswith("""        if index not in self.cache:
            image = self.load(index)
            label = self.labels[index]
            self.cache[index] = image, label
        image, label = self.cache[index]
        if random.random() < 0.5:
            image = image.rotate(90)
        return np.array(image), label
""")


def test_a_sample_of_one_expression() -> None:
    text = f"""{HEAD}    def __getitem__(self, i):
        return parse(self.paths[i]), self.labels[i]
"""
    (new,) = proposed(text, "return parse", "HST103", "decode-once")
    assert new.endswith("""        if i not in self.cache:
            self.cache[i] = parse(self.paths[i]), self.labels[i]
        return self.cache[i]
""")


def test_nothing_for_random_samples_and_what_is_changed_in_place() -> None:
    for body in (
        "        return parse(self.paths[i], random.random())\n",
        "        x = parse(self.paths[i])\n        x += np.random.rand(3)\n        return x\n",
        "        self.count = parse(i)\n        return self.count\n",
    ):
        assert proposed(f"{HEAD}    def __getitem__(self, i):\n{body}", "parse(", "HST103", "decode-once") == []


def test_what_may_be_random_or_changed_needs_leave() -> None:
    getter = """    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        return np.array({}), self.labels[i]
"""
    sure = f"{HEAD}{getter.format('image')}{LOADER}"
    assert not proposals(sure, "image = ", "HST110", "decode-once")[0].changes
    for text in (
        f"from pipeline import prepare\n{HEAD}{getter.format('prepare(image)')}{LOADER}",
        f"{HEAD.replace('labels)', 'labels, t)')}{getter.format('self.t(image)')}{LOADER}".replace(
            "        self.paths", "        self.transform = t\n        self.paths"
        ).replace("self.t(", "self.transform("),
        f"{sure}data.paths = paths[8:]\n",
        sure.replace("batch_size=4", "batch_size=None"),
    ):
        assert all(item.changes for item in proposals(text, "image = ", "HST110", "decode-once"))
