"""The systems that the benchmark's table compares: ours, and what it has to beat.

A system looks at a recording and says what it thinks; one that learns is trained on the recordings
of split ``train`` and tuned on those of ``validation``, never on others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats
from torchtriage.diagnose.detector.detector import Detector, Judged, domain_of
from torchtriage.diagnose.detector.features import NAMES, PER_STEP
from torchtriage.learn.dataset.predictions import Prediction, rules
from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage.learn.dataset.score import SYNTHETIC
from torchtriage_benchmark.devices.breakdowns import BREAKDOWNS
from torchtriage_benchmark.training.boosting import (
    Labels,
    Look,
    calibrated,
    check,
    dividing,
    fit,
    fit_trees,
    needs_sklearn,
    of_other_repositories,
    pooled,
    stacked,
    suspicion,
)
from torchtriage_benchmark.training.event_tokens import BUCKETS
from torchtriage_benchmark.training.network import network
from torchtriage_benchmark.training.training_set import Example, learned

System = Callable[[Example], Prediction]
Rows = NDArray[np.float32]
Score = Callable[[Rows], Floats]

_UNKNOWN = "unknown"
"""The type that a system names which knows none."""
_NAMES = 400
"""Names that the name-only baseline knows: the most frequent ones."""
_DURATIONS = (
    "quiet host",
    "longest quiet",
    "longest op",
    "log own op time",
    "ops per ms",
    "device busy",
    "device longest idle",
    "device log kernel time",
)


def _learned_from(found: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    train, tune = learned(found, "train"), learned(found, "validation")
    check(train, "train")
    check(tune, "validation")
    return train, tune


def said(probability: Floats, types: Sequence[Mapping[str, float]], enough: float) -> Prediction:
    """Return what windows say together of a recording.

    No type, when it is less suspicious of each than ``enough``.
    """
    windows = tuple(probability.tolist())
    found = pooled(probability, types)
    return Prediction(windows, found if max(found.values(), default=0) > enough else {})


def detector_says(detector: Detector) -> System:
    """Return a trained detector as a system."""

    def says(example: Example) -> Prediction:
        made_up = example.about.get("part") == SYNTHETIC
        judged = detector.judge(example.features, made_up=made_up)
        expert = detector.experts.get(domain_of(example.features))
        limits = expert.account if expert and expert.account and not made_up else expert
        return said(judged.probability, judged.types, limits.enough if limits else np.inf)

    return says


def _detector(labels: Labels) -> Callable[[Sequence[Example], int], System]:
    def made(found: Sequence[Example], seed: int) -> System:
        train, tune = learned(found, "train"), learned(found, "validation")
        return detector_says(fit(train, tune, seed=seed, labels=labels))

    return made


def _network(found: Sequence[Example], seed: int) -> System:
    """Return the network over events, calibrated as the detector is."""
    train, tune = _learned_from(found)
    judge = network(train, seed=seed)
    judged = [judge(item) for item in tune]
    slope, offset = calibrated([scores for scores, _ in judged], tune)

    def likely(scores: Floats) -> Floats:
        return 1 / (1 + np.exp(-np.clip(slope * scores + offset, -50, 50)))

    sure = [pooled(likely(scores), types) for scores, types in judged]
    enough = dividing([max(item.values(), default=0.0) for item in sure], tune)

    def says(example: Example) -> Prediction:
        scores, types = judge(example)
        return said(likely(scores), types, enough)

    return says


def _rules(_found: Sequence[Example], _seed: int) -> System:
    # a recording of its own: its trace does not stay in memory
    return lambda example: rules(DatasetItem(example.about, example.path))


# -- rules and detector --------------------------------------------------------------------------


def both(
    detector: Detector, train: Sequence[Example], tune: Sequence[Example], by_rules: System, *, seed: int = 0
) -> System:
    """Return rules and detector together, each domain by itself.

    How often a rule is right is counted on ``train`` and ``tune``. The weights of the two are found on ``tune``, and on
    published recordings as trees judge them that know nothing of their repository: the trees alone, without the
    device's account, of which rules know more.
    """

    def together(domain: str) -> System:
        here = [[item for item in items if domain_of(item.features) == domain] for items in (train, tune)]
        expert = detector.experts[domain]
        judged = [(item, expert.judge(item.features, made_up=True)) for item in here[1]]
        for trees, item in of_other_repositories(*here, seed=seed):
            calm = replace(expert, trees=replace(trees, slope=expert.trees.slope, offset=expert.trees.offset))
            judged.append((item, calm.judge(item.features, made_up=True)))
        return _together(detector, here[0], judged, by_rules)

    parts = {domain: together(domain) for domain in detector.experts}
    return lambda example: parts[domain_of(example.features)](example)


def _together(
    detector: Detector, train: Sequence[Example], judged: Sequence[tuple[Example, Judged]], by_rules: System
) -> System:
    from sklearn.linear_model import LogisticRegression

    tune = [item for item, _ in judged]

    def columns(judged: Judged, rule: Prediction) -> Floats:
        likely = np.clip(judged.probability, 1e-6, 1 - 1e-6)
        odds = np.log(likely / (1 - likely))
        return np.stack([odds, _same_place(odds), np.array(rule.windows)], axis=1)

    told = [(said, by_rules(item)) for item, said in judged]
    counted = list({item.id: item for item in (*train, *tune)}.values())
    trusted = _trusted(counted, [by_rules(item) for item in counted])
    model = LogisticRegression().fit(
        np.concatenate([columns(judged, rule) for judged, rule in told]), np.concatenate([item.faulty for item in tune])
    )

    def opinion(judged: Judged, rule: Prediction) -> tuple[Floats, dict[str, float]]:
        likely = model.predict_proba(columns(judged, rule))[:, 1]
        return likely, pooled(likely, judged.types)

    def mixed(judged: Judged, rule: Prediction, own: Mapping[str, float], share: float) -> dict[str, float]:
        # what the detector calls unusual it should not name: the rules' share is larger there
        share = share / (share + (1 - share) * float(1 - judged.unusual.mean()))
        return {
            code: share * rule.types.get(code, 0.0) * trusted.get(code, 0.5) + (1 - share) * own.get(code, 0.0)
            for code in (*rule.types, *own)
        }

    opinions = [(judged, rule, opinion(judged, rule)[1]) for judged, rule in told]

    def right(share: float) -> float:
        pairs = [(item, mixed(*seen, share)) for item, seen in zip(tune, opinions, strict=True)]
        return float(np.mean([_surest(types) in item.accepted for item, types in pairs if item.code]))

    share = max(np.linspace(0.1, 0.9, 9).tolist(), key=right)
    enough = dividing([max(mixed(*opinion, share).values(), default=0.0) for opinion in opinions], tune)

    def system(example: Example) -> Prediction:
        judged, rule = detector.judge(example.features, made_up=True), by_rules(example)
        likely, own = opinion(judged, rule)
        types = mixed(judged, rule, own, share)
        speaks = max(types.values(), default=0.0) > enough
        return replace(rule, windows=tuple(likely.tolist()), types=types if speaks else {})

    return system


def _trusted(items: Sequence[Example], said: Sequence[Prediction]) -> dict[str, float]:
    """Return how often what a rule says is the recording's fault, by the rule's code."""
    found: dict[str, list[bool]] = {}
    for item, rule in zip(items, said, strict=True):
        for code in rule.types:
            found.setdefault(code, []).append(code in item.accepted)
    return {code: (sum(right) + 1) / (len(right) + 2) for code, right in found.items()}


def _same_place(scores: Floats) -> Floats:
    """Return the mean of all windows at the same place of their steps."""
    return np.tile(scores.reshape(-1, PER_STEP).mean(axis=0), len(scores) // PER_STEP)


def _surest(types: Mapping[str, float]) -> str:
    return max(types, key=types.__getitem__, default="")


def _both(found: Sequence[Example], seed: int) -> System:
    train, tune = learned(found, "train"), learned(found, "validation")
    return both(fit(train, tune, seed=seed), train, tune, _rules(found, seed), seed=seed)


# -- names alone, durations alone: what they reach is no merit of a detector ---------------------


def _alone(looks: Callable[[Sequence[Example]], Look]) -> Callable[[Sequence[Example], int], System]:
    def made(found: Sequence[Example], seed: int) -> System:
        train, tune = learned(found, "train"), learned(found, "validation")
        look = looks(train)
        trees = fit_trees(train, tune, seed=seed, look=look)
        sure = [pooled(trees.probability(look(item)), trees.types(look(item))) for item in tune]
        enough = dividing([max(item.values(), default=0.0) for item in sure], tune)
        return lambda example: said(trees.probability(look(example)), trees.types(look(example)), enough)

    return made


def _names(train: Sequence[Example]) -> Look:
    """Return which names are in a window, whatever their times and numbers."""
    counts = np.zeros(BUCKETS)
    for recording in train:
        counts += np.bincount(recording.looked["kind_names"][:, :, 0].ravel(), minlength=BUCKETS)
    counts[0] = 0
    chosen = np.argsort(-counts, kind="stable")[:_NAMES]

    def look(example: Example) -> Rows:
        names = example.looked["kind_names"][:, :, 0]
        there = np.zeros((len(names), BUCKETS), np.float32)
        there[np.arange(len(names))[:, None], names] = 1
        return there[:, chosen]

    return look


def _durations(_train: Sequence[Example]) -> Look:
    """Return how long windows and what is in them last, whatever it is."""
    places = [NAMES.index(name) for name in _DURATIONS]

    def look(example: Example) -> Rows:
        length = np.log((example.windows_ns[:, 1] - example.windows_ns[:, 0]).astype(np.float32) + 1)
        beside = length - np.median(length)
        return np.column_stack([example.features[:, places], length, beside]).astype(np.float32)

    return look


# -- without labels of windows -------------------------------------------------------------------


def _scaled(rows: Rows) -> Callable[[Rows], Floats]:
    """Return what brings rows to medians of zero and like widths."""
    middle = np.median(rows, axis=0)
    width = np.median(np.abs(rows - middle), axis=0) * 1.4826
    width = np.maximum(width, rows.std(axis=0) / 3 + 1e-3)
    return lambda some: np.clip((some - middle) / width, -8, 8).astype(np.float64)


def _z_scores(rows: Rows, _seed: int) -> Score:
    scale = _scaled(rows)
    return lambda some: np.sort(np.abs(scale(some)), axis=1)[:, -24:].mean(axis=1)


def _k_means(rows: Rows, seed: int) -> Score:
    from sklearn.cluster import KMeans

    scale = _scaled(rows)
    model = KMeans(32, n_init=2, random_state=seed).fit(scale(rows))
    return lambda some: np.asarray(model.transform(scale(some)).min(axis=1))


def _isolation(rows: Rows, seed: int) -> Score:
    from sklearn.ensemble import IsolationForest

    model = IsolationForest(n_estimators=200, random_state=seed).fit(rows)
    return lambda some: -np.asarray(model.score_samples(some))


def _autoencoder(rows: Rows, seed: int) -> Score:
    from sklearn.neural_network import MLPRegressor

    scale = _scaled(rows)
    inputs = scale(rows)
    model = MLPRegressor(hidden_layer_sizes=(64, 12, 64), max_iter=30, batch_size=256, random_state=seed, tol=0)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it could go on learning
        model.fit(inputs, inputs)
    return lambda some: ((model.predict(scale(some)) - scale(some)) ** 2).mean(axis=1)


def _without_labels(made: Callable[[Rows, int], Score]) -> Callable[[Sequence[Example], int], System]:
    """Return a system that calls windows suspicious which are unlike most of ``train``."""

    def system(found: Sequence[Example], seed: int) -> System:
        needs_sklearn()
        train, tune = _learned_from(found)
        score = made(stacked(train)[0], seed)
        scores = [score(item.features) for item in tune]
        slope, offset = calibrated(scores, tune, "recordings")
        limit = dividing([suspicion(score) for score in scores], tune)

        def says(example: Example) -> Prediction:
            found_ = score(example.features)
            likely = 1 / (1 + np.exp(-np.clip(slope * found_ + offset, -50, 50)))
            types = {_UNKNOWN: suspicion(likely)} if suspicion(found_) > limit else {}
            return Prediction(tuple(likely.tolist()), types)

        return says

    return system


# -- from labels of recordings -------------------------------------------------------------------


def _multiple_instance(found: Sequence[Example], seed: int) -> System:
    """Return a system to which a recording is a bag of windows.

    Each type's score is that of its most suspicious windows. Linear, trained on the recordings'
    labels by the logistic loss with Adam.
    """
    train, tune = _learned_from(found)
    scale = _scaled(stacked(train)[0])
    bags = [scale(item.features) / 4 for item in train]
    codes = sorted({item.code for item in train if item.code})
    target = np.array([[item.code == code for code in codes] for item in train], float)
    rng = np.random.default_rng(seed)
    weights, bias = np.zeros((bags[0].shape[1], len(codes))), np.full(len(codes), -2.0)
    moments = [np.zeros_like(weights), np.zeros_like(weights)]
    n_steps = 0
    for _ in range(60):
        for at in rng.permutation(len(bags)).tolist():
            bag = bags[at]
            scores = bag @ weights + bias
            most = max(int(np.ceil(len(bag) / 16)), 1)
            top = np.argpartition(-scores, most - 1, axis=0)[:most]
            score = np.take_along_axis(scores, top, axis=0).mean(axis=0)
            error = 1 / (1 + np.exp(-np.clip(score, -50, 50))) - target[at]
            slope = bag[top].mean(axis=0).T * error + 1e-3 * weights
            n_steps += 1
            moments[0] = 0.9 * moments[0] + 0.1 * slope
            moments[1] = 0.999 * moments[1] + 0.001 * slope**2
            step = moments[0] / (1 - 0.9**n_steps)
            step /= np.sqrt(moments[1] / (1 - 0.999**n_steps)) + 1e-8
            weights = weights - 0.002 * step
            bias = bias - 0.01 * error

    def margins(example: Example) -> Floats:
        return scale(example.features) / 4 @ weights + bias

    tuned = [margins(item).max(axis=1) for item in tune]
    slope_, offset = calibrated(tuned, tune, "recordings")
    limit = dividing([suspicion(item) for item in tuned], tune)

    def says(example: Example) -> Prediction:
        scores = margins(example)
        worst = scores.max(axis=1)
        likely = 1 / (1 + np.exp(-np.clip(slope_ * worst + offset, -50, 50)))
        types: dict[str, float] = {}
        if suspicion(worst) > limit:
            found_scores = np.array([suspicion(scores[:, at]) for at in range(len(codes))])
            shares = np.exp(found_scores - found_scores.max())
            types = dict(zip(codes, (shares / shares.sum()).tolist(), strict=True))
        return Prediction(tuple(likely.tolist()), types)

    return says


SYSTEMS: Mapping[str, Callable[[Sequence[Example], int], System]] = {
    "rules": _rules,
    "detector": _detector("windows"),
    "detector-weak": _detector("recordings"),
    "network": _network,
    "rules+detector": _both,
    "z-scores": _without_labels(_z_scores),
    "k-means": _without_labels(_k_means),
    "isolation-forest": _without_labels(_isolation),
    "autoencoder": _without_labels(_autoencoder),
    "multiple-instance": _multiple_instance,
    "names-only": _alone(_names),
    "durations-only": _alone(_durations),
    **{name: lambda _found, _seed, says=says: says for name, says in BREAKDOWNS.items()},  # type: ignore[misc]
}
"""By name: given all recordings and a seed, a system. Those that learn do so when called."""
