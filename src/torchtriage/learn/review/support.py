"""Whether a sentence says what the lines say that it cites.

Every number must stand in a cited line, or follow by a sum or ratio from numbers that the sentence states and that
stand there; every name must be one of the lines'. Where a sentence names an operator or kernel, its numbers must be
those of what it names. What is left is plain English about performance: no addresses, commands or other languages.

A sentence can pass and be wrong: whether one thing is the cause of another is not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from torchtriage.diagnose.patterns import catalogue, lookup
from torchtriage.learn.review.evidence import EvidenceLine
from torchtriage.learn.review.quantities import UNITS, Of, Quantity, agrees, follows, read

__all__ = ["bears_on", "terms", "unsupported"]

# what is not closed ends with the text: so both are linear
_QUOTED = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|\Z)', re.DOTALL)
_SHAPE = re.compile(r"\[[\d,\[\]]*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TOKEN = re.compile(r"[^\s\"“”`']+")
_WORD = re.compile(r"[A-Za-z][a-z]+")
_SIGNS = re.compile(r"[|&$\\{}^]|>>|<<")
_COMMAND = re.compile(r"\b(?:curl|wget|sudo|pip|apt|npm|ssh|chmod|rm|bash|sh)\b|://|\bwww\.")
"""Not taken in a recorded name either: who advises to run it must not pass by quoting it."""
_OTHER_SIGNS = frozenset("µμ≈≤≥…·→“”\u00d7\u2013\u2014\u2212\u2018\u2019")
_COMMON = frozenset(
    {
        "i.e",
        "e.g",
        "vs",
        "GPU",
        "GPUs",
        "CPU",
        "CPUs",
        "CUDA",
        "HIP",
        "PyTorch",
        "IO",
        "ID",
        "OK",
        "API",
        "TFLOPS",
        "TFLOP",
    }
)
_ALIASES = [
    {"fp32", "float32", "f32"},
    {"fp16", "float16", "f16", "half"},
    {"bf16", "bfloat16"},
    {"fp64", "float64", "f64"},
]
_EVERYWHERE = """
window windows step steps share time times kernel kernels operator operators call calls recording device host whole
thread main rule finding code name names order data type types other each same with from that this the of in and float
long longest void none takes take runs run lasts annotation function module builtin line lines
"""
_PLAIN = frozenset(_EVERYWHERE.split())
"""Words that say nothing of which thing is meant."""
_MEANT = {
    "idle": re.compile(r"idl|wait|starv|nothing|empty|unused|late|queue"),
    "comput": re.compile(r"comput|busy|work|used|utili|occup"),
    "communicat": re.compile(r"communicat|exchang|collectiv"),
    "copies ": re.compile(r"cop(?:y|ies)|transfer|upload"),
    "saves": re.compile(r"saves?\b|saving|gain|recover|faster|less|worth|cost"),
}
"""Of what a number in evidence is: a sentence that uses it says so too."""
_COMMUNICATION = re.compile(r"communic|nccl|rccl|gloo|send_?recv|all_?(?:reduce|gather|to_?all)|c10d", re.IGNORECASE)
_TOGETHER = re.compile(r"\b(?:together|combined|in (?:all|sum|total)|sum)\b")
_EACH = re.compile(r"\b(?:each|apiece|a piece|per call|on average|average|mean)\b")
_CERTAINTIES = ("certain", "likely", "hint")
_PAIR = re.compile(r"\b(\d+) of (\d+)\b")
_BY_NAME = ("op", "device", "python", "around", "step")
"""Lines whose numbers are those of the name before them."""
_LEAST_KNOWN = 0.6
"""Share of a sentence's words that our own texts or the cited lines have."""


@dataclass(frozen=True)
class _Piece:
    """A part of a line: a name, or none, and the quantities told of it."""

    name: str
    known: tuple[Quantity, ...]


def unsupported(text: str, cited: Sequence[EvidenceLine], advice_on: str = "") -> str:
    """Return why a sentence has no support in the lines that it cites; empty where it has.

    ``advice_on`` : it is advice on this code. It says what the code's page says, and needs no number or name.
    """
    odd = sorted({sign for sign in text if not sign.isascii() and sign not in _OTHER_SIGNS})
    lines = "\n".join(line.text for line in cited)
    if any(sign not in lines for sign in odd):
        return "it is not plain English with digits 0 to 9"
    left, named = _without_names(text, cited)
    if _SIGNS.search(left) or _COMMAND.search(text):
        return "it holds a command or address"
    if not _adds_up(left):
        return "its sum does not add up"
    # who cites a finding may use the words of its page
    pages = "\n".join(lookup(line.facts["code"]).page for line in cited if line.kind == "finding")
    left, wrong, n_known = _checked_tokens(left, f"{lines}\n{pages}", advice_on)
    if wrong:
        return f"{wrong} is not in a line that it cites"
    words = [word.lower() for word in _WORD.findall(left)]
    ours = (_page_words(advice_on) if advice_on else _vocabulary()) | {word.lower() for word in _WORD.findall(lines)}
    if advice_on:
        words = [word for word in words if len(word) > 3 and word not in _PLAIN]
    if words and sum(word in ours or word.rstrip("s") in ours for word in words) < _LEAST_KNOWN * len(words):
        return "it is not about what the recording shows"
    number, n_numbers = _wrong_number(left, text, cited, len(named))
    if number:
        return f"the number {number} is not in a line that it cites, nor a sum or ratio of such"
    if _turned(text.lower(), cited):
        return "its lines say the contrary"
    about = {word for word in words if word not in _PLAIN and len(word) > 3}
    told = {word.lower() for word in _WORD.findall(lines)}
    if "communicat" in text.lower() and not _COMMUNICATION.search(lines):
        return "its lines tell nothing of communication"
    if not (advice_on or named or n_known or n_numbers or len(about & told) > 1):
        return "it names nothing that its lines tell"
    return ""


def _without_names(text: str, cited: Sequence[EvidenceLine]) -> tuple[str, list[str]]:
    """Blank what lines quote, the longest first, and return which it was."""
    names = {_plain(name) for line in cited for name in _QUOTED.findall(line.text)}
    words = [
        name.split() for line in cited if line.kind == "machine" for name in map(_plain, _QUOTED.findall(line.text))
    ]
    names |= {" ".join(some[at:]) for some in words for at in range(len(some) - 1)}
    found = []
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 2 and name in text and not name.isalpha():
            found.append(name)
            text = text.replace(name, " " * len(name))
    return text, found


def _plain(quoted: str) -> str:
    return str(json.loads(quoted))


def _turned(text: str, cited: Sequence[EvidenceLine]) -> bool:
    """Return whether a sentence drops a word of its lines that turns their meaning, or names another of several."""
    lines = "\n".join(line.text for line in cited).lower()
    if any(re.search(rf"\b{word}\b", text) and word not in lines for word in _CERTAINTIES):
        return True
    negated = re.search(r"\b(?:not|no|nor|never|without|elsewhere|other)\b|n't\b", text)
    if "steady" in text and "not a steady" in lines and not negated:
        return True
    rules = [line.text for line in cited if "not in this window" in line.text]
    if rules and len(rules) == len(cited) and "window" in text and not negated:
        return True
    told = set(_PAIR.findall(lines))
    totals = {total for _, total in told}
    return any(pair not in told and pair[1] in totals for pair in _PAIR.findall(text))


def _checked_tokens(text: str, lines: str, advice_on: str) -> tuple[str, str, int]:
    """Blank tokens that are names and no words or numbers; return the first that no line has, and how many have one."""
    n_known = 0
    for match in reversed(list(_TOKEN.finditer(text))):
        token = match[0].strip(".,;:!?()")
        if not token or not _is_name(token):
            continue
        if not (_occurs(token, lines) or (advice_on and _ours(token, lines, advice_on))):
            return text, json.dumps(token[:40]), n_known
        n_known += 1
        at = match.start() + match[0].index(token)
        text = text[:at] + " " * len(token) + text[at + len(token) :]
    return text, "", n_known


def _is_name(token: str) -> bool:
    if (
        token in _COMMON
        or token in UNITS
        or re.fullmatch(
            r"[~≈+\u00d7x=<>≤≥/\u2013\u2014-]+|[~≈]?[-\u2212]?[\d.,]+(?:[-\u2013][\d.,]+)?(?:%|[A-Za-zµμ]{1,2})?", token
        )
    ):
        return False
    if re.fullmatch(r"(?:[A-Z]?[a-z]+|[AI])(?:[-/\u2013\u2014\u2019'][A-Z]?[a-z]+)*(?:\u2019s)?", token):
        return False
    return bool(re.search(r"[A-Za-z]", token) or re.search(r"[\[\]@#_]", token))


def _occurs(token: str, lines: str) -> bool:
    base = token.removesuffix("s") if token[-2:-1].isupper() or token[-2:-1].isdigit() else token
    return any(
        re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", lines, re.IGNORECASE)
        for name in {token, base}.union(*(names for names in _ALIASES if token.lower() in names))
    )


def _ours(token: str, lines: str, code: str) -> bool:
    """Return whether each identifier of a piece of code is on the code's page or in the lines."""
    return not re.search(r"[@/\\]", token) and all(
        name in _identifiers(code) or _occurs(name, lines) for name in re.findall(r"[A-Za-z_]\w*", token)
    )


def _wrong_number(left: str, text: str, cited: Sequence[EvidenceLine], n_names: int) -> tuple[str, int]:
    """Return the first number without support, and how many there are."""
    said = read(left)
    pieces = [piece for line in cited for piece in _pieces(line)]
    mentioned = [piece for piece in pieces if piece.name and _mentions(text, piece.name)]
    # a plain word can mean one of several: only what is named as it was recorded says whose a number is
    strict = any(_mentions(text, piece.name, words=False) for piece in mentioned)
    allowed = [piece for piece in pieces if not piece.name] + mentioned if strict else pieces
    known = [item for piece in allowed for item in piece.known if _means(text, item)]
    if _EACH.search(text.lower()):
        known += [mean for piece in allowed for mean in _means_of(piece)]
    right: list[tuple[Quantity, float]] = []
    open_: list[Quantity] = []
    for at, item in enumerate(said):
        readings = list(_readings(said, at))
        value = next(
            (
                (one.of, other.value)
                for one in readings
                for other in known
                if other.of == one.of and agrees(one, other.value) and _same_noun(item, other)
            ),
            None,
        )
        if value is None:
            open_.append(item)
        else:
            right.append((replace(item, of=value[0]), value[1]))
    stated = [(item.of, value) for item, value in right]
    if strict or _TOGETHER.search(text.lower()):
        stated += _sums(mentioned)
    things = max(n_names, len(cited), len(stated), len(mentioned))
    for item in open_:
        few = item.spelled and item.bare and item.value <= things and not _MACHINES.match(item.after)
        derived = next((one for one in _readings(said, said.index(item)) if follows(one, stated)), None)
        if derived is not None:
            stated.insert(0, (derived.of, derived.value))
        elif not few:
            return left[item.begin : item.end].strip(), len(said)
    return "", len(said)


def _means_of(piece: _Piece) -> Iterator[Quantity]:
    """Yield how long each of what a piece counts takes."""
    times = [item for item in piece.known if item.of == "time"][:1]
    counts = [item.value for item in piece.known if item.bare and item.value > 0][:1]
    yield from (replace(time, value=time.value / count) for time in times for count in counts)


def _sums(pieces: Sequence[_Piece]) -> list[tuple[Of, float]]:
    """Return what all that a sentence names takes together."""
    found: list[tuple[Of, float]] = []
    for of in ("time", "share", "number"):
        firsts = [next((item.value for item in piece.known if item.of == of), None) for piece in pieces]
        whole = [value for value in firsts if value is not None]
        # twice: what is said must follow from two that are known, and a sum of all is known already
        found += [(of, sum(whole)), (of, 0.0)] if len(whole) > 1 else []
    return found


def _adds_up(text: str) -> bool:
    """Return whether each sum that is written out with + and = is right."""
    sides = text.replace(",", "").split("=")
    for left, right in pairwise(sides):
        parts = [_NUMBER.findall(part) for part in left.split("+")]
        told = _NUMBER.match(right.lstrip())
        if len(parts) < 2 or told is None or not all(parts):
            continue
        total = float(parts[0][-1]) + sum(float(numbers[0]) for numbers in parts[1:])
        if abs(total - float(told[0])) > 0.02 * total:
            return False
    return True


def _readings(said: Sequence[Quantity], at: int) -> Iterator[Quantity]:
    """Yield what a number can mean: a bare one may have the unit of the next that has one, or of the last."""
    item = said[at]
    yield item
    if item.bare and not item.spelled:
        units = [other for other in (*said[at + 1 :], *reversed(said[:at])) if not other.bare and not other.spelled][:1]
        for other in units:
            yield replace(item, of=other.of, value=item.value * other.scale, off=item.off * other.scale)
        if item.after.startswith("/") or item.before.endswith("/"):
            yield replace(item, of="time", value=item.value * 1e6, off=item.off * 1e6)


def _pieces(line: EvidenceLine) -> Iterator[_Piece]:
    text = _SHAPE.sub(lambda match: " " * (at := match[0].rfind("]") + 1) + match[0][at:], line.text)
    text = re.sub(r"\brule [A-Z]{3}\d{3} [\w-]+|\bfinding \d+ of \d+", lambda match: " " * len(match[0]), text)
    if line.kind not in _BY_NAME:
        yield _Piece("", tuple(read(_QUOTED.sub("", text))))
        return
    begin, name = 0, ""
    for match in (*_QUOTED.finditer(text), None):
        part = text[begin : match.start() if match else len(text)]
        yield _Piece(name, tuple(read(part)))
        if match:
            begin, name = match.end(), _plain(match[0])


def _mentions(text: str, name: str, words: bool = True) -> bool:
    """Return whether a text has a name or a part of it. ``words`` : plain words count as well."""
    if name in text:
        return True
    tokens = [token.strip(".,;:!?()") for token in _TOKEN.findall(text)]
    return any(
        (_is_name(token) or (words and len(token) > 3 and token.lower() not in _PLAIN)) and _occurs(token, name)
        for token in tokens
    )


def _means(text: str, item: Quantity) -> bool:
    told = next((meant for word, meant in _MEANT.items() if word in item.before), None)
    return told is None or told.search(text.lower()) is not None


_MACHINES = re.compile(r"\s*(?:(?:GPUs|devices|accelerators|ranks|nodes|hosts|machines)\b|GPU\b(?! \w))")


def _same_noun(said: Quantity, other: Quantity) -> bool:
    """Return whether a number of machines is one in the evidence too."""
    return not (said.bare and _MACHINES.match(said.after)) or _MACHINES.match(other.after) is not None


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    texts = [f"{entry.page} {entry.pattern.title} {entry.fix.text}" for entry in catalogue()]
    return frozenset(word.lower() for text in texts for word in _WORD.findall(text))


def _own_text(code: str) -> str:
    entry = lookup(code)
    return f"{entry.pattern.title} {entry.page} {entry.fix.text} {entry.fix.code}"


@lru_cache(maxsize=64)
def _page_words(code: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(_own_text(code))) | _PLAIN


@lru_cache(maxsize=64)
def _identifiers(code: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", _own_text(code)))


@lru_cache(maxsize=64)
def terms(code: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return what tells that a line bears on a code: its identifiers and its name's words, and its title's words."""
    entry = lookup(code)
    page = entry.page.partition("Cost:")[0]
    sure = {part for item in re.findall(r"``(.+?)``", page, re.DOTALL) for part in re.findall(r"[A-Za-z_]\w{3,}", item)}
    sure |= {word for word in entry.pattern.name.split("-") if len(word) > 3}
    words = {
        word.lower()[:5] for word in _WORD.findall(f"{entry.pattern.title} {page.splitlines()[0]}") if len(word) > 3
    }
    return frozenset(item.lower() for item in sure) - _PLAIN, frozenset(words) - _PLAIN


def bears_on(line: EvidenceLine, code: str) -> bool:
    """Return whether a line speaks for or against a code."""
    if line.kind == "finding":
        return bool(line.facts["code"] == code)
    if line.kind == "elsewhere":
        return False
    if line.kind == "detector":
        return code in line.facts["types"]
    sure, likely = terms(code)
    parts = {part.lower() for part in re.findall(r"[A-Za-z_]\w*", line.text)}
    parts |= {piece for part in parts for piece in part.split("_")}
    return bool(parts & sure) or len({part[:5] for part in parts if len(part) > 3} & likely) >= 2
