"""One iterator over a loader."""

from __future__ import annotations

from tests.measure.fix.proposing import proposals, proposed


def test_a_batch_in_each_step() -> None:
    text = "loader = DataLoader(data)\nfor step in range(9):\n    x, y = next(iter(loader))\n    train(x)\n"
    (new,) = proposed(text, "next(iter", "DAT107", "loader-iterator")
    assert new == (
        "loader = DataLoader(data)\nbatches = iter(loader)\nfor step in range(9):\n"
        "    try:\n        x, y = next(batches)\n"
        "    except StopIteration:\n        batches = iter(loader)\n        x, y = next(batches)\n    train(x)\n"
    )
    assert proposals(text, "next(iter", "DAT107", "loader-iterator")[0].changes
    assert proposed(new, "next(batches)", "DAT107", "loader-iterator") == []


def test_a_part_of_a_batch_of_an_attribute() -> None:
    text = "def run(self):\n    while True:\n        for _ in range(5):\n            x = next(iter(self.loader))[0]\n"
    (new,) = proposed(text, "next(iter", "DAT107", "loader-iterator")
    assert "    batches = iter(self.loader)\n    while True:\n" in new
    assert "                x = next(batches)[0]\n" in new


def test_loaders_of_each_epoch() -> None:
    text = "for epoch in range(3):\n    loader = make(epoch)\n    for _ in range(5):\n        x = next(iter(loader))\n"
    (new,) = proposed(text, "next(iter", "DAT107", "loader-iterator")
    assert "    loader = make(epoch)\n    batches = iter(loader)\n    for _ in range(5):\n" in new


def test_nothing_for_one_look() -> None:
    assert proposed("x, y = next(iter(loader))\n", 1, "DAT107", "loader-iterator") == []
    assert proposed("for loader in loaders:\n    x = next(iter(loader))\n", 2, "DAT107", "loader-iterator") == []
