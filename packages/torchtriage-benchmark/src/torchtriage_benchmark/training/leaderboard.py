"""The table of the benchmark: every system, both tasks, every split; and the detector's card."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchtriage.diagnose.detector.detector import Detector
from torchtriage.learn.dataset.predictions import Predictions
from torchtriage.learn.dataset.recordings import DEVICE
from torchtriage.learn.dataset.score import SYNTHETIC, Score, score
from torchtriage_benchmark.devices.breakdowns import BREAKDOWNS
from torchtriage_benchmark.training.baselines import SYSTEMS, System, detector_says
from torchtriage_benchmark.training.boosting import pooled
from torchtriage_benchmark.training.training_set import Example, recorded

COLUMNS = ("auroc", "auprc", "type_accuracy", "macro_f1", "detected", "quiet", "not_severe", "overlap")
HELD_OUT = ("validation", "test", f"{SYNTHETIC} test", f"{DEVICE} development", f"{DEVICE} test", f"{DEVICE} later")
"""Groups of recordings that no trees were grown on; on the first, thresholds were tuned, and how
much rules and detector count together."""


def scored(found: Sequence[Example], name: str, system: System) -> dict[str, Score]:
    """Return a system's scores on the splits that it did not learn from."""
    items = [item for item in found if item.split in HELD_OUT or item.about.get("part") == DEVICE]
    if name in BREAKDOWNS:
        items = [item for item in items if item.about["device"] != "cpu"]
    said = Predictions(name, {item.id: system(item) for item in items if item.judged})
    return {row.group: row for row in score(items, said, only=HELD_OUT) if row.n_items}


def table(
    found: Sequence[Example], names: Sequence[str], *, seed: int = 0, report: Callable[[str], None] = lambda _: None
) -> str:
    """Return the table as Markdown; each system is trained anew.

    Raises MissingExtraError: a system needs scikit-learn or torch, not installed here.
    """
    rows = []
    for name in names:
        report(name)
        rows += _rows(name, scored(found, name, SYSTEMS[name](found, seed)))
    return "\n".join([*_head("system"), *rows])


def _head(first: str) -> list[str]:
    heads = (first, "split", "recordings", *(name.replace("_", " ") for name in COLUMNS))
    return [f"| {' | '.join(heads)} |", f"|:--|:--|{'--:|' * (len(COLUMNS) + 1)}"]


def _rows(name: str, scores: dict[str, Score]) -> list[str]:
    return [
        f"| {name} | {group} | {row.n_items} | " + " | ".join(str(getattr(row, column)) for column in COLUMNS) + " |"
        for group, row in scores.items()
    ]


def _named(detector: Detector, found: Sequence[Example], group: str) -> float:
    """Return the share of faulty recordings whose type is right, however sure it is."""
    faulty = [item for item in recorded(found, group) if item.code]
    judged = [detector.judge(item.features) for item in faulty]
    told = [pooled(prediction.probability, prediction.types) for prediction in judged]
    named = [max(types, key=types.__getitem__, default="") for types in told]
    return sum(name == item.code for name, item in zip(named, faulty, strict=True)) / max(len(named), 1)


def card(detector: Detector, found: Sequence[Example], size_bytes: int) -> str:
    """Return the model card of a trained detector, with its scores on what it never saw."""
    about, experts = detector.about, detector.experts
    rows = _rows("detector", scored(found, "detector", detector_says(detector)))
    seen = f"| {DEVICE} development |"
    named = ", ".join(f"{_named(detector, found, item):.2f} on {item}" for item in HELD_OUT[:2])
    learned = " and ".join(
        f"{about['recordings'][domain]} recordings of the domain {domain} ({about['windows'][domain]:,} windows)"
        for domain in experts
    )
    n_trees = sum(len(expert.trees.faulty.root) + len(expert.trees.kinds.root) for expert in experts.values())
    return "\n".join(
        [
            "# The detector's weights",
            "",
            "Gradient-boosted trees on features of windows (a sixteenth of a step): how likely an anti-pattern is in",
            "a window, and which. An opinion beside the findings: it changes no cost and no place.",
            "",
            f"- **Trained on** {learned}; labels of {about['labels']}; seed {about['seed']}.",
            f"  Families and repositories: {', '.join(about['train'])}.",
            f"- **Calibrated on** {', '.join(about['validation'])}, and on published recordings by trees that did not",
            "  learn from their repository; each domain by itself.",
            f"- **Data** {about['data']} (checksums and labels of the recordings of both).",
            *(
                f"- **Types** of domain {domain}: {', '.join(expert.trees.codes)}."
                for domain, expert in experts.items()
            ),
            f"- **Size** {n_trees:,} trees, {size_bytes / 1e3:,.0f} kB. Needs numpy.",
            "- **Unusual** windows are further from all that was learned of their domain than 99 % of those of the",
            "  calibration's families, or have something that never varied there.",
            "- **Tells** a type only where nine in ten windows as certain are of it: "
            + ", ".join(
                f"from {(expert.account or expert).certain:.2f} on for {domain}" for domain, expert in experts.items()
            )
            + ".",
            *(
                f"- **Account** of domain {domain}: lost time counts beside the trees, types by what they could have"
                " cost; calibrated on published recordings alone."
                for domain, expert in experts.items()
                if expert.account
            ),
            "- **Made by** `torchtriage benchmark learn train`, which gives these bytes again from the same recordings"
            " and seed.",
            "",
            "Of model families, repositories and devices that it was not trained on (95 % intervals over programs):",
            "",
            *_head("system"),
            *(row for row in rows if seen not in row),
            "",
            f"Asked which type it is of those that are faulty, it names the right one: {named}.",
            "",
        ]
    )
