"""The network over events, on recordings whose faults are one kind of event."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark.training.made_up import recordings

from torchtriage.core.errors import MissingExtraError
from torchtriage.learn.dataset.predictions import Predictions
from torchtriage.learn.dataset.score import score
from torchtriage_benchmark.training.baselines import SYSTEMS
from torchtriage_benchmark.training.training_set import Example, recorded


def made_up() -> list[Example]:
    """Return recordings in whose faulty windows a kind of event of their type takes most time."""
    found = recordings()
    for one in found:
        place = 60 + len(one.code) % 7 + (one.code == "CPY012")
        one.looked["kind_names"][one.faulty, 0] = (place, 9)
        one.looked["kind_values"][one.faulty, 0] = (3, 0.9, 12, 2, 5)
    return found


@pytest.mark.torch
def test_the_network_finds_windows_and_types_of_families_it_never_saw() -> None:
    pytest.importorskip("torch")
    found = made_up()
    system = SYSTEMS["network"](found, 0)
    items = recorded(found, "test")
    said = Predictions("network", {item.id: system(item) for item in items})
    (row,) = score(items, said, only=("test",))
    assert row.auroc.value > 0.95
    assert row.type_accuracy.value >= 0.75


@pytest.mark.torch
def test_the_same_recordings_and_seed_say_the_same() -> None:
    pytest.importorskip("torch")
    found = made_up()
    one = recorded(found, "test")[1]
    first, second = (SYSTEMS["network"](found, 0)(one) for _ in range(2))
    assert np.array_equal(first.windows, second.windows)


def test_without_torch_it_says_what_to_install() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="needs torch"):
            SYSTEMS["network"](made_up(), 0)
    else:
        pytest.skip("torch is installed here")
