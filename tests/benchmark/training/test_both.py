"""Rules and detector together, with rules that are made up."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark.training.made_up import CODES, recordings

from torchtriage.learn.dataset.predictions import Prediction, Predictions
from torchtriage.learn.dataset.score import score
from torchtriage_benchmark.training import boosting
from torchtriage_benchmark.training.baselines import both
from torchtriage_benchmark.training.training_set import Example, recorded


def rules(one: Example) -> Prediction:
    """Return what rules say that know the type, and every other window."""
    windows = np.where(np.arange(len(one.faulty)) % 2 == 0, one.faulty, 0.0)
    return Prediction(tuple(windows.tolist()), {one.code: 0.9} if one.code else {})


def test_together_they_find_windows_and_name_what_is_unusual_as_the_rules_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting, "ROUNDS", 20)
    monkeypatch.setattr(boosting, "TYPE_ROUNDS", 6)
    found = recordings()
    detector = boosting.fit(recorded(found, "train"), recorded(found, "validation"))
    system = both(detector, recorded(found, "train"), recorded(found, "validation"), rules)
    items = recorded(found, "test")
    said = Predictions("both", {item.id: system(item) for item in items})
    (row,) = score(items, said, only=("test",))
    assert row.auroc.value > 0.95
    assert row.type_accuracy.value == 1
    for one in items:
        one.looked["features"] += 20  # unlike all it learned from
        assert {code for code, sure in system(one).types.items() if sure > 0} <= {one.code}
        assert set(system(one).types) <= set(CODES)
