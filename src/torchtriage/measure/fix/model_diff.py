"""A language model's diff, as edits of the lines that it was shown; anything else is refused with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchtriage.core.names import visible
from torchtriage.diagnose.lint.edits import Autofix, SourceEdit, apply, replace_lines
from torchtriage.measure.fix.source_redaction import SourceNames

LONGEST = 200
"""Changed lines: more is no fix of one finding."""
_BESIDE = re.compile(
    r"(?:new file|deleted file|old|new) mode |(?:rename|copy) (?:from|to) |similarity index|Binary |GIT b"
)
_HUNK = re.compile(r"@@+(?: -(\d+)(?:,\d+)? \+\d+(?:,\d+)?)? @@+.*|@@.*")
IMPORTS = frozenset(
    {"torch", "numpy", "contextlib", "functools", "itertools", "math", "collections", "typing", "__future__"}
)
"""What a change may import that its file does not."""
_NEEDLESS = """
exec eval open input breakpoint globals locals vars getattr setattr delattr system popen load save hub cpp_extension
load_library load_inline remove unlink rmtree rename replace write write_text write_bytes tofile fromfile memmap
from_file kill fork connect urlopen urlretrieve import_module run_path multiprocessing os sys subprocess shutil
socket pathlib ctypes importlib builtins io tempfile http urllib pickle marshal runpy inspect
"""
NEEDLESS = frozenset(_NEEDLESS.split())
"""What no faster step needs, and could hurt: refused where it is new in a file."""
HARMFUL = frozenset({"os", "sys", "subprocess", "shutil", "socket", "ctypes", "importlib", "pathlib", "builtins"})
"""Modules of which nothing is used that the file does not use already."""


class DiffError(ValueError):
    """Why a diff is not tried."""


@dataclass(frozen=True)
class Shown:
    """A file that a model was shown some lines of: its text, all its lines as they may be shown, and which were."""

    path: str
    text: str
    rows: list[str]
    lines: frozenset[int]


@dataclass
class _Hunk:
    first: int | None
    rows: list[tuple[str, str]] = field(default_factory=list)

    @property
    def old(self) -> list[str]:
        return [row for sign, row in self.rows if sign != "+"]


def edits_of(diff: str, shown: Mapping[str, Shown], names: SourceNames) -> dict[str, tuple[SourceEdit, ...]]:
    """Return a unified diff as edits, by file of the project.

    ``shown`` : by the name that the model knows. ``names`` : puts back what was redacted.

    Raises DiffError: it is no diff of lines that were shown, is too long, does not apply, breaks the syntax, or does
    what no fix needs.
    """
    edits: dict[str, tuple[SourceEdit, ...]] = {}
    for name, hunks in _parsed(diff).items():
        if name not in shown:
            raise DiffError(f"changes {_quoted(name)}, which was not shown")
        file = shown[name]
        found = tuple(edit for hunk in hunks for edit in _of_hunk(hunk, file, names))
        changed, fitting = apply(file.text, [Autofix(found, "")])
        if not fitting:
            raise DiffError("what it makes is not Python, or its hunks overlap")
        if changed != file.text:
            _check(file.text, changed)
            edits[file.path] = found
    if not edits:
        raise DiffError("changes nothing")
    return edits


def _parsed(diff: str) -> dict[str, list[_Hunk]]:
    files: dict[str, list[_Hunk]] = {}
    hunks: list[_Hunk] | None = None
    before = ""
    rows = [row for row in re.split(r"\r\n|\r|\n", diff) if not row.startswith("```")]
    if sum(row[:1] in ("+", "-") for row in rows) > LONGEST:
        raise DiffError(f"changes more than {LONGEST} lines")
    for at, row in enumerate(rows):
        follows = rows[at + 1] if at + 1 < len(rows) else ""
        if _BESIDE.match(row):
            raise DiffError(f"does more than change lines: {_quoted(row)}")
        if row.startswith("--- ") and follows.startswith("+++ "):
            before = row
        elif row.startswith("+++ ") and before:
            name = _name(row)
            if name != _name(before) or name == "/dev/null":
                raise DiffError("makes, deletes or renames a file")
            hunks, before = files.setdefault(name, []), ""
        elif (match := _HUNK.fullmatch(row)) and hunks is not None:
            hunks.append(_Hunk(int(match[1]) if match[1] else None))
        elif hunks and row[:1] in ("+", "-", " "):
            hunks[-1].rows.append((row[0], row[1:]))
        elif hunks and not row:
            hunks[-1].rows.append((" ", ""))
        elif row.strip() and not row.startswith(("diff ", "index ", "\\")):
            raise DiffError(f"expected a unified diff, found {_quoted(row)}")
    if not any(files.values()):
        raise DiffError("expected a unified diff, found none")
    return files


def _name(row: str) -> str:
    return re.sub(r"^[ab]/", "", row[4:].partition("\t")[0].strip())


def _of_hunk(hunk: _Hunk, file: Shown, names: SourceNames) -> Iterator[SourceEdit]:
    while hunk.rows and hunk.rows[-1] == (" ", ""):
        hunk.rows.pop()  # an empty line after the diff
    rows, old = file.rows, [row.rstrip() for row in hunk.old]
    if not old:
        raise DiffError("does not apply: a hunk shows no line of the file")
    places = [
        at + 1
        for at in range(len(rows) - len(old) + 1)
        if [row.rstrip() for row in rows[at : at + len(old)]] == old
        and all(at + 1 + more in file.lines for more in range(len(old)))
    ]
    if not places or (len(places) > 1 and hunk.first is None):
        raise DiffError(f"does not apply: {'no' if not places else 'more than one'} place has {_quoted(old[0])}")
    line = min(places, key=lambda place: abs(place - (hunk.first or 0)))
    begin, new = line, list[str]()
    for sign, row in [*hunk.rows, (" ", "")]:
        if sign == "-":
            line += 1
        elif sign == "+":
            text, unknown = names.restore(row)
            if unknown:
                raise DiffError(f"uses {unknown}, which was not shown")
            new.append(text)
        else:
            if new or line > begin:
                yield replace_lines(file.text, begin, line, new)
            line += 1
            begin, new = line, []


def _check(before: str, after: str) -> None:
    """Refuse what could do more than compute: the trial runs what a stranger wrote. A filter, no sandbox."""
    for kind, name in sorted(_used(ast.parse(after)) - _used(ast.parse(before))):
        if kind == "import" and name.partition(".")[0] not in IMPORTS:
            raise DiffError(f"imports {_quoted(name)}")
        hurts = kind == "of" or not NEEDLESS.isdisjoint(name.split(".")) or (kind, name) == ("name", "compile")
        if hurts or (kind != "import" and name.startswith("__")):
            raise DiffError(f"uses {_quoted(name)}, which no fix needs")


def _used(tree: ast.AST) -> set[tuple[str, str]]:
    """Return what a file uses: names, attributes, imports, and members of modules that can do harm."""
    used: set[tuple[str, str]] = set()
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    aliases = {alias.asname or alias.name: alias.name for alias in imports}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used.add(("name", node.id))
        elif isinstance(node, ast.Attribute):
            used.add(("attribute", node.attr))
            if isinstance(node.value, ast.Name) and aliases.get(node.value.id, "").partition(".")[0] in HARMFUL:
                used.add(("of", f"{aliases[node.value.id]}.{node.attr}"))
        elif isinstance(node, ast.Import):
            used |= {("import", alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add(("import", f"{'.' * node.level}{node.module or ''}"))
            used |= {("attribute", alias.name) for alias in node.names}
    return used


def _quoted(text: str) -> str:
    return repr(visible(text[:60]))
