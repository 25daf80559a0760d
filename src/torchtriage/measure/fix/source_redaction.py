"""Source that may leave this machine: the names of Python, NumPy and PyTorch; a number for the rest.

What is not known to be public is private: names of the user's, what strings and comments say. Numbers stay.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import io
import keyword
import re
import sys
import tokenize
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np

from torchtriage.core.errors import UsageError
from torchtriage.diagnose.lint.edits import lines_of

_OF_PYTHON = """
collections concurrent.futures contextlib copy dataclasses functools itertools json math operator os os.path pathlib
queue random re statistics threading time typing
"""
_OF_TORCH = """
*.py _C/*.pyi amp/*.py autograd/*.py cuda/*.py nn/*.py nn/modules/*.py nn/utils/*.py optim/*.py utils/data/*.py
"""
LIBRARIES = frozenset(
    {"F", "PIL", "accelerate", "lightning", "nn", "np", "numpy", "torch", "torchaudio", "torchvision", "transformers"}
)
_NAMED = re.compile(r"\b(?:def|class)\s+(\w+)|\b([^\W\d]\w*)\s*[:=]")
_WORD = re.compile(r"[^\W\d]\w*")
_SIMPLE = re.compile(r"[\w.:/-]{0,40}")
_STRING = re.compile(r"([A-Za-z]*)('''|\"\"\"|'|\")(.*)\2", re.DOTALL)
_FIELDS = re.compile(r"(\{\{|\}\}|\{[^{}\n]+\})")
"""The expressions in an f-string; of one with braces of its own only what these hold."""
_FORM = re.compile(r"\{([^{}\n]+?)((?:![ars])?(?::[-<>^+.,\d#_ =*]*[a-zA-Z%]?)?\})")
_OURS = re.compile(r"\b(?:name|text)\d+\b")


@lru_cache(maxsize=1)
def public_names() -> frozenset[str]:
    """Return the names of Python, and those that the source of PyTorch and NumPy defines.

    Raises UsageError: torch is not installed here.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise UsageError(
            "source can be redacted only where torch is installed: the public names are read from it",
            hint="--no-redact sends it as it is",
        )
    of_types = (str, bytes, list, dict, set, tuple, int, float, object, BaseException)
    named: set[str] = set(LIBRARIES | sys.stdlib_module_names)
    for holder in (builtins, *of_types, *map(importlib.import_module, _OF_PYTHON.split())):
        named |= set(dir(holder))
    of_torch, of_numpy = Path(spec.origin).parent, Path(np.__file__).parent
    patterns = [(of_torch, pattern) for pattern in _OF_TORCH.split()]
    patterns += [(of_numpy, "*.pyi"), (of_numpy, "[a-z]*/*.pyi")]
    for path in chain.from_iterable(folder.glob(pattern) for folder, pattern in patterns):
        text = path.read_text(encoding="utf-8", errors="replace")
        named |= {path.stem, path.parent.name, *(name for pair in _NAMED.findall(text) for name in pair if name)}
    return frozenset(named)


class SourceNames:
    """Redacts source, line by line, and puts the names back; one name always gets one number."""

    def __init__(self, *, redact: bool = True) -> None:
        self.redact = redact
        self._given: dict[tuple[str, str], str] = {}
        self._meant: dict[str, str] = {}

    def rows(self, text: str) -> list[str] | None:
        """Return the lines of a file as they may be shown, without their ends; None where it has no tokens."""
        rows = [row.rstrip("\r\n") for row in lines_of(text)]
        if not self.redact:
            return rows
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO("\n".join(rows) + "\n").readline))
        except (tokenize.TokenError, SyntaxError):
            return None
        out = [""] * len(rows)
        at, depth, begin = (1, 0), 0, (1, 0)
        for token in tokens:
            kind = tokenize.tok_name[token.type]
            if kind == "FSTRING_START":
                begin, depth = (token.start if depth == 0 else begin), depth + 1
            if depth:
                depth -= kind == "FSTRING_END"
                if depth or kind != "FSTRING_END":
                    continue
                start, spelled = begin, _between(rows, begin, token.end)
                shown = self._string(spelled)
            elif kind == "STRING":
                start, shown = token.start, self._string(token.string)
            elif kind == "COMMENT":
                start, shown = token.start, f"# {self._number('text', token.string[1:].strip())}"
            elif kind == "NAME" and not self._is_public(token.string):
                start, shown = token.start, self._number("name", token.string)
            else:
                continue
            _put(out, rows, at, start)
            for number, piece in enumerate(shown.split("\n")):
                out[start[0] - 1 + number] += piece
            at = token.end
        _put(out, rows, at, (len(rows), len(rows[-1]) if rows else 0))
        return out

    def name(self, name: str) -> str:
        """Return a name as it may be shown."""
        return name if not self.redact or self._is_public(name) else self._number("name", name)

    def restore(self, text: str) -> tuple[str, str]:
        """Return a text with the names put back, and the first number in it that was never given; empty if none."""
        if not self.redact:
            return text, ""
        unknown = next((match[0] for match in _OURS.finditer(text) if match[0] not in self._meant), "")
        return _OURS.sub(lambda match: self._meant.get(match[0], match[0]), text), unknown

    def _is_public(self, name: str) -> bool:
        known = keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in public_names()
        return known and not _OURS.fullmatch(name)

    def _string(self, spelled: str) -> str:
        match = _STRING.fullmatch(spelled)
        assert match is not None
        prefix, quote, inner = match.groups()
        if "f" in prefix.lower():
            shown = "".join(map(self._piece, _FIELDS.split(inner)))
            # numbers of two texts that touch, or that follow a digit, would not be found
            return prefix + quote + (shown if self.restore(shown)[0] == inner else self._text(inner)) + quote
        if _SIMPLE.fullmatch(inner) and all(map(self._is_public, _WORD.findall(inner))):
            return spelled
        return prefix + quote + self._text(inner) + quote

    def _piece(self, piece: str) -> str:
        """Return a piece of an f-string: text, or an expression in braces with its format."""
        match = _FORM.fullmatch(piece)
        if match is None:
            return piece if piece in ("{{", "}}") else self._text(piece)
        rows = self.rows(f"({match[1]})")
        return "{" + rows[0][1:-1] + match[2] if rows is not None else self._text(piece)

    def _text(self, inner: str) -> str:
        return "\n".join(self._number("text", piece) if piece.strip() else piece for piece in inner.split("\n"))

    def _number(self, kind: str, meant: str) -> str:
        if not meant:
            return ""
        given = self._given.setdefault((kind, meant), f"{kind}{len(self._given) + 1}")
        self._meant[given] = meant
        return given


def _between(rows: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    text = "\n".join(rows[start[0] - 1 : end[0]])
    tail = len(rows[end[0] - 1]) - end[1]
    return text[start[1] : len(text) - tail]


def _put(out: list[str], rows: list[str], start: tuple[int, int], end: tuple[int, int]) -> None:
    """Write what lies between two positions as it is."""
    for number, piece in enumerate(_between(rows, start, end).split("\n") if start < end else []):
        out[start[0] - 1 + number] += piece
