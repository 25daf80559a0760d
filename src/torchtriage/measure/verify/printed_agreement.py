"""Whether two programs print the same numbers, as far as the shorter output goes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from torchtriage.measure.verify.printed_lines import Line, Number, read_lines
from torchtriage.measure.verify.result import PrintedAgreement, ResultAgreement

LINES_DIFFER = "printed lines differ"

TOLERANCE = {True: (0.03, 0.3), False: (0.005, 0.05)}
"""Where something trains, or nothing does: how far a number of the first line may be off, as a share of the largest of
its name, and of a late one ..."""
GROWTH = 1.2
"""... which grows so from line to line: what lies between two lines may be a hundred steps, and training is chaotic."""
SAME = 0.005
"""By which share a number may be off that is looked for in other lines."""
NOTHING = 1e-4
"""Numbers below are rounding of something else."""
FEWEST_OF_A_COUNTER = 3
ENOUGH = 8
"""Whole numbers that say something without a fraction beside them: fewer may be sizes, or settings."""
OF_GRADIENTS = frozenset(("grad", "grads", "gradient", "gradients", "gnorm", "norm", "norms"))
"""Words that say of a number that it is of a step's gradients: of which step, differs, and they are compared anyway."""
OFF_BY_THE_END = 8
"""Of so many lines alike, one may be missing: the program was ended before it."""

Key = tuple[str, tuple[float, ...], int]
"""The words of a line, the counters in it, and how many such lines went before."""
Field = tuple[str, int]
"""The words of a line, and which of its numbers."""


@dataclass(frozen=True)
class _Side:
    """What all runs of one program printed; ``varying`` : numbers that its runs differ in."""

    lines: dict[Key, Line]
    varying: frozenset[Field]


def printed_agreement(
    before: Sequence[str], after: Sequence[str], *, trains: bool = True, epsilon: float = 0.0
) -> PrintedAgreement:
    """Say whether both programs print the same numbers but for rounding.

    Lines are paired by their words and counters; numbers that differ between runs of one program are not compared.

    ``before``, ``after`` : the output of each run. ``trains`` : or may, for all that is known. ``epsilon`` : of
    the narrowest type that is computed in.
    """
    runs = [[list(read_lines(output)) for output in side] for side in (before, after)]
    counted = _led_by_counters(list(chain(*runs)))
    old, new = (_side(side, counted) for side in runs)
    varying = old.varying | new.varying
    if trains:
        varying |= _of_gradients(chain(old.lines.items(), new.lines.items()))
    sides = [_comparable(side.lines, varying) for side in (old, new)]
    both = [key for key in sides[0] if key in sides[1]]
    apart = _unpaired(sides[0], sides[1], both)
    scales: dict[tuple[str, str], float] = {}
    for key in both:
        for number in chain(sides[0][key].numbers, sides[1][key].numbers):
            name = (key[0], number.label)
            scales[name] = max(scales.get(name, 0.0), abs(number.value) if math.isfinite(number.value) else 0.0)
    n, fractions = 0, False
    first, most = TOLERANCE[trains]
    others: set[tuple[str, tuple[float, ...]]] = set()
    for nth, key in enumerate(both):
        allowed = max(min(first * GROWTH**nth, most), 4 * epsilon)
        line, other = sides[0][key], sides[1][key]
        for (number, left_out), again in zip(_marked(line, varying), other.numbers, strict=True):
            if left_out:
                continue
            if _same(number, again, allowed * scales[key[0], number.label]):
                n, fractions = n + math.isfinite(number.value), fractions or not number.whole
            elif _in_another_order(key, sides, varying, max(SAME, 4 * epsilon)):
                others.add(key[:2])
            else:
                reason = f"{number.label} {again} instead of {number}".strip()
                return PrintedAgreement("differ", n, f"line {line.place}", reason)
    if apart or others:
        return PrintedAgreement("not compared", n, reason=LINES_DIFFER)
    if not fractions and n < ENOUGH:
        few = "only a few whole numbers" if n else "no numbers that say what is computed"
        return PrintedAgreement("not compared", n, reason=f"both print {few}")
    return PrintedAgreement("same", n)


def with_printed(answers: ResultAgreement, printed: PrintedAgreement) -> ResultAgreement:
    """Return what both say together: printed numbers judge where nothing else could be compared, or nothing differs."""
    alone = answers.status == "not compared"
    if printed.status == "not compared" or answers.status == "differ" or (printed.status == "same" and not alone):
        return replace(answers, printed=printed)
    if printed.status == "same":
        return ResultAgreement("printed", "same", printed.n, None, None, answers.reason, printed=printed)
    reason = printed.reason if alone else f"{printed.reason}, though the first {answers.of} agree"
    return ResultAgreement("printed", "differ", printed.n + 1, None, None, reason, printed.first, printed)


def _led_by_counters(runs: Sequence[Sequence[Line]]) -> frozenset[str]:
    """Return the words of lines whose first number counts them, though no word says so: ``[10/200] loss 0.31``."""
    firsts: dict[str, list[list[Number]]] = {}
    for run in runs:
        in_run: dict[str, list[Number]] = {}
        for line in run:
            if line.numbers:
                in_run.setdefault(line.words, []).append(line.numbers[0])
        for words, numbers in in_run.items():
            firsts.setdefault(words, []).append(numbers)
    return frozenset(words for words, sequences in firsts.items() if _count(words, sequences))


def _count(words: str, sequences: Sequence[Sequence[Number]]) -> bool:
    bare = not any(letter.isalpha() for letter in words.partition("#")[0])
    gaps = [[second.value - first.value for first, second in pairwise(numbers)] for numbers in sequences]
    rising = all(number.whole for number in chain(*sequences)) and all(gap > 0 for gap in chain(*gaps))
    steady = bare or all(len(set(steps)) < 2 for steps in gaps)
    return rising and steady and max(map(len, sequences)) >= (2 if bare else FEWEST_OF_A_COUNTER)


def _side(runs: Sequence[Sequence[Line]], counted: frozenset[str]) -> _Side:
    """Return the lines that all runs of a program print."""
    keyed = [dict(_keyed(line.led_by_a_counter() if line.words in counted else line for line in run)) for run in runs]
    first, *others = keyed
    lines = {key: line for key, line in first.items() if all(key in other for other in others)}
    varying = frozenset(
        (key[0], place)
        for key, line in lines.items()
        for other in others
        for place, (number, again) in enumerate(zip(line.numbers, other[key].numbers, strict=True))
        if number.value != again.value and not (math.isnan(number.value) and math.isnan(again.value))
    )
    return _Side(lines, varying)


def _keyed(lines: Iterable[Line]) -> Iterable[tuple[Key, Line]]:
    seen: Counter[tuple[str, tuple[float, ...]]] = Counter()
    for line in lines:
        alike = (line.words, line.counters)
        yield (*alike, seen[alike]), line
        seen[alike] += 1


def _of_gradients(lines: Iterable[tuple[Key, Line]]) -> frozenset[Field]:
    return frozenset(
        (key[0], place)
        for key, line in lines
        for place, number in enumerate(line.numbers)
        if not OF_GRADIENTS.isdisjoint(number.label.lower().split())
    )


def _comparable(lines: dict[Key, Line], varying: frozenset[Field]) -> dict[Key, Line]:
    """Return the lines with numbers that are compared."""
    return {key: line for key, line in lines.items() if not all(left_out for _, left_out in _marked(line, varying))}


def _marked(line: Line, varying: frozenset[Field]) -> Iterable[tuple[Number, bool]]:
    """Yield the numbers of a line, and whether they are left out of the comparison."""
    for place, number in enumerate(line.numbers):
        yield number, number.counts or (line.words, place) in varying


def _unpaired(old: dict[Key, Line], new: dict[Key, Line], both: Sequence[Key]) -> bool:
    """Return whether lines are printed by one only, and not because the other had ended before them."""
    alone = [[key not in pairs for key in side] for side, pairs in ((old, new), (new, old))]
    if not both:
        return bool(old and new)
    tails = [len(side) - 1 - max(place for place, missing in enumerate(side) if not missing) for side in alone]
    return all(tails) or any(sum(side) > tail for side, tail in zip(alone, tails, strict=True))


def _in_another_order(key: Key, sides: Sequence[dict[Key, Line]], varying: frozenset[Field], within: float) -> bool:
    """Return whether lines of these words may be others than those they are paired with.

    ``within`` : how far, as a share of its size, a number may be off to be taken for the same.
    """
    alike = [[line for other, line in side.items() if other[:2] == key[:2]] for side in sides]
    counts = sorted(map(len, alike))
    if counts[1] - counts[0] > (counts[1] >= OFF_BY_THE_END):
        return True
    values = [
        sorted(
            (number.value, number.digit) for line in side for number, left_out in _marked(line, varying) if not left_out
        )
        for side in alike
    ]
    return counts[0] == counts[1] and all(
        abs(value - again) <= max(within * abs(value), digit, NOTHING)
        for (value, digit), (again, _) in zip(*values, strict=True)
    )


def _same(number: Number, again: Number, within: float) -> bool:
    if not (math.isfinite(number.value) and math.isfinite(again.value)):
        return str(number.value) == str(again.value)
    return abs(number.value - again.value) <= max(within, number.digit, again.digit, NOTHING) * (1 + 1e-9)
