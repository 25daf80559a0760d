"""Edits of whole statements: put in, taken out, moved, wrapped; every other character stays.

All return None, or no edits, where it cannot be done for sure, such as with several statements on a line.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Sequence

from torchtriage.diagnose.lint.edits import SourceEdit, lines_of
from torchtriage.diagnose.lint.facts import Module

__all__ = [
    "body_of",
    "bound",
    "import_edit",
    "indent_of",
    "insert_after",
    "insert_before",
    "move_before",
    "remove",
    "source",
    "unwrap",
    "without_keyword",
    "wrap",
]

INDENT = "    "


def source(module: Module, node: ast.AST) -> str:
    """Return the text of a node."""
    return ast.get_source_segment(module.text, node) or ""


def bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the variables that statements assign, delete, import, define or go over, functions inside left out."""
    names: set[str] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        todo += ast.iter_child_nodes(node)
    return names


def indent_of(module: Module, statement: ast.stmt) -> str | None:
    """Return the white space before a statement; None where something else stands before it on its line."""
    before = lines_of(module.text)[_first_line(statement) - 1].encode("utf-8", "surrogatepass")[: statement.col_offset]
    return before.decode() if not before.strip() else None


def insert_before(module: Module, statement: ast.stmt, text: str) -> SourceEdit | None:
    """Return the edit that puts lines before a statement, indented as it is; ``text`` : without indentation."""
    indent = indent_of(module, statement)
    return None if indent is None else _insertion(_first_line(statement), text, indent)


def insert_after(module: Module, statement: ast.stmt, text: str) -> SourceEdit | None:
    """Return the edit that puts lines after a statement, indented as it is."""
    indent = indent_of(module, statement)
    rows = lines_of(module.text)
    last = statement.end_lineno or statement.lineno
    if indent is None or not _alone(module, statement):
        return None
    if last == len(rows) and not rows[-1].endswith(("\n", "\r")):
        end = len(rows[-1].encode("utf-8", "surrogatepass"))
        return SourceEdit(last, end, last, end, "".join(f"\n{indent}{row}" for row in text.splitlines()))
    return _insertion(last + 1, text, indent)


def remove(module: Module, statement: ast.stmt) -> SourceEdit | None:
    """Return the edit that takes a statement out, with its lines; ``pass`` stays where it was alone in its body."""
    indent = indent_of(module, statement)
    if indent is None or not _alone(module, statement):
        return None
    body = body_of(module, statement)
    first, last = _first_line(statement), statement.end_lineno or statement.lineno
    if body is not None and len(body) == 1:
        end = statement.end_col_offset or 0
        return SourceEdit(first, len(indent.encode()), last, end, "pass")
    return SourceEdit(first, 0, last + 1, 0, "")


def move_before(module: Module, statement: ast.stmt, target: ast.stmt) -> tuple[SourceEdit, ...]:
    """Return the edits that move a statement before another one, as deep as that is."""
    old, new = indent_of(module, statement), indent_of(module, target)
    out = remove(module, statement)
    if old is None or new is None or out is None:
        return ()
    rows = lines_of(module.text)[_first_line(statement) - 1 : statement.end_lineno]
    inside = _in_strings(module)
    moved = "".join(
        row if number in inside else new + row.removeprefix(old)
        for number, row in enumerate(rows, start=_first_line(statement))
    )
    line = _first_line(target)
    return (SourceEdit(line, 0, line, 0, moved.replace("\r\n", "\n")), out)


def wrap(module: Module, statements: Sequence[ast.stmt], header: str) -> tuple[SourceEdit, ...]:
    """Return the edits that put statements of one body, which follow each other, under ``header`` (``with x:``)."""
    first, last = statements[0], statements[-1]
    indent = indent_of(module, first)
    if indent is None or not _alone(module, last):
        return ()
    inside, rows = _in_strings(module), lines_of(module.text)
    begin, end = _first_line(first), last.end_lineno or last.lineno
    deeper = [
        SourceEdit(line, 0, line, 0, INDENT)
        for line in range(begin, end + 1)
        if line not in inside and rows[line - 1].strip()
    ]
    return (_insertion(begin, header, indent), *deeper)


def unwrap(module: Module, block: ast.With | ast.AsyncWith) -> tuple[SourceEdit, ...]:
    """Return the edits that take a ``with`` away and leave its body, as deep as it was itself."""
    outer, inner = indent_of(module, block), indent_of(module, block.body[0])
    begin, end = _first_line(block.body[0]), block.end_lineno or block.lineno
    if outer is None or inner is None or begin == block.lineno or not _alone(module, block):
        return ()
    inside, rows = _in_strings(module), lines_of(module.text)
    deeper = len(inner) - len(outer)
    shallower = [
        SourceEdit(line, 0, line, min(deeper, len(row) - len(row.lstrip(" \t"))), "")
        for line in range(begin, end + 1)
        if line not in inside and (row := rows[line - 1]).strip()
    ]
    return (SourceEdit(block.lineno, 0, begin, 0, ""), *shallower)


def import_edit(module: Module, text: str) -> SourceEdit | None:
    """Return the edit that adds an import below the first imports of the file; ``text`` : ``import x``."""
    last: ast.stmt | None = None
    for number, node in enumerate(module.tree.body):
        docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not isinstance(node, ast.Import | ast.ImportFrom) and not docstring:
            break
        last = node
    if last is None:
        return SourceEdit(1, 0, 1, 0, f"{text}\n")
    return insert_after(module, last, text)


def without_keyword(call: ast.Call, name: str) -> SourceEdit | None:
    """Return the edit that takes a keyword argument out; None where it is the first of all arguments."""
    parts: list[ast.expr] = sorted(
        (*call.args, *(item.value for item in call.keywords)), key=lambda part: (part.lineno, part.col_offset)
    )
    given = next((item.value for item in call.keywords if item.arg == name), None)
    at = parts.index(given) if given is not None else 0
    if given is None or not at:
        return None
    before = parts[at - 1]
    end = (before.end_lineno or 0, before.end_col_offset or 0)
    return SourceEdit(*end, given.end_lineno or 0, given.end_col_offset or 0, "")


def body_of(module: Module, statement: ast.stmt) -> list[ast.stmt] | None:
    """Return the body, or other branch, that a statement stands in."""
    outer = module.parents.get(statement)
    for name in ("body", "orelse", "finalbody"):
        body = getattr(outer, name, None)
        if isinstance(body, list) and statement in body:
            return body
    return None


def _first_line(statement: ast.stmt) -> int:
    lines = [statement.lineno]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        lines += [decorator.lineno for decorator in statement.decorator_list]
    return min(lines)


def _alone(module: Module, statement: ast.stmt) -> bool:
    """Whether nothing but a comment follows a statement on its last line."""
    row = lines_of(module.text)[(statement.end_lineno or statement.lineno) - 1].encode("utf-8", "surrogatepass")
    rest = row[statement.end_col_offset :].decode("utf-8", "replace")
    return re.fullmatch(r"\s*(#.*)?", rest.rstrip("\r\n")) is not None


def _insertion(line: int, text: str, indent: str) -> SourceEdit:
    return SourceEdit(line, 0, line, 0, "".join(f"{indent}{row}\n" for row in text.splitlines()))


def _in_strings(module: Module) -> set[int]:
    """Return the lines that begin inside a string, whose indentation is not Python's."""
    lines: set[int] = set()
    depth_line: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            lines |= set(range(token.start[0] + 1, token.end[0] + 1))
        elif kind == "FSTRING_START":
            depth_line.append(token.start[0])
        elif kind == "FSTRING_END" and depth_line:
            lines |= set(range(depth_line.pop() + 1, token.end[0] + 1))
    return lines
