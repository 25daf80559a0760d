"""Batches with one index."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __getitem__(self, i):
        return self.x[i], self.y[i]

class Scaled(Rows):
    def __getitem__(self, i):
        return self.x[i] / self.x[i].max(), self.y[i]
"""


def loader_of(text: str, made: str) -> str:
    """Return the first proposal for the loader, without the file's head."""
    (new,) = proposed(f"{HEAD}{text}\nloader = {made}\n", "loader = ", "DAT018", "loader-rows")
    assert "from torch.utils.data import BatchSampler, DataLoader, Dataset," in new
    return " ".join(new[new.index("TensorDataset\n") :].partition("max(), self.y[i]\n")[2].split())


def test_tensors_under_a_name() -> None:
    assert loader_of("data = TensorDataset(x, y)", "DataLoader(data, batch_size=32, shuffle=True)") == (
        "data = TensorDataset(x, y) loader = DataLoader("
        " data, sampler=BatchSampler(RandomSampler(data), 32, drop_last=False), batch_size=None, )"
    )


def test_a_data_set_of_the_file_made_in_place() -> None:
    assert loader_of("", "DataLoader(Rows(x, y), 64, drop_last=True, pin_memory=True)") == (
        "dataset = Rows(x, y) loader = DataLoader("
        " dataset, sampler=BatchSampler(SequentialSampler(dataset), 64, drop_last=True), batch_size=None,"
        " pin_memory=True, )"
    )


def test_a_loader_of_what_a_function_is_given() -> None:
    text = f"""{HEAD}
def train(data, size, shuffle, generator):
    loader = DataLoader(data, batch_size=size, shuffle=shuffle, generator=generator)
    for x, y in loader:
        model(x).sum().backward()

train(Rows(x, y), 32, True, None)
"""
    (new,) = proposed(text, "for x, y in loader", "LCH105", "loader-rows")
    assert "RandomSampler(data, generator=generator) if shuffle else SequentialSampler(data), size, drop_last" in new
    assert proposed(new, "for x, y in loader", "LCH105", "loader-rows") == []


@pytest.mark.parametrize(
    "made",
    [
        "DataLoader(Scaled(x, y), batch_size=8)",
        "DataLoader(TensorDataset(x, y), batch_size=8, collate_fn=pad)",
        "DataLoader(TensorDataset(x, y))",
        "DataLoader(names, batch_size=8)",
    ],
)
def test_nothing_where_rows_are_made_or_gathered_another_way(made: str) -> None:
    assert proposed(f"{HEAD}\nloader = {made}\n", "loader = ", "DAT018", "loader-rows") == []
