"""Conditions: which of them do not hold in every step."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.syntax import literal, path_of


def _words(node: ast.expr) -> list[str]:
    """Return the names and texts in a condition."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [*_words(node.value), node.attr]
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    parts = [part.value if isinstance(part, ast.keyword) else part for part in ast.iter_child_nodes(node)]
    return [word for part in parts if isinstance(part, ast.expr) for word in _words(part)]


_SWITCH = re.compile(r"debug|verbose|profil|dry_run|anomaly|determinis|sanity", re.IGNORECASE)
_COUNTER = re.compile(
    r"(^|_)(step|steps|iter|iteration|it|i|idx|index|j|k|n|batch|batch_idx|epoch|count|counter"
    r"|global_step|batch_i|b|t)(_?(id|idx|num|no|count|i))?$"
)


_kept = lru_cache(maxsize=1 << 14)
_rare_word, _switch_word, _counts = _kept(torch_names.RARE.search), _kept(_SWITCH.search), _kept(_COUNTER.search)


def takes_remainder(test: ast.expr) -> bool:
    """Return whether a remainder is taken somewhere in a condition."""
    if isinstance(test, ast.BinOp):
        return isinstance(test.op, ast.Mod) or takes_remainder(test.left) or takes_remainder(test.right)
    if isinstance(test, ast.Compare):
        return takes_remainder(test.left) or any(map(takes_remainder, test.comparators))
    if isinstance(test, ast.BoolOp):
        return any(map(takes_remainder, test.values))
    return isinstance(test, ast.UnaryOp) and takes_remainder(test.operand)


def is_rare(test: ast.expr, *, negated: bool = False) -> bool:
    """Return whether a condition holds in few steps (``negated``: whether it fails in few)."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_rare(test.operand, negated=not negated)
    if isinstance(test, ast.BoolOp):
        # all must hold: one rare part is enough
        every = isinstance(test.op, ast.And) != negated
        parts = [is_rare(value, negated=negated) for value in test.values]
        return any(parts) if every else all(parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        op = test.ops[0]
        if takes_remainder(test):
            left = isinstance(op, ast.Eq | ast.Lt | ast.LtE)
            return left != negated
        names_ = [part for comparator in (test.left, *test.comparators) for part in _words(comparator)]
        if any(map(_counts, names_)) and isinstance(op, ast.Eq | ast.NotEq):
            return isinstance(op, ast.Eq) != negated
        if (
            isinstance(test.left, ast.Name)
            and _counts(test.left.id)
            and isinstance(op, ast.Lt | ast.LtE)
            and isinstance(literal(test.comparators[0]), int)
        ):
            return not negated
        if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and any("best" in name.lower() for name in names_):
            return not negated  # a new best value becomes rarer with every step
        if isinstance(op, ast.Is | ast.IsNot):
            missing = isinstance(op, ast.Is) and literal(test.comparators[0]) is None
            if negated or missing:
                return False
    if negated:
        if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod):
            return True  # "if step % 50: continue"
        # "if not logging: continue"
        words = [] if isinstance(test, ast.Compare) else _words(test)
        return any(re.search(r"compiling|dynamo|tracing|scripting", word) for word in words)
    if takes_remainder(test):
        return not isinstance(test, ast.BinOp)
    return any(map(_rare_word, _words(test)))


def is_switch(test: ast.expr) -> bool:
    """Return whether a condition is a switch that is off in normal runs, whatever is inside."""
    if isinstance(test, ast.UnaryOp):
        return False
    if isinstance(test, ast.Compare) and any(isinstance(item, ast.NotEq) for item in test.ops):
        return False
    return any(map(_switch_word, _words(test)))


def leaves(body: list[ast.stmt]) -> bool:
    """Return whether a block leaves the rest of this turn out."""
    return bool(body) and isinstance(body[-1], ast.Continue | ast.Return)


def ends(body: list[ast.stmt]) -> bool:
    """Return whether a block is the way out: it runs at most once."""
    return bool(body) and isinstance(body[-1], ast.Raise | ast.Break)


def host_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[int, int]]:
    """Return the first and last lines of a function that run for tensors of the host alone."""
    spans = []
    for node in ast.walk(function):
        if not isinstance(node, ast.If):
            continue
        if _means_host(node.test, holds=True):
            spans.append((node.body[0].lineno, node.body[-1].end_lineno or 0))
        elif _means_host(node.test, holds=False):
            spans += [(part.lineno, part.end_lineno or 0) for part in node.orelse]
            if node in function.body and (leaves(node.body) or ends(node.body)):
                spans.append(((node.end_lineno or 0) + 1, function.end_lineno or 0))
    return spans


def _means_host(test: ast.expr, *, holds: bool) -> bool:
    """Return whether a tensor must be on the host where a condition holds, or does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _means_host(test.operand, holds=not holds)
    if isinstance(test, ast.BoolOp):
        parts = [_means_host(value, holds=holds) for value in test.values]
        return any(parts) if isinstance(test.op, ast.And) == holds else all(parts)
    if isinstance(test, ast.Attribute):
        return test.attr == ("is_cpu" if holds else "is_cuda")
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Eq if holds else ast.NotEq)
        and path_of(test.left).endswith(".device.type")
        and literal(test.comparators[0]) == "cpu"
    )
