"""The detector and what it is compared with, on recordings whose faults are one raised number."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from benchmark.training.made_up import CODES, recordings

from torchtriage.core.errors import UsageError
from torchtriage.diagnose.detector.detector import Detector
from torchtriage.diagnose.detector.features import NAMES
from torchtriage.learn.dataset.predictions import Predictions
from torchtriage.learn.dataset.score import Score, score
from torchtriage_benchmark.training import boosting
from torchtriage_benchmark.training.baselines import SYSTEMS
from torchtriage_benchmark.training.boosting import account_of, calibrated, fit, suspicion
from torchtriage_benchmark.training.training_set import Example, data_hash, recorded


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting, "ROUNDS", 20)
    monkeypatch.setattr(boosting, "TYPE_ROUNDS", 6)


def trained(found: list[Example], **options: object) -> Detector:
    return fit(recorded(found, "train"), recorded(found, "validation"), **options)  # type: ignore[arg-type]


def on_test(found: list[Example], name: str) -> Score:
    system = SYSTEMS[name](found, 0)
    items = recorded(found, "test")
    said = Predictions(name, {item.id: system(item) for item in items})
    (row,) = score(items, said, only=("test",))
    return row


# -- the detector --------------------------------------------------------------------------------


def test_the_detector_finds_windows_and_types_of_families_it_never_saw() -> None:
    found = on_test(recordings(), "detector")
    assert found.auroc.value > 0.95
    assert found.type_accuracy.value >= 0.5


def test_labels_of_recordings_alone_find_windows_too() -> None:
    assert on_test(recordings(), "detector-weak").auroc.value > 0.9


def test_the_same_recordings_and_seed_give_the_same_file() -> None:
    assert trained(recordings()).to_bytes() == trained(recordings()).to_bytes()


def test_weights_say_the_same_when_they_are_read_again(tmp_path: Path) -> None:
    found = recordings()
    detector = trained(found)
    path = tmp_path / "weights.npz"
    path.write_bytes(detector.to_bytes())
    again, rows = Detector.load(path), found[-1].features
    assert again.about == detector.about
    assert np.array_equal(again.judge(rows).probability, detector.judge(rows).probability)
    assert again.judge(rows).types == detector.judge(rows).types


def test_forests_say_what_scikit_learn_says() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 1, (400, 6)).astype(np.float32)
    for target in (rows[:, 0] > rows[:, 1], np.digitize(rows[:, 2], [-1, 0, 1])):
        from sklearn.ensemble import HistGradientBoostingClassifier

        edges = [boosting._edges(rows[:, at]) for at in range(6)]
        bins = np.stack([np.searchsorted(edges[at], rows[:, at]) for at in range(6)], axis=1)
        model = HistGradientBoostingClassifier(max_iter=20).fit(bins, target)
        mine = boosting._forest(model, np.arange(6), edges)(rows)
        theirs = np.asarray(model.decision_function(bins)).reshape(len(rows), -1)
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_both_of_two_types_are_named() -> None:
    found = recordings()
    detector = trained(found)
    for code in CODES:
        rows = np.concatenate([one.features[one.faulty] for one in found if one.code == code])
        named = [max(type_, key=type_.__getitem__) for type_ in next(iter(detector.experts.values())).trees.types(rows)]
        assert np.mean([one == code for one in named]) > 0.9


def published(code: str, **features: float) -> Example:
    """Return a recording whose windows all have these features and no other."""
    one = recordings()[1 if code else 0]
    one.about["intervals_ns"] = [[0, 10**12]] if code else []
    one.features[:] = 0
    for name, value in features.items():
        one.features[:, NAMES.index(name.replace("_", " "))] = value
    return one


def test_lost_time_is_calibrated_on_published_recordings_of_a_device_alone() -> None:
    trees = Detector.load().experts["device"].trees
    idle = published(CODES[0], has_device=1, device_busy=0)
    busy = published("", has_device=1, device_busy=1, device_time_matmul=1)
    account = account_of([(trees, idle), (trees, busy)])
    assert account
    faulty, healthy = (account.probability(trees.odds(one.features), one.features) for one in (idle, busy))
    assert faulty.min() > 0.5 > healthy.max()
    assert account_of([(trees, idle)]) is None  # nothing to tell it from
    assert account_of([(trees, idle), (trees, published("", device_busy=1))]) is None  # of a CPU


def test_one_type_alone_is_told() -> None:
    found = [recording for recording in recordings() if recording.code != CODES[0]]
    with pytest.raises(UsageError, match=f"several types in split 'train', found {CODES[1]}"):
        trained(found)


@pytest.mark.parametrize("name", ["k-means", "multiple-instance", "detector"])
def test_one_recording_is_too_few(name: str) -> None:
    with pytest.raises(UsageError, match="faulty and healthy windows"):
        SYSTEMS[name](recordings()[:1], 0)


def test_windows_unlike_all_others_are_unusual() -> None:
    found = recordings()
    rows = recorded(found, "test")[0].features
    detector = trained(found)
    assert detector.judge(rows).unusual.mean() < 0.2
    assert detector.judge(rows + 20).unusual.all()


def test_probabilities_are_calibrated_on_recordings_that_count_alike() -> None:
    rng = np.random.default_rng(1)
    found = recorded(recordings(), "train")
    # scores that say nothing: every window is as likely as faulty ones are frequent
    slope, offset = calibrated([rng.normal(0, 1, len(one.faulty)) for one in found], found)
    likely = 1 / (1 + np.exp(-offset))
    assert likely == pytest.approx(np.mean([one.faulty.mean() for one in found]), abs=0.03)
    # and scores that are right say so
    slope, offset = calibrated([4.0 * one.faulty - 2 for one in found], found)
    assert 1 / (1 + np.exp(-(2 * slope + offset))) > 0.8
    assert 1 / (1 + np.exp(-(-2 * slope + offset))) < 0.2


def test_a_recording_is_as_suspicious_as_its_most_suspicious_windows() -> None:
    scores = np.array([0.9, 0.7] + [0.0] * 30)
    assert suspicion(scores) == pytest.approx(0.8)
    assert suspicion(scores[:1]) == pytest.approx(0.9)


def test_too_few_recordings_are_told() -> None:
    found = recordings()
    with pytest.raises(UsageError, match="faulty and healthy windows in split 'validation'"):
        fit(recorded(found, "train"), [])


# -- no leak -------------------------------------------------------------------------------------


def test_shuffled_labels_teach_nothing() -> None:
    found = recordings()
    rng = np.random.default_rng(0)
    shuffled = []
    for one in recorded(found, "train"):
        other = dataclasses.replace(one)
        other.__dict__["looked"] = one.looked
        other.__dict__["faulty"] = rng.permutation(one.faulty)
        shuffled.append(other)
    detector = fit(shuffled, recorded(found, "validation"))
    items = recorded(found, "test")
    scores = np.concatenate([detector.judge(item.features).probability for item in items])
    truth = np.concatenate([item.faulty for item in items])
    from torchtriage.learn.dataset.score import area_under_roc

    assert area_under_roc(truth, scores) == pytest.approx(0.5, abs=0.15)  # few windows here


def test_names_and_durations_alone_do_not_know_a_raised_feature() -> None:
    for name in ("names-only", "durations-only"):
        assert on_test(recordings(), name).auroc.value < 0.65


# -- the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["z-scores", "k-means", "isolation-forest", "autoencoder"])
def test_systems_without_labels_name_no_type(name: str) -> None:
    system = SYSTEMS[name](recordings(), 0)
    told = [system(recording) for recording in recordings()]
    assert not {code for one in told for code in one.types} & set(CODES)
    assert all(0 <= likely <= 1 for one in told for likely in one.windows)


def test_bags_of_windows_learn_types_from_recordings() -> None:
    found = recordings()  # few, and linear: what it was shown is what it knows
    system = SYSTEMS["multiple-instance"](found, 0)
    told = [(one, system(one).types) for one in recorded(found, "train")]
    named = [max(types, key=types.__getitem__) == one.code for one, types in told if types]
    assert len(named) >= 9
    assert np.mean(named) >= 0.75


def test_the_data_hash_knows_labels_and_not_the_order() -> None:
    found = recordings()
    assert data_hash(found) == data_hash(found[::-1])
    assert data_hash(found) != data_hash(found[1:])
