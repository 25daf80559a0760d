"""No regular expression of the package takes quadratic time on hostile text.

Every constant expression is run on long texts made from its own parts: what stands before each of its
unbounded repeats, then many of one character, then something that cannot match.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torchtriage

if sys.version_info >= (3, 11):
    from re import _constants as codes
    from re import _parser as parser
else:
    import sre_constants as codes
    import sre_parse as parser

SOURCE = Path(torchtriage.__file__).parent
PUMPS = [*" \n\ta0_.-/\\\"'([{<,:=#", " \n", "a\n", "a ", "ab.", "a/", "\x1b[", '\\"']
BOUNDED = {
    "compile/logs/recompiles.py": "a guard is cut to _MAX_GUARD characters before it is read",
    "measure/verify/printed_lines.py": "a line is cut to LONGEST characters before it is read",
}
"""Modules whose texts cannot be long, and what sees to that."""
ANCHORED = {"match", "fullmatch"}
FLAGS = {
    name: getattr(re, name)
    for name in ("IGNORECASE", "I", "MULTILINE", "M", "DOTALL", "S", "VERBOSE", "X", "ASCII", "A")
}


def _flags(node: ast.expr | None) -> int:
    names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)} if node else set()
    return sum(int(FLAGS[name]) for name in names)


def _expressions() -> Iterator[tuple[str, re.Pattern[str], set[str]]]:
    """Yield every constant expression of the package: its place, and the methods it is used with."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    methods: dict[str, set[str]] = {}
    for text in texts.values():
        for name, method in re.findall(r"\b(\w+)\.(\w+)", text):
            methods.setdefault(name, set()).add(method)
    for path, text in texts.items():
        if "import re\n" not in text or str(path.relative_to(SOURCE)) in BOUNDED:
            continue
        tree = ast.parse(text)
        named = {
            id(node.value): node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            constant = node.args[0]
            if getattr(node.func.value, "id", "") != "re" or not isinstance(constant, ast.Constant):
                continue
            flags = next((word.value for word in node.keywords if word.arg == "flags"), None)
            method = node.func.attr
            if method == "compile":
                flags = flags or (node.args[1] if len(node.args) > 1 else None)
                used = methods.get(named.get(id(node), ""), set()) & set(dir(re.compile("")))
            elif method in ("search", "match", "fullmatch", "split", "sub", "findall", "finditer"):
                used = {method}
            else:
                continue
            value = constant.value
            pattern = value.decode("latin-1") if isinstance(value, bytes) else value
            yield f"{path.relative_to(SOURCE)}:{node.lineno}", re.compile(pattern, _flags(flags)), used or {"search"}


def _sample(items: object) -> str:
    """Return a text that a parsed expression matches, look-around aside."""
    out = ""
    for code, value in items:  # type: ignore[attr-defined]
        if code is codes.LITERAL:
            out += chr(value)
        elif code is codes.ANY:
            out += "x"
        elif code in (codes.IN, codes.NOT_LITERAL):
            out += next((char for char in _CHARACTERS if _in(code, value, char)), "")
        elif code is codes.BRANCH:
            out += _sample(value[1][0])
        elif code is codes.SUBPATTERN:
            out += _sample(value[3])
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            out += _sample(value[2]) * min(value[0], 40)
    return out


_CHARACTERS = "a0 _-./:\"'(#A@\n"


def _in(code: object, value: object, char: str) -> bool:
    if code is codes.NOT_LITERAL:
        return ord(char) != value
    negated, inside = False, False
    for kind, item in value:  # type: ignore[attr-defined]
        if kind is codes.NEGATE:
            negated = True
        elif kind is codes.LITERAL:
            inside |= ord(char) == item
        elif kind is codes.RANGE:
            inside |= item[0] <= ord(char) <= item[1]
        elif kind is codes.CATEGORY:
            letter = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(item).rpartition("_")[2]]
            inside |= (re.match(letter, char) is not None) != ("NOT" in str(item))
    return inside != negated


def _starts(items: object, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield what stands before each unbounded repeat, and a text of its body."""
    for code, value in items:  # type: ignore[attr-defined]
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            if value[1] is codes.MAXREPEAT or value[1] > 64:
                yield before, _sample(value[2])
            yield from _starts(value[2], before)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from _starts(branch, before)
        elif code is codes.SUBPATTERN:
            yield from _starts(value[3], before)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from _starts(value[1], before)
        before += _sample([(code, value)])


def _texts(pattern: re.Pattern[str], used: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield hostile texts: a beginning, what is repeated, and an end."""
    starts = set(_starts(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE.value)))
    beginnings = {"", *(before for before, _ in starts)}
    pumps = {*PUMPS, *(body for _, body in starts), *(before + body for before, body in starts)} - {""}
    for beginning in sorted(beginnings):
        for pump in sorted(pumps):
            yield beginning, pump, "\0"


def _seconds(pattern: re.Pattern[str], used: set[str], text: str) -> float:
    begun = time.process_time()
    if used & ANCHORED:
        pattern.match(text)
        pattern.fullmatch(text)
    if used - ANCHORED == {"search"}:
        pattern.search(text)
    elif used - ANCHORED:
        for _ in pattern.finditer(text):
            pass
    return time.process_time() - begun


@cache
def _worth_s() -> float:
    """Return from when on a time says something: 2.6 ms, and more on a machine slower than those it was chosen on.

    There ``a+b`` takes 2.2 ms for 2,000 characters, every one of which begins a search to the end. No expression of
    the package takes between half of this and all of it, so that none is now on one side and now on the other.
    """
    quadratic, text = re.compile("a+b"), "a" * 2_000
    return max(0.0026, 1.2 * min(_seconds(quadratic, {"search"}, text) for _ in range(9)))


def _grows(pattern: re.Pattern[str], used: set[str], beginning: str, pump: str, end: str) -> bool:
    def seconds(length: int) -> float:
        return _seconds(pattern, used, beginning + pump * (length // len(pump)) + end)

    if seconds(24) > 0.02 or seconds(200) > 0.05:
        return True  # exponential, cubic
    if seconds(2_000) < _worth_s():
        return False
    before = min(seconds(2_000) for _ in range(3))
    return before > _worth_s() and min(seconds(8_000) for _ in range(4)) > 9 * before


def test_no_expression_takes_quadratic_time() -> None:
    slow = []
    count = 0
    for place, pattern, used in _expressions():
        count += 1
        for text in _texts(pattern, used):
            if _grows(pattern, used, *text):
                slow.append(f"{place}: {pattern.pattern[:80]!r} on {text[0]!r} + {text[1]!r} * n + {text[2]!r}")
                break
    assert count > 250
    assert slow == [], "\n".join(slow)
