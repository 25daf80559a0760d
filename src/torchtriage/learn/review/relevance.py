"""Whether a line of evidence bears on a code of the catalogue."""

from __future__ import annotations

import re
from functools import lru_cache

from torchtriage.diagnose.patterns import lookup
from torchtriage.learn.review.evidence import EvidenceLine

_WORD = re.compile(r"[A-Za-z][a-z]+")
_OPERATOR = re.compile(r"\b\w+::\w+")
"""The whole name: of some the last part is too short to tell anything alone."""
_EVERYWHERE = """
window windows share name names order each other same with from that this them the of in and being instead every nothing
than they while again after before between although over inside whole long longest late many slow true void none float
takes take runs run lasts line lines rule finding code annotation builtin aten torch tensor
"""
_RECORDED = """
step steps time times kernel kernels operator operators call calls recording device host thread main data type types
function module work
"""
_PLAIN = frozenset(_EVERYWHERE.split())
"""Words that say nothing of which thing is meant."""
_THINGS = frozenset(_RECORDED.split())
"""Words that say it only beside others."""
_PLAIN_STEMS, _THING_STEMS = (frozenset(word[:5] for word in words) for words in (_PLAIN, _THINGS))


@lru_cache(maxsize=64)
def _terms(code: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return what tells that a line bears on a code: its identifiers and its name's words, and its title's words."""
    entry = lookup(code)
    page = entry.page.partition("Cost:")[0]
    named = re.findall(r"``(.+?)``", page, re.DOTALL)
    sure = {part for item in named for part in (*re.findall(r"[A-Za-z_]\w{3,}", item), *_OPERATOR.findall(item))}
    sure |= {word for word in entry.pattern.name.split("-") if len(word) > 3}
    words = {
        word.lower()[:5] for word in _WORD.findall(f"{entry.pattern.title} {page.splitlines()[0]}") if len(word) > 3
    }
    return frozenset(item.lower() for item in sure) - _PLAIN - _THINGS, frozenset(words) - _PLAIN_STEMS


def bears_on(line: EvidenceLine, code: str) -> bool:
    """Return whether a line speaks for or against a code."""
    if line.kind == "finding":
        return bool(line.facts["code"] == code)
    if line.kind == "elsewhere":
        return False
    if line.kind == "detector":
        return code in line.facts["types"]
    sure, likely = _terms(code)
    parts = {part.lower() for part in (*re.findall(r"[A-Za-z_]\w*", line.text), *_OPERATOR.findall(line.text))}
    parts |= {piece for part in parts for piece in part.split("_")}
    shared = {part[:5] for part in parts if len(part) > 3} & likely
    return bool(parts & sure) or (len(shared) >= 2 and not shared <= _THING_STEMS)
