"""Suppression comments: ``# torchtriage: allow SYN001, empty-cache-in-loop``.

At the end of a line it speaks for that line's statement; on a line of its own for the next one. On
(or directly above) a ``def`` or ``class`` it speaks for its whole body, before the first statement
of a file for the file.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field

from torchtriage.diagnose.lint.syntax import first_line

_COMMENT = re.compile(r"#\s*torchtriage:\s*allow\b\s*:?\s*(?P<codes>[^#]*)")


@dataclass
class Allowance:
    """One comment: its line, what it names, the lines it speaks for, and whether it was needed."""

    line: int
    codes: tuple[str, ...]
    first: int
    last: int
    used: set[str] = field(default_factory=set)


def allowances(text: str, tree: ast.Module) -> list[Allowance]:
    """Return every suppression comment of a file."""
    if "torchtriage:" not in text:
        return []
    comments: list[tuple[int, str, bool]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.type == tokenize.COMMENT and "torchtriage" in token.string:
                alone = not token.line[: token.start[1]].strip()
                comments.append((token.start[0], token.string, alone))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return []
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return [
        _allowance(line, match["codes"], alone, statements, tree)
        for line, comment, alone in comments
        if (match := _COMMENT.search(comment))
    ]


def _allowance(line: int, codes: str, alone: bool, statements: list[ast.stmt], tree: ast.Module) -> Allowance:
    # what follows the codes may be a reason: "allow SYN001 - the value decides"
    listed = re.split(r"(?<!\s)\s+(?:-+|because)\s|--", codes)[0]
    named = tuple(re.findall(r"[A-Za-z]{3}\d{3}|(?<![a-z\d])[a-z][a-z\d]*(?:-[a-z\d]+)+", listed))
    if alone:
        if not tree.body or line < first_line(tree.body[0]):
            return Allowance(line, named, 1, 1 << 60)
        following = [statement for statement in statements if first_line(statement) > line]
        target = min(following, key=lambda item: (first_line(item), -(item.end_lineno or 0)), default=None)
    else:
        around = [statement for statement in statements if first_line(statement) <= line <= (statement.end_lineno or 0)]
        heads = [item for item in around if line < _body_line(item)]
        target = max(heads, key=first_line, default=None)
    if target is None:
        return Allowance(line, named, line, line)
    if isinstance(target, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return Allowance(line, named, first_line(target), target.end_lineno or line)
    return Allowance(line, named, first_line(target), max(_body_line(target) - 1, line))


def _body_line(node: ast.stmt) -> int:
    """Return where a compound statement's body begins; after the end for a simple one."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        first = first_line(body[0])
        return first if first > node.lineno else node.lineno + 1
    return (node.end_lineno or node.lineno) + 1
