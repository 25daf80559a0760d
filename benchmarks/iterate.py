"""Measures how much of the AUROC that wrong labels cost the iterative loop gives back.

::

    python benchmarks/iterate.py benchmark --share 0.2 --seeds 3
    python benchmarks/iterate.py benchmark --accuracy 0.6 0.8 0.95 --errors window recording

Labels of windows in splits ``train`` and ``validation`` are made wrong: a share of them, each by
itself (``--by window``) or whole recordings at once (``--by recording``). A healthy window becomes
faulty, of a type drawn from those of the benchmark; a faulty one becomes healthy. The detector
learns from true labels, from wrong ones, and from wrong ones after the loop; each is scored on the
true labels of split ``test``, whose model families none has seen.

The reviewer is the offline one, or with ``--accuracy`` a script that knows the truth and says it of
that share of the windows, always as sure: what it gets wrong is each window by itself, or
(``--errors recording``) whole recordings, or always the same kinds of fault (``--errors code``).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage.learn.dataset.score import area_under_roc
from torchtriage.learn.review.evidence import Evidence, EvidenceLine
from torchtriage.learn.review.reviewer import NONE, Outcome, Review, Reviewer
from torchtriage.learn.review.rule_reviewer import Offline
from torchtriage_benchmark.training.active_learning import (
    Findings,
    Judge,
    Labelled,
    Round,
    Settings,
    Train,
    boosted_trees,
    iterate,
)
from torchtriage_benchmark.training.labels import HISTORY, History, Labels, recorded_labels
from torchtriage_benchmark.training.training_set import Example, examples, recorded


def corrupted(items: Sequence[Example], labels: Labels, share: float, by: str, seed: int) -> Labels:
    """Return labels of which a share is wrong."""
    chance = random.Random(seed)
    codes = sorted({code for row in labels.values() for code in row} - {NONE})
    found = dict(labels)
    for one in items:
        if one.split == "test" or (by == "recording" and chance.random() >= share):
            continue
        code = chance.choice(codes)
        if by == "recording":
            # as if another recording's labels had been taken: faulty here and there, or not at all
            begin, length = chance.randrange(16), chance.randrange(1, 5)
            wrong = [code if (at - begin) % 16 < length else NONE for at in range(len(labels[one.id]))]
            found[one.id] = tuple([NONE] * len(wrong) if one.code else wrong)
        else:
            found[one.id] = tuple(
                (code if now == NONE else NONE) if chance.random() < share else now for now in labels[one.id]
            )
    return found


class Places(Findings):
    """Evidence that says which window it is, for a reviewer that needs no more."""

    def of(self, item: DatasetItem, windows: Iterable[int]) -> list[Evidence]:
        """Return the evidence of some windows."""
        return [Evidence((0, 1), (EvidenceLine("e1", "window", f"{item.id} {at}"),), (), True) for at in windows]


class Scripted:
    """Knows the truth, and says it of a share of the windows."""

    def __init__(self, truth: Labels, accuracy: float, errors: str, seed: int) -> None:
        """Remember what to say."""
        self.name = f"scripted/{accuracy}/{errors}"
        self.truth, self.accuracy, self.errors, self.seed = truth, accuracy, errors, seed
        self.codes = sorted({code for row in truth.values() for code in row} - {NONE})

    def review_all(self, evidence: Sequence[Evidence], _done: Any) -> tuple[Outcome, ...]:
        """Return an outcome for each window."""
        return tuple(Outcome(one, self._review(*one.lines[0].text.split())) for one in evidence)

    def _review(self, item: str, window: str) -> Review:
        code = self.truth[item][int(window)]
        alike = {"window": f"{item} {window}", "recording": item, "code": code}[self.errors]
        # the same windows are got wrong whenever they are asked about
        chance = random.Random(f"{self.seed} {alike}")
        if chance.random() >= self.accuracy:
            code = chance.choice(self.codes) if code == NONE else NONE
        return Review(code, 0.95, ("e1",))


def scored(judge: Judge, test: Sequence[Labelled]) -> float:
    """Return the AUROC of windows on split test."""
    scores = np.concatenate([judge(one).probability for one in test])
    return area_under_roc(np.concatenate([one.faulty for one in test]), scores)


def labelled(items: Sequence[Example], labels: Labels, split: str) -> list[Labelled]:
    """Return the recordings of a split with some labels."""
    found = []
    for one in recorded(items, split):
        found.append(Labelled(one.about, one.path, labels[one.id]))
        found[-1].__dict__["looked"] = one.looked
    return found


def share_right(labels: Labels, truth: Labels, items: Sequence[Example]) -> float:
    """Return how many labels say rightly whether a window is faulty, outside split test."""
    pairs = [
        (a != NONE, b != NONE)
        for split in ("train", "validation")
        for one in recorded(items, split)
        for a, b in zip(labels[one.id], truth[one.id], strict=True)
    ]
    return float(np.mean([a == b for a, b in pairs]))


@cache
def remembered(seed: int) -> Train:
    """Return the detector's way to learn, which learns once from the same labels: reviewers begin alike."""
    known: dict[int, Judge] = {}
    train = boosted_trees(seed)

    def learn(some: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
        key = hash((tuple((one.id, one.labels) for one in some), tuple((one.id, one.labels) for one in tune)))
        if key not in known:
            known[key] = train(some, tune)
        return known[key]

    return learn


def measured(
    items: Sequence[Example], reviewer: Reviewer, evidence: Findings, given: argparse.Namespace, by: str, seed: int
) -> dict[str, Any]:
    """Return one experiment."""
    truth = recorded_labels(items)
    wrong = corrupted(items, truth, given.share, by, seed)
    train, test = remembered(seed), labelled(items, truth, "test")

    def learned(labels: Labels) -> float:
        judge = train(labelled(items, labels, "train"), labelled(items, labels, "validation"))
        return scored(judge, test)

    clean, bad = learned(truth), learned(wrong)
    rounds: list[Round] = []
    settings = Settings(rounds=given.rounds, windows=given.windows, trust=given.trust, settled=given.settled)
    began_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        report = iterate(
            items,
            wrong,
            reviewer,
            train,
            History(Path(folder) / HISTORY),
            settings=settings,
            evidence=evidence,
            report=rounds.append,
        )
    after = scored(report.judge, test)
    return {
        "reviewer": reviewer.name,
        "by": by,
        "seed": seed,
        "clean": clean,
        "corrupted": bad,
        "after": after,
        "recovered": (after - bad) / (clean - bad) if clean > bad else float("nan"),
        "right_before": share_right(wrong, truth, items),
        "right_after": share_right(report.labels, truth, items),
        "rounds": [
            {"validation": one.validation, "proposed": one.proposed, "changed": one.changed, "undone": one.undone}
            for one in rounds
        ],
        "ended": report.ended,
        "cpu_s": time.process_time() - began_s,
    }


def main() -> None:
    """Print one line for each experiment, and their mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--by", choices=["window", "recording"], nargs="+", default=["window"])
    parser.add_argument("--accuracy", type=float, nargs="*", default=[])
    parser.add_argument("--errors", choices=["window", "recording", "code"], nargs="+", default=["window"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--windows", type=int, default=10**9)
    parser.add_argument("--trust", type=float, default=0.9)
    parser.add_argument("--settled", type=float, default=0.002)
    given = parser.parse_args()
    items, evidence = examples(given.folder), Findings()
    counts = {name: len(recorded(items, name)) for name in ("train", "validation", "test")}
    print(f"{len(items)} recordings: {counts}", flush=True)
    truth = recorded_labels(items)
    for by in given.by:
        for accuracy, errors in [(a, e) for e in given.errors for a in given.accuracy] or [(None, "")]:
            found = []
            for seed in range(given.seeds):
                scripted = accuracy is not None
                reviewer: Reviewer = Scripted(truth, accuracy, errors, seed) if scripted else Offline()
                found.append(measured(items, reviewer, Places() if scripted else evidence, given, by, seed))
                print(json.dumps(found[-1]), flush=True)
            mean = {key: np.mean([one[key] for one in found]) for key in SHOWN}
            print(
                f"{by} {reviewer.name}: " + ", ".join(f"{key} {value:.4f}" for key, value in mean.items()), flush=True
            )


SHOWN = ("right_before", "right_after", "clean", "corrupted", "after")

if __name__ == "__main__":
    main()
