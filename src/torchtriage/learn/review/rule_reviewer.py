"""The default reviewer: computes its verdict from the evidence and the catalogue, the same always.

Each possible fault of the window gets the logarithm of its odds: what the rule that found it is
worth by its certainty, as far as it covers the window, and what the learned detector says, where
it was asked, as far as it means that fault. The detector's vote is bounded, so that a certain rule
is not voted down. Windows with nothing in favour are ``none``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchtriage.learn.review.evidence import Evidence, EvidenceLine
from torchtriage.learn.review.reviewer import MAX_LINES, NONE, Outcome, Review

NAME = "offline/3"
"""The number goes up when verdicts change."""

PRIOR = -1.5
"""Of a window with no evidence for a fault: a sixth of those that are looked at is faulty."""
RULE = {"certain": 4.0, "likely": 3.0, "hint": 2.0}
"""At full cover. Half covered by a hint is not enough alone, fully covered by one it is."""
AGAINST, FOR = -2.0, 4.0
"""What the detector can say at most: a certain rule stands against it, a hint does not."""
UNUSUAL = 0.25
"""Of the detector's vote is left where the window is unlike what it was trained on."""
UNSURE = 0.5
"""Of the detector's vote for a type is left where it is less sure than it has to be to name one. On labelled devices
such votes alone were right in a quarter of the windows below 0.8, and in four of five above."""


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
        elsewhere = {line.facts["code"]: line.id for line in reversed(evidence.of_kind("elsewhere"))}
        detector = next(iter(evidence.of_kind("detector")), None)
        vote, types = _vote(detector)
        by_rule = {code: RULE[line.facts["certainty"]] * line.facts["share"] for code, line in rules.items()}
        odds = PRIOR + vote + max(by_rule.values(), default=0.0)
        sure_of_type = 1.0 if detector is None or vote <= 0 or detector.facts["confident"] else UNSURE
        # what speaks for no fault speaks against each, what speaks for one for its type
        votes = {
            code: vote * sure_of_type * (types.get(code, 0.0) if types and vote > 0 else 1.0)
            for code in {*by_rule, *types}
            if code in evidence.codes
        }
        scores = {code: by_rule.get(code, 0.0) + votes[code] for code in votes}
        code = max(sorted(scores), key=lambda score: (scores[score], by_rule.get(score, 0.0)), default=NONE)
        sure = {NONE: _sigmoid(-odds)} | {code: _sigmoid(PRIOR + scores[code]) for code in scores}
        why: tuple[str, ...]
        against: tuple[str, ...]
        heard = () if detector is None else (detector.id,)
        found = tuple(rules[name].id for name in sorted(rules, key=by_rule.__getitem__, reverse=True))[: MAX_LINES - 1]
        if odds <= 0 or sure[NONE] >= sure[code]:
            speaks = heard if vote <= 0 else ()
            why = (evidence.lines[0].id, *speaks)
            return Review(NONE, round(sure[NONE], 4), why, tuple(item for item in (*found, *heard) if item not in why))
        why = (rules[code].id,) if code in rules else ()
        if vote > 0 and code in types:
            why += heard
        against = (elsewhere[code],) if code in elsewhere and code not in rules else ()
        if heard and heard[0] not in why:
            against += heard
        return Review(code, round(sure[code], 4), why, against)


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
