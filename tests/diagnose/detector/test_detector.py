"""The detector that comes with the package: small, safe to read, and quiet where it should be."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from torchtriage.core.errors import UsageError
from torchtriage.core.trace import read_trace
from torchtriage.diagnose.detector.detector import DOMAINS, WEIGHTS, Detector, domain_of
from torchtriage.diagnose.detector.features import NAMES, PER_STEP, windows
from torchtriage.diagnose.detector.forest import Forest

SAMPLE = files("torchtriage").joinpath("cli/sample/sample_cpu_training.json.gz")


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector.load()


def forest(depth: int = 2) -> Forest:
    """Return a tree: feature 0 at or below 0.5 is 1; else feature 1 up to 2 is 10, above 20."""
    return Forest(
        np.array([0, 0, 1, 0, 0], np.int16),
        np.array([0.5, np.inf, 2, np.inf, np.inf], np.float32),
        np.array([1, 1, 3, 3, 4], np.int32),
        np.array([2, 1, 4, 3, 4], np.int32),
        np.array([0, 1, 0, 10, 20], np.float32),
        np.array([0], np.int32),
        np.array([0], np.int16),
        np.array([100], np.float32),
        np.int16(depth),  # type: ignore[arg-type]
    )


def test_a_forest_adds_the_leaves_that_rows_end_in() -> None:
    rows = np.array([[0.5, 9], [0.6, 2], [0.6, 2.1]], np.float32)
    assert forest()(rows).tolist() == [[101], [110], [120]]
    assert forest()(rows[:0]).shape == (0, 1)
    many = np.repeat(rows, 200_000, axis=0)  # more than are walked at once
    assert np.bincount(forest()(many)[:, 0].astype(int))[[101, 110, 120]].tolist() == [200_000] * 3


@pytest.mark.parametrize("column", ["left", "right", "root", "output", "feature"])
def test_a_forest_that_leads_out_of_itself_is_refused(column: str) -> None:
    arrays = forest().arrays("x")
    arrays[f"x.{column}"] = arrays[f"x.{column}"] + 10_000
    with pytest.raises(ValueError, match="leads out of it"):
        Forest.of(arrays, "x")


def test_the_weights_are_small_and_their_card_is_beside_them(detector: Detector) -> None:
    weights = files("torchtriage.diagnose.detector").joinpath(WEIGHTS)
    card = files("torchtriage.diagnose.detector").joinpath("weights.md").read_text(encoding="utf-8")
    assert len(weights.read_bytes()) < 600_000
    assert str(detector.about["data"]) in card
    assert set(detector.about["train"]).isdisjoint(detector.about["validation"])


def test_the_bundled_sample_is_like_what_it_learned_from(detector: Detector) -> None:
    trace = read_trace(io.BytesIO(SAMPLE.read_bytes()))
    judged = detector.predict(trace, windows(trace))
    assert judged.unusual.mean() < 0.2
    assert ((judged.probability >= 0) & (judged.probability <= 1)).all()
    assert all(sum(type_.values()) <= 1 + 1e-6 for type_ in judged.types)


def test_each_domain_has_its_own_expert(detector: Detector) -> None:
    assert set(detector.experts) == set(DOMAINS)
    for domain, has_device in (("host", 0), ("device", 1)):
        rows = np.tile(detector.experts[domain].likeness.centre, (PER_STEP, 1))
        rows[:, NAMES.index("has device")] = has_device
        assert domain_of(rows) == domain
        found, mine = detector.judge(rows), detector.experts[domain].judge(rows)
        assert np.array_equal(found.probability, mine.probability)
        assert found.certain == mine.certain > 0.4


def test_a_domain_that_was_never_seen_is_unusual_and_nothing_is_told_of_it(detector: Detector) -> None:
    blind = replace(detector, experts={"host": detector.experts["host"]})
    rows = np.tile(detector.experts["device"].likeness.centre, (PER_STEP, 1))
    rows[:, NAMES.index("has device")] = 1
    found = blind.judge(rows)
    assert found.unusual.all()
    assert not found.confident.any()
    assert not any(found.types)


def test_what_never_varied_in_a_domain_is_unusual(detector: Detector) -> None:
    likeness = detector.experts["host"].likeness
    rows = np.tile(likeness.centre, (3, 1))
    rows[1, NAMES.index("has device")] = 1
    rows[2, NAMES.index("device busy")] = 0.9
    assert np.isinf(likeness.distance(rows)).tolist() == [False, True, True]


def test_a_window_is_judged_with_its_place_in_the_other_steps(detector: Detector) -> None:
    trees = detector.experts["host"].trees
    rows = np.tile(detector.experts["host"].likeness.centre, (2 * PER_STEP, 1))
    rows[3, NAMES.index("host time join")] = 0.9
    alone = trees.faulty(rows)[:, 0]
    usual = alone.reshape(2, PER_STEP).mean(axis=0)
    np.testing.assert_allclose(trees.margin(rows), (alone + np.tile(usual, 2)) / 2)
    np.testing.assert_allclose(trees.margin(rows[:5]), alone[:5])  # no whole step


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 no zip", b"\x93NUMPY"])
def test_damaged_weights_are_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="expected a detector's weights in"):
        Detector.load(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("host.centre", lambda one: one[:10]),
        ("host.directions", lambda one: one[:5]),
        ("host.centres", lambda one: one[:0]),
        ("host.scale", lambda one: one * np.nan),
        ("host.faulty.depth", lambda one: np.array([6, 6], np.int16)),
        ("host.faulty.value", lambda one: one.astype("S8")),
        ("host.faulty.value", lambda one: one * np.nan),
        ("host.faulty.threshold", lambda one: one[:, None]),
        ("host.faulty.base", lambda one: np.zeros(2, np.float32)),
        ("told", lambda one: np.frombuffer(one.tobytes().replace(b'"limit": 1', b'"limit": NaN, "_": 1'), np.uint8)),
    ],
)
def test_arrays_of_another_shape_or_kind_are_told(
    tmp_path: Path, name: str, change: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    with np.load(str(files("torchtriage.diagnose.detector").joinpath(WEIGHTS))) as arrays:
        changed = {one: arrays[one] for one in arrays.files}
    changed[name] = change(changed[name])
    np.savez(tmp_path / "weights.npz", **changed)
    with pytest.raises(UsageError, match="expected a detector's weights in"):
        Detector.load(tmp_path / "weights.npz")


def test_weights_of_other_features_are_told(
    tmp_path: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(detector.to_bytes())
    monkeypatch.setattr("torchtriage.diagnose.detector.detector.NAMES", NAMES[1:])
    with pytest.raises(UsageError, match="for the features of this version"):
        Detector.load(path)


def test_missing_weights_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="torchtriage benchmark learn train"):
        Detector.load(tmp_path / "none.npz")
