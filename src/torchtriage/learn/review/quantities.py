"""Numbers in sentences and in evidence: what they measure, how exactly they are told, and which follow from which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

__all__ = ["UNITS", "Of", "Quantity", "agrees", "follows", "read"]

Of = Literal["time", "share", "bytes", "rate", "number"]

_TIME = {"ns": 1.0, "µs": 1e3, "μs": 1e3, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
_LONG = {"nanosecond": 1.0, "microsecond": 1e3, "millisecond": 1e6, "second": 1e9, "minute": 60e9}
_BYTES = {
    unit: 1024**at if "i" in unit else 1000**at
    for at, units in enumerate((("B",), ("KB", "kB", "KiB"), ("MB", "MiB"), ("GB", "GiB"), ("TB", "TiB")))
    for unit in units
}
UNITS: dict[str, tuple[Of, float]] = {
    **{unit: ("time", scale) for unit, scale in _TIME.items()},
    **{f"{unit}{end}": ("time", scale) for unit, scale in _LONG.items() for end in ("", "s")},
    **{unit: ("bytes", float(scale)) for unit, scale in _BYTES.items()},
    **dict.fromkeys(("%", "percent", "per cent"), ("share", 0.01)),
}
_UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
_KEY: tuple[tuple[str, Of, float], ...] = (
    ("_ns", "time", 1),
    ("_us", "time", 1e3),
    ("_ms", "time", 1e6),
    ("share", "share", 1),
)
"""A finding's measurements are told as ``key value``: the key says what they are."""

_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_ONES += " seventeen eighteen nineteen"
_WORDS = {word: float(at) for at, word in enumerate(_ONES.split())}
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS |= {word: 10.0 * at for at, word in enumerate(_TENS.split(), 2)}
_SCALES = {"dozen": 12.0, "hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9}
_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
_PART = "|".join(_PARTS)
_SPELLED = "|".join(sorted((*_WORDS, *_SCALES), key=len, reverse=True))
_TIMES = {"twice": 2.0, "double": 2.0, "doubles": 2.0, "twofold": 2.0, "triple": 3.0, "thrice": 3.0, "tenfold": 10.0}

_MOST = {"most": 0.5, "all": 0.95, "nearly all": 0.9, "almost all": 0.9}

_HEDGE = r"about|around|roughly|some|approximately|approx\.?|nearly|almost|close to|~|≈|circa|just"
_MORE, _LESS = r"more than|over|above|at least|longer than", r"less than|under|below|at most|up to|fewer than"
_NUMBER = re.compile(
    rf"(?:\b(?P<hedge>{_HEDGE})\s*|\b(?P<more>{_MORE})\s+|\b(?P<less>{_LESS})\s+|(?P<mark>[~≈])\s*)?"
    rf"(?:(?:(?:an?|the)\s+)?(?:(?P<n>{_SPELLED}|\d+)[\s-])?\b(?P<part>{_PART})s?\b"
    rf"(?:\s+an?\s+(?P<of>{_UNIT})\b|(?=\s+(?:of|the|is|are)\b|[,.;:)]|$))"
    rf"|\b(?P<most>nearly all|almost all|all|most) of\b"
    rf"|\b(?P<none>no)\b(?=\s+(?:kernel|operator|call|cop|launch))"
    rf"|\b(?P<times>{'|'.join(_TIMES)})\b"
    rf"|\b(?P<spelled>(?:{_SPELLED})(?:(?:[\s-]|\s+and\s+)(?:{_SPELLED}))*)\b(?P<many>s?)"
    rf"|(?P<sign>(?<![\w)%])[-\u2212])?(?P<digits>\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[+-]?\d+)?))"
    rf"(?:\s?(?P<unit>{_UNIT})(?![\w]))?(?P<rate>(?:\s+\w+){{0,2}}\s+per\s+(?P<per>{_UNIT})\b)?",
    re.IGNORECASE,
)
_EVERY_DAY = {"one", "zero"}
"""Words that are rarely numbers when they stand alone."""


@dataclass(frozen=True)
class Quantity:
    """A number and what it is of: time in ns, shares as ratios, bytes, rates per ns, or a mere number.

    ``off`` : how far from it the truth may be for it to be told rightly. ``scale`` : of its unit. ``bound`` : ``more``
    or ``less`` than it. ``begin``, ``end`` : where it stands in its text. ``spelled`` : in words. ``before`` : the text
    since the last one, ``after`` : what follows.
    """

    of: Of
    value: float
    off: float
    scale: float
    begin: int
    end: int
    bound: str = ""
    spelled: bool = False
    before: str = ""
    after: str = ""

    @property
    def bare(self) -> bool:
        """Whether it is told without a unit."""
        return self.of == "number"


def read(text: str) -> list[Quantity]:
    """Return the quantities of a text; the first number of a range has the unit of the second."""
    found = [item for match in _NUMBER.finditer(text) for item in _quantity(match, text)]
    for at in range(len(found) - 1, 0, -1):
        first, last = found[at - 1], found[at]
        if first.bare and not last.bare and re.fullmatch(r"\s*(?:to|[-\u2013])\s*", text[first.end : last.begin]):
            scale = last.scale
            found[at - 1] = replace(first, of=last.of, value=first.value * scale, off=first.off * scale, scale=scale)
    edges = [0, *(item.end for item in found)]
    return [
        replace(item, before=text[edge : item.begin].lower(), after=text[item.end : item.end + 20])
        for edge, item in zip(edges, found, strict=False)
    ]


def _quantity(match: re.Match[str], text: str) -> Iterator[Quantity]:
    hedged = bool(match["hedge"] or match["mark"])
    bound = "more" if match["more"] else "less" if match["less"] else ""
    of, scale = UNITS.get(match["unit"] or "", UNITS.get((match["unit"] or "").lower(), ("number", 1.0)))
    begin, end = match.span()
    spelled = True
    if match["part"]:
        count = _spelled(match["n"]) if match["n"] and not match["n"].isdigit() else float(match["n"] or 1)
        value = count / _PARTS[match["part"].lower()]
        if match["of"]:
            of, scale = UNITS[match["of"].lower()]
        elif of == "number":
            of, scale = "share", 1.0
        off = value * (0.1 if hedged else 0.05)
    elif match["most"]:
        of, value, off, bound = "share", _MOST[match["most"].lower()], 0.0, "more"
    elif match["none"]:
        value = off = 0.0
    elif match["times"]:
        value, off = _TIMES[match["times"].lower()], 0.1
    elif match["spelled"]:
        words = match["spelled"].lower()
        if words in _EVERY_DAY and not match["unit"]:
            return
        value = _spelled(words)
        off = value * (0.05 if hedged or text[end:].startswith(" times") else 0)
        if match["many"]:  # hundreds of
            value, off, hedged = 5.5 * value, 4.5 * value, False
    else:
        spelled = False
        digits = match["digits"].replace(",", "")
        value, off = float(digits), _off(digits, hedged)
        value = -value if match["sign"] else value
        before = text[: match.start("digits")]
        key = re.split(r"\W", before[:-1])[-1] if before[-1:].isspace() else ""
        if of == "number" and "_" in key:
            name = f"_{key}"
            of, scale = next(((kind, by) for word, kind, by in _KEY if word in name), (of, scale))
    if match["per"] and of == "number":
        of, scale = "rate", 1 / UNITS[match["per"].lower()][1]
    elif match["rate"]:
        end = match.start("rate")
    yield Quantity(of, value * scale, off * scale, scale, begin, end, bound, spelled)


def _spelled(words: str) -> float:
    whole = part = 0.0
    for word in re.split(r"[\s-]+", words.lower()):
        if word in _SCALES:
            part = max(part, 1.0) * _SCALES[word]
            if _SCALES[word] >= 1e3:
                whole, part = whole + part, 0.0
        else:
            part += _WORDS.get(word, 0.0)
    return whole + part


def _off(digits: str, hedged: bool) -> float:
    """Return how far a number may be from what it rounds: half its last digit, and never by much."""
    mantissa, _, exponent = digits.partition("e")
    whole, _, decimals = mantissa.partition(".")
    value = abs(float(digits))
    zeros = 0 if decimals else len(whole) - len(whole.rstrip("0"))
    half = 0.5 * 10.0 ** (zeros - len(decimals) + int(exponent or 0))
    if hedged:
        return max(min(half, 0.1 * value), 0.05 * value)
    return min(half, (0.025 if zeros else 0.1) * value)


def agrees(said: Quantity, true: float) -> bool:
    """Return whether a value of the same kind is what was said."""
    slack = said.off + 1e-9 * abs(true)
    if said.bound == "more":
        return said.value - slack <= true <= 2 * said.value + slack
    if said.bound == "less":
        return said.value / 2 - slack <= true <= said.value + slack
    return abs(true - said.value) <= slack


def follows(said: Quantity, known: Sequence[tuple[Of, float]]) -> bool:
    """Return whether a quantity is a sum, difference, ratio or product of others that its sentence states."""
    known = known[:8]
    # its parts are rounded as well
    loose = replace(said, off=max(said.off, 0.01 * abs(said.value)))

    def right(of: Of, value: float) -> bool:
        return (of == said.of or (said.bare and of == "share")) and agrees(loose, value)

    for size in range(2, min(len(known), 6) + 1):
        for some in combinations(known, size):
            if len({of for of, _ in some}) == 1 and right(some[0][0], sum(value for _, value in some)):
                return True
    for one in known:
        for two in known:
            if one is two:
                continue
            (a, x), (b, y) = one, two
            if a == b and a != "number" and right(a, x - y):
                return True
            if y and (
                (a == b and (right("share", x / y) or right("number", x / y)))
                or (b == "number" and a != "number" and right(a, x / y))
                or (a == "number" and b == "time" and right("rate", x / y))
            ):
                return True
            if b in ("share", "number") and a != b and right(a, x * y):
                return True
    return False
