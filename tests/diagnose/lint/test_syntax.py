"""What a piece of syntax says by itself."""

from __future__ import annotations

import ast
from pathlib import Path

from torchtriage.diagnose.lint.syntax import walk


def test_walk_goes_the_way_of_the_standard_library() -> None:
    tree = ast.parse(Path(__file__).read_text() + "def f(a, *, b=None, **c): return {**c, a: [b for b in a if b]}\n")
    assert list(walk(tree)) == list(ast.walk(tree))
