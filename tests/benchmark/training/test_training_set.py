"""Recordings with features: computed once, and no window is in two splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Trace
from torchtriage.diagnose.detector.features import NAMES, window_features
from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage_benchmark.training.boosting import without_stacks
from torchtriage_benchmark.training.event_tokens import KINDS, VALUES
from torchtriage_benchmark.training.training_set import FOLDER, Example, examples, learned

CORE = Path(__file__).parents[3] / "benchmarks" / "core"


def linked(folder: Path, count: int | None = None) -> Path:
    """Return a folder with recordings of the core, where features may be written."""
    for path in sorted(CORE.glob("*.json"))[:count]:
        for one in (path, path.with_suffix(".ttcol")):
            if one.exists():
                (folder / one.name).symlink_to(one)
    return folder


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one, *_) = examples(linked(tmp_path, 1))
    assert one.features.shape == (len(one.windows_ns), len(NAMES))
    assert one.looked["kind_names"].shape == (len(one.windows_ns), KINDS, 2)
    assert one.looked["kind_values"].shape == (len(one.windows_ns), KINDS, len(VALUES))
    assert np.array_equal(one.windows_ns, DatasetItem(one.about, one.path).windows_ns)
    (kept,) = (tmp_path / FOLDER).iterdir()

    monkeypatch.setattr(Example, "_look", lambda _: pytest.fail("read twice"))
    (again,) = examples(tmp_path)
    assert np.array_equal(again.features, one.features)
    monkeypatch.undo()

    kept.write_bytes(b"damaged")
    (anew,) = examples(tmp_path)
    assert np.array_equal(anew.features, one.features)


@pytest.mark.slow
def test_no_window_is_in_two_splits(tmp_path: Path) -> None:
    rows: dict[str, set[bytes]] = {}
    for example in examples(linked(tmp_path)):
        near = np.round(example.features, 2)
        rows.setdefault(example.split, set()).update(row.tobytes() for row in near)
    assert set(rows) == {"train", "validation", "test"}
    assert not rows["train"] & rows["validation"]
    assert not rows["train"] & rows["test"]
    assert not rows["validation"] & rows["test"]


def test_of_published_recordings_the_judged_development_half_is_learned_from() -> None:
    def one(part: str, split: str, state: str = "faulty") -> Example:
        return Example({"id": "0000", "part": part, "split": split, "state": state, "code": ""}, Path("0000.ttcol"))

    found = [one("eager", "train"), one("synthetic", "train"), one("device", "development"), one("device", "test")]
    assert learned([*found, one("device", "development", "cannot be judged")], "train") == found[:3]
    assert learned([*found, one("synthetic", "validation")], "validation")[0].about["part"] == "synthetic"
    assert not learned(found, "validation")


def test_without_stacks_windows_look_as_if_none_had_been_recorded() -> None:
    def trace(*, stacks: bool) -> Trace:
        builder = TraceBuilder(vendor="cpu").step(0, 0, 1000)
        for at in range(0, 1000, 100):
            builder.op("aten::mm", at, 50, dims=[[at + 1, 4]], types=["float"])
            if stacks:
                builder.frame("train.py(10): main", at, 80)
        return builder.build()

    edges = np.array([[0, 300_000], [300_000, 1_000_000]])
    plain = window_features(trace(stacks=False), edges)
    rows = window_features(trace(stacks=True), edges)
    assert not np.array_equal(rows, plain)
    np.testing.assert_array_equal(without_stacks(rows), plain)
