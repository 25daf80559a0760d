"""The loop: the detector proposes, a reviewer judges, labels change, the detector learns anew.

Proposed are windows where a detector that has not learned from their model family disagrees with
their label. The reviewer does not see what it says; a label is changed only when both, for
themselves, say the same of the window, and the reviewer is surer of it than labels are worth. A
person needs no second opinion. Every change is written down. A round that makes the validation
score worse is taken back, and ends the loop; else it ends when that score settles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.errors import UsageError
from torchtriage.diagnose.detector.detector import Judged
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.verdict import diagnose
from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage.learn.dataset.score import area_under_roc
from torchtriage.learn.review.evidence import Evidence, applicable, gather
from torchtriage.learn.review.reviewer import INTERRUPTED, NONE, Outcome, Reviewer, silent
from torchtriage_benchmark.training.human_reviewer import is_person
from torchtriage_benchmark.training.labels import Change, History, Labels, Sentence
from torchtriage_benchmark.training.training_set import Example, recorded

RESAMPLES = 100
"""Draws of the validation recordings: a round made validation worse when it did in most of them."""
LIKELY = 0.2
"""Share that the detector gives a fault which it holds possible."""


@dataclass(frozen=True, eq=False)
class Labelled(Example):
    """A recording with labels that may differ from those it came with."""

    labels: tuple[str, ...] = ()

    @property
    def faulty(self) -> NDArray[np.bool_]:
        """Which windows are labelled as faulty."""
        return np.array([label != NONE for label in self.labels], np.bool_)

    @property
    def code(self) -> str:
        """The fault that most of its faulty windows are labelled with, empty without any."""
        counts = Counter(label for label in self.labels if label != NONE)
        return min(counts, key=lambda count: (-counts[count], count)) if counts else ""

    @property
    def codes(self) -> tuple[str, ...]:
        """The fault that each window is labelled with, empty where there is none."""
        return tuple("" if label == NONE else label for label in self.labels)


Judge = Callable[[Labelled], Judged]
Train = Callable[[Sequence[Labelled], Sequence[Labelled]], Judge]
"""Given recordings to learn from and others to calibrate on, what judges a recording."""


def boosted_trees(seed: int = 0) -> Train:
    """Return the detector's own way to learn."""
    from torchtriage_benchmark.training.boosting import fit_trees, window_rows

    def train(learn: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
        trees = fit_trees(learn, tune, seed=seed)

        def judge(recording: Labelled) -> Judged:
            rows = window_rows(recording)
            usual = np.zeros(len(rows), np.bool_)
            return Judged(trees.probability(rows), trees.types(rows), usual)

        return judge

    return train


@dataclass(frozen=True)
class Settings:
    """How the loop goes.

    ``windows`` : to review in a round, those first where label and detector are furthest apart.
    ``trust`` : how likely a label is right before anything is known; a reviewer must be surer of
    another, and the detector half as far above a half. ``settled`` : a change of the validation
    score that is none. ``folds`` : of model families, to judge windows by a detector that has not
    seen their family. ``moved`` : how much the detector's opinion of a window must change before it
    is reviewed again.
    """

    rounds: int = 4
    windows: int = 200
    trust: float = 0.9
    settled: float = 0.002
    folds: int = 3
    moved: float = 0.15


@dataclass(frozen=True)
class Round:
    """What one round did.

    ``validation`` : window AUROC after it; the first is before any review.
    ``kept`` : labels that the reviewer agrees with, or is not sure enough against, or the detector
    against which it stands alone. ``undone`` : the labels were changed back: they made what was
    learned from them worse. ``not_reviewed`` : proposed windows without a review, by the reason.
    """

    number: int
    validation: float
    proposed: int = 0
    changed: int = 0
    kept: int = 0
    undone: bool = False
    not_reviewed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """How the loop went. ``judge`` : what was learned last. ``ended`` : why it ended."""

    rounds: tuple[Round, ...]
    labels: Labels
    judge: Judge
    ended: str

    @property
    def interrupted(self) -> bool:
        """Whether somebody stopped the review; nothing was learned from that round."""
        return self.ended == INTERRUPTED


class Findings:
    """The evidence of windows, gathered once for each, without what the detector says."""

    def __init__(self, *, redact: bool = True) -> None:
        """Keep nothing yet."""
        self.redact = redact
        self._known: dict[tuple[str, int], Evidence] = {}

    def of(self, item: DatasetItem, windows: Iterable[int]) -> list[Evidence]:
        """Return the evidence of some windows of a recording."""
        wanted = list(windows)
        missing = [at for at in wanted if (item.id, at) not in self._known]
        if missing:
            # a recording of its own: its trace does not stay in memory
            recording = DatasetItem(item.about, item.path)
            trace = recording.trace
            findings, codes = diagnose(trace, Options(step_ms=recording.step_ms)).findings, applicable(trace)
            for at in missing:
                begin_ns, end_ns = item.windows_ns[at].tolist()
                self._known[(item.id, at)] = gather(
                    trace, findings, (begin_ns, end_ns), redact=self.redact, codes=codes
                )
        return [self._known[(item.id, at)] for at in wanted]


@dataclass(frozen=True)
class _Proposal:
    """A window to review: what the detector says of it, and how far that is from the label."""

    item: Labelled
    window: int
    apart: float
    probability: float
    types: Mapping[str, float]


def iterate(
    items: Sequence[Example],
    labels: Labels,
    reviewer: Reviewer,
    train: Train,
    history: History,
    *,
    settings: Settings = Settings(),
    review: Callable[[Sequence[Evidence]], Sequence[Outcome]] | None = None,
    evidence: Findings | None = None,
    report: Callable[[Round], None] = lambda _: None,
) -> Report:
    """Run the loop on the recordings of splits ``train`` and ``validation``.

    ``items`` : those of other splits are not looked at. ``labels`` : before any change; the history
    is applied to them. ``history`` : every change goes there before anything is learned from it.
    ``review`` : asks the reviewer, where that needs more than to call it. ``evidence`` : with what
    was gathered before. ``report`` : is given each round.

    Raises UsageError: there are too few model families to learn from, or none to validate with.
    """
    items = [*recorded(items, "train"), *recorded(items, "validation")]
    evidence = evidence or Findings()
    ask = review or (lambda some: reviewer.review_all(some, silent))
    families = sorted({_family(item) for item in items if item.about["split"] == "train"})
    if len(families) < settings.folds:
        raise UsageError(
            f"expected at least {settings.folds} model families to learn from, found {len(families)}",
            hint="record more of the benchmark: torchtriage benchmark dataset record",
        )
    known = history.apply(labels)
    learn, tune = relabelled(items, known)
    judge = train(learn, tune)
    score = _validation(judge, tune)
    rounds = [Round(0, score)]
    report(rounds[0])
    seen: dict[tuple[str, int], float] = {}
    ended = f"after {settings.rounds} rounds"
    for number in range(1, settings.rounds + 1):
        proposals = _proposals(judge, learn, tune, families, train, history, seen, settings)
        outcomes = ask(_shown(proposals, evidence))
        changes: list[Change] = []
        left = Counter[str]()
        for proposal, outcome in zip(proposals, outcomes, strict=True):
            if outcome.review is None:
                left[outcome.reason] += 1
            else:
                seen[proposal.item.id, proposal.window] = proposal.probability
                changes += _changed(proposal, outcome, reviewer.name, number, history, settings)
        stopped = INTERRUPTED in left
        tuned = tune
        known = history.apply(labels)
        learn, tune = relabelled(items, known)
        before = _validation(judge, tune)
        score, undone = before, False
        if changes and not stopped:
            learned = train(learn, tune)
            score = _validation(learned, tune)
            # on the labels as they were: those that changed say what the old detector said
            undone = not is_person(reviewer.name) and _is_worse(learned, judge, tuned)
            if undone:
                for change in changes:
                    history.veto(change.number, who=reviewer.name, why=f"round {number} made validation worse")
                known = history.apply(labels)
                learn, tune = relabelled(items, known)
                score = _validation(judge, tune)
            else:
                judge = learned
        kept = len(proposals) - len(changes) - sum(left.values())
        rounds.append(Round(number, score, len(proposals), len(changes), kept, undone, dict(left)))
        report(rounds[-1])
        if stopped:
            ended = INTERRUPTED
            break
        if not changes:
            ended = "no label was changed"
            break
        if undone:
            ended = "the last round made validation worse and was taken back"
            break
        if abs(score - before) < settings.settled:
            ended = "the validation score has settled"
            break
    return Report(tuple(rounds), known, judge, ended)


def _family(item: DatasetItem) -> str:
    return str(item.about["family"])


def relabelled(items: Sequence[Example], labels: Labels) -> tuple[list[Labelled], list[Labelled]]:
    """Return the recordings to learn from and those to validate with, with these labels."""
    items = [*recorded(items, "train"), *recorded(items, "validation")]
    all_ = [Labelled(item.about, item.path, labels[item.id]) for item in items]
    for new, old in zip(all_, items, strict=True):
        new.__dict__["looked"] = old.looked  # what was computed once is not read again
    return ([item for item in all_ if item.split == "train"], [item for item in all_ if item.split == "validation"])


def _validation(judge: Judge, tune: Sequence[Labelled]) -> float:
    scores = np.concatenate([judge(item).probability for item in tune])
    return area_under_roc(np.concatenate([item.faulty for item in tune]), scores)


def _is_worse(new: Judge, old: Judge, tune: Sequence[Labelled]) -> bool:
    """Return whether one scores worse than the other, on most draws of the recordings."""
    truth = [item.faulty for item in tune]
    scores = [([judge(item).probability for item in tune]) for judge in (new, old)]
    chance = np.random.default_rng(0)
    worse = 0
    for _ in range(RESAMPLES):
        drawn = chance.integers(len(tune), size=len(tune))
        faulty = np.concatenate([truth[at] for at in drawn])
        after, before = (area_under_roc(faulty, np.concatenate([some[at] for at in drawn])) for some in scores)
        worse += after < before
    return worse > RESAMPLES / 2


def _proposals(
    judge: Judge,
    learn: Sequence[Labelled],
    tune: Sequence[Labelled],
    families: Sequence[str],
    train: Train,
    history: History,
    seen: Mapping[tuple[str, int], float],
    settings: Settings,
) -> list[_Proposal]:
    """Return where label and detector disagree, furthest apart first, with no window of a person's.

    They disagree about whether there is a fault, or about which.

    No recording is judged by what has learned from its family.
    """
    judged = [(item, judge(item)) for item in tune]
    for fold in range(settings.folds):
        away = set(families[fold :: settings.folds])
        others = train([item for item in learn if _family(item) not in away], tune)
        judged += [(item, others(item)) for item in learn if _family(item) in away]
    closed = history.closed
    found = []
    for recording, said in judged:
        for window, (label, likely) in enumerate(zip(recording.labels, said.probability.tolist(), strict=True)):
            key = (recording.id, window)
            shares = [share for code, share in said.types[window].items() if code != label]
            another = likely * max(shares, default=0.0)
            apart = likely if label == NONE else max(1 - likely, another)
            stale = key in seen and abs(seen[key] - likely) < settings.moved
            if apart > 0.5 and key not in closed and not stale:
                found.append(_Proposal(recording, window, apart, likely, said.types[window]))
    found.sort(key=lambda item: (-item.apart, item.item.id, item.window))
    return found[: settings.windows]


def _shown(proposals: Sequence[_Proposal], evidence: Findings) -> list[Evidence]:
    """Return what the reviewer sees of each: neither the label in doubt nor what the detector says."""
    by_item: dict[str, list[int]] = {}
    items = {proposal.item.id: proposal.item for proposal in proposals}
    for item in proposals:
        by_item.setdefault(item.item.id, []).append(item.window)
    gathered = {
        (key, window): told
        for key, windows in by_item.items()
        for window, told in zip(windows, evidence.of(items[key], windows), strict=True)
    }
    return [gathered[proposal.item.id, proposal.window] for proposal in proposals]


def _agrees(proposal: _Proposal, code: str, trust: float) -> bool:
    """Return whether the detector says of a window what the reviewer does; of faults, each that is likely.

    It learned how sure to be from labels of which some are wrong: half of the trust in these is asked of it.
    """
    least = (0.5 + trust) / 2
    if code == NONE:
        return 1 - proposal.probability > least
    return proposal.probability > least and proposal.types.get(code, 0.0) >= LIKELY


def _changed(
    proposal: _Proposal, outcome: Outcome, who: str, number: int, history: History, settings: Settings
) -> list[Change]:
    """Write a change of label down, if the review is one; return it."""
    review, before = outcome.review, proposal.item.labels[proposal.window]
    assert review is not None
    if review.code == before or review.confidence <= settings.trust:
        return []
    if not (is_person(who) or _agrees(proposal, review.code, settings.trust)):
        return []
    ids = {*review.why, *review.against}
    return [
        history.append(
            who=who,
            item=proposal.item.id,
            window=proposal.window,
            before=before,
            after=review.code,
            confidence=review.confidence,
            why=(Sentence(review.remark, review.why),),
            cited=tuple((line.id, line.text) for line in outcome.evidence.lines if line.id in ids),
            digest=outcome.evidence.key,
            round=number,
        )
    ]
