"""Labels without samples."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed

HEAD = """
import torch
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

class Pictures(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels

    def __getitem__(self, i):
        return load(self.paths[i]), self.labels[i]

data = Pictures(paths, labels)
folder = ImageFolder("pictures")
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("labels = [y for _, y in folder]", "labels = [y for y in folder.targets]"),
        ("labels = [data[i][1] for i in range(len(data))]", "labels = [data.labels[i] for i in range(len(data))]"),
        ("for x, y in data:\n    counts[y] += 1", "for y in data.labels:\n    counts[y] += 1"),
    ],
)
def test_labels_of_a_data_set(old: str, new: str) -> None:
    (text,) = proposed(f"{HEAD}{old}\n", old.partition("\n")[0], "DAT109", "labels-alone")
    assert text.endswith(f"{new}\n")
    assert proposed(text, new.partition("\n")[0], "DAT109", "labels-alone") == []


@pytest.mark.parametrize("old", ["xs = [x * y for x, y in data]", "ys = [y for _, y in others]", "y = data[0][1]"])
def test_nothing_where_samples_are_used(old: str) -> None:
    assert proposed(f"{HEAD}{old}\n", old, "DAT109", "labels-alone") == []


def test_nothing_where_labels_are_transformed() -> None:
    head = HEAD.replace('ImageFolder("pictures")', 'ImageFolder("pictures", target_transform=merge)')
    old = "labels = [y for _, y in folder]"
    assert proposed(f"{head}{old}\n", old, "DAT109", "labels-alone") == []
