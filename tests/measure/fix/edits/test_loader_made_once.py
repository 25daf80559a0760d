"""Loaders before the loops that made them again."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposals, proposed

from torchtriage.measure.fix.edits._loaders import REORDERED

HEAD = """
import torch
from torch.utils.data import DataLoader, TensorDataset

"""


def test_a_loader_with_its_data_and_its_workers() -> None:
    text = f"""{HEAD}
def main(x):
    for epoch in range(3):
        data = TensorDataset(x)
        loader = DataLoader(data, num_workers=2)
        for (batch,) in loader:
            train(batch)
"""
    (new,) = proposed(text, "loader = DataLoader", "DAT019", "loader-made-once")
    assert new.endswith("""def main(x):
    data = TensorDataset(x)
    loader = DataLoader(data, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        for (batch,) in loader:
            train(batch)
""")
    assert proposed(new, "loader = DataLoader", "DAT019", "loader-made-once") == []


def test_another_order_from_the_second_epoch_on_is_said() -> None:
    for workers, changes in (("num_workers=1", REORDERED), ("num_workers=0", "")):
        text = f"""{HEAD}
for epoch in range(3):
    loader = DataLoader(data, shuffle=True, {workers})
    for (batch,) in loader:
        train(batch)
"""
        (proposal,) = proposals(text, "loader = DataLoader", "DAT019", "loader-made-once")
        assert proposal.changes == changes


CROPS = """
class Crops(torch.utils.data.Dataset):
    def __getitem__(self, at):
        return self.rows[at][random.randint(0, 9) :]

crops = Crops()
tensors = TensorDataset(x)
train = DataLoader(other, shuffle=True, num_workers=2, persistent_workers=True)
"""


@pytest.mark.parametrize(
    ("loader", "changes"),
    [
        ("DataLoader(crops, num_workers=2)", REORDERED),
        ("DataLoader(tensors, num_workers=2)", ""),
        ("DataLoader(crops)", ""),
        ("DataLoader(tensors, shuffle=True, num_workers=2, persistent_workers=False)", ""),
        ("made(crops, num_workers=2)", ""),
    ],
)
def test_only_the_moved_loader_is_asked_what_its_workers_draw(loader: str, changes: str) -> None:
    made = "def made(data, num_workers):\n    return DataLoader(data, num_workers=num_workers)\n"
    text = f"{HEAD}{CROPS}\n{made}\nfor epoch in range(3):\n    loader = {loader}\n    run(loader)\n"
    (proposal,) = proposals(text, f"loader = {loader}", "DAT019", "loader-made-once")
    assert proposal.changes == changes
    assert ("persistent_workers=True" in str(proposal.edits)) == (loader[:4] == "Data" and loader[-2:] == "2)")


def test_a_loader_in_the_head_of_the_inner_loop() -> None:
    text = f"""{HEAD}
for epoch in range(3):
    for (batch,) in DataLoader(data, batch_size=4):
        train(batch)
"""
    (new,) = proposed(text, "in DataLoader", "DAT018", "loader-made-once")
    assert new.endswith(
        "loader = DataLoader(data, batch_size=4)\nfor epoch in range(3):\n"
        "    for (batch,) in loader:\n        train(batch)\n"
    )


def test_what_a_function_of_the_file_makes() -> None:
    text = f"""{HEAD}
def make_loader(data, size):
    return DataLoader(data, batch_size=size)

while step < 100:
    loader = make_loader(data, 4)
    for (batch,) in loader:
        step += 1
"""
    (new,) = proposed(text, "loader = make_loader", "HST105", "loader-made-once")
    assert "loader = make_loader(data, 4)\nwhile step < 100:\n" in new


def test_nothing_where_each_epoch_has_its_own() -> None:
    for made in ("DataLoader(folds[epoch])", "DataLoader(data, generator=torch.Generator().manual_seed(3))"):
        text = f"{HEAD}\nfor epoch in range(3):\n    loader = {made}\n    data = shorter(data)\n"
        assert proposed(text, "loader = ", "DAT019", "loader-made-once") == []
    text = f"{HEAD}\nfor epoch in range(3):\n    loader = DataLoader(data)\n    data = shorter(data)\n"
    assert proposed(text, "loader = ", "DAT019", "loader-made-once") == []


@pytest.mark.parametrize(
    "defined",
    [
        "def collate(rows):\n        return rows",
        "class collate:\n        pass",
        "match net:\n        case collate:\n            pass",
    ],
)
def test_nothing_where_the_turn_defines_what_the_loader_is_given(defined: str) -> None:
    text = f"{HEAD}\nfor epoch in range(3):\n    {defined}\n    loader = DataLoader(data, collate_fn=collate)\n"
    assert proposed(text, "loader = ", "DAT019", "loader-made-once") == []


def test_nothing_where_the_condition_chooses_the_size() -> None:
    text = f"{HEAD}\nwhile {{}}:\n    loader = DataLoader(data, batch_size=size)\n    run(loader)\n"
    assert proposed(text.format("size := next(sizes)"), "loader = ", "DAT019", "loader-made-once") == []
    assert proposed(text.format("next(sizes)"), "loader = ", "DAT019", "loader-made-once")


@pytest.mark.parametrize(
    "turn",
    [
        "loader = DataLoader(data)\n    run(loader)\n    del loader",
        "if epoch == 1:\n        loader = DataLoader(data)\n    run(loader)",
        "run(loader)\n    loader = DataLoader(data)",
    ],
)
def test_nothing_where_the_name_has_other_values(turn: str) -> None:
    text = f"{HEAD}\nloader = DataLoader(few)\nfor epoch in range(3):\n    {turn}\n"
    assert proposed(text, "loader = DataLoader(data)", "DAT019", "loader-made-once") == []


def test_a_loader_that_one_turn_makes() -> None:
    text = f"{HEAD}\nfor epoch in range(3):\n    if epoch == 0:\n        loader = DataLoader(data)\n    run(loader)\n"
    (new,) = proposed(text, "loader = ", "DAT019", "loader-made-once")
    assert "loader = DataLoader(data)\nfor epoch" in new


def test_nothing_where_data_are_drawn_or_chosen_anew() -> None:
    text = f"""{HEAD}
def make(n):
    return torch.randn(n)

class Data(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x = make(n)

    def __getitem__(self, i):
        return self.x[i]

for epoch in range(3):
    data = Data(8)
    loader = DataLoader(data)
"""
    assert proposed(text, "data = Data", "DAT019", "loader-made-once") == []
    text = f"""{HEAD}
for epoch in range(3):
    data = TensorDataset(x[labeled])
    for (batch,) in DataLoader(data):
        train(batch)
    {{}}
"""
    for line in ("labeled.extend(choose())", "labeled += choose()"):
        assert proposed(text.format(line), "data = ", "DAT019", "loader-made-once") == []
    assert proposed(text.format("pass"), "data = ", "DAT019", "loader-made-once")


def test_workers_that_an_option_may_leave_out() -> None:
    text = f"""{HEAD}
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()
for epoch in range(3):
    loader = DataLoader(data, num_workers=args.workers)
    for (batch,) in loader:
        train(batch)
"""
    (new,) = proposed(text, "loader = DataLoader", "DAT019", "loader-made-once")
    assert "num_workers=args.workers, persistent_workers=args.workers > 0\n)\nfor epoch" in new
