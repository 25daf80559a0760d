"""Worker processes for loaders."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposals, proposed

from torchtriage.measure.fix.edits import loader_workers

PICTURES = """
import random
import torch
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __getitem__(self, i):
        return load_picture(self.paths[i])
"""
TRAIN = """
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    for x in loader:
        model(x).sum().backward()
        opt.step()
"""


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_workers, "n_cores", lambda: 2)


def lines(text: str, old: str) -> list[str]:
    """Return the lines that are not in the old text."""
    return [line.strip() for line in text.splitlines() if line not in old.splitlines()]


def test_workers_where_the_loader_is_made() -> None:
    text = f"{PICTURES}\nloader = DataLoader(Pictures(names), batch_size=8)\n{TRAIN}"
    (new,) = proposed(text, "for x in loader", "DAT018", "loader-workers")
    assert lines(new, text) == [
        "loader = DataLoader(",
        "Pictures(names), batch_size=8, num_workers=2, persistent_workers=True",
        ")",
    ]
    assert proposed(new, "for x in loader", "DAT018", "loader-workers") == []


def test_workers_from_the_line_of_a_sample() -> None:
    text = f"{PICTURES}\nloader = DataLoader(Pictures(names), num_workers=0)\n{TRAIN}"
    (new,) = proposed(text, "return load_picture", "HST110", "loader-workers")
    assert "DataLoader(Pictures(names), num_workers=2, persistent_workers=True)" in new


def test_workers_of_an_option() -> None:
    text = f"""{PICTURES}
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", type=int, default=0)
args = parser.parse_args()
loader = DataLoader(Pictures(names), num_workers=args.num_workers)
{TRAIN}"""
    (new,) = proposed(text, "loader = DataLoader", "DAT018", "loader-workers")
    assert 'add_argument("--num-workers", type=int, default=2)' in new
    assert "    num_workers=args.num_workers,\n    persistent_workers=args.num_workers > 0,\n" in new


def test_workers_of_a_field_and_a_class() -> None:
    text = f"""{PICTURES}
from dataclasses import dataclass

@dataclass
class Config:
    workers: int = 0

class Trainer:
    def __init__(self, config, data):
        self.loader = DataLoader(
            Pictures(data),
            num_workers=config.workers,
        )

    def train(self):
        for x in self.loader:
            self.model(x).sum().backward()
"""
    (new,) = proposed(text, "for x in self.loader", "DAT018", "loader-workers")
    assert lines(new, text) == ["workers: int = 2", "persistent_workers=config.workers > 0,"]


def test_random_samples_are_said_to_change() -> None:
    text = PICTURES.replace("load_picture(", "random.choice(") + f"\nloader = DataLoader(Pictures(names))\n{TRAIN}"
    (proposal,) = proposals(text, "loader = DataLoader", "DAT018", "loader-workers")
    assert proposal.changes == loader_workers.SEEDS


def test_workers_that_are_started_again() -> None:
    text = f"{PICTURES}\nloader = DataLoader(Pictures(names), num_workers=2)\n{TRAIN}"
    left, without = proposed(text, "for x in loader", "DAT019", "loader-workers")
    assert "DataLoader(Pictures(names), num_workers=2, persistent_workers=True)" in left
    assert "DataLoader(Pictures(names), num_workers=0)" in without


def test_workers_of_data_in_memory_are_left_running_too() -> None:
    made = 'DataLoader(TensorDataset(torch.zeros(9, 3)), num_workers=1, multiprocessing_context="spawn")'
    text = f"{PICTURES}\nfrom torch.utils.data import TensorDataset\nloader = {made}\n{TRAIN}"
    (left,) = proposed(text, "for x in loader", "DAT019", "loader-workers")
    assert "persistent_workers=True" in left


def test_loaders_of_a_trainer() -> None:
    text = "from transformers import TrainingArguments\nargs = TrainingArguments(output_dir)\ntrainer.train()\n"
    (new,) = proposed(text, "trainer.train()", "DAT018", "loader-workers")
    assert "(\n    output_dir, dataloader_num_workers=2, dataloader_persistent_workers=True\n)" in new


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(TensorDataset(torch.zeros(9, 3)), batch_size=3)",
        "DataLoader(Pictures(names), **options)",
        "DataLoader(Pictures(names), num_workers=wanted)",
    ],
)
def test_nothing_for_data_in_memory_and_for_options_of_others(loader: str) -> None:
    text = f"{PICTURES}\nfrom torch.utils.data import TensorDataset\nloader = {loader}\n{TRAIN}"
    assert proposed(text, "for x in loader", "DAT018", "loader-workers") == []
    assert proposed(text, "import random", "DAT018", "loader-workers") == []


@pytest.mark.parametrize("change", ["data.size = 32 + epoch", "data.set_epoch(epoch)", "loader.dataset.size = epoch"])
def test_nothing_where_a_loop_changes_the_data_set(change: str) -> None:
    train = TRAIN.replace("range(5):\n", f"range(5):\n    {change}\n")
    text = f"{PICTURES}\ndata = Pictures(names)\nloader = DataLoader(data, batch_size=8)\n{train}"
    assert proposed(text, "for x in loader", "DAT018", "loader-workers") == []


@pytest.mark.parametrize(("order", "changes"), [("shuffle=True, ", loader_workers.REORDERED), ("", "")])
def test_another_order_from_the_second_epoch_on_is_said(order: str, changes: str) -> None:
    text = f"{PICTURES}\nloader = DataLoader(Pictures(names), {order}num_workers=1)\n{TRAIN}"
    found = proposals(text, "for x in loader", "DAT019", "loader-workers")
    assert [item.changes for item in found if item.what == "keep the workers running"] == [changes]
