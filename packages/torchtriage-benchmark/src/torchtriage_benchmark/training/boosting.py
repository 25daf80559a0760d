"""Trains the detector: boosted trees on window features, calibrated on families it never saw.

Fully: from the labels of windows. Weakly: from the labels of whole recordings alone; every window
of a faulty one is held to be faulty at first, and then those that the last round found most
suspicious.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats, Mask
from torchtriage.core.errors import MissingExtraError, UsageError
from torchtriage.diagnose.detector.detector import DOMAINS, LEAST_SCALE, Detector, Expert, Likeness, Trees, domain_of
from torchtriage.diagnose.detector.device_costs import Account, evidence, weighed
from torchtriage.diagnose.detector.features import NAMES
from torchtriage.diagnose.detector.forest import Forest
from torchtriage.learn.dataset.recordings import DEVICE
from torchtriage_benchmark.training.training_set import Example, data_hash

Labels = Literal["windows", "recordings"]

ROUNDS, TYPE_ROUNDS = 250, 50
BINS = 63
WEAK_ROUNDS = 3
WEAK_SHARE = 0.3
"""Of a faulty recording, windows that stay in after a weak round: the median of those labelled."""
TOP_SHARE = 1 / 16
"""A recording is as suspicious as its most suspicious windows: one place of each step."""
FOLDS = 3
"""Of the repositories of published recordings."""
RIGHT = 0.9
DIRECTIONS, CENTRES, LIKE = 24, 64, 0.99


def needs_sklearn() -> None:
    """Raise unless scikit-learn is installed.

    Raises MissingExtraError: it is not.
    """
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "training needs scikit-learn, not installed here", hint="pip install 'torchtriage[learn]'"
        ) from error


Look = Callable[[Example], NDArray[np.float32]]
"""What is learned from: float32[windows, columns] of a recording."""


def window_rows(example: Example) -> NDArray[np.float32]:
    """Return the features that the detector learns from."""
    return example.features


def fit(train: Sequence[Example], tune: Sequence[Example], *, seed: int = 0, labels: Labels = "windows") -> Detector:
    """Return a detector trained on some recordings, calibrated on others, each domain by itself.

    Raises UsageError: one of the two has not both faulty and healthy windows; MissingExtraError:
    scikit-learn is not installed.
    """
    found = sorted({domain_of(item.features) for item in train} or DOMAINS[:1])
    experts = {domain: _expert(*_of_domain(domain, train, tune), seed=seed, labels=labels) for domain in found}
    about = {
        "seed": seed,
        "labels": labels,
        "data": data_hash([*train, *tune]),
        "train": _families(train),
        "validation": _families(tune),
        "recordings": {domain: len(_of_domain(domain, train)[0]) for domain in found},
        "windows": {domain: sum(len(item.faulty) for item in _of_domain(domain, train)[0]) for domain in found},
    }
    return Detector(experts, about)


def _of_domain(domain: str, *groups: Sequence[Example]) -> list[list[Example]]:
    return [[item for item in items if domain_of(item.features) == domain] for items in groups]


def _expert(train: Sequence[Example], tune: Sequence[Example], *, seed: int, labels: Labels) -> Expert:
    trees = fit_trees(train, tune, seed=seed, labels=labels)
    published = of_other_repositories(train, tune, seed=seed, labels=labels)
    judged = [*((trees, item) for item in tune), *published]
    held = [item for _, item in judged]
    slope, offset = calibrated([other.margin(item.features) for other, item in judged], held, labels)
    judged = [(replace(other, slope=slope, offset=offset), item) for other, item in judged]
    scored = [(other.probability(item.features), other.types(item.features), item) for other, item in judged]
    trees = replace(trees, slope=slope, offset=offset)
    likeness = _likeness(stacked(train)[0], held, seed)
    calm = [(replace(other, slope=slope, offset=offset), item) for other, item in published]
    return Expert(trees, dividing(sure(scored), held), _certain(scored), likeness, account_of(calm, labels))


Scored = tuple[Floats, Sequence[Mapping[str, float]], Example]
"""A recording with the probability and the types of its windows."""


def sure(scored: Sequence[Scored]) -> list[float]:
    """Return how suspicious each recording is of its likeliest type."""
    return [max(pooled(probability, types).values(), default=0) for probability, types, _ in scored]


def account_of(published: Sequence[tuple[Trees, Example]], labels: Labels = "windows") -> Account | None:
    """Return how much a device's account and trees count, by recordings whose repository the trees do not know."""
    found = [(trees, item) for trees, item in published if domain_of(item.features) == "device"]
    held = [item for _, item in found]
    if {bool(item.code) for item in held} != {True, False}:
        return None
    scores = [evidence(trees.odds(item.features), item.features) for trees, item in found]
    account = Account(*calibrated(scores, held, labels), 0.0, 1.0)
    scored = [
        (
            account.probability(trees.odds(item.features), item.features),
            trees.named(weighed(trees.shares(item.features), item.features, trees.codes)),
            item,
        )
        for trees, item in found
    ]
    return replace(account, enough=dividing(sure(scored), held), certain=_certain(scored))


def of_other_repositories(
    train: Sequence[Example], tune: Sequence[Example], *, seed: int = 0, labels: Labels = "windows"
) -> list[tuple[Trees, Example]]:
    """Return the published recordings of ``train``, each with trees that know nothing of its repository.

    They are too few to keep some apart for tuning.
    """
    published = [item for item in train if item.about.get("part") == DEVICE]
    families = _families(published)
    found = []
    for fold in range(min(FOLDS, len(families))):
        away = families[fold::FOLDS]
        others = fit_trees([item for item in train if item.about["family"] not in away], tune, seed=seed, labels=labels)
        found += [(others, item) for item in published if item.about["family"] in away]
    return found


def _certain(judged: Sequence[Scored]) -> float:
    """Return how likely a type must be in a window for nine in ten to be right, recordings counting alike."""
    found = []
    for probability, types, item in judged:
        for likely, told, faulty in zip(probability.tolist(), types, item.faulty.tolist(), strict=True):
            code = max(told, key=told.__getitem__, default="")
            found.append((likely * told.get(code, 0.0), faulty and code in item.accepted, 1 / len(types)))
    found.sort(reverse=True)
    likely, right, weight = (np.array(column, float) for column in zip(*found, strict=True))
    share = np.cumsum(right * weight) / np.cumsum(weight)
    enough = np.flatnonzero(share >= RIGHT)
    return float(likely[enough[-1]]) if len(enough) else 1.0


def fit_trees(
    train: Sequence[Example],
    tune: Sequence[Example],
    *,
    seed: int = 0,
    labels: Labels = "windows",
    look: Look = window_rows,
) -> Trees:
    """Return the trees alone, learned from whatever ``look`` gives; errors as of :func:`fit`."""
    needs_sklearn()
    check(train, "train")
    check(tune, "validation")
    rows, truth, weight = stacked(train, look)
    code = np.array([code for item in train for code in item.codes])
    if labels == "recordings":
        truth = _weak(train, rows, weight, seed)
    if look is window_rows:  # half of what people record is without Python stacks
        some = rows[:, NAMES.index("has stacks")] > 0
        rows = np.concatenate([rows, without_stacks(rows[some])])
        truth, weight, code = (np.concatenate([column, column[some]]) for column in (truth, weight, code))
    faulty = boosted(rows, truth, weight, seed=seed, rounds=ROUNDS)
    codes, kinds = _kinds(code, rows, truth, weight, seed)
    trees = Trees(faulty, kinds, codes, 1.0, 0.0)
    slope, offset = calibrated([trees.margin(look(item)) for item in tune], tune, labels)
    return replace(trees, slope=slope, offset=offset)


def without_stacks(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what windows would look like, had their Python stacks not been recorded."""
    of_stacks = [at for at, name in enumerate(NAMES) if name.startswith("frame ") or name == "has stacks"]
    plain = rows.copy()
    plain[:, of_stacks] = 0
    return plain


def check(found: Sequence[Example], split: str) -> None:
    """Raise unless there are both faulty and healthy windows.

    Raises UsageError: one of the two is missing.
    """
    faulty = sum(int(item.faulty.sum()) for item in found)
    total = sum(len(item.faulty) for item in found)
    if not 0 < faulty < total:
        raise UsageError(
            f"expected faulty and healthy windows in split {split!r}, "
            f"found {faulty} faulty of {total:,} in {len(found)} recordings",
            hint="record more of the benchmark: torchtriage benchmark dataset record --count 200",
        )


def _families(found: Sequence[Example]) -> list[str]:
    return sorted({str(item.about["family"]) for item in found})


def stacked(found: Sequence[Example], look: Look = window_rows) -> tuple[NDArray[np.float32], Mask, Floats]:
    """Return all windows' columns, which are faulty, and weights: recordings count alike."""
    rows = np.concatenate([look(item) for item in found])
    truth = np.concatenate([item.faulty for item in found])
    lengths = np.array([len(item.faulty) for item in found])
    return rows, truth, np.repeat(lengths.mean() / lengths, lengths)


def boosted(rows: NDArray[np.float32], target: NDArray[Any], weight: Floats, *, seed: int, rounds: int) -> Forest:
    """Return a forest for a target of two classes (one output) or more (one each)."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    told = np.flatnonzero(np.ptp(rows, axis=0) > 0)
    # binned here: with weights, scikit-learn sorts each column anew for each of its bins
    edges = [_edges(rows[:, at]) for at in told.tolist()]
    bins = np.stack(
        [np.searchsorted(edge, rows[:, at]) for edge, at in zip(edges, told.tolist(), strict=True)], axis=1
    ).astype(np.float32)
    model = HistGradientBoostingClassifier(
        learning_rate=0.06,
        max_iter=rounds,
        max_leaf_nodes=12,
        max_depth=6,
        min_samples_leaf=30,
        max_bins=BINS,
        l2_regularization=2.0,
        max_features=0.2,
        early_stopping=False,
        random_state=seed,
    )
    model.fit(bins, target, sample_weight=weight)
    return _forest(model, told, edges)


def _edges(column: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the upper ends of bins that hold about as many values each, in order."""
    values = np.sort(column)
    last = np.linspace(0, len(values) - 1, BINS)[1:-1].astype(np.int64)
    return np.unique(values[last])


def _forest(model: Any, columns: NDArray[np.int64], edges: Sequence[NDArray[np.float32]]) -> Forest:
    """Return scikit-learn's trees as arrays; it was given the bins of these columns."""
    trees = sorted(
        ((output, tree.nodes) for round_ in model._predictors for output, tree in enumerate(round_)),
        key=lambda item: item[0],
    )
    nodes = np.concatenate([item for _, item in trees])
    sizes = np.array([len(item) for _, item in trees])
    root = np.cumsum(sizes) - sizes
    begin = np.repeat(root, sizes)
    leaf = nodes["is_leaf"].astype(bool)
    itself = np.arange(len(nodes))
    threshold = np.full(len(nodes), np.inf, np.float32)
    for at in np.flatnonzero(~leaf).tolist():
        # at most so many bins: at most the upper end of the last of them
        threshold[at] = edges[nodes["feature_idx"][at]][int(nodes["num_threshold"][at])]
    return Forest(
        np.where(leaf, 0, columns[nodes["feature_idx"]]).astype(np.int16),
        threshold,
        np.where(leaf, itself, begin + nodes["left"]).astype(np.int32),
        np.where(leaf, itself, begin + nodes["right"]).astype(np.int32),
        nodes["value"].astype(np.float32),
        root.astype(np.int32),
        np.array([output for output, _ in trees], np.int16),
        np.ravel(model._baseline_prediction).astype(np.float32),
        np.int16(nodes["depth"].max()),  # type: ignore[arg-type]
    )


def _kinds(
    code: NDArray[np.str_], rows: NDArray[np.float32], truth: Mask, weight: Floats, seed: int
) -> tuple[tuple[str, ...], Forest]:
    """Return the types and the forest that tells them apart, of faulty windows."""
    chosen = truth & (code != "")
    codes, target, count = np.unique(code[chosen], return_inverse=True, return_counts=True)
    if len(codes) < 2:
        raise UsageError(
            f"expected faults of several types in split 'train', found {', '.join(codes)}",
            hint="record more of the benchmark: torchtriage benchmark dataset record --count 200",
        )
    balanced = (count.mean() / count)[target] * weight[chosen]
    forest = boosted(rows[chosen], target, balanced, seed=seed, rounds=TYPE_ROUNDS)
    return tuple(str(code) for code in codes), forest


def _weak(train: Sequence[Example], rows: NDArray[np.float32], weight: Floats, seed: int) -> Mask:
    """Return which windows are held to be faulty when only recordings are labelled."""
    lengths = [len(item.faulty) for item in train]
    bad = np.repeat([bool(item.code) for item in train], lengths)
    held = bad.copy()
    for _ in range(WEAK_ROUNDS):
        score = boosted(rows, held, weight, seed=seed, rounds=ROUNDS // 3)(rows)[:, 0]
        pieces = np.split(score, np.cumsum(lengths)[:-1])
        limits = [np.quantile(piece, 1 - WEAK_SHARE) for piece in pieces]
        held = bad & (score >= np.repeat(limits, lengths))
    return held


def suspicion(scores: Floats) -> float:
    """Return how suspicious a recording is: the mean of its most suspicious windows."""
    most = max(int(np.ceil(len(scores) * TOP_SHARE)), 1)
    return float(np.sort(scores)[-most:].mean())


def pooled(probability: Floats, types: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return how suspicious a recording is of each type, from what its windows are."""
    codes = sorted({code for told in types for code in told})
    shares = np.zeros((len(types), len(codes)))
    for at, told in enumerate(types):
        for code, likely in told.items():
            shares[at, codes.index(code)] = likely
    of_type = probability[:, None] * shares
    return {code: suspicion(of_type[:, at]) for at, code in enumerate(codes)}


def dividing(sure: Sequence[float], tune: Sequence[Example]) -> float:
    """Return how suspicious a recording must be to be called faulty.

    Where clean and faulty ones are told apart best, each kind counting alike.
    """
    found = np.array(sure)
    bad = np.array([bool(item.code) for item in tune])
    if bad.all() or not bad.any():
        return float(np.median(found))
    limits = np.unique(found)
    right = [(found[bad] > limit).mean() + (found[~bad] <= limit).mean() for limit in limits]
    best = np.flatnonzero(np.array(right) == max(right))
    return float(limits[best[-1]])


def calibrated(scores: Sequence[Floats], tune: Sequence[Example], labels: Labels = "windows") -> tuple[float, float]:
    """Return slope and offset that turn scores into probabilities (Platt's, with his priors).

    Recordings count alike, so that a long one does not say what is likely.
    """
    if labels == "recordings":
        margin = np.array([suspicion(score) for score in scores])
        truth = np.array([bool(item.code) for item in tune])
        weight = np.ones(len(truth))
    else:
        margin = np.concatenate(scores)
        truth = np.concatenate([item.faulty for item in tune])
        weight = np.concatenate([np.full(len(score), 1 / len(score)) for score in scores])
    n_true, n_false = truth.sum(), (~truth).sum()
    target = np.where(truth, (n_true + 1) / (n_true + 2), 1 / (n_false + 2))
    slope, offset = 1.0, 0.0
    for _ in range(50):  # Newton's steps, on two unknowns
        likely = 1 / (1 + np.exp(-np.clip(slope * margin + offset, -50, 50)))
        error, steep = weight * (likely - target), weight * likely * (1 - likely) + 1e-12
        gradient = np.array([(error * margin).sum(), error.sum()])
        curve = np.array([[(steep * margin**2).sum(), (steep * margin).sum()], [(steep * margin).sum(), steep.sum()]])
        step = np.linalg.solve(curve + 1e-9 * np.eye(2), gradient)
        step *= min(1.0, 1.0 / max(np.abs(step).max(), 1e-12))
        slope, offset = slope - float(step[0]), offset - float(step[1])
        if np.abs(step).max() < 1e-9:
            break
    return max(slope, 1e-3), offset


def _likeness(rows: NDArray[np.float32], tune: Sequence[Example], seed: int) -> Likeness:
    """Return what is like the windows trained on; see :class:`Likeness`."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    centre = np.median(rows, axis=0)
    low, high = np.quantile(rows, [0.05, 0.95], axis=0)
    scale = np.maximum(high - low, np.maximum(rows.std(axis=0), LEAST_SCALE)).astype(np.float32)
    scaled = np.clip((rows - centre) / scale, -10, 10)
    # the order in which threads add up is theirs: the same seed would give other weights
    with threadpool_limits(limits=1):
        _, _, directions = np.linalg.svd(scaled - scaled.mean(axis=0), full_matrices=False)
        directions = directions[:DIRECTIONS].T.astype(np.float32)
        means = KMeans(CENTRES, n_init=1, random_state=seed).fit(scaled @ directions)
    likeness = Likeness(centre.astype(np.float32), scale, directions, means.cluster_centers_.astype(np.float32), 0.0)
    distance = np.concatenate([likeness.distance(item.features) for item in tune])
    limit = float(np.quantile(distance[np.isfinite(distance)], LIKE))
    return Likeness(centre.astype(np.float32), scale, directions, likeness.centres, limit)
