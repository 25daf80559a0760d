"""Which files are looked at, and their text: encodings, notebooks, and sources that are odd.

A source that cannot be read or parsed is one :class:`~torchtriage.diagnose.lint.result.Odd`, never an error:
the other files still count. Files that import neither torch nor a library on top of it are not
parsed at all.
"""

from __future__ import annotations

import ast
import codecs
import io
import json
import os
import re
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from torchtriage.core.errors import UsageError
from torchtriage.diagnose.lint.result import Odd

MAX_BYTES = 4 << 20
"""A larger file was written by a program, for a program."""

# "import torch" counts wherever it stands, "torch_dtype" in a configuration does not
_IMPORTS = re.compile(
    rb"(?:import|from)\s(?:[^\n#;]{0,160}?\b|\s{0,9}[\w.]{1,60}\s+import\s*\(\s*)"
    rb"(?:torch|lightning|pytorch_lightning|accelerate|transformers|diffusers|deepspeed|timm|sentence_transformers|peft|trl)"
)
_SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "env", "build", "dist", "site-packages"})
_TESTS = frozenset({"tests", "test", "testing"})
# IPython's own lines: %magic, !command, name?, and files = !ls
_MAGIC = re.compile(
    r"(?P<head>[ \t]*)(?:(?P<assigned>\w[\w., ]*=[ \t]*(?=[!%]))?(?=[%!?])|(?=\w[\w.]*\?))(?P<line>(?:[^\n\\]|\\.)*)",
    re.DOTALL,
)
# cells that are Python all the same, and statements that are only timed
_PYTHON_CELLS = re.compile(r"\s*%%(time|timeit|capture|prun)\b")
_TIMED = re.compile(r"%time(?P<gap>[ \t]+)(?=[^\s%!#])(?=(?P<block>(?:async|for|if|try|while|with)\b)?)")
_LEXEME = re.compile(
    r"(\"\"\"|\'\'\')(?:[^\\]|\\.)*?(?:\1|\\?\Z)|\"(?:[^\"\\\n]|\\.)*\"?|\'(?:[^\'\\\n]|\\.)*\'?"
    r"|#[^\n]*|\\.|[^\"\'#\\\n()\[\]{}]+|.",
    re.DOTALL,
)
_PYTHON_2 = re.compile(
    r"^[^\S\n]*(print\s+[\"'\w]|exec\s+[\"']|except\s+\w+\s*,\s*\w+\s*:|raise\s+\w+\s*,)", re.MULTILINE
)
_PYTHON_312 = re.compile(r"^[^\S\n]*(type\s+\w[^\n=]*=|(async\s+)?def\s+\w+\s*\[|class\s+\w+\s*\[)", re.MULTILINE)


@dataclass
class Tally:
    """How many files there were of each sort."""

    n_files: int = 0
    n_tests: int = 0
    n_without_torch: int = 0
    odd: list[Odd] = field(default_factory=list)


@dataclass(frozen=True)
class LintSource:
    """One parsed file.

    ``text`` has the file's own line ends and no byte order mark. ``cells`` : for a notebook, cell
    and line of each line of ``text``, from 1.
    """

    path: str
    text: str
    tree: ast.Module
    encoding: str = "utf-8"
    bom: bool = False
    cells: tuple[tuple[int, int], ...] = ()

    def encoded(self, text: str) -> bytes:
        """Return another text as this file's own is encoded."""
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)


def find(paths: Iterable[str], exclude: Iterable[str], tally: Tally) -> Iterator[str]:
    """Yield the files to look at: those named, and the Python files and notebooks below folders.

    Tests, hidden folders and installed packages below a folder are left out. Links to folders are
    not followed. ``exclude`` : patterns of the ends of paths, ``old_*.py`` or ``src/old``, as they are below the
    folder of the nearest pyproject.toml, or the working folder; what lies below a match is left out as well.

    Raises UsageError: a path does not exist.
    """
    seen: set[str] = set()
    patterns = tuple(pattern for pattern in exclude if Path(pattern).parts)
    here = Path.cwd()
    base = next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file()), here)
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError("expected a Python file or a folder, found nothing", where=path)
        found = _below(path, tally, base, patterns) if Path(path).is_dir() else iter([path])
        for item in found:
            real = os.path.realpath(item)
            if real not in seen:
                seen.add(real)
                yield item


def read(path: str, tally: Tally) -> LintSource | None:
    """Return a parsed file, None where there is nothing to look at (which is counted)."""
    try:
        data = _bytes(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        tally.odd.append(Odd(path, 0, f"cannot be read: {reason}"))
        return None
    return source_of(path, data, tally)


def source_of(path: str, data: bytes, tally: Tally) -> LintSource | None:
    """Return the parsed text of a file's bytes; see :func:`read`."""
    tally.n_files += 1
    if not _IMPORTS.search(data):
        if b"\0" in data:
            tally.odd.append(Odd(path, 0, "is no Python source: it contains null bytes"))
        else:
            tally.n_without_torch += 1
        return None
    if len(data) > MAX_BYTES:
        size = f"{len(data) / 2**20:.1f} MiB"
        tally.odd.append(Odd(path, 0, f"{size} of source is more than {MAX_BYTES >> 20} MiB"))
        return None
    try:
        if path.endswith(".ipynb"):
            return _notebook(path, data, tally)
        return python_source(path, data)
    except SyntaxError as error:
        tally.odd.append(Odd(path, error.lineno or 0, _complaint(error, data)))
    except (UnicodeDecodeError, LookupError) as error:
        tally.odd.append(Odd(path, 0, f"cannot be decoded: {error}"))
    except (RecursionError, MemoryError):
        tally.odd.append(Odd(path, 0, "nested too deeply to be parsed"))
    except ValueError as error:
        tally.odd.append(Odd(path, 0, f"is no Python source: {error}"))
    return None


def _below(folder: str, tally: Tally, base: Path, exclude: tuple[str, ...]) -> Iterator[str]:
    def failed(error: OSError) -> None:
        tally.odd.append(Odd(str(error.filename), 0, f"cannot be read: {error.strerror}"))

    given = Path(os.path.abspath(folder))  # noqa: PTH100
    base = base if given.is_relative_to(base) else given.parent
    for root, folders, files in os.walk(folder, onerror=failed):
        below = os.path.relpath(root, folder)
        in_tests = any(part in _TESTS for part in Path(below).parts)
        kept = [name for name in folders if not is_skipped(name)]
        folders[:] = sorted(name for name in kept if not _matches(given / below / name, base, exclude))
        for name in sorted(files):
            if not name.endswith((".py", ".ipynb")) or is_skipped(name):
                continue
            path = str(Path(root, name))
            if _matches(given / below / name, base, exclude):
                continue
            if in_tests or name.startswith("test_") or name.endswith(("_test.py", "conftest.py")):
                tally.n_tests += 1
                continue
            yield path


def is_skipped(name: str) -> bool:
    """Return whether a file or folder of this name is left out below a folder: hidden ones, installed packages."""
    return name.startswith(".") or name in _SKIPPED


def _matches(path: Path, base: Path, patterns: tuple[str, ...]) -> bool:
    """Return whether a path, or a folder that it is in, ends as a pattern says, or is whole what it says."""
    inside = path.relative_to(base)
    return any(
        fnmatch(inside.as_posix(), pattern) or any(part.match(pattern) for part in (inside, *inside.parents))
        for pattern in patterns
    )


def _bytes(path: str) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        raise ValueError("it is no regular file")
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(MAX_BYTES + 1 if not path.endswith(".ipynb") else 16 * MAX_BYTES)


def python_source(path: str, data: bytes) -> LintSource:
    """Return the parsed text of a module's bytes.

    Raises SyntaxError, ValueError: they are no Python source; LookupError: in an unknown encoding.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    bom = data.startswith(codecs.BOM_UTF8)
    plain = "utf-8" if encoding == "utf-8-sig" else encoding
    text = (data[3:] if bom else data).decode(plain)
    return LintSource(path, text, _parse(text), plain, bom)


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" in a string of theirs is not our subject
        return ast.parse(text)


def _complaint(error: SyntaxError, data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    message = (error.msg or "invalid syntax").splitlines()[0][:120]
    if b"\0" in data:
        message = "null bytes"
    if _PYTHON_2.search(text):
        return f"looks like Python 2: {message}"
    if sys.version_info < (3, 12) and (_PYTHON_312.search(text) or message.startswith("f-string")):
        message += "; for syntax of Python 3.12, run lint with Python 3.12 or newer"
    return f"does not parse: {message}"


def _notebook(path: str, data: bytes, tally: Tally) -> LintSource | None:
    document = json.loads(data.decode("utf-8-sig"))
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise ValueError("a notebook without cells")
    rows: list[str] = []
    where: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        if text.lstrip().startswith("%%") and not _PYTHON_CELLS.match(text):
            continue  # another language, or another process
        text = _without_magics(text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n"))
        try:
            _parse(text)
        except SyntaxError as error:
            line = error.lineno or 0
            tally.odd.append(Odd(path, line, f"cell {number} {_complaint(error, text.encode())}"))
            continue
        except ValueError as error:
            tally.odd.append(Odd(path, 0, f"cell {number} is no Python source: {error}"))
            continue
        rows.append(text)
        where += [(number, line + 1) for line in range(text.count("\n") + 1)]
    text = "\n".join(rows) + "\n"
    return LintSource(path, text, _parse(text), cells=tuple(where))


def _without_magics(text: str) -> str:
    """Return a cell as Python, line for line; only where a statement begins can a line be IPython's."""
    out: list[str] = []
    position, depth, begins = 0, 0, True
    while position < len(text):
        magic = _MAGIC.match(text, position) if begins else None
        timed = _TIMED.match(text, magic.start("line")) if magic is not None else None
        if magic is not None and timed is not None:
            # as wide as it was, so that columns stay; only a block can have nothing before it
            instead = "" if timed["block"] else ("     " if magic["assigned"] else "pass;") + timed["gap"]
            out.append(f"{magic['head']}{magic['assigned'] or ''}{instead}")
            position = timed.end()
        elif magic is not None:
            line = magic["line"].replace("\n", "\n# ")
            out.append(f"{magic['head']}{magic['assigned'] + 'None' if magic['assigned'] else 'pass'}  # {line}")
            position = magic.end()
        else:
            lexeme = _LEXEME.match(text, position)
            assert lexeme is not None
            out.append(lexeme[0])
            position = lexeme.end()
            depth = max(depth + (lexeme[0] in "([{") - (lexeme[0] in ")]}"), 0)
        begins = depth == 0 and out[-1] == "\n"
    return "".join(out)
