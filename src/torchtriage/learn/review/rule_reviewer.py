"""The default reviewer: computes its verdict from the evidence and the catalogue, the same always.

Each possible fault of the window gets the logarithm of its odds: what the rule that found it is
worth by its certainty, as far as it covers the window, and what the learned detector says, where
it was asked, as far as it means that fault. The detector's vote is bounded, so that a certain rule
is not voted down. Windows with nothing in favour are ``none``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchtriage.core.docpages import section
from torchtriage.core.units import format_share
from torchtriage.diagnose.patterns import lookup
from torchtriage.learn.review.evidence import Evidence, EvidenceLine
from torchtriage.learn.review.reviewer import NONE, Outcome, Review, Sentence

__all__ = ["Offline"]

NAME = "offline/2"
"""The number goes up when verdicts change."""

PRIOR = -1.5
"""Of a window with no evidence for a fault: a sixth of those that are looked at is faulty."""
RULE = {"certain": 4.0, "likely": 3.0, "hint": 2.0}
"""At full cover. Half covered by a hint is not enough alone, fully covered by one it is."""
AGAINST, FOR = -2.0, 4.0
"""What the detector can say at most: a certain rule stands against it, a hint does not."""
UNUSUAL = 0.25
"""Of the detector's vote is left where the window is unlike what it was trained on."""


class Offline:
    """Judges without a model and without a network."""

    name = NAME

    def review_all(self, evidence: Sequence[Evidence], on_done: Callable[[int, Outcome], None]) -> tuple[Outcome, ...]:
        """Return an outcome with a review for each window."""
        outcomes = []
        for place, item in enumerate(evidence):
            outcomes.append(Outcome(item, self.review(item)))
            on_done(place, outcomes[-1])
        return tuple(outcomes)

    def review(self, evidence: Evidence) -> Review:
        """Return the verdict on one window."""
        rules = {line.facts["code"]: line for line in reversed(evidence.of_kind("finding"))}
        detector = next(iter(evidence.of_kind("detector")), None)
        vote, types = _vote(detector)
        by_rule = {code: RULE[line.facts["certainty"]] * line.facts["share"] for code, line in rules.items()}
        odds = PRIOR + vote + max(by_rule.values(), default=0.0)
        if odds <= 0:
            return Review(NONE, round(_sigmoid(-odds), 4), _healthy(evidence, rules, detector))
        # what speaks for no fault speaks against each, what speaks for one for its type
        votes = {
            code: vote * (types.get(code, 0.0) if types and vote > 0 else 1.0)
            for code in {*by_rule, *types}
            if code in evidence.codes
        }
        scores = {code: by_rule.get(code, 0.0) + vote for code, vote in votes.items()}
        code = max(sorted(scores), key=lambda score: (scores[score], by_rule.get(score, 0.0)), default=NONE)
        if code == NONE:
            return Review(NONE, round(_sigmoid(odds) / 2, 4), _healthy(evidence, rules, detector))
        why = _faulty(evidence, rules.get(code), detector, code)
        # the finding's own fix fits the device at hand; the catalogue's is for all
        found = rules[code].facts if code in rules else {}
        fix = found.get("fix", lookup(code).fix.text)
        advice = (Sentence(_short(fix), why[0].evidence),)
        return Review(code, round(_sigmoid(PRIOR + scores[code]), 4), why, advice)


def _vote(detector: EvidenceLine | None) -> tuple[float, dict[str, float]]:
    if detector is None:
        return 0.0, {}
    sure = min(max(detector.facts["probability"], 1e-6), 1 - 1e-6)
    vote = min(max(math.log(sure / (1 - sure)) - PRIOR, AGAINST), FOR)
    if detector.facts["unusual"]:
        vote *= UNUSUAL
    return vote, dict(detector.facts["types"])


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _healthy(evidence: Evidence, rules: dict[str, EvidenceLine], detector: EvidenceLine | None) -> tuple[Sentence, ...]:
    text = "What the rules found covers too little of this window."
    if not rules:
        text = "No rule of the catalogue found anything in this window."
    ids = tuple(line.id for line in rules.values()) or (evidence.lines[0].id,)
    return (Sentence(text, ids), *_opinion(detector))


def _opinion(detector: EvidenceLine | None) -> list[Sentence]:
    if detector is None:
        return []
    return [Sentence(f"The learned detector gives a fault {detector.facts['probability']:.2f}.", (detector.id,))]


def _faulty(
    evidence: Evidence, rule: EvidenceLine | None, detector: EvidenceLine | None, code: str
) -> tuple[Sentence, ...]:
    entry = lookup(code)
    sentences = []
    if rule is not None:
        share, certainty = format_share(rule.facts["share"]), rule.facts["certainty"]
        text = f"The rule {entry.pattern.name} ({certainty}) covers {share} of the window."
        sentences.append(Sentence(text, (rule.id,)))
    sentences += _opinion(detector)
    ids = sentences[0].evidence
    sentences.append(Sentence(_short(section(entry.page, "Slow because")), ids))
    largest = max(evidence.of_kind("op", "device"), key=_share, default=None)
    if largest is not None and _share(largest) >= 0.5:
        name = largest.facts["name"]
        sentences.append(Sentence(f"Most of the window is in {name}.", (largest.id,)))
    return tuple(sentences)


def _share(line: EvidenceLine) -> float:
    return float(line.facts.get("share", 0.0))


def _short(text: str) -> str:
    text = " ".join(text.replace("``", "`").split())
    text = text[:1].upper() + text[1:]
    if len(text) <= 400:
        return text
    return text[: text.rfind(" ", 0, 399)] + "…"
