"""Edits of whole statements: put in, taken out, moved, wrapped; every other character stays.

All return None, or no edits, where it cannot be done for sure, such as with several statements on a line.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence

from torchtriage.diagnose.lint.edits import (
    Autofix,
    SourceEdit,
    add_keyword,
    apply,
    index_of,
    lines_of,
    replace_lines,
    replace_node,
)
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import first_line, keyword
from torchtriage.diagnose.lint.walk import walk

INDENT = "    "
SHORT = {"numpy": "np"}
"""What packages are imported as."""
LINE = 88
"""Characters of a line, in a file whose own lines are not longer."""


def source(module: Module, node: ast.AST) -> str:
    """Return the text of a node."""
    return ast.get_source_segment(module.text, node) or ""


def operand(module: Module, node: ast.expr) -> str:
    """Return the text of an expression that ``.method()`` or ``[index]`` may stand behind."""
    text = source(module, node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def end_of(node: ast.stmt | ast.expr | ast.keyword | ast.alias) -> tuple[int, int]:
    """Return where a node ends, as an edit takes it: its line, and the column there."""
    return node.end_lineno or 0, node.end_col_offset or 0


def bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the variables that statements assign, delete, import, define, match or go over, not those of functions."""
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
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        todo += ast.iter_child_nodes(node)
    return names


def indent_of(module: Module, statement: ast.stmt) -> str | None:
    """Return the white space before a statement; None where something else stands before it on its line."""
    before = lines_of(module.text)[first_line(statement) - 1].encode("utf-8", "surrogatepass")[: statement.col_offset]
    return before.decode() if not before.strip() else None


def insert_before(module: Module, statement: ast.stmt, text: str) -> SourceEdit | None:
    """Return the edit that puts lines before a statement, indented as it is; ``text`` : without indentation."""
    indent = indent_of(module, statement)
    return None if indent is None else _insertion(first_line(statement), text, indent)


def insert_after(module: Module, statement: ast.stmt, text: str) -> SourceEdit | None:
    """Return the edit that puts lines after a statement, indented as it is."""
    indent = indent_of(module, statement)
    if indent is None or not _alone(module, statement):
        return None
    line = (statement.end_lineno or statement.lineno) + 1
    return replace_lines(module.text, line, line, [f"{indent}{row}" for row in text.splitlines()])


def insert_after_imports(module: Module, first: ast.stmt, text: str) -> SourceEdit | None:
    """Return the edit that puts a line behind the imports that a statement of the file begins."""
    body = module.tree.body
    at = body.index(first)
    while at + 1 < len(body) and isinstance(body[at + 1], ast.Import | ast.ImportFrom):
        at += 1
    return insert_after(module, body[at], f"\n{text}") if at + 1 < len(body) else None


def remove(module: Module, statement: ast.stmt) -> SourceEdit | None:
    """Return the edit that takes a statement out, with its lines; ``pass`` stays where it was alone in its body."""
    indent = indent_of(module, statement)
    if indent is None or not _alone(module, statement):
        return None
    body = body_of(module, statement)
    first, last = first_line(statement), statement.end_lineno or statement.lineno
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
    rows = lines_of(module.text)[first_line(statement) - 1 : statement.end_lineno]
    inside = _in_strings(module)
    moved = "".join(
        row if number in inside else new + row.removeprefix(old)
        for number, row in enumerate(rows, start=first_line(statement))
    )
    line = first_line(target)
    return (SourceEdit(line, 0, line, 0, moved.replace("\r\n", "\n")), out)


def wrap(module: Module, statements: Sequence[ast.stmt], header: str) -> tuple[SourceEdit, ...]:
    """Return the edits that put statements of one body, which follow each other, under ``header`` (``with x:``)."""
    first, last = statements[0], statements[-1]
    indent = indent_of(module, first)
    if indent is None or not _alone(module, last):
        return ()
    inside, rows = _in_strings(module), lines_of(module.text)
    begin, end = first_line(first), last.end_lineno or last.lineno
    deeper = [
        SourceEdit(line, 0, line, 0, INDENT)
        for line in range(begin, end + 1)
        if line not in inside and rows[line - 1].strip()
    ]
    return (_insertion(begin, header, indent), *deeper)


def unwrap(module: Module, block: ast.With | ast.AsyncWith) -> tuple[SourceEdit, ...]:
    """Return the edits that take a ``with`` away and leave its body, as deep as it was itself."""
    outer, inner = indent_of(module, block), indent_of(module, block.body[0])
    begin, end = first_line(block.body[0]), block.end_lineno or block.lineno
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
    # a keyword ends behind the parentheses around its value
    parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    parts.sort(key=lambda part: (part.lineno, part.col_offset))
    given = next((item for item in call.keywords if item.arg == name), None)
    at = parts.index(given) if given is not None else 0
    if given is None or not at:
        return None
    return SourceEdit(*end_of(parts[at - 1]), *end_of(given), "")


def replaced_in(module: Module, outer: ast.stmt | ast.expr, *changes: tuple[ast.expr, str]) -> str:
    """Return the text of a node with some of the nodes inside it replaced."""
    rows = lines_of(module.text)
    text, base = source(module, outer), index_of(rows, outer.lineno, outer.col_offset)
    for node, new in sorted(changes, key=lambda change: (change[0].lineno, change[0].col_offset), reverse=True):
        begin = index_of(rows, node.lineno, node.col_offset) - base
        text = text[:begin] + new + text[begin + len(source(module, node)) :]
    return text


def statement_edit(module: Module, statement: ast.stmt, text: str) -> SourceEdit | None:
    """Return the edit that puts lines in the place of a statement, indented as it is."""
    indent = indent_of(module, statement)
    if indent is None or not _alone(module, statement):
        return None
    new = f"\n{indent}".join(text.splitlines())
    return replace_node(statement, new)


def free_name(module: Module, *names: str) -> str:
    """Return the first of some names that the file does not use; empty where it uses all."""
    taken = {node.id for node in module.parents if isinstance(node, ast.Name)} | set(module.aliases)
    return next((name for name in names if name not in taken), "")


def set_keywords(module: Module, call: ast.Call, values: Mapping[str, str]) -> tuple[SourceEdit, ...]:
    """Return the edits that give keyword arguments of a call these values; none where it cannot be done for sure.

    A call of one line that would be too long is broken behind its parenthesis.
    """
    edits = [add_keyword(module.text, call, name, value) for name, value in values.items()]
    if not all(edits):
        return ()
    row = lines_of(module.text)[(call.end_lineno or call.lineno) - 1].rstrip("\r\n")
    added = sum(len(f", {name}={value}") for name, value in values.items() if keyword(call, name) is None)
    behind = row.encode()[call.end_col_offset :].strip()
    if call.lineno != call.end_lineno or len(row) + added <= _limit(module) or behind:
        return tuple(filter(None, edits))
    arguments = [source(module, item) for item in call.args]
    arguments += [f"{item.arg}={values.get(item.arg or '', source(module, item.value))}" for item in call.keywords]
    arguments += [f"{name}={value}" for name, value in values.items() if keyword(call, name) is None]
    return (replace_node(call, call_text(module, call, arguments)),)


def call_text(module: Module, call: ast.Call, arguments: Sequence[str]) -> str:
    """Return the text of a call with other arguments, in its place: on one line where it fits, else broken."""
    row = lines_of(module.text)[call.lineno - 1].rstrip("\r\n")
    indent = row[: len(row) - len(row.lstrip())]
    name, joined, limit = source(module, call.func), ", ".join(arguments), _limit(module)
    if len(row.encode()[: call.col_offset]) + len(name) + len(joined) + 2 <= limit:
        return f"{name}({joined})"
    if len(indent) + len(INDENT) + len(joined) <= limit:
        return f"{name}(\n{indent}{INDENT}{joined}\n{indent})"
    return f"{name}(\n" + "".join(f"{indent}{INDENT}{item},\n" for item in arguments) + f"{indent})"


def _limit(module: Module) -> int:
    """Return how long a line may be, as far as the file's own lines show."""
    return min(max(LINE, *(len(line.rstrip()) for line in lines_of(module.text))), 120)


def again(module: Module, edits: tuple[SourceEdit, ...]) -> Module:
    """Return what is known of a file after edits: for changes that are made in stages."""
    text = apply(module.text, [Autofix(edits, "")])[0]
    new = walk(ast.parse(text), text, module.path, whole=True)
    new.others = module.others
    return new


def edits_between(before: str, after: str) -> tuple[SourceEdit, ...]:
    """Return the edits, by whole lines, that make one text of another."""
    old, new = lines_of(before), lines_of(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return tuple(
        SourceEdit(first + 1, 0, last + 1, 0, "".join(new[begin:end]).replace("\r\n", "\n"))
        for tag, first, last, begin, end in matcher.get_opcodes()
        if tag != "equal"
    )


def complete(edits: Iterable[SourceEdit | None]) -> tuple[SourceEdit, ...]:
    """Return edits that belong together; none of them where one cannot be made."""
    found = list(edits)
    return tuple(edit for edit in found if edit is not None) if None not in found else ()


def alias_of(module: Module, full: str, otherwise: str = "") -> str:
    """Return how a file names a module or a thing that it imports."""
    return next((name for name, known in module.aliases.items() if known == full), otherwise)


def module_in(module: Module, full: str) -> tuple[str, list[SourceEdit | None]]:
    """Return how a file names a module, and the edit that imports it where it does not yet."""
    known = alias_of(module, full)
    return (known, []) if known else (full, [import_edit(module, f"import {full}")])


def imported(module: Module, full: str) -> tuple[str, tuple[SourceEdit, ...]]:
    """Return how a file names a thing, ``package.Thing``, and the edits that import it where it does not yet."""
    holder, _, last = full.rpartition(".")
    known_as = alias_of(module, full)
    if known_as:
        return known_as, ()
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == holder and not node.level:
            first = node.names[0]
            if first.name > last:
                at, text = (first.lineno, first.col_offset), f"{last}, "
            else:
                names = [alias for alias in node.names if alias.name < last] or node.names[-1:]
                at, text = end_of(names[-1]), f", {last}"
            return last, (SourceEdit(*at, *at, text),)
    for name, known in module.aliases.items():
        if holder == known or holder.startswith(f"{known}."):
            return f"{name}{full.removeprefix(known)}", ()
    short = SHORT.get(holder)
    edit_or_none = _sorted_import(module, f"import {holder} as {short}" if short else f"from {holder} import {last}")
    return f"{short}.{last}" if short else last, (edit_or_none,) if edit_or_none is not None else ()


def _sorted_import(module: Module, text: str) -> SourceEdit | None:
    """Return the edit that adds an import among those like it, in the order of their names."""
    new = ast.parse(text).body[0]
    first = [node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    section = [
        node for node in first if (_root(node) in sys.stdlib_module_names) == (_root(new) in sys.stdlib_module_names)
    ]
    section = [node for node in section if _root(node) != "__future__"]
    if not section:
        return import_edit(module, text)
    later = [
        node
        for node in section
        if (isinstance(node, ast.ImportFrom), _root(node)) > (isinstance(new, ast.ImportFrom), _root(new))
    ]
    return insert_before(module, later[0], text) if later else insert_after(module, section[-1], text)


def _root(node: ast.stmt) -> str:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0]
    return node.names[0].name.partition(".")[0] if isinstance(node, ast.Import) else ""


def body_of(module: Module, statement: ast.stmt) -> list[ast.stmt] | None:
    """Return the body, or other branch, that a statement stands in."""
    outer = module.parents.get(statement)
    for name in ("body", "orelse", "finalbody"):
        body = getattr(outer, name, None)
        if isinstance(body, list) and statement in body:
            return body
    return None


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
