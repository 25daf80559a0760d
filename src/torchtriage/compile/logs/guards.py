"""Guards of a compiled function: how many, of which kind, on what, and what checking them takes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["PYTHON_GUARDS", "GuardTree", "parse_guards", "parse_old_guards"]

_LEAF = re.compile(r"^[| ]*\+- (?P<kind>[A-Z][A-Z_0-9]+): (?P<text>[^\n]*)$", re.MULTILINE)
_LATENCY = re.compile(r"Guard (?:eval )?latency = (?P<us>\d+(?:\.\d+)?) us")
_PLACE = re.compile(r"# (?P<file>[^\s#]+):(?P<line>\d+) in (?P<name>\S+)")
_SOURCE = re.compile(r"\b[LG]\['(\w+)'\]")
PYTHON_GUARDS = ("LAMBDA_GUARD", "SYMBOLIC_SHAPE_GUARD", "PYTHON_LAMBDA_LEAF_GUARD")
"""Guards that run Python; the others are compiled."""
N_PLACES = 1000


@dataclass(frozen=True)
class GuardTree:
    """The guards of one graph.

    ``kinds`` : number of leaves by kind. ``places`` : by ``file:line`` of the code that asked for them (paths cut
    short by PyTorch). ``sources`` : by local or global variable.
    ``latency_us`` : of one evaluation; None where the log has none.
    """

    kinds: Counter[str]
    places: Counter[str]
    sources: Counter[str]
    latency_us: float | None


def parse_guards(text: str) -> GuardTree:
    """Return the guards of a printed guard tree."""
    kinds: Counter[str] = Counter()
    places: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    for match in _LEAF.finditer(text):
        kinds[match["kind"]] += 1
        place = _PLACE.search(match["text"])
        if place is not None and (len(places) < N_PLACES):
            places[f"{place['file']}:{place['line']} {place['name']}"] += 1
        source = _SOURCE.search(match["text"])
        if source is not None:
            sources[source[1]] += 1
    latency = _LATENCY.search(text)
    return GuardTree(kinds, places, sources, float(latency["us"]) if latency else None)


def parse_old_guards(codes: list[str]) -> GuardTree:
    """Return the guards that torch before 2.5 lists as expressions; kinds by their function."""
    kinds: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    for code in codes:
        called = re.match(r"(\w+)\(", code)
        kinds[called[1] if called else "comparison"] += 1
        source = _SOURCE.search(code)
        if source is not None:
            sources[source[1]] += 1
    return GuardTree(kinds, Counter(), sources, None)
