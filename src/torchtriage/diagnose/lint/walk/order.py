"""One pass over a file, in the order it runs.

The module's level first; each function where it is first called, then those that nothing called. Of
these a function whose text holds nothing any rule is about is not read at all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from torchtriage.diagnose.lint.facts import Module, SourceFunction
from torchtriage.diagnose.lint.walk import calls, definitions, expressions, loops, statements, truth
from torchtriage.diagnose.lint.walk.flow import flow
from torchtriage.diagnose.lint.walk.following import read_function
from torchtriage.diagnose.lint.walk.walker import Walker

# by type of node
_EXPRESSIONS = {**expressions.EXPRESSIONS, **truth.EXPRESSIONS, **loops.EXPRESSIONS, **calls.EXPRESSIONS}
_STATEMENTS = {**definitions.STATEMENTS, **statements.STATEMENTS, **loops.STATEMENTS}


def walk(tree: ast.Module, text: str, path: str, *, whole: bool = False) -> Module:
    """Return what rules need to know about one parsed file; ``whole`` : functions that no rule speaks about as well."""
    walker = Walker(tree, text, path, _EXPRESSIONS, _STATEMENTS)
    walker.block(tree.body)
    while uncalled := [function for function in walker.unread if whole or function in walker.speaking]:
        for function in _in_order(uncalled):
            read_function(walker, function)
    walker.module.is_program = walker.is_program
    flow(walker.module)
    return walker.module


def _in_order(pending: Iterable[SourceFunction]) -> list[SourceFunction]:
    """Return functions in the order in which they inform each other.

    Constructors first: they say what self's attributes are. Then callers before what they call:
    ``main`` is the last function of most files, public methods are the first of most classes.
    """
    pending = list(pending)
    first = [item for item in pending if item.name in ("__init__", "setup")]
    methods = [item for item in pending if item.owner is not None and item not in first]
    plain = [item for item in reversed(pending) if item.owner is None]
    return [*first, *plain, *methods]
