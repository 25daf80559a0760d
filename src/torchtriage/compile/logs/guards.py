"""Guards of a compiled function: how many, of which kind, on what, and what checking them takes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_LEAF = re.compile(r"^[| ]*\+- (?P<kind>[A-Z][A-Z_0-9]+): (?P<text>[^\n]*)$", re.MULTILINE)
_LATENCY = re.compile(r"Guard (?:eval )?latency = (?P<us>\d+(?:\.\d+)?) us")
_PLACE = re.compile(r"# (?P<file>[^\s#]+):(?P<line>\d+) in (?P<name>\S+)")
_SOURCE = re.compile(r"\b[LG]\['(\w+)'\]")
PYTHON_GUARDS = ("LAMBDA_GUARD", "SYMBOLIC_SHAPE_GUARD", "PYTHON_LAMBDA_LEAF_GUARD")
"""Guards that run Python; the others are compiled."""
N_PLACES = 1000
N_EXPECTED = 5000
"""Values kept of one graph, to tell what another one's differ in."""
_EXPECTED = {
    **dict.fromkeys(
        ("EQUALS_MATCH", "CONSTANT_MATCH", "TRUE_MATCH", "FALSE_MATCH", "NONE_MATCH"),
        ("value", re.compile(r"^(?P<source>[LG]\['\w+'\].*?) (?:==|is) ")),
    ),
    "LENGTH_CHECK": ("length", re.compile(r"^len\((?P<source>.+?)\) == ")),
    "TENSOR_MATCH": ("tensor", re.compile(r"^check_tensor\((?P<source>.+?), \w+, DispatchKeySet")),
    "TYPE_MATCH": ("type", re.compile(r"^___check_type_id\((?P<source>.+?), \d+\)")),
    "GLOBAL_STATE": ("state", re.compile(r"(?P<source>)___check_global_state\(\) against ")),
}
"""Guards that say what is expected, and of what."""


@dataclass(frozen=True)
class GuardTree:
    """The guards of one graph.

    ``kinds`` : number of leaves by kind. ``places`` : by ``file:line`` of the code that asked for them (paths cut
    short by PyTorch). ``sources`` : by local or global variable.
    ``latency_us`` : of one evaluation; None where the log has none. ``expected`` : guards that say what is expected, by
    what it is (``value``, ``length``, ``tensor``, ``type``, ``state``) and of which variable.
    """

    kinds: Counter[str]
    places: Counter[str]
    sources: Counter[str]
    latency_us: float | None
    expected: dict[tuple[str, str], str] = field(default_factory=dict)


def parse_guards(text: str) -> GuardTree:
    """Return the guards of a printed guard tree."""
    kinds: Counter[str] = Counter()
    places: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    expected: dict[tuple[str, str], str] = {}
    for match in _LEAF.finditer(text):
        kinds[match["kind"]] += 1
        place = _PLACE.search(match["text"])
        if place is not None and (len(places) < N_PLACES):
            places[f"{place['file']}:{place['line']} {place['name']}"] += 1
        source = _SOURCE.search(match["text"])
        if source is not None:
            sources[source[1]] += 1
        what, pattern = _EXPECTED.get(match["kind"], ("", None))
        expected_of = pattern.match(match["text"]) if pattern is not None else None
        if expected_of is not None and len(expected) < N_EXPECTED:
            expected[what, expected_of["source"]] = match["text"]
    latency = _LATENCY.search(text)
    return GuardTree(kinds, places, sources, float(latency["us"]) if latency else None, expected)


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
