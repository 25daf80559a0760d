"""Autofixes: exact edits by position that keep every other character of the file.

Positions are those of ``ast``: lines from 1, columns in UTF-8 bytes. An edit is applied to the file
as it was read, with its own line ends and encoding, and what comes out must parse again.
"""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass

from torchtriage.diagnose.lint.syntax import argument, arguments, literal, unpacks

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_TAIL = re.compile(r"\s+|#[^\r\n]*|\\(?:\r\n|\r|\n)|[,)]")


@dataclass(frozen=True)
class SourceEdit:
    """Replace what lies between two positions by ``text``."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True)
class Autofix:
    """The edits that mend one hit, and why they are safe."""

    edits: tuple[SourceEdit, ...]
    safe_because: str


def replace_node(node: ast.expr | ast.stmt, text: str) -> SourceEdit:
    """Return the edit that puts ``text`` in the place of an expression or a statement."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return SourceEdit(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text)


def replace_lines(text: str, begin: int, end: int, new: list[str]) -> SourceEdit:
    """Return the edit that puts lines in the place of those from ``begin`` up to ``end``."""
    rows = lines_of(text)
    if begin > len(rows) and rows and not rows[-1].endswith(("\n", "\r")):
        column = len(rows[-1].encode("utf-8", "surrogatepass"))
        return SourceEdit(len(rows), column, len(rows), column, "".join(f"\n{row}" for row in new))
    return SourceEdit(begin, 0, end, 0, "".join(f"{row}\n" for row in new))


def add_keyword(text: str, node: ast.Call, name: str, value: str, place: int = -1) -> SourceEdit | None:
    """Return the edit that sets a keyword argument; None where it cannot be added for sure.

    ``text`` is the file's; ``place`` : where the parameter stands among positional ones, -1 where it does not. A
    constant that is there already is replaced.
    """
    given = argument(node, name, place)
    if given is not None:
        return replace_node(given, value) if literal(given) is not ... else None
    if unpacks(node):
        return None  # **options may hold it already
    last = max(arguments(node), key=lambda arg: (arg.end_lineno or 0, arg.end_col_offset or 0), default=None)
    if any(isinstance(arg, ast.GeneratorExp | ast.Starred) for arg in node.args):
        return None
    lines = lines_of(text)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    if last is None:
        return SourceEdit(node.end_lineno, at := node.end_col_offset - 1, node.end_lineno, at, f"{name}={value}")
    begin = index_of(lines, last.end_lineno or 0, last.end_col_offset or 0)
    end = index_of(lines, node.end_lineno, node.end_col_offset) - 1
    tail = text[begin:end]
    at, comma, position = 0, -1, 0
    while position < len(tail):
        token = _TAIL.match(tail, position)
        if token is None:
            return None
        if token[0] == ")":
            at, comma = token.end(), -1
        elif token[0] == ",":
            comma = token.start()
        position = token.end()
    first_line = lines[last.lineno - 1]
    indent = first_line[: len(first_line) - len(first_line.lstrip(" \t"))]
    start = index_of(lines, last.lineno, last.col_offset)
    head = text[text.rfind("\n", 0, start) + 1 : start]
    if comma >= 0 and re.fullmatch(r"\s*(\w+\s*=\s*)?", head) and node.lineno != last.lineno:
        # one argument a line, with a comma after each; a comment may follow it
        rest = re.match(r"[ \t]*(#[^\r\n]*)?(?=[\r\n])", text[begin + comma + 1 :])
        if rest is not None:
            at_end = begin + comma + 1 + rest.end()
            return _insertion(text, at_end, f"\n{indent}{name}={value},")
    if comma >= 0:
        return _insertion(text, begin + comma + 1, f" {name}={value}")
    return _insertion(text, begin + at, f", {name}={value}")


def decorate(text: str, node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> SourceEdit:
    """Return the edit that puts a decorator directly above ``def``."""
    line = lines_of(text)[node.lineno - 1]
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    return SourceEdit(node.lineno, node.col_offset, node.lineno, node.col_offset, f"@{decorator}\n{indent}")


def apply(text: str, fixes: list[Autofix]) -> tuple[str, list[Autofix]]:
    """Return the text with the fixes that fit, and those fixes; line ends stay as they are.

    A fix that overlaps an earlier one, or after which the text would not parse, is left out.
    """
    lines = lines_of(text)
    newline = "\r\n" if "\r\n" in text else "\r" if "\r" in text and "\n" not in text else "\n"
    done: list[Autofix] = []
    spans: list[tuple[int, int, str]] = []
    for fix in fixes:
        new = [
            (
                index_of(lines, edit.line, edit.column),
                index_of(lines, edit.end_line, edit.end_column),
                edit.text.replace("\n", newline),
            )
            for edit in fix.edits
        ]
        if all(item in spans for item in new):
            done.append(fix)  # the same edit for two findings
            continue
        if any(_overlap(item, other) for item in new for other in spans):
            continue
        if _parses(_changed(text, [*spans, *new])):
            spans += new
            done.append(fix)
    return _changed(text, spans), done


def diff(before: str, after: str, path: str) -> str:
    """Return a unified diff of two versions of a file."""
    rows = difflib.unified_diff(
        [_shown(item) for item in lines_of(before)],
        [_shown(item) for item in lines_of(after)],
        f"a/{path.lstrip('/')}",
        f"b/{path.lstrip('/')}",
        lineterm="",
    )
    return "\n".join(rows)


def exact_diff(before: str, after: str, path: str) -> str:
    """Return a unified diff as ``git apply`` and ``patch`` take it: line ends as they are, a missing last one named."""
    tab = "\t" if " " in path else ""  # else the name would end at its first space
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    rows = difflib.unified_diff(old, new, f"a/{path}{tab}", f"b/{path}{tab}")
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def _shown(line: str) -> str:
    return line.rstrip("\r\n")


def lines_of(text: str) -> list[str]:
    """Split as Python's tokenizer does: form feeds and the like end no line."""
    return _LINE.findall(text)


def index_of(lines: list[str], line: int, column: int) -> int:
    """Return the index of a position in the text; ``column`` counts UTF-8 bytes."""
    before = sum(map(len, lines[: line - 1]))
    row = lines[line - 1] if line <= len(lines) else ""
    if row.isascii():
        return before + column
    return before + len(row.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "replace"))


def _insertion(text: str, index: int, new: str) -> SourceEdit:
    """Return an insertion at an index of the text as an edit by line and column."""
    at = 0
    for number, row in enumerate(lines_of(text), start=1):
        if index <= at + len(row.rstrip("\r\n")):
            column = len(row[: index - at].encode("utf-8", "surrogatepass"))
            return SourceEdit(number, column, number, column, new)
        at += len(row)
    raise ValueError("an index outside the text")


def _overlap(first: tuple[int, int, str], second: tuple[int, int, str]) -> bool:
    if first[0] == first[1] and second[0] == second[1]:
        return False  # two insertions follow each other
    return first[0] < second[1] and second[0] < first[1]


def _changed(text: str, spans: list[tuple[int, int, str]]) -> str:
    # from the end; insertions at one place keep their order, and stand before what is replaced there
    for start, end, new in sorted(spans, key=lambda span: span[:2])[::-1]:
        text = text[:start] + new + text[end:]
    return text


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
