"""Source files on disk: found from the path a recording holds, read as Python, or a reason why not.

Recorded paths are untrusted and shortened by ``sys.path`` prefixes (``train.py``, ``pkg/net.py``): only regular ``.py``
files of a sensible size are opened, and nothing is ever imported.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PureWindowsPath

from torchtriage.core.folders import is_inside
from torchtriage.core.source.functions import Function, find_functions

MAX_BYTES = 4 << 20
"""Larger files are generated: parsing one takes seconds and half a gigabyte."""
_CELL = re.compile(r"ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-|^<stdin>|^Cell In\[")


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One file as read: its text and syntax tree, or the ``reason`` why there is no tree."""

    path: str
    text: str = ""
    tree: ast.Module | None = None
    reason: str = ""

    @cached_property
    def lines(self) -> list[str]:
        """The text line by line, as Python counts lines; the first has index 0."""
        # not splitlines: form feeds and Unicode separators end no line of Python
        return self.text.split("\n")

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Every code object of the file: functions, lambdas, comprehensions, class bodies."""
        return find_functions(self.tree) if self.tree is not None else ()

    def starting(self, name: str, line: int) -> list[Function]:
        """Return the functions with this name whose code starts on this line."""
        return [function for function in self.functions if function.name == name and function.first_line == line]

    def spanning(self, name: str, line: int) -> list[Function]:
        """Return the functions with this name whose text holds this line."""
        return [
            function
            for function in self.functions
            if function.name == name and function.first_line <= line <= function.last_line
        ]


def read(path: Path | str) -> SourceFile:
    """Return a file as read; one that cannot be read says why and has no tree."""
    shown = str(path)
    if _CELL.search(shown):
        return SourceFile(shown, reason="a notebook cell, which is in no file")
    try:
        path = Path(path)
        if not path.is_file():
            return SourceFile(shown, reason="not a file")
        if path.stat().st_size > MAX_BYTES:
            return SourceFile(shown, reason=f"larger than {MAX_BYTES >> 20} MB")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        return SourceFile(shown, reason=f"cannot be read: {error}")
    return parse(data, shown)


def parse(data: bytes, path: str = "<memory>") -> SourceFile:
    """Return bytes as source; what is not Python of this version says why and has no tree."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except (SyntaxError, LookupError, UnicodeDecodeError) as error:
        return SourceFile(path, reason=f"not in the encoding it declares: {error}")
    try:
        with warnings.catch_warnings():
            # invalid escapes are the author's business
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        what = f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
        return SourceFile(path, text, reason=f"not Python {version} ({what})")
    except (ValueError, RecursionError, MemoryError) as error:
        return SourceFile(path, text, reason=f"cannot be parsed ({type(error).__name__})")
    return SourceFile(path, text, tree)


class Sources:
    """Where source files are looked for; each is read once.

    The path itself comes first where it is absolute, then roots in their order.
    """

    def __init__(self, roots: Iterable[str | os.PathLike[str]], *, confined: bool = False) -> None:
        """Look for files below ``roots``; ``confined`` : open no other file, whatever a recording or a link names."""
        self.roots = tuple(Path(root) for root in roots)
        self.confined = confined
        self._read: dict[Path, SourceFile] = {}

    def quote(self, file: str, function: str, line: int) -> str:
        """Return the text of one line of a function, empty where no such file is at hand."""
        for item in self.find(file):
            if item.spanning(function, line):
                return item.lines[line - 1].rstrip()
        return ""

    def find(self, file: str) -> list[SourceFile]:
        """Return what a recorded path may be on this disk, the likeliest first.

        ``/workspace/net/train.py`` is looked for as itself, and as ``workspace/net/train.py``, ``net/train.py`` and
        ``train.py`` below each root.
        """
        if _CELL.search(file):
            return [SourceFile(file, reason="a notebook cell, which is in no file")]
        if not file.endswith((".py", ".pyw")) or "\0" in file:
            return []
        windows = "\\" in file or re.match(r"[A-Za-z]:", file) is not None
        parts = PureWindowsPath(file).parts if windows else Path(file).parts
        absolute = Path(file).is_absolute()
        inside = [part for part in parts if part not in (parts[0] if absolute or windows else "", ".")]
        if ".." in inside:
            return []
        candidates = [root.joinpath(*inside[first:]) for first in range(len(inside)) for root in self.roots]
        if absolute:
            candidates.insert(0, Path(file))
        found = []
        for candidate in dict.fromkeys(candidates):
            if candidate not in self._read:
                try:
                    allowed = not self.confined or any(is_inside(candidate, root) for root in self.roots)
                    exists = allowed and candidate.is_file()
                except (OSError, ValueError):
                    exists = False
                self._read[candidate] = read(candidate) if exists else SourceFile("", reason="none")
            if self._read[candidate].path:
                found.append(self._read[candidate])
        return found
