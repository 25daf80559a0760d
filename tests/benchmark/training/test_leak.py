"""Labels that were shuffled teach nothing about the real recordings of the core."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from torchtriage.learn.dataset.score import area_under_roc
from torchtriage_benchmark.training.boosting import boosted, stacked
from torchtriage_benchmark.training.training_set import Example, examples, recorded

CORE = Path(__file__).parents[3] / "benchmarks" / "core"
SHUFFLES = 12

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    """Return the core's recordings; what is computed of them goes elsewhere."""
    folder = tmp_path_factory.mktemp("core")
    shutil.copytree(CORE, folder, dirs_exist_ok=True)
    return examples(folder)


def auroc(train: list[Example], test: list[Example], shuffle: int | None = None) -> float:
    rows, truth, weight = stacked(train)
    if shuffle is not None:  # among all recordings: within one, its share of faults would still tell
        truth = np.random.default_rng(shuffle).permutation(truth)
    forest = boosted(rows, truth, weight, seed=shuffle or 0, rounds=60)
    scores = np.concatenate([forest(one.features)[:, 0] for one in test])
    return area_under_roc(np.concatenate([one.faulty for one in test]), scores)


def test_labels_teach_and_shuffled_ones_do_not(core: list[Example]) -> None:
    train, test = recorded(core, "train"), recorded(core, "test")
    assert auroc(train, test) > 0.55  # few recordings, few trees, families it never saw
    # windows are alike, so one shuffle may be lucky; all of them are not
    found = [auroc(train, test, at) for at in range(SHUFFLES)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)
