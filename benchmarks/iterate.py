"""Measures how much of the AUROC that wrong labels cost the iterative loop gives back.

::

    python benchmarks/iterate.py benchmark --share 0.2 --seeds 3

Labels of windows in splits ``train`` and ``validation`` are made wrong: a share of them, each by
itself (``--by window``) or whole recordings at once (``--by recording``). A healthy window becomes
faulty, of a type drawn from those of the benchmark; a faulty one becomes healthy. The detector
learns from true labels, from wrong ones, and from wrong ones after the loop with the offline
reviewer; each is scored on the true labels of split ``test``, whose model families none has seen.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.learn.dataset.score import area_under_roc
from torchtriage.learn.review.reviewer import NONE
from torchtriage.learn.review.rule_reviewer import Offline
from torchtriage_benchmark.training.active_learning import (
    Findings,
    Judge,
    Labelled,
    Round,
    Settings,
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


def measured(items: Sequence[Example], evidence: Findings, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return one experiment."""
    truth = recorded_labels(items)
    wrong = corrupted(items, truth, given.share, given.by, seed)
    train, test = boosted_trees(seed), labelled(items, truth, "test")

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
            Offline(),
            train,
            History(Path(folder) / HISTORY),
            settings=settings,
            evidence=evidence,
            told=rounds.append,
        )
    after = scored(report.judge, test)
    return {
        "seed": seed,
        "clean": clean,
        "corrupted": bad,
        "after": after,
        "recovered": (after - bad) / (clean - bad) if clean > bad else float("nan"),
        "right_before": share_right(wrong, truth, items),
        "right_after": share_right(report.labels, truth, items),
        "rounds": [{"validation": one.validation, "proposed": one.proposed, "changed": one.changed} for one in rounds],
        "ended": report.ended,
        "cpu_s": time.process_time() - began_s,
    }


def main() -> None:
    """Print one line for each experiment, and their mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--by", choices=["window", "recording"], default="window")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--windows", type=int, default=10**9)
    parser.add_argument("--trust", type=float, default=0.8)
    parser.add_argument("--settled", type=float, default=0.002)
    given = parser.parse_args()
    items, evidence = examples(given.folder), Findings()
    counts = {name: len(recorded(items, name)) for name in ("train", "validation", "test")}
    print(f"{len(items)} recordings: {counts}", flush=True)
    found = []
    for seed in range(given.seeds):
        found.append(measured(items, evidence, given, seed))
        print(json.dumps(found[-1]), flush=True)
    lost = np.mean([one["clean"] - one["corrupted"] for one in found])
    gained = np.mean([one["after"] - one["corrupted"] for one in found])
    print(f"lost {lost:.4f}, given back {gained:.4f}: {gained / lost:.0%}")


if __name__ == "__main__":
    main()
